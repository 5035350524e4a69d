"""Settings that cost where ranks gather what nothing trains, or send again what they compute again."""

from __future__ import annotations

from nsysx.findings import _called_units as called
from nsysx.findings import _costly_jobs as jobs
from nsysx.findings import _forwards_first as first
from nsysx.findings import _forwards_in_turn as in_turn
from nsysx.findings import _gathered_twice as twice
from nsysx.findings import _recomputed_exchanges as recomputed
from nsysx.findings import _reduced_scales as scales
from nsysx.findings import _root_unit as root
from nsysx.findings import _sharded_models as shards
from nsysx.findings import _small_units as small
from nsysx.findings import _syncs_of_micro_steps as syncs
from nsysx.findings import _untrained_gathers as untrained
from nsysx.findings._case import way
from nsysx.findings._costly_setting import Costly
from nsysx.findings._units_in_words import in_its_words as in_units

OF_SHARDS = (
    Costly(
        "CPU offload",
        shards.offloads,
        "A sharded model keeps its parameters on the CPU",
        way("no-offload"),
        worth=shards.kept_on_gpu,
        leads=True,
        set_by=("FSDP",),
    ),
    Costly(
        "small units",
        small.small_units,
        "Many small modules are sharded each by itself",
        way("blocks-as-units"),
        worth=small.fewer_units,
        set_by=("FSDP",),
        worded=in_units,
    ),
    Costly(
        "unit called again",
        called.seen,
        called.CALLED_AGAIN,
        way("unit-of-root"),
        worth=called.worth,
        takes=called.taken,
        oversight=True,
        set_by=("FSDP",),
        phase="forward",
        at=called.place,
    ),
    Costly(
        "gathers in a loop",
        untrained.gathers_in_loop,
        untrained.IN_LOOP,
        way("gathered-once"),
        worth=untrained.gathered_once,
        takes=untrained.of_loop,
        oversight=True,
        set_by=("FSDP",),
        phase="evaluation",
        at=untrained.place_of_loop,
        worded=untrained.once_in_its_words,
    ),
    Costly(
        "gathers of a frozen network",
        untrained.gathers_frozen,
        untrained.OF_FROZEN,
        way("whole-network"),
        worth=untrained.kept_whole,
        takes=untrained.of_network,
        oversight=True,
        set_by=("FSDP",),
        phase="evaluation",
        at=untrained.place_of_network,
        worded=untrained.whole_in_its_words,
    ),
    Costly(
        "gathers of a frozen base",
        untrained.gathers_base,
        untrained.OF_BASE,
        way("whole-base"),
        worth=untrained.base_kept,
        takes=untrained.of_base,
        oversight=True,
        set_by=("FSDP",),
        phase="forward",
        worded=untrained.base_in_its_words,
    ),
    Costly(
        "large root unit",
        root.seen,
        root.LARGE_ROOT,
        way("root-in-parts"),
        worth=root.worth,
        takes=root.taken,
        oversight=True,
        set_by=("FSDP",),
        worded=root.worded,
    ),
    Costly(
        "gathers in micro-steps",
        shards.gathers_in_micro_steps,
        "Each micro-step gathers parameters that no optimizer has changed",
        way("gathered-for-step"),
        worth=jobs.kept_for_step,
        takes=shards.of_micro_steps,
        oversight=True,
        set_by=("FSDP",),
        phase="forward",
        at=syncs.place,
        worded=syncs.worded,
    ),
    Costly(
        "exchanges recomputed",
        recomputed.exchanged_again,
        "Checkpoints repeat exchanges between ranks in backward",
        way("exchanges-kept"),
        worth=recomputed.sent_once,
        takes=recomputed.taken,
        oversight=True,
        phase="backward",
        at=recomputed.place_of_checkpoint,
        worded=recomputed.in_its_words,
    ),
    Costly(
        "gathered twice in backward",
        twice.seen,
        twice.GATHERED_TWICE,
        way("checkpoint-not-reentrant"),
        worth=twice.worth,
        takes=twice.taken,
        oversight=True,
        set_by=("FSDP",),
        phase="backward",
        at=twice.place,
        worded=twice.worded,
    ),
    Costly(
        "all forwards first",
        first.kept_for_all,
        "All forwards run before the first backward, and are computed again",
        way("backward-behind-forward"),
        worth=first.computed_once,
        takes=first.taken,
        phase="backward",
        at=first.place_of_schedule,
        worded=first.in_its_words,
    ),
    Costly(
        "calls in turn",
        in_turn.called_in_turn,
        "Calls of a sharded network before one backward gather its parameters each",
        way("rows-in-one-call"),
        worth=in_turn.gathered_for_all,
        takes=in_turn.taken,
        oversight=True,
        set_by=("FSDP",),
        phase="forward",
        at=in_turn.place_of_calls,
    ),
    Costly(
        "scales one by one",
        scales.scales_one_by_one,
        "Layers reduce the largest number of a tensor over the ranks, each by itself",
        way("scales-of-last-step"),
        worth=scales.reduced_at_once,
        seen=scales.scales_one_by_one,
        takes=scales.taken,
        oversight=True,
        phase="forward",
        at=scales.place_of_scales,
    ),
)

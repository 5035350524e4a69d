"""What a sharded model gathers in more bits than it computes in, what it keeps on the CPU, and whether each GPU has room for all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses.helpers import limits_of_work
from nsysx.catalogue import StepPart
from nsysx.events.frozen_base import frozen_base, parted_by_zero, sharded_networks
from nsysx.events.gathers_of_micro_steps import gathers_of_micro_steps
from nsysx.events.profile import NotRecorded
from nsysx.events.recorded_settings import BYTES_OF_KIND, RecordedSettings, settings_of
from nsysx.findings import _entered_late
from nsysx.findings._case import Case, Saving
from nsysx.findings._costly_jobs import ddp, sharded
from nsysx.findings._exposed_transfer import communication, exposed_transfer_ns
from nsysx.findings._finding_bounds import BYTES_OF_A_CAST, BYTES_OF_TRAINING, SPARE_MEMORY_SHARE
from nsysx.findings._once import Takes
from nsysx.findings._own_shards import reduced_as_bfloat16
from nsysx.frames import lookup
from nsysx.model import Row
from nsysx.records import whole_number
from nsysx.replay import job_changes

_GATHERS = r"AllGather"


def gathers_again(case: Case, settings: RecordedSettings) -> str:
    """Return that parameters are gathered a second time in backward although the card holds all of them."""
    again = [
        r
        for r in sharded(settings)
        if r.get("reshard_after_forward") is True or "FULL_SHARD" in str(r.get("sharding_strategy"))
    ]
    gone, whole = job_changes.gone(case.profile, "no-reshard"), gathered_bytes(settings)
    never_used = spare_bytes(settings, whole)
    if not again or not gone or not whole or never_used is None or gathers_in_micro_steps(case, settings):
        return ""
    if base_fits(case, settings):
        return ""  # it need not be sharded
    count = sum(n for r in again if isinstance(n := r.get("count"), int))
    again_in = "in backward" if job_changes.has_backward(case.profile) else "for the next one"
    return (
        f"FSDP frees the parameters of {units.several(count, 'unit')} after forward and gathers them again {again_in} "
        f"(reshard_after_forward=True); all of them take {units.size(whole)}, and {units.size(never_used)} of the card are never used"
    )


def gathers_in_micro_steps(case: Case, settings: RecordedSettings) -> str:
    """Return that each micro-step of a step gathers the parameters anew although the card holds all of them."""
    repeated, whole = gathers_of_micro_steps(case.profile), gathered_bytes(settings)
    never_used = spare_bytes(settings, whole)
    if repeated is None or not whole or never_used is None or base_fits(case, settings):
        return ""
    return (
        f"each of the {repeated.rounds} micro-steps of a step gathers the parameters for its forward, its backward or both, and nothing "
        f"changes them before the optimizer: {units.several(repeated.each, 'gather')} of a step bring what was there; all parameters take "
        f"{units.size(whole)}, and {units.size(never_used)} of the card are never used"
    )


def of_micro_steps(case: Case) -> Takes:
    """Return these gathers, and the copies out of what came."""
    repeated = gathers_of_micro_steps(case.profile)
    return Takes(frozenset() if repeated is None else repeated.ops)


def spare_bytes(settings: RecordedSettings, more: float) -> int | None:
    """Return the memory of the card that is never used, None where that is not known or ``more`` bytes would not fit with some to spare."""
    memory = settings.record.get("memory")
    of_card = memory if isinstance(memory, Mapping) else {}
    total, peak = of_card.get("total_bytes"), of_card.get("reserved_peak_bytes")
    if not isinstance(total, int) or not isinstance(peak, int) or peak + more > (1 - SPARE_MEMORY_SHARE) * total:
        return None
    return total - peak


def elements(settings: RecordedSettings) -> int:
    """Return the numbers of all parameters of the program's optimizers, 0 where they are not known."""
    return sum(n for row in settings.rows("optimizers") or () if isinstance(n := row.get("elements"), int))


def has_room_for_gradients(settings: RecordedSettings) -> bool:
    """Return whether whole gradients, as float32, would fit beside what the card holds, as far as that is known."""
    unknown = not isinstance(settings.record.get("memory"), Mapping)
    return unknown or spare_bytes(settings, BYTES_OF_KIND["float32"] * elements(settings)) is not None


def parameter_bytes(settings: RecordedSettings, wrappers: Sequence[Row] = ()) -> int:
    """Return the bytes of all parameters of the program's optimizers, as these wrappers gather them; 0 where that is not known."""
    kind = next((str(r["parameter_dtype"]) for r in wrappers if r.get("parameter_dtype")), "")
    return settings.trained_bytes(kind)


def gathered_bytes(settings: RecordedSettings) -> int:
    """Return the bytes of all parameters of a sharded model when they are gathered, frozen ones too; 0 where that is not known.

    Of units with flat parameters (FSDP) each rank counts its own part.
    """
    wrappers = sharded(settings)
    kind = next((str(r["parameter_dtype"]) for r in wrappers if r.get("parameter_dtype")), "")
    network, _ = next(iter(sharded_networks(settings)), ({}, 0))
    stored = network.get("dtypes") or {}
    whole = sum((whole_number(n) or 0) * BYTES_OF_KIND.get(kind or str(name), 4) for name, n in stored.items())
    ranks = max((len(each) for each in settings.groups_of_ranks()), default=1) if settings.wrappers("FSDP") else 1
    trained = parameter_bytes(settings, wrappers)
    return max(whole * ranks, trained) if trained or parted_by_zero(settings) else 0


def base_fits(case: Case, settings: RecordedSettings) -> int:
    """Return the bytes of a sharded network that is nearly all frozen, if it is known that each card has room for all of it; else 0."""
    whole = gathered_bytes(settings) if frozen_base(case.profile) is not None else 0
    return whole if whole and spare_bytes(settings, whole) is not None else 0


def offloads(case: Case, settings: RecordedSettings) -> str:
    """Return that a sharded model keeps its parameters on the CPU."""
    if not any(r.get("offload") is True for r in sharded(settings)):
        return ""
    return "FSDP keeps parameters and gradients on the CPU: each step copies all of them both ways, and the optimizer runs there"


def _gathered_ns(case: Case) -> int:
    """Return the exposed transfer of the gathers (ns a step); 0 where the ranks do not tell it from waiting."""
    return exposed_transfer_ns(case, lookup.matching(communication(case)["name"], _GATHERS))


def _casts_ns(case: Case, settings: RecordedSettings) -> float:
    """Return what it takes to convert all parameters once for each forward of a step (ns), 0 where the rate of memory is not known."""
    try:
        rates = case.profile.once(limits_of_work.device_rates)
    except NotRecorded:
        return 0.0
    return (rates.memory_ns(BYTES_OF_A_CAST * elements(settings)) or 0.0) * max(settings.number("backwards") or 1, 1)


def gathers_float32(case: Case, settings: RecordedSettings) -> str:
    """Return that parameters are gathered as float32 for products that autocast computes in 16 bits."""
    rows, kinds = sharded(settings), settings.autocast("dtypes")
    halves = (
        [kind for kind, count in kinds.items() if count and "16" in str(kind)] if isinstance(kinds, Mapping) else []
    )
    stored = {
        str(kind)
        for row in settings.rows("optimizers") or ()
        if isinstance(row.get("dtypes"), Mapping)
        for kind in row["dtypes"]
    }
    wide = rows and all(row.get("parameter_dtype") in (None, "float32") for row in rows) and stored == {"float32"}
    transfer = _gathered_ns(case) if wide and halves else 0
    if not case.notable(transfer / 2):
        return ""
    return (
        f"autocast converts parameters to 16 bits in each forward, after they were gathered as float32: {units.duration(transfer)} of a "
        "step is their transfer that nothing hides. Converted before they are sent they have half of the bytes, and each rank converts its "
        "own part alone"
    )


def half_of_what_is_gathered(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return the most that gathers of half the bytes save: half of their exposed transfer, and the conversions of whole parameters."""
    casts = _casts_ns(case, settings) if settings is not None else 0.0
    return case.bound(
        _gathered_ns(case) / 2 + casts, "half of the bytes are gathered, and no whole weight is converted"
    )


def kept_on_gpu(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return the most that it saves to keep a sharded model on the GPU: its copies, and all idle time."""
    parts = (part for part in StepPart if part.idle or part in (StepPart.COPY, StepPart.COMM))
    return case.bound(
        case.taken_by(parts), "no copies, no optimizer on the CPU, and no rank waits for those of another"
    )


def fits_whole(settings: RecordedSettings) -> int:
    """Return the bytes of weights, gradients and the optimizer's state of the whole model, if each card has room for them; else 0."""
    whole = BYTES_OF_TRAINING * elements(settings)
    return whole if whole and spare_bytes(settings, 2 * whole) is not None else 0


def reduced_in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return the advice with what the program's wrapper calls it."""
    settings = settings_of(case.profile)
    if settings is None or not settings.wrappers("fully_shard"):
        return title, _entered_late.in_its_words(case, remedy)
    text = "Reduce gradients in the last micro-step alone: set_requires_gradient_sync(False) before the others, and True before it"
    return title, replace(
        remedy,
        text=text,
        paste="model.set_requires_gradient_sync(last)  # before each forward; last: of the step's micro-batches",
    )


def rounded_in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return the advice to reduce in 16 bits as the program's wrapper takes it: those that shard have a policy, and no hook of DDP."""
    settings = settings_of(case.profile)
    rows = [] if settings is None or ddp(settings) is not None else sharded(settings)
    if settings is None or not rows:
        return title, remedy
    kept = "param_dtype=torch.bfloat16, " if all(r.get("parameter_dtype") == "bfloat16" for r in rows) else ""
    precision = f"({kept}reduce_dtype=torch.bfloat16)"
    if settings.wrappers("fully_shard"):
        paste = reduced_as_bfloat16(case, settings, f"MixedPrecisionPolicy{precision}")
    else:
        paste = (
            f"precision = MixedPrecision{precision}\n"
            "model = FullyShardedDataParallel(model, mixed_precision=precision)  # and the other options as they are"
        )
    return title, replace(remedy, paste=paste)

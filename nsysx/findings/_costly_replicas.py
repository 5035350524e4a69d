"""Settings that cost where each rank has the whole network: how its optimizer and its reductions are shared among the ranks."""

from __future__ import annotations

from nsysx.findings import _compressing_hooks as hooks
from nsysx.findings import _gradients_at_once as at_once
from nsysx.findings import _local_steps as local
from nsysx.findings import _shared_optimizers as shared
from nsysx.findings import _zero_options as zero
from nsysx.findings._case import way
from nsysx.findings._costly_setting import Costly

OF_REPLICAS = (
    Costly(
        "gradients of one graph",
        at_once.seen,
        at_once.TITLE,
        way("compiled-behind-wrapping"),
        worth=at_once.worth,
        oversight=True,
        set_by=("DDP",),
        phase="backward",
        worded=at_once.in_its_words,
    ),
    Costly(
        "ZeRO stage in micro-steps",
        zero.reduces_each,
        "ZeRO reduces gradients in each micro-step",
        way("zero-stage-1"),
        worth=zero.reduced_once,
        takes=zero.of_early,
        oversight=True,
        phase="backward",
        place=zero.CONFIGURATION,
    ),
    Costly(
        "ZeRO overlap_comm",
        zero.in_line,
        "ZeRO reduces gradients in line with backward",
        way("zero-overlap"),
        worth=zero.beside_backward,
        takes=zero.of_reductions,
        oversight=True,
        phase="backward",
        place=zero.CONFIGURATION,
    ),
    Costly(
        "compressing hook",
        hooks.compresses,
        "A hook of DDP compresses gradients that the links would send in less time",
        way("reduced-whole"),
        worth=hooks.without_hook,
        takes=hooks.taken,
        phase="backward",
        set_by=("comm_hook",),
    ),
    Costly(
        "local steps reduced",
        local.reduces_all,
        "Local steps reduce their gradients over all ranks",
        way("local-steps"),
        worth=local.without,
        takes=local.taken,
        leads=True,
        phase="backward",
        set_by=("comm_hook",),
    ),
    Costly(
        "shared optimizer state",
        shared.shares_state,
        "The optimizer's state is shared out over the ranks although each has room for it",
        way("whole-state"),
        worth=shared.whole_state,
        takes=shared.of_broadcasts,
        phase="optimizer",
        set_by=("optimizer",),
        worded=shared.in_its_words,
    ),
    Costly(
        "parameters_as_bucket_view",
        shared.sends_one_by_one,
        "Updated parameters are sent one by one",
        way("updates-in-buckets"),
        worth=shared.in_buckets,
        takes=shared.of_broadcasts,
        phase="optimizer",
        set_by=("optimizer",),
        worded=shared.in_its_words,
    ),
)

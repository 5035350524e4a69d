"""What normalization over all ranks costs beyond normalization of each rank's own samples: its collectives, and the many launches for them.

A layer of SyncBatchNorm gathers its statistics in forward and reduces them in backward, with kernels for each part of that; BatchNorm has
one call of a library for each. The work on the activations themselves is the same.
"""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.catalogue import DeviceActivity
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.operator_flow import flow_of
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving, calls_of, ops_of
from nsysx.findings._finding_bounds import KERNELS_ON_ACTIVATIONS
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import FEWEST_NORMALIZED_SAMPLES
from nsysx.replay.edits import RemoveCalls, RemoveHost, RemoveOps, RemoveWaits

#: Layers that exchange their statistics in each forward and backward.
SYNCHRONIZED = r"\bSyncBatchNorm"
_STATISTICS = "aten::batch_norm_stats"


def layers(profile: Profile) -> list[str]:
    """Return the layers that normalize over all ranks; none where a rank has too few samples for statistics of its own."""
    if profile.once(_few_samples):
        return []
    modules = profile.attributed.modules
    named = modules["module"].filter(modules["cls"].str.contains(SYNCHRONIZED).fill_null(value=False))
    return [str(module) for module in named.to_list()]


def _few_samples(profile: Profile) -> bool:
    """Return whether an X-ray step shows that such layers are given few samples: the first dimension of what they normalize."""
    flow = flow_of(profile)
    given = (
        () if flow is None else (text for name, text in zip(flow.names, flow.size, strict=True) if name == _STATISTICS)
    )
    samples = [size[0] for text in given for size in sizes_of(text)[:1] if size]
    return bool(samples) and max(samples) < FEWEST_NORMALIZED_SAMPLES


def _beyond_own(profile: Profile) -> pl.DataFrame:
    """Return the GPU work of these layers (op, call, cls, ns) that is not on their activations."""
    ops = profile.steady_ops.select("op", "call", "cls", "module", "phase", ns=pl.col("end_ns") - pl.col("start_ns"))
    theirs = ops.filter(ops["module"].cast(pl.String).is_in(layers(profile)).fill_null(value=False))
    steps = profile.scope.steps or 1
    exchanges = theirs["cls"] == DeviceActivity.COMM.value
    longest = pl.col("ns").rank("ordinal", descending=True).over("module", "phase")
    return pl.concat(
        [theirs.filter(exchanges), theirs.filter(~exchanges).filter(longest > KERNELS_ON_ACTIVATIONS * steps)]
    )


def synchronizes(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that layers normalize over all ranks, and what they do for it."""
    if not layers(case.profile):
        return ""
    more = case.profile.once(_beyond_own)
    exchanges = more.filter(more["cls"] == DeviceActivity.COMM.value)
    if not exchanges.height:
        return ""
    return (
        f"{units.several(len(layers(case.profile)), 'layer')} of SyncBatchNorm exchange their statistics with all ranks, "
        f"{case.often(exchanges.height, 'collective', 'collectives')} a step, and launch {units.count(round(more.height / case.steps))} "
        "kernels for that beside those on the activations: forward and backward wait for each"
    )


def without(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it saves if each rank normalizes its own samples."""
    more = case.profile.once(_beyond_own)
    gone = frozenset(more["call"].drop_nulls().to_list()) & calls_of(case.calls)
    return case.worth(RemoveWaits(gone), RemoveCalls(gone), RemoveHost(gone, leading=True), RemoveOps(ops_of(more)))


def taken(case: Case) -> Takes:
    """Return the GPU work that goes."""
    return Takes(ops_of(case.profile.once(_beyond_own)))

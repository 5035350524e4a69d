"""Why a device idles where it waited in collectives as recorded: the host of the rank that it waited for comes late, and knows why.

A rank that is ahead in the recording stands in collectives and idles nowhere. Without the profiler its waits are shorter, and what was
waiting is idle time: of its own launches, as far as its own calls tell. Its peer's device idled for the same work, with a cause.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.catalogue import Cause, DeviceActivity, StepPart
from nsysx.events.profile import Profile
from nsysx.frames.lookup import having
from nsysx.replay import peers
from nsysx.replay.chain import Chain
from nsysx.replay.chain_columns import Columns
from nsysx.replay.device_round import DeviceRound, on_device

#: What the host does until it launches, and the launches themselves.
_UNTIL_LAUNCHED = [cause for cause in Cause if cause.part in (StepPart.HOST, StepPart.LAUNCH)]


def as_late_rank_idles(profile: Profile, chain: Chain, recorded: Columns, shown: DeviceRound) -> DeviceRound:
    """Return a round in which idle time for the host that waiting in collectives turned into has the causes of the rank waited for.

    ``recorded``: the columns of the round as recorded. It is as it is where no other rank is in the report, or none came later.
    """
    late = profile.once(_late_rank)
    if late is None:
        return shown
    before = on_device(chain, recorded, peers.communication(profile))
    waited = before.exposed_comm_ns - shown.exposed_comm_ns
    now = {cause: shown.causes.get(cause.value, 0) for cause in _UNTIL_LAUNCHED}
    turned = min(waited, sum(now.values()) - sum(before.causes.get(cause.value, 0) for cause in _UNTIL_LAUNCHED))
    if turned <= 0:
        return shown
    kept = 1 - turned / sum(now.values())
    causes = {cause: round(ns * kept) + round(turned * late.causes.get(cause, 0.0)) for cause, ns in now.items()}
    # Rounding leaves a few ns, which the largest takes.
    most = max(causes, key=lambda cause: causes[cause])
    causes[most] += sum(now.values()) - sum(causes.values())
    others = {name: ns for name, ns in shown.causes.items() if name not in {cause.value for cause in now}}
    named = others | {cause.value: ns for cause, ns in causes.items() if ns > 0}
    return replace(shown, causes=named, turned_ns=turned)


def late_rank_of(profile: Profile) -> Profile | None:
    """Return the profile with the rank shown that comes last; None where the shown one does itself, or no other rank is in the report."""
    late = profile.once(_late_rank)
    return (
        None if late is None else next((each for each in peers.others(profile) if each.process == late.process), None)
    )


class _LateRank(NamedTuple):
    """The rank that comes last, and why its device idles for its host, as shares."""

    process: int
    causes: dict[Cause, float]


def _late_rank(profile: Profile) -> _LateRank | None:
    """Return the rank that comes last; None where the shown one does itself, or its device does not idle for its host.

    Who comes last waits for nobody: it has the least time in collectives.
    """
    windows = profile.steps.windows
    here = profile.steps.process
    times = {process: _in_collectives(profile, process) for process in peers.ranks(profile)}
    last = min(times, key=lambda process: (times[process], process), default=here)
    if here not in times or last == here or times[last] >= times[here]:
        return None
    sums = dict.fromkeys(_UNTIL_LAUNCHED, 0)
    for device, start, end in having(windows, process=last)["device", "start_ns", "end_ns"].iter_rows():
        pieces = profile.ledgers.idle_of(last, device).filter(pl.col("start_ns") < end, pl.col("end_ns") > start)
        ns = np.minimum(pieces["end_ns"].to_numpy(), end) - np.maximum(pieces["start_ns"].to_numpy(), start)
        by_number = np.bincount(pieces["cause"].to_numpy(), ns, minlength=len(Cause))
        for number, cause in enumerate(Cause):
            if cause in sums:
                sums[cause] += int(by_number[number])
    whole = sum(sums.values())
    return _LateRank(last, {cause: ns / whole for cause, ns in sums.items()}) if whole else None


def _in_collectives(profile: Profile, process: int) -> int:
    """Return how long the devices of a rank are in collectives within its steady steps (ns)."""
    ops = having(profile.attributed.gpu_ops, process=process)
    ops = ops.filter(ops["cls"] == DeviceActivity.COMM.value)
    spans = having(profile.steps.windows, process=process)["start_ns", "end_ns"].iter_rows()
    start, end = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    return sum(int(np.maximum(np.minimum(end, last) - np.maximum(start, first), 0).sum()) for first, last in spans)

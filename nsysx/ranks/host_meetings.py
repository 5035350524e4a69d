"""Communication on the host that several ranks make, matched over them: what each waits for a late rank, and what moves data.

It is matched and divided as that of the GPU (``match``, ``collective_costs``). What counts is the time in which the GPU idles for it: the
other cause of an idle device that is nobody's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from nsysx.catalogue import Cause
from nsysx.events import host_messages
from nsysx.events.profile import Profile
from nsysx.frames.intervals import coverage
from nsysx.ranks import collective_costs as costs_room
from nsysx.ranks.collective_costs import CollectiveCosts, Stretches
from nsysx.ranks.match import Aligned, align
from nsysx.ranks.rank_record import CollectiveSeries, HostCalls, LedgerTiles
from nsysx.reading.nccl_notes import SEND_RECEIVE


def host_calls(profile: Profile, process: int, device: int, tiles: LedgerTiles | None) -> HostCalls:
    """Return the calls of MPI of a process, and when a device idles for communication on the host, in steps where there are some."""
    kinds, made = host_messages.meetings(profile.trace, process)
    if not made.height:
        return HostCalls()
    series = tuple(
        CollectiveSeries(
            0, f"{k.communicator}, {k.name}" if k.pair and k.communicator else k.communicator, name, name, k.pair
        )
        for k in kinds
        for name in (SEND_RECEIVE if k.pair else k.name,)
    )
    idle = profile.ledgers.idle_of(process, device).filter(pl.col("cause") == Cause.HOST_COMM.number)
    sets = [(idle["start_ns"].to_numpy(), idle["end_ns"].to_numpy())]
    sets += [] if tiles is None else [(tiles.start_ns, tiles.end_ns)]
    times = coverage(sets)
    inside = times.labels == (1 << len(sets)) - 1
    return HostCalls(
        series,
        made["meeting"].to_numpy(),
        made["start_ns"].to_numpy(),
        made["end_ns"].to_numpy(),
        made["bytes"].fill_null(-1).to_numpy(),
        (times.times[:-1][inside], times.times[1:][inside]),
    )


@dataclass(frozen=True)
class HostMeetings:
    """The ranks of a job with their communication on the host in place of that of the GPU, and what it costs each of them."""

    aligned: Aligned
    costs: Sequence[CollectiveCosts]
    parts: Sequence[Stretches]


def compare(aligned: Aligned) -> HostMeetings | None:
    """Return what communication on the host costs the ranks of a job, whose clocks are aligned by that of the GPU; None without any."""
    if not any(len(rank.host_calls.start_ns) for rank in aligned.ranks):
        return None
    first = next((r.utc_epoch_ns for r in aligned.ranks if r.utc_epoch_ns is not None), 0)
    ranks = [
        replace(
            rank,
            # The session starts as the collectives of the GPU have corrected them.
            utc_epoch_ns=first + offset,
            members={},
            series=rank.host_calls.series,
            belongs=rank.host_calls.belongs,
            start_ns=rank.host_calls.start_ns,
            end_ns=rank.host_calls.end_ns,
            message_bytes=rank.host_calls.message_bytes,
            exposed=rank.host_calls.idle,
            places=(),
            placed=np.empty(0, np.int64),
        )
        for rank, offset in zip(aligned.ranks, aligned.offset, strict=True)
    ]
    on_host = align(ranks)
    costs = costs_room.costs_of(on_host)
    return HostMeetings(on_host, costs, [costs_room.stretches(r, c) for r, c in zip(ranks, costs, strict=True)])

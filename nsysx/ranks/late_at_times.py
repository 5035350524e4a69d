"""A rank that is late in a few steps alone, by far: it saves, logs or reads a file then, and all others wait for it.

Over all steps it may be no straggler, because nothing of it shows in most of them, and its peers' steps are as long as its own. Step by
step it shows: in some of them a rank takes far longer without waiting than the median of its peers, and no other rank ever does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from nsysx.catalogue import Late
from nsysx.events import trend
from nsysx.events.nvtx_ranges import Flags
from nsysx.frames.intervals import I64
from nsysx.frames.statistics import F64
from nsysx.ranks import straggler, work_at_times
from nsysx.ranks.behind import behind_peers
from nsysx.ranks.job_compared import JobCompared
from nsysx.ranks.rank_bounds import (
    ALONE_AT_TIMES_SHARE,
    LATE_AT_TIMES_SHARE,
    LATE_STEP_TIMES,
    LEAST_LATE_SHARE,
    MOST_LATE_STEPS_SHARE,
    USUAL_BEHIND_SHARE,
)
from nsysx.ranks.rank_record import Rank


class LateAtTimes(NamedTuple):
    """A rank is late by ``ns`` in so many of ``steps``, ``cost_ns`` of each of all; ``every``: they come in a period, None without one.

    ``cause``: what is longer in them than in its usual steps, a code of ``Late``. ``even_ns``: by how much its late steps are shorter if
    all ranks take as long in them. ``dealt``: the work of which it has more then, where its peers have a part of that, else None.
    """

    late_steps: int
    steps: int
    every: int | None
    ns: int
    cost_ns: int
    cause: str
    even_ns: int
    dealt: Mapping[str, Any] | None


def of_each(compared: JobCompared) -> dict[int, LateAtTimes]:
    """Return the place of a rank -> its steps in which it is late, for the one of each group that is late in few of them."""
    told: dict[int, LateAtTimes] = {}
    for group in straggler.groups(compared.costs):
        own_ns = straggler.without_waiting(compared.ranks, compared.costs, group)
        of_one = None if own_ns is None else _late(own_ns)
        if of_one is not None and own_ns is not None:
            member, late, ns = of_one
            rank, count = compared.ranks[group[member]], own_ns.shape[1]
            others = [compared.ranks[r] for r in group if r != group[member]]
            rhythm = trend.period(ns, float(np.median(own_ns)) * LATE_STEP_TIMES)
            cause, then_ns = _cause(rank, late), own_ns[:, late]
            work = work_at_times.dealt(rank, others, late) if cause is Late.COMPUTE else None
            told[group[member]] = LateAtTimes(
                int(late.sum()),
                count,
                None if rhythm is None else rhythm.every,
                round(float(ns[late].mean())),
                round(float(ns[late].sum()) / count),
                cause.value,
                round(float((then_ns[member] - then_ns.mean(axis=0)).mean())),
                None if work is None else work._asdict(),
            )
    return told


def _late(own_ns: F64) -> tuple[int, Flags, I64] | None:
    """Return the rank that alone is late at times, in which steps, and by how much in each of all (ns); None if none is.

    ``own_ns``: without waiting, of shape (ranks, steps).
    """
    behind = behind_peers(own_ns)
    least = LATE_STEP_TIMES * float(np.median(own_ns))
    # A rank that is behind in all steps, more or less, is late in none more than else.
    usual = np.quantile(behind, USUAL_BEHIND_SHARE, axis=1, keepdims=True)
    late = (behind > least) & (behind - usual > least)
    cost = np.where(late, behind, 0.0).sum(axis=1)
    member = int(cost.argmax())
    few = 0 < int(late[member].sum()) <= MOST_LATE_STEPS_SHARE * late.shape[1]
    alone = cost[member] >= ALONE_AT_TIMES_SHARE * np.where(behind > least / 2, behind, 0.0).sum()
    if not few or not alone or cost[member] < LATE_AT_TIMES_SHARE * own_ns.max(axis=0).sum():
        return None
    usually_late = float(np.median(behind[member][late[member]]))
    alike = late[member] & (behind[member] >= LEAST_LATE_SHARE * usually_late)
    return member, alike, np.maximum(behind[member], 0).astype(np.int64)


def _cause(rank: Rank, late: Flags) -> Late:
    """Return what takes a rank longer in some of its steps than in the others."""
    if rank.tiles is None:
        return Late.UNKNOWN
    more: dict[str, float] = {}
    for chosen, sign in ((late, 1.0), (~late, -1.0)):
        for part, ns in straggler.per_step(_only(rank, chosen)).items():
            more[part] = more.get(part, 0.0) + sign * ns
    return straggler.cause_of(more)


def _only(rank: Rank, chosen: Flags) -> Rank:
    """Return a rank over some of its steps."""
    assert rank.tiles is not None
    return replace(rank, **rank.tiles.figures(chosen))

"""A rank with far more GPU work than its peers, told from one or two steps: those that a program that ends early leaves in a capture.

So few steps have no interval. What they show holds for all others where bare steps, measured without the profiler, are as long as the
work of that rank, and as long as each other: then the step that was recorded is no exception, as one with an evaluation would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nsysx.catalogue import DeviceActivity
from nsysx.frames.statistics import F64
from nsysx.judging.judging_bounds import STRAGGLER_FEWEST_STEPS
from nsysx.ranks import uneven
from nsysx.ranks.behind import behind_peers
from nsysx.ranks.match import Aligned
from nsysx.ranks.own_time import own_times
from nsysx.ranks.rank_bounds import FAR_BEHIND_SHARE, LIKE_BARE_STEPS_SHARE, MOST_WORK_SHARE
from nsysx.ranks.rank_record import Rank


class FarBehind(NamedTuple):
    """The place of a rank in its group, by how much it is late, at least and at most (ns), and what even work saves (ns).

    ``error``: how far the replay of all ranks is off the recorded steps (share), 0 without one.
    """

    member: int
    late_ns: tuple[int, int, int]
    even_ns: int
    error: float


def far_behind(aligned: Aligned, group: Sequence[int], step_ns: F64) -> FarBehind | None:
    """Return the rank of a group that is far behind by its GPU work; None if there is none, or if there are steps for an interval.

    ``step_ns``: the recorded steps without waiting, of shape (ranks, steps).
    """
    ranks, behind = [aligned.ranks[r] for r in group], behind_peers(step_ns)
    member = int(behind.mean(axis=1).argmax())
    late, others = float(behind[member].mean()), [rank for r, rank in enumerate(ranks) if r != member]
    usual = _usual_step(ranks)
    if step_ns.shape[1] >= STRAGGLER_FEWEST_STEPS or usual is None:
        return None
    bare_ns, apart_ns = usual
    work = np.array([rank.parts[DeviceActivity.COMPUTE.column] / rank.steps for rank in ranks])
    more = work[member] - float(np.median(np.delete(work, member)))
    far = float(behind[member].min()) - apart_ns >= FAR_BEHIND_SHARE * bare_ns and more >= MOST_WORK_SHARE * late
    if not far or not uneven.is_bound(float(work[member]), bare_ns) or not uneven.is_uneven(ranks[member], others):
        return None
    times = own_times(aligned, group, fewest=1)
    even = float(step_ns.max(axis=0).mean() - step_ns.mean()) if times is None else times.even_ns()
    bounds = round(late), round(late - apart_ns), round(late + apart_ns)
    return FarBehind(member, bounds, round(even), 0.0 if times is None else times.error)


def _usual_step(ranks: Sequence[Rank]) -> tuple[float, float] | None:
    """Return how long bare steps of the ranks are and how far they lie apart (ns); None if that is much, or recorded ones are others."""
    lengths, apart = list[int](), list[int]()
    for rank in ranks:
        measured, tiles = rank.played, rank.tiles
        if measured is None or measured.measured_ns is None or measured.apart_ns is None or tiles is None:
            return None
        off = np.abs(tiles.end_ns - tiles.start_ns - measured.measured_ns).max()
        if max(measured.apart_ns, off) > LIKE_BARE_STEPS_SHARE * measured.measured_ns:
            return None
        lengths.append(measured.measured_ns)
        apart.append(measured.apart_ns)
    return float(np.mean(lengths)), float(max(apart))

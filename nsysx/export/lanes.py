"""Slices on tracks that can only nest: slices that overlap without nesting go to another lane."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nsysx.frames.intervals import I64


def _nests(start: I64, end: I64) -> bool:
    """Return whether intervals, sorted by start with the longest first, all nest: each pair is disjoint or nested."""
    if len(start) < 2 or (start[1:] >= end[:-1]).all():
        return True
    # As brackets: at each depth, every interval must end before the next one of that depth begins.
    count = len(start)
    number = np.arange(count)
    lasting = end > start
    time = np.concatenate((start, end))
    kind = np.concatenate((np.ones(count, np.int64), np.where(lasting, 0, 1)))
    order = np.concatenate((2 * number, np.where(lasting, -number, 2 * number + 1)))
    sign = np.concatenate((np.ones(count, np.int64), np.full(count, -1)))
    who = np.concatenate((number, number))
    sequence = np.lexsort((order, kind, time))
    depth = np.cumsum(sign[sequence]) - (sign[sequence] > 0)
    by_depth = np.argsort(depth, kind="stable")
    pairs = who[sequence][by_depth]
    return bool((pairs[::2] == pairs[1::2]).all())


def assign(start: I64, end: I64) -> npt.NDArray[np.intp]:
    """Return the lane of each interval: 0 for all if they nest, else the first lane in which it nests."""
    lane = np.zeros(len(start), np.intp)
    order = np.lexsort((-end, start))
    if _nests(start[order], end[order]):
        return lane
    ends: list[list[int]] = []
    for i, begin, finish in zip(order.tolist(), start[order].tolist(), end[order].tolist(), strict=True):
        lane[i] = _room_for(ends, begin, finish)
        ends[lane[i]].append(finish)
    return lane


def _room_for(ends: list[list[int]], begin: int, finish: int) -> int:
    """Return the first lane in which an interval nests. ``ends``: the ends of open intervals by lane; may grow by a lane."""
    for lane, stack in enumerate(ends):
        while stack and stack[-1] <= begin:
            stack.pop()
        if not stack or finish <= stack[-1]:
            return lane
    ends.append([])
    return len(ends) - 1

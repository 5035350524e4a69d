"""Unions, overlaps and innermost enclosing intervals over int64 nanoseconds.

Intervals are half-open, [start, end). All ledgers rest on the ``StepFunction``, which labels each instant of a timeline. Its
integral between any two instants is exact, so parts sum to the whole and windows add up.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
#: Row numbers of a table, in a narrower integer type where that is enough.
Labels = npt.NDArray[np.signedinteger[Any]]

_NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True)
class StepFunction:
    """A piecewise constant label over time: ``labels[i]`` on [times[i], times[i + 1]), and -1 outside.

    ``times`` (ns) is sorted and has one element more than ``labels``; both are empty if the function is defined nowhere.
    """

    times: I64
    labels: Labels

    def at(self, t: I64) -> Labels:
        """Return the label at each instant, -1 outside."""
        if not len(self.labels) or not len(t):
            return np.full(len(t), -1, self.labels.dtype)
        if (t[1:] >= t[:-1]).all():
            first = max(int(np.searchsorted(self.times, t[0], side="right")) - 1, 0)
            last = int(np.searchsorted(self.times, t[-1], side="right"))
            times = self.times[first : last + 1]
            if len(t) > len(times):
                # There are more instants than borders, so search for the borders among the instants.
                border = np.searchsorted(t, times, side="left")
                labels_at = np.full(len(t), -1, self.labels.dtype)
                if len(border) > 1:
                    labels = self.labels[first : first + len(times) - 1]
                    labels_at[border[0] : border[-1]] = np.repeat(labels, np.diff(border))
                return labels_at
        i = np.searchsorted(self.times, t, side="right") - 1
        inside = (i >= 0) & (i < len(self.labels))
        return np.where(inside, self.labels[np.clip(i, 0, len(self.labels) - 1)], np.int32(-1))

    def integral(self, weight: npt.NDArray[np.bool_] | I64, t: I64) -> I64:
        """Return, for each instant in ``t``, the integral of ``weight`` from the first border to it (ns).

        ``weight`` has one element per segment. The weighted time in [a, b) is the difference of two values.
        """
        if not len(self.labels):
            return np.zeros(len(t), np.int64)
        w = weight.astype(np.int64)
        total: I64 = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.diff(self.times) * w)))
        i, into = self._placed(t)
        result: I64 = total[i] + into * w[i]
        return result

    def _placed(self, t: I64) -> tuple[I64, I64]:
        """Return each instant's segment and the ns from the segment's start; an instant outside counts as the nearest end."""
        clipped = np.clip(t, self.times[0], self.times[-1])
        i = np.clip(np.searchsorted(self.times, clipped, side="right") - 1, 0, len(self.labels) - 1)
        return i, clipped - self.times[i]

    def within(self, weight: npt.NDArray[np.bool_] | I64, start: I64, end: I64) -> I64:
        """Return the weighted time inside each window [start, end) (ns)."""
        both = self.integral(weight, np.concatenate((start, end)))
        return both[len(start) :] - both[: len(start)]

    def shares(self, start: I64, end: I64) -> dict[int, I64]:
        """Return label -> its time in each window [start, end) (ns); over all labels this is the defined part of the window."""
        if not len(self.labels):
            return {}
        piece, into = self._placed(np.concatenate((start, end)))
        lasting = np.diff(self.times)
        by_label = {}
        for label in np.unique(self.labels).tolist():
            has_label = self.labels == label
            before = np.concatenate(([0], np.cumsum(np.where(has_label, lasting, 0))))
            total = before[piece] + np.where(has_label[piece], into, 0)
            by_label[label] = total[len(start) :] - total[: len(start)]
        return by_label

    def borders_in(self, start: I64, end: I64) -> I64:
        """Return, sorted, the borders strictly inside any of the windows, which must be disjoint and sorted."""
        first = np.searchsorted(self.times, start, side="right")
        count = np.maximum(np.searchsorted(self.times, end, side="left") - first, 0)
        behind = np.cumsum(count)
        inside: I64 = self.times[np.arange(behind[-1] if len(behind) else 0) + np.repeat(first - behind + count, count)]
        return inside

    def clip(self, start: int, end: int) -> StepFunction:
        """Return the function restricted to [start, end)."""
        if not len(self.labels) or end <= start:
            return StepFunction(_NOTHING, _NOTHING)
        first = max(int(np.searchsorted(self.times, start, side="right")) - 1, 0)
        last = int(np.searchsorted(self.times, end, side="left"))
        times = np.clip(self.times[first : last + 1], start, end)
        return StepFunction(times, self.labels[first : first + max(len(times) - 1, 0)])


def merged(parts: list[I64]) -> I64:
    """Return the distinct values of several arrays, sorted. Sorted arrays are fastest: the sort merges runs in linear time."""
    values = np.sort(np.concatenate(parts or [_NOTHING]), kind="stable")
    if len(values) < 2:
        return values
    return values[np.concatenate(([True], values[1:] != values[:-1]))]


def union(start: I64, end: I64) -> tuple[I64, I64]:
    """Return the starts and ends of the union as disjoint, sorted intervals that do not touch; empty intervals are dropped."""
    real = end > start
    start, end = start[real], end[real]
    if not len(start):
        return _NOTHING, _NOTHING
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return start[first], reach[last]


def interval_of(times: I64, start: I64, end: I64) -> I64:
    """Return in which of the intervals, which are sorted and disjoint, each time lies; -1 for none."""
    i = np.searchsorted(start, times, side="right") - 1
    return np.where((i >= 0) & (times < np.append(end, 0)[i]), i, -1)


def length(start: I64, end: I64) -> int:
    """Return the total length of the union (ns)."""
    s, e = union(start, end)
    return int((e - s).sum())


def coverage(sets: list[tuple[I64, I64]], start: int | None = None, end: int | None = None) -> StepFunction:
    """Return the interval sets that cover each instant, as a bit mask: bit k is set where ``sets[k]`` covers it.

    The function is defined from ``start`` to ``end``, by default from the first to the last instant of any set.
    """
    unions = [union(s, e) for s, e in sets]
    times = merged([x for u in unions for x in u])
    if start is not None:
        times = np.concatenate(([start], times[np.searchsorted(times, start, side="right") :]))
    if end is not None:
        times = np.concatenate((times[: np.searchsorted(times, end, side="left")], [end]))
    if len(times) < 2:
        return StepFunction(_NOTHING, _NOTHING)
    labels = np.zeros(len(times) - 1, np.int64)
    for bit, (s, e) in enumerate(unions):
        inside = (e > times[0]) & (s < times[-1])
        if inside.any():
            # Each start and each end occurs once in ``times``, because the intervals of a union do not touch.
            change = np.zeros(len(times), np.int8)
            change[np.searchsorted(times, np.maximum(s[inside], times[0]))] = 1
            change[np.searchsorted(times, np.minimum(e[inside], times[-1]))] -= 1
            labels |= np.cumsum(change[:-1], dtype=np.int64) << bit
    return StepFunction(times, labels)


def overlay(functions: list[StepFunction], start: int, end: int) -> tuple[I64, list[Labels]]:
    """Return the common borders of all functions on [start, end), and each one's labels between them (-1 where undefined)."""
    if end <= start:
        return _NOTHING, [_NOTHING for _ in functions]
    borders = [np.searchsorted(f.times, (start, end), side=side) for f in functions for side in ("right", "left")]
    inner = [f.times[a[0] : b[1]] for f, a, b in zip(functions, borders[::2], borders[1::2], strict=True)]
    times = merged([*inner, np.array([start, end], np.int64)])
    return times, [f.at(times[:-1]) for f in functions]


@dataclass(frozen=True)
class Nesting:
    """What is open at each instant of one thread.

    ``top`` labels each instant with the innermost open interval (its row), -1 where none is open. ``parent`` and
    ``depth`` (0 = outermost) belong to each interval; ``self_ns`` is the time during which it is the innermost.
    """

    top: StepFunction
    parent: I64
    depth: I64
    self_ns: I64


def _properly_nested(start: I64, end: I64, order: I64) -> I64:
    """Return ends cut so that the intervals nest: an interval ends where another one begins that outlives it.

    Among open intervals, the one that began last is the innermost. Once an interval B has begun inside A and outlives it,
    A is never innermost again, so cutting A where B starts changes no result.
    """
    cut: I64 = end.copy()
    stack: list[int] = []
    for i in order.tolist():
        while stack and end[stack[-1]] <= start[i]:
            stack.pop()
        while stack and end[stack[-1]] < end[i]:
            cut[stack.pop()] = start[i]
        stack.append(i)
    return cut


def in_turn(start: I64, end: I64) -> bool:
    """Return whether each interval lasts, and begins when the one before it has ended, as most threads make their calls."""
    return bool((end > start).all() and (start[1:] >= end[:-1]).all())


def nesting(start: I64, end: I64, first: int = 0) -> Nesting:
    """Return the nesting of the intervals of one thread, in any order; intervals of length 0 are never innermost.

    Row i of the intervals is called ``first`` + i in ``top`` and in ``parent``.

    It takes O(n log n), without a loop over rows if the intervals nest, as calls and push/pop ranges do. In a properly nested
    set, the interval open at depth d after a pop is the last one pushed at depth d, and a forward fill per depth finds it.
    """
    n = len(start)
    if n and in_turn(start, end):
        # A border may occur twice, with an empty segment between.
        borders, rows = np.empty(2 * n, np.int64), np.full(2 * n - 1, -1, np.int32)
        borders[::2], borders[1::2], rows[::2] = start, end, np.arange(first, first + n, dtype=np.int32)
        alone, outermost = (np.broadcast_to(np.int64(value), n) for value in (-1, 0))
        return Nesting(StepFunction(borders, rows), alone, outermost, end - start)
    parent, depth = np.full(n, -1, np.int64), np.zeros(n, np.int64)
    real = np.flatnonzero(end > start)
    if not len(real):
        return Nesting(StepFunction(_NOTHING, _NOTHING), parent, depth, np.zeros(n, np.int64))
    # Outer intervals first among equal starts; the row number breaks remaining ties, so that the order is always the same.
    s, e = start[real], end[real]
    order = real
    if not ((s[1:] > s[:-1]) | ((s[1:] == s[:-1]) & (e[1:] <= e[:-1]))).all():
        order = real[np.lexsort((real, -e, s))]
        s, e = start[order], end[order]
    top = _sweep(order, s, e)
    if top is None:
        e = _properly_nested(start, end, order)[order]
        keep = e > s
        order, s, e = order[keep], s[keep], e[keep]
        top = _sweep(order, s, e)
        assert top is not None
    times, labels, parents, depths = top
    parent[order], depth[order] = parents, depths
    self_ns = np.zeros(n + 1, np.int64)
    np.add.at(self_ns, labels[:-1], np.diff(times))  # label -1 falls into the extra last place
    if first:
        labels[labels >= 0] += first
        parent[parent >= 0] += first
    return Nesting(StepFunction(times, labels[:-1]), parent, depth, self_ns[:n])


def nesting_by_thread(thread: I64, start: I64, end: I64) -> dict[int, Nesting]:
    """Return the nesting of the intervals of each thread, which are sorted by thread; rows are numbered through all of them."""
    borders = [0, *(np.flatnonzero(thread[1:] != thread[:-1]) + 1).tolist(), len(thread)]
    return {int(thread[a]): nesting(start[a:b], end[a:b], a) for a, b in itertools.pairwise(borders) if b > a}


def _sweep(order: I64, s: I64, e: I64) -> tuple[I64, I64, I64, I64] | None:
    """Return (event times, row on top after each event, parents, depths), None if the intervals do not nest.

    ``order`` holds the rows sorted by (start, -end); parents and depths are in that order.
    """
    m = len(order)
    pops = m - 1 - np.argsort(e[::-1], kind="stable")  # of equal ends, the inner one first
    times = np.concatenate((e[pops], s))
    # A stable sort: at the same instant pops come before pushes, and each kind keeps its order.
    events = np.argsort(times, kind="stable")
    push = events >= m
    which = np.where(push, events - m, pops[np.minimum(events, m - 1)])
    level = np.cumsum(np.where(push, 1, -1))  # open intervals after the event
    position = np.arange(2 * m)
    # For each event, find the last push at the level that it leads to, among the events of that level in order of time.
    by_level = np.argsort(level.astype(np.int16) if level.max() < 1 << 15 else level, kind="stable")
    pushed = np.where(push[by_level], position, -1)
    filled = np.maximum.accumulate(pushed)
    top = np.full(2 * m, -1, np.int64)
    top[by_level] = np.where(filled >= 0, which[by_level[np.maximum(filled, 0)]], -1)
    top[level == 0] = -1
    before = np.concatenate(([-1], top[:-1]))
    if (before[~push] != which[~push]).any():
        return None
    parents, depths = np.full(m, -1, np.int64), np.zeros(m, np.int64)
    outer = before[push]
    parents[which[push]] = np.where(outer >= 0, order[np.maximum(outer, 0)], -1)
    depths[which[push]] = level[push] - 1
    labels = np.where(top >= 0, order[np.maximum(top, 0)], -1)
    return times[events], labels, parents, depths

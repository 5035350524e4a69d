"""Which elements of one sequence repeat those of another: longest runs in common, in nearly linear time."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from difflib import SequenceMatcher

import numpy as np

from nsysx.events.event_bounds import SMALL_ALIGNMENT_PAIRS
from nsysx.frames.intervals import I64

#: Runs of so many elements are looked for first, then shorter ones; longer runs seldom occur twice.
_RUNS = (32, 8, 2)
#: An odd number, so that equal elements at different places of a run do not cancel out.
_MIX = np.uint64(0x9E3779B97F4A7C15)

Pairs = tuple[I64, I64]


def align(a: I64, b: I64) -> Pairs:
    """Return rows of ``a`` and of ``b``, both ascending, whose elements are equal and stand in the same order.

    First the common begin and end, then runs that occur once on both sides (patience), then what lies between those. Where
    a long piece repeats itself too often to tell, it stays unmatched.
    """
    runs: list[tuple[int, int, int]] = []  # first row of a, of b, number of rows
    hashed: dict[int, Pairs] = {}
    todo = [(0, len(a), 0, len(b))]
    while todo:
        low_a, high_a, low_b, high_b = todo.pop()
        n = _equal(a[low_a:high_a], b[low_b:high_b])
        runs.append((low_a, low_b, n))
        low_a, low_b = low_a + n, low_b + n
        n = _equal(a[low_a:high_a][::-1], b[low_b:high_b][::-1])
        high_a, high_b = high_a - n, high_b - n
        runs.append((high_a, high_b, n))
        if low_a == high_a or low_b == high_b:
            continue
        if (high_a - low_a) * (high_b - low_b) <= SMALL_ALIGNMENT_PAIRS:
            matcher = SequenceMatcher(None, a[low_a:high_a].tolist(), b[low_b:high_b].tolist(), autojunk=False)
            runs += [(low_a + m.a, low_b + m.b, m.size) for m in matcher.get_matching_blocks()]
            continue
        anchors = _anchors((a, b), (low_a, high_a), (low_b, high_b), hashed)
        if not anchors:
            continue
        borders = [(0, 0), *anchors, (high_a - low_a, high_b - low_b)]
        for (a0, b0), (a1, b1) in itertools.pairwise(borders):
            if a1 > a0 and b1 > b0:
                todo.append((low_a + a0, low_a + a1, low_b + b0, low_b + b1))
    runs = sorted(f for f in runs if f[2])
    rows = [np.arange(n) for _, _, n in runs]
    if not rows:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    first = [np.concatenate([r + f[side] for r, f in zip(rows, runs, strict=True)]) for side in (0, 1)]
    return first[0], first[1]


def with_alike(ours: I64, others: I64, kinds: I64, other_kinds: I64) -> Pairs:
    """Return these pairs with the tokens between two of them that are as many, and of the same kinds, on both sides."""
    before_a, before_b = (np.concatenate(([-1], rows)) for rows in (ours, others))
    left_a = np.diff(before_a, append=len(kinds)) - 1
    left_b = np.diff(before_b, append=len(other_kinds)) - 1
    parts_a, parts_b = [ours], [others]
    for gap in np.flatnonzero((left_a == left_b) & (left_a > 0)).tolist():
        a, b = (before[gap] + 1 + np.arange(left_a[gap]) for before in (before_a, before_b))
        if (kinds[a] == other_kinds[b]).all():
            parts_a.append(a)
            parts_b.append(b)
    return np.sort(np.concatenate(parts_a)), np.sort(np.concatenate(parts_b))


def _equal(a: I64, b: I64) -> int:
    """Return how many elements are equal from the begin on."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


def _runs(values: I64, length: int) -> I64:
    """Return a hash of the ``length`` elements from each row on."""
    n = len(values) - length + 1
    if n <= 0:
        return np.empty(0, np.int64)
    code = np.zeros(n, np.uint64)
    with np.errstate(over="ignore"):
        for i in range(length):
            code = code * _MIX + values[i : i + n].astype(np.uint64)
    return code.view(np.int64)


def _anchors(
    whole: Pairs, part_a: tuple[int, int], part_b: tuple[int, int], hashed: dict[int, Pairs]
) -> list[tuple[int, int]]:
    """Return places in parts of two sequences where a run begins that occurs once in each, as many as stand in the same order.

    Places count from the first row of each part ([first, last)). ``hashed``: length -> what `_runs` gives for each sequence as a whole.
    """
    for length in _RUNS:
        if length not in hashed:
            hashed[length] = _runs(whole[0], length), _runs(whole[1], length)
        (a, place_a), (b, place_b) = (
            _unique(of_side[first : max(first, last - length + 1)])
            for of_side, (first, last) in zip(hashed[length], (part_a, part_b), strict=True)
        )
        _, in_a, in_b = np.intersect1d(a, b, assume_unique=True, return_indices=True)
        kept = _ascending(sorted(zip(place_a[in_a].tolist(), place_b[in_b].tolist(), strict=True)))
        if kept and kept != [(0, 0)]:
            return [pair for pair in kept if pair != (0, 0)]
    return []


def _unique(keys: I64) -> Pairs:
    """Return the keys that occur once, and where."""
    values, first, count = np.unique(keys, return_index=True, return_counts=True)
    return values[count == 1], first[count == 1]


def _ascending(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest part of ``pairs``, which ascend on the first side, that ascends on the second too."""
    ends: list[int] = []  # smallest last element of an ascending part of each length
    row_of: list[int] = []
    before = [-1] * len(pairs)
    for i, (_, value) in enumerate(pairs):
        length = bisect_left(ends, value)
        before[i] = row_of[length - 1] if length else -1
        if length == len(ends):
            ends.append(value)
            row_of.append(i)
        else:
            ends[length], row_of[length] = value, i
    kept = []
    i = row_of[-1] if row_of else -1
    while i >= 0:
        kept.append(pairs[i])
        i = before[i]
    return kept[::-1]

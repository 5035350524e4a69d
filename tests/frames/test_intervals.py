"""Interval arithmetic against counting single nanoseconds."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nsysx.frames.intervals import StepFunction, coverage, length, merged, nesting, overlay, union
from tests.examples import examples

LOW, HIGH = -5, 25

quick = settings(max_examples=examples(120), deadline=None)
pair = st.tuples(st.integers(LOW, HIGH), st.integers(LOW, HIGH))
forward = pair.map(lambda p: (min(p), max(p)))
intervals = st.lists(forward, max_size=12)


def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    flat = np.array(pairs, np.int64).reshape(-1, 2)
    return flat[:, 0].copy(), flat[:, 1].copy()


def covered(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for s, e in pairs for t in range(s, e)}


@st.composite
def functions(draw: st.DrawFn) -> StepFunction:
    times = sorted(draw(st.lists(st.integers(LOW, HIGH), max_size=8)))
    if len(times) < 2:
        return StepFunction(np.empty(0, np.int64), np.empty(0, np.int64))
    labels = draw(st.lists(st.integers(-1, 3), min_size=len(times) - 1, max_size=len(times) - 1))
    return StepFunction(np.array(times, np.int64), np.array(labels, np.int64))


def label_at(f: StepFunction, t: int) -> int:
    found = -1
    for a, b, label in zip(f.times[:-1].tolist(), f.times[1:].tolist(), f.labels.tolist(), strict=True):
        if a <= t < b:
            found = label
    return found


# --- unions --------------------------------------------------------------------------------------------------------------


@quick
@given(st.lists(pair, max_size=12))
def test_union(pairs: list[tuple[int, int]]) -> None:
    s, e = union(*arrays(pairs))
    assert covered(list(zip(s.tolist(), e.tolist(), strict=True))) == covered(pairs)
    assert (e > s).all()
    assert (s[1:] > e[:-1]).all()  # disjoint, sorted, and not even touching
    assert length(*arrays(pairs)) == len(covered(pairs))


@quick
@given(st.lists(st.lists(st.integers(-9, 9), max_size=6).map(sorted), max_size=4))
def test_merged(parts: list[list[int]]) -> None:
    found = merged([np.array(p, np.int64) for p in parts])
    assert found.tolist() == sorted({v for p in parts for v in p})


@quick
@given(
    st.lists(intervals, max_size=4),
    st.none() | st.integers(LOW - 3, HIGH + 3),
    st.none() | st.integers(LOW - 3, HIGH + 3),
)
def test_coverage(sets: list[list[tuple[int, int]]], start: int | None, end: int | None) -> None:
    f = coverage([arrays(p) for p in sets], start, end)
    everything = set().union(*(covered(p) for p in sets))
    low = start if start is not None else min(everything, default=HIGH + 5)
    high = end if end is not None else max(everything, default=low - 1) + 1
    for t in range(LOW - 5, HIGH + 5):
        mask = sum(1 << bit for bit, pairs in enumerate(sets) if t in covered(pairs))
        expected = mask if low <= t < high else -1
        assert f.at(np.array([t]))[0] == expected, t


# --- step functions ------------------------------------------------------------------------------------------------------


@quick
@given(functions(), st.lists(st.integers(LOW - 3, HIGH + 3), max_size=8))
def test_at(f: StepFunction, instants: list[int]) -> None:
    assert f.at(np.array(instants, np.int64)).tolist() == [label_at(f, t) for t in instants]


@quick
@given(functions(), st.lists(forward, min_size=1, max_size=6), st.integers(-1, 3))
def test_within_is_a_count_of_nanoseconds(f: StepFunction, windows: list[tuple[int, int]], label: int) -> None:
    start, end = arrays(windows)
    found = f.within(f.labels == label, start, end)
    inside = range(int(f.times[0]), int(f.times[-1])) if len(f.times) else range(0)
    expected = [sum(1 for t in range(a, b) if t in inside and label_at(f, t) == label) for a, b in windows]
    assert found.tolist() == expected


@quick
@given(functions(), st.lists(forward, min_size=1, max_size=6))
def test_shares_are_the_time_of_each_label(f: StepFunction, windows: list[tuple[int, int]]) -> None:
    start, end = arrays(windows)
    shares = f.shares(start, end)
    assert set(shares) == set(f.labels.tolist())
    for label, ns in shares.items():
        assert ns.tolist() == f.within(f.labels == label, start, end).tolist()


@quick
@given(functions(), st.lists(st.integers(LOW - 3, HIGH + 3), min_size=3, max_size=3).map(sorted))
def test_windows_add_up(f: StepFunction, borders: list[int]) -> None:
    a, b, c = (np.array([x]) for x in borders)
    w = f.labels * f.labels + 1
    assert f.within(w, a, b) + f.within(w, b, c) == f.within(w, a, c)


@quick
@given(functions(), st.integers(LOW - 3, HIGH + 3), st.integers(LOW - 3, HIGH + 3))
def test_clip(f: StepFunction, start: int, end: int) -> None:
    cut = f.clip(start, end)
    assert len(cut.times) in (0, len(cut.labels) + 1)
    for t in range(LOW - 4, HIGH + 4):
        expected = label_at(f, t) if start <= t < end else -1
        assert label_at(cut, t) == expected, t
    if len(cut.times):
        assert start <= cut.times[0]
        assert cut.times[-1] <= end


@quick
@given(st.lists(functions(), max_size=3), st.integers(LOW - 3, HIGH + 3), st.integers(LOW - 3, HIGH + 3))
def test_overlay(fs: list[StepFunction], start: int, end: int) -> None:
    times, labels = overlay(fs, start, end)
    assert len(labels) == len(fs)
    if end <= start:
        assert len(times) == 0
        return
    assert times[0] == start
    assert times[-1] == end
    assert (np.diff(times) > 0).all()
    for f, found in zip(fs, labels, strict=True):
        on = StepFunction(times, found)
        assert [label_at(on, t) for t in range(start, end)] == [label_at(f, t) for t in range(start, end)]


# --- nesting -------------------------------------------------------------------------------------------------------------


def innermost(pairs: list[tuple[int, int]], t: int) -> int:
    """Of the intervals open at ``t`` the one that began last; of equal begins the one that ends first, then the later row."""
    opened = [i for i, (s, e) in enumerate(pairs) if s <= t < e]
    return max(opened, key=lambda i: (pairs[i][0], -pairs[i][1], i), default=-1)


@quick
@given(intervals)
def test_the_innermost_interval(pairs: list[tuple[int, int]]) -> None:
    """Also where intervals cross, tie, or have no length."""
    found = nesting(*arrays(pairs))
    own = [0] * len(pairs)
    for t in range(LOW - 1, HIGH + 1):
        top = innermost(pairs, t)
        assert found.top.at(np.array([t]))[0] == top, t
        if top >= 0:
            own[top] += 1
    assert found.self_ns.tolist() == own
    assert found.self_ns.sum() == len(covered(pairs))


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Properly nested intervals of at least 1 ns, in any order, ties included."""
    found: list[tuple[int, int]] = []

    def fill(low: int, high: int, depth: int) -> None:
        at = low
        while at < high and len(found) < 14 and draw(st.booleans()):
            start = draw(st.integers(at, high - 1))
            end = draw(st.integers(start + 1, high))
            found.append((start, end))
            if depth < 4:
                fill(start, end, depth + 1)
            at = end

    fill(LOW, HIGH, 0)
    return draw(st.permutations(found))


@quick
@given(trees())
def test_parents_and_depths_of_what_nests(pairs: list[tuple[int, int]]) -> None:
    found = nesting(*arrays(pairs))
    for i, (s, e) in enumerate(pairs):
        around = [
            j
            for j, (a, b) in enumerate(pairs)
            if a <= s and e <= b and ((a, b) != (s, e) or j < i)
        ]  # fmt: skip
        assert found.depth[i] == len(around), (i, pairs)
        parent = max(around, key=lambda j: (pairs[j][0], -pairs[j][1], j), default=-1)
        assert found.parent[i] == parent, (i, pairs)


def test_intervals_that_cross() -> None:
    """A [0, 10) and B [5, 15): from 5 on B is the innermost, and A never again."""
    found = nesting(np.array([0, 5]), np.array([10, 15]))
    assert found.top.at(np.array([0, 4, 5, 9, 12])).tolist() == [0, 0, 1, 1, 1]
    assert found.self_ns.tolist() == [5, 10]


def test_zero_lengths_own_nothing_and_have_no_parent() -> None:
    found = nesting(np.array([0, 3, 3, 10]), np.array([10, 3, 5, 10]))
    assert found.self_ns.tolist() == [8, 0, 2, 0]
    assert found.parent.tolist() == [-1, -1, 0, -1]


def test_equal_intervals_nest_by_row() -> None:
    found = nesting(np.array([0, 0, 0]), np.array([9, 9, 9]))
    assert found.depth.tolist() == [0, 1, 2]
    assert found.self_ns.tolist() == [0, 0, 9]


def test_nothing() -> None:
    none = np.empty(0, np.int64)
    found = nesting(none, none)
    assert len(found.top.times) == len(found.self_ns) == 0
    assert union(none, none)[0].tolist() == []
    assert coverage([]).at(np.array([1])).tolist() == [-1]
    assert coverage([(none, none)], 0, 10).labels.tolist() == [0]


def test_big_times() -> None:
    start = np.array([1 << 60, (1 << 60) + 5])
    found = nesting(start, start + np.array([10, 2]))
    assert found.self_ns.tolist() == [8, 2]


def test_deeper_than_sixteen_bits_count() -> None:
    n = 40_000
    found = nesting(np.arange(n), 2 * n - np.arange(n))
    assert found.depth.tolist() == list(range(n))
    assert int(found.self_ns.sum()) == 2 * n

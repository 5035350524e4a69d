"""Alignment of sequences: always a common subsequence, whole where they are equal, and near what difflib finds."""

from __future__ import annotations

from difflib import SequenceMatcher

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsysx.events.alignment import align, with_alike
from tests.counted_calls import calls_of

few = st.lists(st.integers(0, 5), max_size=60)


def values(x: list[int]) -> np.ndarray:
    return np.array(x, np.int64)


@given(few, few)
def test_what_is_matched_is_equal_and_in_order(a: list[int], b: list[int]) -> None:
    rows, others = align(values(a), values(b))
    assert len(rows) == len(others)
    assert (values(a)[rows] == values(b)[others]).all()
    assert (np.diff(rows) > 0).all() and (np.diff(others) > 0).all()


@given(few)
def test_equal_sequences_match_whole(a: list[int]) -> None:
    rows, others = align(values(a), values(a))
    assert rows.tolist() == others.tolist() == list(range(len(a)))


@given(few, st.integers(0, 60), st.lists(st.integers(10, 15), max_size=5))
def test_a_piece_that_was_put_in_is_all_that_stays_over(a: list[int], place: int, piece: list[int]) -> None:
    b = a[:place] + piece + a[place:]
    assert len(align(values(a), values(b))[0]) == len(a)


@pytest.mark.parametrize("layers", [1, 50])
def test_layers_that_repeat_are_told_apart_by_what_stands_around_them(layers: int) -> None:
    layer = list(range(100, 140))
    a = [1, 2, 3, *layer * layers, 4, 5, *layer[::-1] * layers, 6]
    b = [1, 2, 9, 3, *layer * layers, 4, 8, 8, 5, *layer[::-1] * layers, 6, 7]
    assert len(align(values(a), values(b))[0]) == len(a)


def shortened(length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a sequence, and it without a hundredth of its elements, with as many others put in."""
    rng = np.random.default_rng(0)
    a = rng.integers(0, 40, length)
    kept = rng.random(length) > 0.01
    return a, np.insert(a[kept], rng.integers(0, kept.sum(), length // 100), 99)


def test_long_sequences_take_little_work_and_lose_little() -> None:
    half, whole = (calls_of(lambda n=n: align(*shortened(n))) for n in (10_000, 20_000))
    assert whole < 3 * half, "not four times as much for twice as many"
    a, b = shortened(20_000)
    assert len(align(a, b)[0]) > 0.97 * (len(b) - len(a) // 100)
    small = SequenceMatcher(None, a[:400].tolist(), b[:400].tolist(), autojunk=False)
    assert len(align(a[:400], b[:400])[0]) >= 0.95 * sum(m.size for m in small.get_matching_blocks())


@pytest.mark.parametrize(
    ("kinds", "others", "rows"),
    [
        ([1, 5, 5, 2], [1, 5, 5, 2], [0, 1, 2, 3]),
        ([1, 5, 2], [1, 5, 5, 2], [0, 2]),  # not as many
        ([1, 5, 6, 2], [1, 6, 5, 2], [0, 3]),  # not of the same kinds
        ([5, 1, 2, 5], [5, 1, 2, 5], [0, 1, 2, 3]),  # before the first and behind the last
    ],
)
def test_as_many_of_the_same_kinds_between_two_pairs_are_pairs(
    kinds: list[int], others: list[int], rows: list[int]
) -> None:
    ends = [[kinds.index(n), others.index(n)] for n in (1, 2)]
    ours, theirs = with_alike(
        *(np.array(side, np.int64) for side in zip(*ends, strict=True)), values(kinds), values(others)
    )
    assert ours.tolist() == rows
    assert [kinds[n] for n in ours] == [others[n] for n in theirs]

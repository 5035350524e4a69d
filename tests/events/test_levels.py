"""Levels of step times: each with how often it comes, and a mean that is the time of no step is never told alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsysx.events.levels import Level, levels, note, period

MS = 1_000_000


def of(*ms: float, first: int = 0) -> tuple[Level, ...]:
    return levels(np.array([int(m * MS) for m in ms], np.int64), np.arange(first, first + len(ms)))


def test_every_tenth_step_saves_the_model() -> None:
    found = of(*(304 if i % 10 == 9 else 5.5 for i in range(40)))
    assert [(level.median_ns, level.count, level.every) for level in found] == [
        (int(5.5 * MS), 36, None),
        (304 * MS, 4, 10),
    ]
    assert period(found) == 10
    assert note(found) == "Usually 5.50 ms; every 10th step takes 304.0 ms."


@pytest.mark.parametrize(("first", "every"), [(2, 10), (5, None)])
def test_two_steps_are_periodic_only_where_a_loop_would_ask_for_their_numbers(first: int, every: int | None) -> None:
    """Steps 9 and 19 of a loop are its tenth ones; steps 12 and 22 are just two steps."""
    found = of(*(304 if i in (7, 17) else 5.5 for i in range(20)), first=first)
    assert (found[1].count, found[1].every) == (2, every)
    assert "2 of 20 steps take 304.0 ms" in note(found) or every


def test_irregular_long_steps_are_counted() -> None:
    found = of(*(90 if i in (3, 5, 11) else 10 for i in range(20)))
    assert (found[1].count, found[1].every, period(found)) == (3, None, None)
    assert note(found) == "Usually 10.00 ms; 3 of 20 steps take 90.00 ms."


@pytest.mark.parametrize(
    ("usual", "said"),
    [
        ((70, 80, 96, 110, 126), "Usually 70.00 ms to 126.0 ms; 1 of 6 steps takes 20.00 ms."),
        ((90, 96, 96, 98, 126), "Usually 96.00 ms; 1 of 6 steps takes 20.00 ms."),
        ((70, 96, 96, 98, 99), "Usually 96.00 ms; 1 of 6 steps takes 20.00 ms."),
    ],
)
def test_the_median_of_lengths_that_are_spread_is_not_usual(usual: tuple[float, ...], said: str) -> None:
    assert note(of(*usual, 20)) == said


def test_a_gap_in_the_rhythm_is_no_rhythm() -> None:
    assert of(*(90 if i in (4, 9, 19) else 10 for i in range(20)))[1].every is None
    assert of(*(90 if i in (9, 14, 19) else 10 for i in range(30)))[1].every is None  # none before and none after


def test_spread_is_one_level_and_says_nothing() -> None:
    found = of(*(10 * 1.6**i for i in range(7)))
    assert (len(found), note(found)) == (1, "")
    assert of(10, 10.5, 11, 9.8)[0].every == 1


def test_one_step_that_moves_the_mean_by_little_is_not_worth_words() -> None:
    assert note(of(*[10] * 30, 17)) == ""
    assert note(of(*[10] * 30, 100)) == "Usually 10.00 ms; 1 of 31 steps takes 100.0 ms."
    assert note(()) == ""
    assert levels(np.empty(0, np.int64), np.empty(0, np.int64)) == ()


@given(st.lists(st.integers(1, 10**10), min_size=1, max_size=60))
def test_levels_hold_every_step_once_and_add_up_to_the_mean(lengths: list[int]) -> None:
    found = levels(np.array(lengths, np.int64), np.arange(len(lengths)))
    assert sum(level.count for level in found) == len(lengths)
    assert sum(level.mean_ns * level.count for level in found) == pytest.approx(sum(lengths), abs=len(lengths))
    assert all(level.low_ns <= level.median_ns <= level.high_ns for level in found)
    apart = sorted((level.low_ns, level.high_ns) for level in found)
    assert all(after[0] > before[1] for before, after in itertools.pairwise(apart))

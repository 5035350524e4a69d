"""The course of steady steps: level, growing, every k-th one longer, uneven."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsysx.events.trend import period, trend

MS = 1_000_000
#: The steady steps of a capture of texts of growing length, ms.
VARLEN = (31.5, 27.7, 29.5, 36.1, 33.0, 37.4, 41.2, 45.0, 46.0, 44.8, 51.7, 49.1, 58.0, 62.7, 70.7, 72.4)


def lengths(*ms: float) -> np.ndarray:
    return np.array([int(m * MS) for m in ms], np.int64)


def test_level_steps_need_no_words() -> None:
    found = trend(lengths(10, 10.1, 9.9, 10, 10.2, 9.8, 10))
    assert (found.kind, found.note) == ("level", "")


def test_steps_that_keep_growing_are_not_steady() -> None:
    found = trend(lengths(*VARLEN))
    assert found.kind == "growing"
    assert found.change is not None
    assert found.change == pytest.approx(1.0, abs=0.15)
    assert found.note == "Step time grows from 31.50 ms to 62.70 ms."


def test_steps_that_shrink() -> None:
    assert trend(lengths(*reversed(VARLEN))).kind == "falling"


@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("phase", [0, 1])
def test_every_kth_step(k: int, phase: int) -> None:
    found = trend(lengths(*(14 if i % k == phase else 10 + i % 3 / 10 for i in range(20))))
    assert (found.kind, found.every) == ("periodic", k)
    assert found.excess_ns == pytest.approx(3.9 * MS, abs=0.2 * MS)
    assert found.note.startswith(f"Every {'2nd' if k == 2 else '5th'} step takes 3.9")


def test_a_period_is_found_in_long_runs_too_and_from_any_step_on() -> None:
    values = np.full(500, 10 * MS, np.int64)
    values[7::13] += 5 * MS
    values[[100, 250]] += 9 * MS  # something else
    assert period(values, MS) == (13, 7, 5 * MS)


@pytest.mark.parametrize("n", [10, 16, 20, 31, 60])
def test_random_steps_have_hardly_ever_a_period(n: int) -> None:
    """Steps with heavy tails, and steps of two kinds, in random order: an alarm in one of a hundred at most."""
    random = np.random.default_rng(n)
    tails = [random.pareto(1.5, n) + 1 for _ in range(150)]
    kinds = [np.where(random.random(n) < rate, 3.0, 1.0) for rate in random.uniform(0.05, 0.5, 150)]
    steps = [(one * 1e7).astype(np.int64) for one in (*tails, *kinds)]
    assert sum(period(one, 0.15 * float(np.median(one))) is not None for one in steps) <= 0.01 * len(steps)


def test_one_long_step_is_no_period() -> None:
    assert trend(lengths(*[10] * 9, 50, *[10] * 9)).kind == "level"


def test_uneven_steps() -> None:
    found = trend(lengths(5, 31, 24, 20, 52, 26, 12, 28, 21, 87))
    assert found.kind == "uneven"
    assert found.note == "The steps differ: the middle 80 % take 11.30 ms to 55.50 ms."


def test_few_steps_say_nothing() -> None:
    assert trend(lengths(1, 2, 3)).kind == trend(lengths()).kind == "unknown"


@given(st.lists(st.integers(1, 10**9), max_size=40), st.integers(2, 1000))
def test_a_factor_changes_no_share(values: list[int], factor: int) -> None:
    one, other = (trend(np.array(values, np.int64) * f) for f in (1, factor))
    assert (one.kind, one.every) == (other.kind, other.every)
    assert other.change == pytest.approx(one.change) if one.change is not None else other.change is None


#: Steps of a launch-bound loop without any growth, ms, in which the host wanders (recorded).
WANDERS = (19.5, 20.7, 23.8, 19.2, 22.8, 20.1, 24.9, 23.1, 24.4, 22.0, 25.2, 24.1, 23.9, 25.8, 24.6, 26.0)


def test_steps_that_wander_do_not_grow() -> None:
    """Each block of steps has to be longer than the one before, and the GPU has to work more in it."""
    level = lengths(*[5.0] * len(WANDERS))
    assert trend(lengths(*WANDERS), level).kind != "growing"
    there_and_back = lengths(*(10, 10.5, 11, 13, 13.5, 14, 12, 12.2, 12.4, 13.8, 14.2, 14.6))
    assert trend(there_and_back).kind != "growing"


@pytest.mark.parametrize(("share", "kind"), [(1.0, "growing"), (0.8, "growing"), (0.2, "uneven"), (-0.5, "uneven")])
def test_steps_grow_with_the_work_of_the_gpu(share: float, kind: str) -> None:
    grown = np.array(sorted(VARLEN)) * MS
    work = grown[0] + share * (grown - grown[0])
    assert trend(grown.astype(np.int64), work.astype(np.int64)).kind == kind

"""Intervals hold what they promise: coverage, false alarms and power, on simulated captures with known noise."""

from __future__ import annotations

import numpy as np
import pytest

from nsysx.comparing import difference_intervals
from nsysx.frames.statistics import F64, block_length, mean_error, satterthwaite, t_quantile


@pytest.mark.parametrize(
    ("df", "t"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (30, 2.0423), (1e9, 1.9601)]
)
def test_quantiles_of_student(df: float, t: float) -> None:
    assert t_quantile(0.95, df) == pytest.approx(t, rel=2e-4)


def steps(random: np.random.Generator, n: int, correlation: float) -> F64:
    x = np.empty(n)
    x[0] = random.normal()
    for i in range(1, n):
        x[i] = correlation * x[i - 1] + np.sqrt(1 - correlation**2) * random.normal()
    return 100 + x


@pytest.mark.parametrize(
    ("n", "correlation", "least"), [(8, 0.0, 0.92), (20, 0.0, 0.92), (200, 0.6, 0.9), (400, 0.8, 0.88)]
)
def test_the_interval_of_steps_covers_the_truth(n: int, correlation: float, least: float) -> None:
    random = np.random.default_rng(1)
    hits, runs = 0, 600
    for _ in range(runs):
        found = []
        for _ in range(2):
            x = steps(random, n, correlation)
            error, df = mean_error(x[None, :], block_length(x))
            found.append((x.mean(), (float(error[0]), df)))
        doubt = difference_intervals.Doubt(*satterthwaite(found[0][1], found[1][1]), 0.0)
        hits += abs(found[1][0] - found[0][0]) <= doubt.half(0.95)
    assert hits / runs >= least


def test_without_blocks_correlated_steps_would_deceive() -> None:
    random = np.random.default_rng(2)
    hits, runs = 0, 300
    for _ in range(runs):
        x = steps(random, 200, 0.8)
        error, df = mean_error(x[None, :], 1)
        hits += abs(x.mean() - 100) <= difference_intervals.Doubt(float(error[0]), df, 0.0).half(0.95)
    assert hits / runs < 0.7


def test_captures_that_scatter_are_no_alarm() -> None:
    """Three captures a side of one program whose mean moves by 3 % from process to process."""
    random = np.random.default_rng(3)
    alarms, runs = 0, 1000
    for _ in range(runs):
        a, b = 100 * (1 + 0.03 * random.normal(size=(2, 3)))
        sd, df = difference_intervals.between([a, b], 100.0)
        doubt = difference_intervals.Doubt(sd * np.sqrt(2 / 3), df, 0.0)
        alarms += difference_intervals.judge(b.mean() - a.mean(), doubt, 1.0) in ("faster", "slower")
    assert alarms / runs <= 0.06


def test_a_change_beyond_the_scatter_is_seen() -> None:
    random = np.random.default_rng(4)
    seen, runs = 0, 300
    for _ in range(runs):
        a, b = 100 * (1 + 0.003 * random.normal(size=(2, 4))) * np.array([[1.0], [1.02]])
        sd, df = difference_intervals.between([a, b], 101.0)
        seen += (
            difference_intervals.judge(b.mean() - a.mean(), difference_intervals.Doubt(sd * np.sqrt(0.5), df, 0.0), 1.0)
            == "slower"
        )
    assert seen / runs >= 0.95


@pytest.mark.parametrize(
    ("difference", "error", "drift", "verdict"),
    [
        (-5, 0.5, 0, "faster"),
        (5, 0.5, 0, "slower"),
        (0.2, 0.1, 0, "same"),
        (5, 0.5, 6, "cannot_tell"),
        (0.5, 3, 0, "cannot_tell"),
    ],
)
def test_four_answers(difference: float, error: float, drift: float, verdict: str) -> None:
    assert difference_intervals.judge(difference, difference_intervals.Doubt(error, 20, drift), 1.0) == verdict


def test_one_step_gives_no_interval() -> None:
    error, df = mean_error(np.array([[5.0]]), 1)
    assert difference_intervals.Doubt(float(error[0]), df, 0.0).half(0.95) == float("inf")
    assert difference_intervals.judge(-4, difference_intervals.Doubt(float(error[0]), df, 0.0), 1.0) == "cannot_tell"

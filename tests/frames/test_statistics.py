"""Statistics against SciPy, and against values worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nsysx.frames.statistics import (
    bootstrap_bounds,
    explained,
    mann_whitney,
    mean_error,
    ranks,
    satterthwaite,
    spearman,
    t_quantile,
)

SEEDS = range(5)


@pytest.fixture(scope="module")
def scipy_stats() -> Any:
    """Imported where a test asks for it: each worker collects all tests."""
    import scipy.stats

    return scipy.stats


@pytest.mark.parametrize("df", [1.0, 1.7, 2.0, 5.5, 30.0, 1e3])
@pytest.mark.parametrize("level", [0.8, 0.95, 0.99, 0.999])
def test_quantiles_of_student(scipy_stats: Any, level: float, df: float) -> None:
    assert t_quantile(level, df) == pytest.approx(scipy_stats.t.ppf((1 + level) / 2, df), rel=2e-4)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_difference_of_two_means_is_welchs(scipy_stats: Any, seed: int) -> None:
    """The same t, the same degrees of freedom and so the same p-value, from samples of unlike size and scatter."""
    random = np.random.default_rng(seed)
    a, b = random.normal(10, 1, 4 + seed), random.normal(11, 3, 12)
    error, df = satterthwaite(*((float(x.std(ddof=1)) / len(x) ** 0.5, len(x) - 1.0) for x in (a, b)))
    other = scipy_stats.ttest_ind(a, b, equal_var=False)
    assert df == pytest.approx(other.df)
    assert (a.mean() - b.mean()) / error == pytest.approx(other.statistic)
    low, high = other.confidence_interval(0.95)
    assert 2 * error * t_quantile(0.95, df) == pytest.approx(high - low, rel=1e-3)


def test_the_difference_of_two_means_without_scatter_or_without_freedom() -> None:
    assert satterthwaite((0.0, 3.0), (0.0, 4.0)) == (0.0, 7.0)
    error, df = satterthwaite((1.0, 0.0), (1.0, 4.0))
    assert np.isnan(error) and df == 0.0


@pytest.mark.parametrize("seed", SEEDS)
def test_the_error_of_a_mean_in_blocks_of_one_is_the_usual_one(scipy_stats: Any, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(3, 20))
    error, df = mean_error(rows, 1)
    assert error == pytest.approx(scipy_stats.sem(rows, axis=1))
    assert df == 19


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_and_what_is_made_of_them(scipy_stats: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    a, b = random.integers(0, 9, 12), random.integers(2, 12, 15)  # with ties
    assert ranks(a).tolist() == scipy_stats.rankdata(a).tolist()
    assert mann_whitney(a, b) == pytest.approx(scipy_stats.mannwhitneyu(a, b, method="asymptotic").pvalue)
    assert spearman(a, b[:12])[0] == pytest.approx(scipy_stats.spearmanr(a, b[:12]).statistic)
    group = np.repeat([0, 1], [12, 15])
    share = explained(np.concatenate([a, b]), group)
    assert share * (len(group) - 1) == pytest.approx(scipy_stats.kruskal(a, b).statistic)


def test_the_bounds_of_a_mean_without_correlation_are_on_average_those_of_student(scipy_stats: Any) -> None:
    shares = []
    for seed in range(20):
        values = np.random.default_rng(seed).normal(100, 5, 400)
        low, high = bootstrap_bounds(values, 0.95, 2_000)
        wanted = scipy_stats.t.interval(0.95, 399, values.mean(), scipy_stats.sem(values))
        assert low < values.mean() < high
        shares.append((high - low) / (wanted[1] - wanted[0]))
    assert np.mean(shares) == pytest.approx(1, abs=0.1)


def test_the_bounds_of_a_mean_hold_the_share_asked_for(scipy_stats: Any) -> None:
    values = np.random.default_rng(0).normal(100, 5, 400)
    widths = [high - low for low, high in (bootstrap_bounds(values, share, 2_000) for share in (0.5, 0.8, 0.95))]
    assert widths[1] / widths[0] == pytest.approx(scipy_stats.norm.ppf(0.9) / scipy_stats.norm.ppf(0.75), rel=0.1)
    assert widths[2] / widths[1] == pytest.approx(scipy_stats.norm.ppf(0.975) / scipy_stats.norm.ppf(0.9), rel=0.1)


def test_equal_values_share_their_rank() -> None:
    assert ranks([10, 30, 20, 20]).tolist() == [1, 4, 2.5, 2.5]


def test_mann_whitney_of_two_separate_fives() -> None:
    # U = 0, mean 12.5, variance 25 * 11 / 12; z = 12 / 4.787 = 2.507 with half a rank of correction.
    assert mann_whitney([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == pytest.approx(0.01219, abs=1e-5)


def test_mann_whitney_is_symmetric_and_blind_to_scale() -> None:
    a, b = [3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8]
    assert mann_whitney(a, b) == pytest.approx(mann_whitney(b, a))
    assert mann_whitney(a, b) == pytest.approx(mann_whitney([10 * v for v in a], [10 * v for v in b]))


def test_mann_whitney_says_nothing_where_there_is_nothing() -> None:
    assert mann_whitney([], [1, 2]) == 1.0
    assert mann_whitney([4, 4, 4], [4, 4]) == 1.0


def test_spearman() -> None:
    # Five swaps of neighbors: 1 - 6 * 10 / (10 * 99).
    rho, p = spearman(range(10), [1, 0, 3, 2, 5, 4, 7, 6, 9, 8])
    assert rho == pytest.approx(1 - 60 / 990)
    assert p < 0.01
    assert spearman([1, 1, 1], [1, 2, 3]) == (0.0, 1.0)

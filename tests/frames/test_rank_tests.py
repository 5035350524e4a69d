"""The rank tests against values worked out by hand or taken from tables."""

from __future__ import annotations

import pytest

from nsysx.frames.rank_tests import mann_whitney, ranks, spearman


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
    # Five swaps of neighbours: 1 - 6 * 10 / (10 * 99).
    rho, p = spearman(range(10), [1, 0, 3, 2, 5, 4, 7, 6, 9, 8])
    assert rho == pytest.approx(1 - 60 / 990)
    assert p < 0.01
    assert spearman([1, 1, 1], [1, 2, 3]) == (0.0, 1.0)

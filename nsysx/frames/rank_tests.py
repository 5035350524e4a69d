"""Two rank tests, so that a verdict about spread rests on more than two medians. Two-sided, by normal approximation."""

from __future__ import annotations

from math import erfc, sqrt

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


def ranked(values: npt.ArrayLike) -> tuple[F64, I64]:
    """Return the ranks from 1, with the mean rank for equal values, and how often each distinct value occurs."""
    values = np.asarray(values)
    order = np.argsort(values)
    new = np.diff(values[order], prepend=np.nan) != 0
    first = np.flatnonzero(new)
    counts = np.diff(first, append=len(values))
    ranks = np.empty(len(values))
    ranks[order] = np.repeat(first + (counts + 1) / 2, counts)
    return ranks, counts


def ranks(values: npt.ArrayLike) -> F64:
    """Return the ranks from 1, with the mean rank for equal values."""
    return ranked(values)[0]


def explained(values: npt.ArrayLike, group: I64) -> float:
    """Return the share of the ranks' variance that lies between groups; 0 if all values are equal.

    ``group`` holds each value's group, numbered from 0. The share is the statistic H of Kruskal and Wallis (1952) over n - 1.
    """
    r = ranks(values)
    r -= r.mean()
    total = float((r**2).sum())
    if not total:
        return 0.0
    counts, sums = np.bincount(group), np.bincount(group, r)
    return float((sums**2 / np.maximum(counts, 1)).sum()) / total


def mann_whitney(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Return the p-value for ``a`` and ``b`` coming from one distribution; 1.0 if a sample is empty or all values are equal.

    The U test of Mann and Whitney (1947), with correction of the variance for ties and of the statistic for continuity.
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    n, m = len(a), len(b)
    if not n or not m:
        return 1.0
    r, counts = ranked(np.concatenate([a, b]))
    u = float(r[:n].sum()) - n * (n + 1) / 2
    total = n + m
    ties = float((counts.astype(np.float64) ** 3 - counts).sum()) / (total * (total - 1)) if total > 1 else 0.0
    variance = n * m / 12 * (total + 1 - ties)
    if variance <= 0:
        return 1.0
    # U is a whole number, hence the continuity correction by one half.
    z = max(0.0, abs(u - n * m / 2) - 0.5) / sqrt(variance)
    return erfc(z / sqrt(2))


def spearman(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[float, float]:
    """Return Spearman's rank correlation (1904) and its p-value from rho sqrt(n - 1); (0, 1) if it is not defined."""
    x, y = ranks(a), ranks(b)
    n = len(x)
    x, y = x - x.mean(), y - y.mean()
    spread = sqrt(float(x @ x) * float(y @ y))
    if n < 3 or not spread:
        return 0.0, 1.0
    rho = float(x @ y) / spread
    return rho, erfc(abs(rho) * sqrt(n - 1) / sqrt(2))

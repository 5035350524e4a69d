"""Two rank tests, so that a verdict about spread rests on more than two medians. Normal approximations, two-sided."""

from __future__ import annotations

from math import erfc, sqrt

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def ranks(values: npt.ArrayLike) -> F64:
    """Return the ranks from 1; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean: F64 = last - (counts - 1) / 2
    return mean[inverse]


def mann_whitney(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Return the p-value that ``a`` and ``b`` come from one distribution; 1.0 when a sample is empty or all are equal."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    n, m = len(a), len(b)
    if not n or not m:
        return 1.0
    joined = np.concatenate([a, b])
    u = float(ranks(joined)[:n].sum()) - n * (n + 1) / 2
    _, counts = np.unique(joined, return_counts=True)
    total = n + m
    ties = float((counts.astype(np.float64) ** 3 - counts).sum()) / (total * (total - 1)) if total > 1 else 0.0
    variance = n * m / 12 * (total + 1 - ties)
    if variance <= 0:
        return 1.0
    # Half a rank of continuity correction: the statistic is a whole number.
    z = max(0.0, abs(u - n * m / 2) - 0.5) / sqrt(variance)
    return erfc(z / sqrt(2))


def spearman(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[float, float]:
    """Return (rank correlation, p-value); (0, 1) when it is not defined."""
    x, y = ranks(a), ranks(b)
    n = len(x)
    if n < 3 or x.std() == 0 or y.std() == 0:
        return 0.0, 1.0
    rho = float(np.corrcoef(x, y)[0, 1])
    return rho, erfc(abs(rho) * sqrt(n - 1) / sqrt(2))

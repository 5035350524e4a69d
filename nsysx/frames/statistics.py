"""The statistics of all rooms, held against SciPy by the tests. Nothing is random: equal inputs, equal results.

Means of series whose neighbors correlate: the error in closed form, the bounds by resampling. Two rank tests, so that a verdict
about spread rests on more than two medians: two-sided, by normal approximation.
"""

from __future__ import annotations

from functools import cache
from math import ceil, erfc, exp, lgamma, pi, sqrt

import numpy as np
import numpy.typing as npt

from nsysx.frames.frame_bounds import MOST_DEGREES

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@cache
def t_quantile(level: float, df: float) -> float:
    """Return the t for which Student's distribution with ``df`` degrees of freedom lies within -t and t with probability ``level``.

    It integrates cos(x)^(df - 1), with t = sqrt(df) tan(x), on a fine grid; for df >= 1 four digits are exact.
    """
    if df > MOST_DEGREES:
        df = MOST_DEGREES
    x = np.linspace(0, pi / 2, 200_001)
    density = np.cos(x) ** (df - 1)
    area = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2))) * (x[1] - x[0])
    area *= 2 * exp(lgamma((df + 1) / 2) - lgamma(df / 2)) / sqrt(pi)
    return float(sqrt(df) * np.tan(np.interp(level, area, x)))


def block_length(x: F64) -> int:
    """Return the block length for ``mean_error``: 1 unless the first autocorrelation exceeds its noise, 2 / sqrt(n).

    Above that it is (2 rho / (1 - rho^2))^(2/3) n^(1/3) for an AR(1) process (Carlstein 1986), at most n / 2.
    """
    n = len(x)
    d = x - x.mean()
    power = float(d @ d)
    if n < 4 or not power:
        return 1
    rho = float(d[1:] @ d[:-1]) / power
    if rho <= 2 / sqrt(n):
        return 1
    rho = min(rho, 0.95)
    return int(max(1, min(n // 2, ceil((2 * rho / (1 - rho**2)) ** (2 / 3) * n ** (1 / 3)))))


def mean_error(rows: F64, length: int) -> tuple[F64, float]:
    """Return the standard error of the mean of each row, shape (rows,), and its degrees of freedom.

    It is that of the circular block bootstrap (Politis and Romano 1992) with infinitely many resamples, in closed form.
    ``rows`` has the shape (rows, n), with the values of a row in order of time. With n < 2 the errors are NaN.
    """
    n = rows.shape[1]
    if n < 2:
        return np.full(len(rows), np.nan), 0.0
    length = min(length, n // 2) or 1
    around = np.concatenate((rows, rows[:, : length - 1]), axis=1)
    sums = np.cumsum(np.concatenate((np.zeros((len(rows), 1)), around), axis=1), axis=1)
    means = (sums[:, length:] - sums[:, :-length]) / length
    spread = ((means - rows.mean(axis=1, keepdims=True)) ** 2).mean(axis=1)
    blocks = n / length
    return np.sqrt(spread / (blocks - 1)), blocks - 1


def satterthwaite(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    """Return the error and degrees of freedom of a difference of two means, from those of each (Welch 1947)."""
    (ea, da), (eb, db) = a, b
    whole = ea**2 + eb**2
    if not da or not db:
        return float("nan"), 0.0
    if not whole:
        return 0.0, da + db
    return sqrt(whole), whole**2 / (ea**4 / da + eb**4 / db)


def bootstrap_bounds(values: F64, share: float, resamples: int) -> tuple[float, float]:
    """Return the bounds between which this share of the resampled means of a series lies.

    A moving-block bootstrap: blocks, as long as the square root of the number of values, keep what neighbors have in common.
    Source: Kuensch, "The jackknife and the bootstrap for general stationary observations", Annals of Statistics 17 (1989).
    """
    size = max(1, round(len(values) ** 0.5))
    blocks = np.lib.stride_tricks.sliding_window_view(values, size).mean(axis=1)
    chosen = np.random.default_rng(0).integers(0, len(blocks), (resamples, -(-len(values) // size)))
    low, high = np.quantile(blocks[chosen].mean(axis=1), ((1 - share) / 2, (1 + share) / 2)).tolist()
    return low, high


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

"""The standard error of the mean of a time series whose neighbors correlate. Nothing is random: equal inputs, equal results.

It is that of the circular block bootstrap (Politis and Romano 1992) with infinitely many resamples, which has a closed form. The
block length follows from the first autocorrelation (Carlstein 1986).
"""

from __future__ import annotations

from functools import cache
from math import ceil, exp, lgamma, pi, sqrt

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

#: Host code of one program runs up to this share slower or faster from process to process, above all under a profiler
#: (measured: a launch-bound loop, H200 hosts).
PROCESS_DRIFT = 1 / 3


@cache
def t_quantile(level: float, df: float) -> float:
    """Return the t for which Student's distribution with ``df`` degrees of freedom lies within -t and t with probability ``level``.

    It integrates cos(x)^(df - 1), with t = sqrt(df) tan(x), on a fine grid; for df >= 1 four digits are exact.
    """
    if df > 1e4:
        df = 1e4
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
    return np.sqrt(spread / blocks * blocks / (blocks - 1)), blocks - 1

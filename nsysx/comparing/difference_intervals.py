"""Intervals for a difference of two means, and the verdict they allow. Nothing is random: the same input, the same answer.

The unit is the capture. If a side has several, or captures for ``--noise`` are given, the scatter between captures decides.
With one capture a side, only the scatter of steps is known, which correlate (`frames.statistics`). How much processes differ is
then not seen at all and is allowed for (`frames.statistics.PROCESS_DRIFT`, `GPU_DRIFT_SHARE`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from nsysx.comparing.comparing_bounds import STEP_LEVEL
from nsysx.frames.statistics import t_quantile


@dataclass(frozen=True)
class Doubt:
    """How sure a difference is: its standard error, degrees of freedom, and ``drift``, which no interval covers (same unit)."""

    error: float
    df: float
    drift: float

    def half(self, level: float) -> float:
        """Return half the width of the interval (Student's t), infinite if there is none."""
        if not self.df or not np.isfinite(self.error):
            return float("inf")
        return self.error * t_quantile(level, max(1.0, round(self.df, 1)))


def between(groups: Sequence[Sequence[float]], level: float) -> tuple[float, float]:
    """Return the standard deviation between captures of one program at a mean of ``level``, and its degrees of freedom.

    Every group is one program; deviations are relative to its mean, so that noise measured on one program scales to the other.
    """
    total, df = 0.0, 0
    for group in groups:
        if len(group) > 1:
            values = np.asarray(group, np.float64)
            mean = float(values.mean())
            total += float((((values - mean) / mean) ** 2).sum()) * level**2 if mean else float(((values) ** 2).sum())
            df += len(group) - 1
    return (sqrt(total / df), float(df)) if df else (float("nan"), 0.0)


def judge(difference: float, doubt: Doubt, margin: float, level: float = STEP_LEVEL) -> str:
    """Return "faster", "slower", "same" or "cannot_tell" for after minus before; ``margin`` in the same unit."""
    half = doubt.half(level) + doubt.drift
    low, high = difference - half, difference + half
    if -margin <= low and high <= margin:
        return "same"
    if high < 0:
        return "faster"
    return "slower" if low > 0 else "cannot_tell"

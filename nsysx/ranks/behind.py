"""By how much a rank is behind its peers over steps, and how sure that is."""

from __future__ import annotations

import numpy as np

from nsysx.frames.statistics import F64, block_length, mean_error, t_quantile
from nsysx.ranks.rank_bounds import FALSE_ALARM_CHANCE


def median_of_others(values: F64) -> F64:
    """Return for each value the median of all others, 0 if there are none."""
    if len(values) < 2:
        return np.zeros(len(values))
    order = np.argsort(values, kind="stable")
    ordered, position = values[order], np.empty(len(values), np.int64)
    position[order] = np.arange(len(values))

    def without(k: int) -> F64:
        result: F64 = np.where(k < position, ordered[k], ordered[k + 1])
        return result

    count = len(values) - 1
    return (without((count - 1) // 2) + without(count // 2)) / 2


def behind_peers(step_ns: F64) -> F64:
    """Return by how much each rank exceeds the median of its peers in each step (ns)."""
    result: F64 = step_ns - np.apply_along_axis(median_of_others, 0, step_ns)
    return result


def late_by(behind: F64, r: int) -> tuple[float, float]:
    """Return by how much a rank is behind (ns), and half the width of the interval, corrected for the number of ranks."""
    error, df = mean_error(behind[r : r + 1], block_length(behind[r]))
    half = float(error[0]) * t_quantile(1 - 2 * FALSE_ALARM_CHANCE / len(behind), max(df, 1.0)) if df else float("inf")
    return float(behind[r].mean()), half


def half_of_all(step_ns: F64 | None, r: int, late_ns: float) -> float:
    """Return half the width of the interval of ``late_ns`` of a rank in replayed steps, as wide in proportion as that of all recorded ones.

    ``step_ns``: the recorded steps without waiting, of shape (ranks, steps), None without any; infinite where these show no delay.
    """
    if step_ns is None:
        return float("inf")
    late, half = late_by(behind_peers(step_ns), r)
    return late_ns * half / late if late > 0 else float("inf")

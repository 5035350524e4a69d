"""Whether steady steps are steady: do they grow, does every k-th one take longer, how far do they spread?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from nsysx import units
from nsysx.frames.intervals import I64

#: With fewer steps nothing is said about their course.
_FEWEST = 5
#: Steps that change by less than this share of the median over the window are level.
_CHANGE = 0.15
#: Mann-Kendall: the normal score beyond which a trend is no accident, 99 % on both sides.
_SCORE = 2.58
#: A middle 80 % wider than this share of the median is uneven.
_SPREAD = 0.25


@dataclass(frozen=True)
class Trend:
    """The course of the steady steps. ``kind`` is level, growing, falling, periodic, uneven, or unknown (too few).

    ``change`` is the fitted change over the window and ``spread`` the width of the middle 80 % of the lengths, both as a share
    of the median; ``every`` is k where each k-th step takes ``excess_ns`` longer than the others. ``note`` says it in words,
    empty for level steps.
    """

    kind: Literal["level", "growing", "falling", "periodic", "uneven", "unknown"]
    change: float | None = None
    spread: float | None = None
    every: int | None = None
    excess_ns: int | None = None
    note: str = ""


def _slope(values: I64) -> tuple[float, float]:
    """Return the change over the window by the Theil-Sen slope, and the Mann-Kendall score of the trend.

    Sources: Sen, "Estimates of the regression coefficient based on Kendall's tau", JASA 63 (1968); Mann, "Nonparametric tests
    against trend", Econometrica 13 (1945).
    """
    n = len(values)
    i, j = np.triu_indices(n, 1)
    difference = (values[j] - values[i]).astype(float)
    statistic = np.sign(difference).sum()
    score = (abs(statistic) - 1) / np.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    return float(np.median(difference / (j - i)) * (n - 1)), float(np.sign(statistic) * max(score, 0.0))


def _period(values: I64, least: float) -> tuple[int, int] | None:
    """Return (k, excess in ns) where every k-th value, three or more of them, lies above all others by ``least`` and more."""
    for k in range(2, len(values) // 3 + 1):
        for phase in range(k):
            chosen = np.arange(len(values)) % k == phase
            if chosen.sum() >= 3 and values[chosen].min() > np.quantile(values[~chosen], 0.9) + least:
                return k, int(np.median(values[chosen]) - np.median(values[~chosen]))
    return None


#: Pairs grow with the square of the steps; a trend shows in this many.
_MOST = 500


def trend(lengths: I64) -> Trend:
    """Return the course of step lengths (ns), in order. A factor on all of them changes neither kind nor shares."""
    values = lengths[:: max(1, -(-len(lengths) // _MOST))]
    middle = float(np.median(values)) if len(values) else 0.0
    if len(values) < _FEWEST or middle <= 0:
        return Trend("unknown")
    low, high = np.quantile(values, (0.1, 0.9))
    spread = float((high - low) / middle)
    change, score = _slope(values)
    share = change / middle
    if abs(share) > _CHANGE and abs(score) > _SCORE:
        first, last = (
            int(np.median(part)) for part in (values[: len(values) // 4 + 1], values[-(len(values) // 4 + 1) :])
        )
        kind: Literal["growing", "falling"] = "growing" if change > 0 else "falling"
        note = f"The steps are not steady, they keep {kind}: from {units.duration(first)} to {units.duration(last)}."
        return Trend(kind, share, spread, note=note)
    if len(values) == len(lengths) and (found := _period(values, _CHANGE * middle)):
        every, excess = found
        note = f"Every {_ordinal(every)} step takes {units.duration(excess)} longer than the others."
        return Trend("periodic", share, spread, every, excess, note)
    if spread > _SPREAD:
        ends = f"{units.duration(int(low))} to {units.duration(int(high))}"
        return Trend("uneven", share, spread, note=f"The steps differ: the middle 80 % take {ends}.")
    return Trend("level", share, spread)


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"

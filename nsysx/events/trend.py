"""Whether steady steps are steady: do they grow, does every k-th one take longer, how far do they spread?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Literal, NamedTuple

import numpy as np

from nsysx import units
from nsysx.events.event_bounds import (
    FEWEST_TREND_STEPS,
    LEVEL_CHANGE_SHARE,
    MOST_TREND_STEPS,
    OTHER_LONG_STEPS_SHARE,
    PERIOD_BY_ACCIDENT,
    TREND_BLOCKS,
    TREND_SCORE,
    UNEVEN_SPREAD_SHARE,
    WORK_OF_CHANGE_SHARE,
)
from nsysx.frames.intervals import I64


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


class RepeatingExcess(NamedTuple):
    """Each ``every``-th value, from ``phase`` on, takes ``excess_ns`` longer than the others (difference of medians)."""

    every: int
    phase: int
    excess_ns: int


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


def _accident(high: int, size: int, n: int) -> float:
    """Return how likely it is that the ``high`` highest of n values in random order hold a whole class of ``size`` or more.

    A class is each k-th value. One of c values is held by C(high, c) of C(n, c) choices; all classes are summed.
    """
    sizes: dict[int, int] = {}
    for k in range(2, (n - 1) // 2 + 1):
        for c, count in ((n // k + 1, n % k), (n // k, k - n % k)):
            sizes[c] = sizes.get(c, 0) + count
    return sum(count * comb(high, c) / comb(n, c) for c, count in sizes.items() if size <= c <= high)


def period(values: I64, least: float) -> RepeatingExcess | None:
    """Return the smallest k of which each k-th value, three or more, lies above nine tenths of the others by ``least`` and more.

    None where as many high values would stand like that by accident in one of 200 random orders.
    """
    n = len(values)
    ordered = np.sort(values)
    for k in range(2, (n - 1) // 2 + 1):
        rows = -(-n // k)
        table = np.full(rows * k, np.iinfo(np.int64).max)
        table[:n] = values
        lowest = table.reshape(rows, k).min(axis=0)
        size = rows - (np.arange(k) >= n - (rows - 1) * k)
        high = n - np.searchsorted(ordered, lowest)
        for phase in np.flatnonzero((size >= 3) & (high <= size + OTHER_LONG_STEPS_SHARE * (n - size))).tolist():
            chosen = np.arange(n) % k == phase
            high_ones, others = values[chosen], values[~chosen]
            if high_ones.min() <= np.quantile(others, 1 - OTHER_LONG_STEPS_SHARE) + least:
                continue
            if _accident(int(high[phase]), len(high_ones), n) <= PERIOD_BY_ACCIDENT:
                return RepeatingExcess(k, phase, int(np.median(high_ones) - np.median(others)))
    return None


def period_of_parts(parts: Sequence[I64], least: float) -> RepeatingExcess | None:
    """Return the period of values that lie in several parts, between which some are missing: that of the longest part that has one.

    None where no part has one, nor all of them in a row.
    """
    longest = sorted((part for part in parts if len(part)), key=len, reverse=True)
    rhythms = (period(part, least) for part in (*longest, *([np.concatenate(parts)] if len(longest) > 1 else ())))
    return next((rhythm for rhythm in rhythms if rhythm is not None), None)


def _by_blocks(values: I64, change: float) -> bool:
    """Return whether the median of each block of the values lies beyond that of the block before, in the direction of ``change``.

    A launch-bound loop wanders: its steps may end longer than they began, but do not grow all the way.
    """
    medians = np.array([np.median(block) for block in np.array_split(values, min(TREND_BLOCKS, len(values) // 2))])
    return bool((np.diff(medians) * np.sign(change) > 0).all())


def trend(lengths: I64, work: I64 | None = None, *, in_a_row: bool = True) -> Trend:
    """Return the course of step lengths (ns), in order. A factor on all of them changes neither kind nor shares.

    Steps that do not lie ``in_a_row`` show no period. ``work`` is the GPU's work in each step (ns): where it is known, steps only
    grow if it does.
    """
    every = max(1, -(-len(lengths) // MOST_TREND_STEPS))
    values = lengths[::every]
    middle = float(np.median(values)) if len(values) else 0.0
    if len(values) < FEWEST_TREND_STEPS or middle <= 0:
        return Trend("unknown")
    low, high = np.quantile(values, (0.1, 0.9))
    spread = float((high - low) / middle)
    change, score = _slope(values)
    share = change / middle
    grows = abs(share) > LEVEL_CHANGE_SHARE and abs(score) > TREND_SCORE and _by_blocks(values, change)
    if grows and work is not None:
        of_work = _slope(work[::every])[0]
        grows = of_work * np.sign(change) >= WORK_OF_CHANGE_SHARE * abs(change) and _by_blocks(work[::every], change)
    if grows:
        first, last = (
            int(np.median(part)) for part in (values[: len(values) // 4 + 1], values[-(len(values) // 4 + 1) :])
        )
        kind: Literal["growing", "falling"] = "growing" if change > 0 else "falling"
        verb = "grows" if change > 0 else "falls"
        note = f"Step time {verb} from {units.duration(first)} to {units.duration(last)}."
        return Trend(kind, share, spread, note=note)
    if in_a_row and len(values) == len(lengths) and (rhythm := period(values, LEVEL_CHANGE_SHARE * middle)):
        note = f"Every {ordinal(rhythm.every)} step takes {units.duration(rhythm.excess_ns)} longer than the others."
        return Trend("periodic", share, spread=spread, every=rhythm.every, excess_ns=rhythm.excess_ns, note=note)
    if spread > UNEVEN_SPREAD_SHARE:
        ends = f"{units.duration(int(low))} to {units.duration(int(high))}"
        return Trend("uneven", share, spread, note=f"The steps differ: the middle 80 % take {ends}.")
    return Trend("level", share, spread)


def ordinal(number: int) -> str:
    """Return 10th of 10."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"

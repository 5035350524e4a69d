"""Levels of step times: steps that save a model take another time than the others, and a mean is the time of neither."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsysx import units
from nsysx.events.event_bounds import (
    LEVELS_APART_TIMES,
    MISLEADING_MEAN_SHARE,
    MOST_LEVELS,
    SPREAD_LEVEL_TIMES,
    TWO_STEPS_APART,
)
from nsysx.events.trend import ordinal
from nsysx.frames.intervals import I64


@dataclass(frozen=True)
class Level:
    """``count`` steps take ``median_ns`` (mean ``mean_ns``); ``every``: they are each so-manieth step, None if not regular.

    ``low_ns`` and ``high_ns`` are the shortest and the longest of them.
    """

    median_ns: int
    count: int
    every: int | None
    mean_ns: int
    low_ns: int
    high_ns: int


def level_of(lengths: I64) -> I64:
    """Return the level of each step, numbered by length: 0 has the shortest. One level where the lengths are merely spread."""
    ordered = np.sort(lengths)
    apart = np.flatnonzero(ordered[1:] > LEVELS_APART_TIMES * np.maximum(ordered[:-1], 1))
    if not len(apart) or len(apart) + 1 > MOST_LEVELS:
        return np.zeros(len(lengths), np.int64)
    return np.searchsorted(ordered[apart + 1], lengths, side="right").astype(np.int64)


def _each_kth(places: I64, numbers: I64) -> int | None:
    """Return k if each k-th step is of the level and no other; ``numbers`` are those that the program gave to all steps."""
    gaps = np.diff(places)
    if not len(gaps) or gaps.min() != gaps.max() or gaps[0] < 2:
        return None
    k = int(gaps[0])
    if places[0] > k or places[-1] + k < len(numbers):  # loops often leave out step 0
        return None
    if len(places) == 2 and (k < TWO_STEPS_APART or int(numbers[places[0]]) % k not in (0, k - 1)):
        return None
    return k


def levels(lengths: I64, numbers: I64, *, in_a_row: bool = True) -> tuple[Level, ...]:
    """Return the levels of step lengths (ns) in order of the steps, the one with the most steps first; () without steps.

    If they do not lie ``in_a_row``, it is not said how often a level comes.
    """
    level_numbers = level_of(lengths)
    of_lengths = []
    for level in np.unique(level_numbers).tolist():
        places = np.flatnonzero(level_numbers == level)
        ns = lengths[places]
        every = 1 if len(places) == len(lengths) else _each_kth(places, numbers) if in_a_row else None
        of_lengths.append(
            Level(
                int(np.median(ns)),
                len(places),
                every=every,
                mean_ns=round(ns.sum() / len(ns)),
                low_ns=int(ns.min()),
                high_ns=int(ns.max()),
            )
        )
    return tuple(sorted(of_lengths, key=lambda level: (-level.count, level.median_ns)))


def period(of_lengths: tuple[Level, ...]) -> int | None:
    """Return after how many steps the levels repeat, None if they do not."""
    others = {level.every for level in of_lengths[1:]}
    return others.pop() if len(others) == 1 else None


def note(of_lengths: tuple[Level, ...]) -> str:
    """Return the levels in words, "Usually 5.50 ms; every 10th step takes 304.0 ms."; "" where the mean says nearly as much."""
    steps = sum(level.count for level in of_lengths)
    mean = sum(level.mean_ns * level.count for level in of_lengths) / max(steps, 1)
    if len(of_lengths) < 2 or abs(mean - of_lengths[0].median_ns) <= MISLEADING_MEAN_SHARE * of_lengths[0].median_ns:
        return ""
    rest = []
    for level in of_lengths[1:]:
        several = level.count > 1 and level.every is None
        which = f"every {ordinal(level.every)} step" if level.every else f"{level.count} of {steps} steps"
        rest.append(f"{which} take{'s' if not several else ''} {_length(level)}")
    return f"Usually {_length(of_lengths[0])}; {', '.join(rest)}."


def _length(level: Level) -> str:
    """Return how long steps of a level take: where they are spread to both sides, from the shortest to the longest."""
    low, median, high = level.low_ns, level.median_ns, level.high_ns
    if median > SPREAD_LEVEL_TIMES * low and high > SPREAD_LEVEL_TIMES * median:
        return f"{units.duration(low)} to {units.duration(high)}"
    return units.duration(median)

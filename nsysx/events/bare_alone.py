"""Steps alone among many that take many times the others while nothing records: pauses of the host or the machine, told beside the step.

One of dozens does not tell how often it comes: spread over the few steps that were timed, it makes the mean a length that no step has.
What a program does now and then (an evaluation, a checkpoint, a file that is written) has lines of its own, and a new pass of a loader is a
wait for its batch: those are a part of the loop, and of its mean, however few of them were timed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nsysx.events.event_bounds import (
    ALONE_STEP_TIMES,
    FAR_LONGER_TIMES,
    FEWEST_STEPS_AROUND,
    MOST_ALONE_SHARE,
    MOST_FAR_LONGER_SHARE,
    MOVED_MEAN_SHARE,
    USUAL_LINES_SHARE,
    WAITED_SHARE_OF_ALONE,
)

#: The lengths of steps in a row, and the time in loaders of each (ns); empty where that was not noted.
Stretch = tuple[Sequence[int], Sequence[int]]


def alone(record: Mapping[str, Any], stretches: Sequence[Stretch]) -> list[frozenset[int]]:
    """Return which steps of each stretch are alone with their length: by what the probe of a process without peers noted.

    A rank may wait in such a step for another one, at whose lines it cannot be told from here.
    """
    none = [frozenset[int]() for _ in stretches]
    ns = np.array([n for steps_ns, _ in stretches for n in steps_ns], np.float64)
    if record.get("rank") is not None or len(ns) < FEWEST_STEPS_AROUND:
        return none
    usual = float(np.median(ns))
    long = [[row for row, n in enumerate(steps_ns) if n > ALONE_STEP_TIMES * usual] for steps_ns, _ in stretches]
    count = sum(map(len, long))
    if not 0 < count <= max(1, int(MOST_ALONE_SHARE * len(ns))) or not _at_usual_lines(record, count):
        return none
    for rows, (steps_ns, fetches_ns) in zip(long, stretches, strict=True):
        waits = len(fetches_ns) == len(steps_ns)
        if waits and any(fetches_ns[row] > WAITED_SHARE_OF_ALONE * (steps_ns[row] - usual) for row in rows):
            return none
    return [frozenset(rows) for rows in long]


def _at_usual_lines(record: Mapping[str, Any], count: int) -> bool:
    """Return whether what the probe saw of long steps are so many, at lines that other steps run, too; whether it saw none of them."""
    noted = record.get("long_steps")
    if not isinstance(noted, Mapping) or not noted.get("samples"):
        return True
    places = [row for row in noted.get("places") or () if isinstance(row, list) and len(row) == 5]
    at_usual = sum(row[3] for row in places if row[4] is True)
    steps = noted.get("steps")
    return isinstance(steps, int) and steps <= count and at_usual >= USUAL_LINES_SHARE * noted["samples"]


def few_longer(steps_ns: Sequence[int]) -> list[int]:
    """Return the lengths of the few of many steps that take far longer than the others and move their mean; [] where there are none.

    They stay in the mean, which is of no step then: whether they belong to the program is not known.
    """
    ns = np.array(steps_ns, np.int64)
    if len(ns) < FEWEST_STEPS_AROUND:
        return []
    far = ns > FAR_LONGER_TIMES * np.median(ns)
    if not 0 < far.sum() <= len(ns) * MOST_FAR_LONGER_SHARE or ns.mean() < (1 + MOVED_MEAN_SHARE) * ns[~far].mean():
        return []
    return sorted(ns[far].tolist())

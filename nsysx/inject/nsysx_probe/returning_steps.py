"""Which step of a window will be far longer than the others: one that comes back at a regular distance, as one that evaluates or logs does.

The steps that an X-ray takes by themselves are usual ones, and where such a step is spent would not be known by line.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate

from .clock import TimedStep
from .probe_bounds import FEWEST_RETURNS, REGULAR_SHARE, RETURNING_TIMES


def next_long(steps: Sequence[TimedStep], behind: int, on_device: Mapping[int, int]) -> int | None:
    """Return the number of the first long step that is due behind step ``behind``, None where none comes back regularly.

    ``steps`` are those whose length is known; recorded ones do not count, they are longer for another reason. ``on_device``: number ->
    length of a step by the device's clock (ns). A host that runs ahead of the device takes long where its queue is full: in several steps
    of a period, and not in the one whose work is long. So the device's clock comes first, and the host's where that shows nothing, as
    where the device's is of several steps together.
    """
    bare = [step for step in steps if not step.recorded]
    by_device = [step._replace(ns=on_device[step.number]) for step in bare if step.number in on_device]
    due = _next_long(by_device, behind)
    return _next_long(bare, behind) if due is None else due


def _next_long(bare: Sequence[TimedStep], behind: int) -> int | None:
    """Return the number of the first of the steps behind ``behind`` that is due to be long, by the lengths of these."""
    if len(bare) <= FEWEST_RETURNS:
        return None
    long = _longer(bare, RETURNING_TIMES * statistics.median(step.ns for step in bare))
    # Where a host is late now and then, that lies between those in which most of the time of long steps is.
    far = _longer(long, _middle_ns(long) / 2)
    due = _due([step.number for step in far], behind)
    return _due([step.number for step in long], behind) if due is None else due


def _longer(steps: Sequence[TimedStep], ns: float) -> list[TimedStep]:
    return [step for step in steps if step.ns > ns]


def _middle_ns(steps: Sequence[TimedStep]) -> int:
    """Return the length (ns) up to which steps take half of the time of all of them; 0 without any."""
    lengths = sorted(step.ns for step in steps)
    return next((ns for ns, sum_ns in zip(lengths, accumulate(lengths)) if 2 * sum_ns >= sum(lengths)), 0)  # noqa: B905


def _due(long: Sequence[int], behind: int) -> int | None:
    """Return the number of the first step behind ``behind`` that comes at the distance of these, None where most have no such distance.

    A probe that rests may count a step more or less, so that a distance or two differ: the last long step counts.
    """
    distances = Counter(b - a for a, b in zip(long, long[1:]))  # noqa: B905, RUF007 - Python 3.9 has neither
    if not distances:
        return None
    every, often = distances.most_common(1)[0]
    if often < max(FEWEST_RETURNS, REGULAR_SHARE * (len(long) - 1)):
        return None
    return long[-1] + every * max(1, (behind - long[-1]) // every + 1)

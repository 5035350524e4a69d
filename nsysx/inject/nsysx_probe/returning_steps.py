"""Which step of a window will be far longer than the others: one that comes back at a regular distance, as one that evaluates or logs does.

The steps that an X-ray takes by themselves are usual ones, and where such a step is spent would not be known by line.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

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
    """Return the number of the first of the steps behind ``behind`` that is due to be long, by the lengths of these.

    A probe that rests may count a step more or less, so that a distance or two differ: the last long step counts.
    """
    if len(bare) <= FEWEST_RETURNS:
        return None
    usual_ns = statistics.median(step.ns for step in bare)
    long = [step.number for step in bare if step.ns > RETURNING_TIMES * usual_ns]
    distances = Counter(b - a for a, b in zip(long, long[1:]))  # noqa: B905, RUF007 - Python 3.9 has neither
    if not distances:
        return None
    every, often = distances.most_common(1)[0]
    if often < max(FEWEST_RETURNS, REGULAR_SHARE * (len(long) - 1)):
        return None
    return long[-1] + every * max(1, (behind - long[-1]) // every + 1)

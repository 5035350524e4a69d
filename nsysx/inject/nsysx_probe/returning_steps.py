"""Which step of a window will be far longer than the others: one that comes back at a regular distance, as one that evaluates or logs does.

The steps that an X-ray takes by themselves are usual ones, and where such a step is spent would not be known by line.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from .clock import TimedStep
from .probe_bounds import FEWEST_RETURNS, REGULAR_SHARE, RETURNING_TIMES


def next_long(steps: Sequence[TimedStep], behind: int) -> int | None:
    """Return the number of the first long step that is due behind step ``behind``, None where none comes back regularly.

    ``steps`` are those whose length is known; recorded ones do not count, they are longer for another reason. A probe that rests may
    count a step more or less, so that a distance or two differ: the last long step counts.
    """
    bare = [step for step in steps if not step.recorded]
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

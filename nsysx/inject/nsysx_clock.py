"""How long steps took by the host's clock: nothing waits for the device, and nothing is added to it.

The time from the beginning of one step to that of the next is what a step takes, also where the GPU sets the pace: the host
then runs ahead only as far as the queue allows, and waits as long as the GPU works. So single steps may be shorter or
longer; the mean over a block of them is the period.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import Any, NamedTuple

#: Steps that are remembered.
_MOST = 4_096
#: Steps at the start that are not looked at: caches fill, kernels are loaded, the queue fills up.
WARM_UP = 3
#: A real step is told from so many blocks of steps, of at least so many steps each.
BLOCKS = 5
_SMALLEST_BLOCK = 2


class Period(NamedTuple):
    """One step that another one followed at once: its number, how long it took, and how it ran."""

    number: int
    ns: int
    marked: bool
    recorded: bool


class StepClock:
    """Told when steps begin and end."""

    def __init__(self) -> None:
        self.periods: deque[Period] = deque(maxlen=_MOST)
        self._open: tuple[int, int, bool, bool] | None = None

    def begin(self, index: int, marked: bool, recorded: bool) -> None:
        """Step ``index`` begins now."""
        now = time.perf_counter_ns()
        if self._open is not None:
            number, began, *how = self._open
            self.periods.append(Period(number, now - began, *how))
        self._open = (index, now, marked, recorded)

    def end(self, border: bool) -> None:
        """A step has ended. Unless the next one begins at once, its length is not known from its beginning alone."""
        if not border:
            self._open = None

    def unrecorded(self, before: int | None) -> dict[str, Any] | None:
        """Return count, median_ns, low_ns, high_ns, where of the steps that ran without a profiler before step ``before``.

        Left out are the first steps and the last one, in which the capture is started. None where too few are left.
        """
        if before is None:
            return None
        free = [p.ns for p in self.periods if not p.recorded and p.number < before - 1]
        first = max(WARM_UP, len(free) // BLOCKS)
        free = free[first:] if self.periods and self.periods[0].number < WARM_UP else free
        size = len(free) // BLOCKS
        if size < _SMALLEST_BLOCK:
            return None
        free = free[len(free) - size * BLOCKS :]
        means = [sum(free[i : i + size]) / size for i in range(0, len(free), size)]
        return {
            "count": len(free),
            "median_ns": round(statistics.median(means)),
            "low_ns": round(min(means)),
            "high_ns": round(max(means)),
            "where": "before the window",
        }

    def marks_cost(self) -> dict[str, Any] | None:
        """Return what marks add to a step: median_ns, low_ns, high_ns, marked_steps, unmarked_steps; None where unknown.

        Compared are recorded steps of this process with and without marks; low and high are marked steps against the median
        of the others. The first marked step of a run or window is left out: it pays for other things too.
        """
        recorded = [p for p in self.periods if p.recorded]
        marked = [p.ns for p in recorded if p.marked and p.number > recorded[0].number and p.number > 1]
        free = [p.ns for p in recorded if not p.marked]
        if not marked or len(free) < _SMALLEST_BLOCK:
            return None
        usual = statistics.median(free)
        return {
            "median_ns": round(statistics.median(marked) - usual),
            "low_ns": round(min(marked) - usual),
            "high_ns": round(max(marked) - usual),
            "marked_steps": len(marked),
            "unmarked_steps": len(free),
        }

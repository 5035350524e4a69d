"""The two windows of a run that is asked for no steps in particular (``NSYSX_STEPS=windows``), and the bare steps between them.

The first holds the cold start: it opens with Python (``capture_range``) and closes when warm-up is over and enough steps were
alike. Then steps run without the profiler, and the clock times them. The second holds steps like those. Steps after the
second window are no measure yet: they may lie hours later.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Hashable
from typing import Any

from . import capture_range
from .clock import StepClock
from .output import Output
from .window import AUTO_STEPS, Window

#: The first window closes after so many steps in a row without marks that are alike: eight steady ones, one that shows where the
#: last of them ends, and one to spare.
_ALIKE = 10
#: Such steps also take about as long: none of them this many times as long as their median.
_AS_LONG = 2.0
#: If steps are never alike, it closes after so many of them, or after this time from the first one's end on and so many more.
_MOST_STEPS, _MOST_NS, _LEAST_STEPS = 64, 30_000_000_000, 3
#: A second window that reaches the limit closes once it has so many steps: with them the report takes its averages from it.
_WHOLE = 8


class TwoWindows(Window):
    """``cold``: the first window is open. ``first`` and ``last`` are the steps of the second one, None until they are known."""

    def __init__(self, out: Output, clock: StepClock) -> None:
        super().__init__(out, clock)
        self.wanted = self.cold = self.two = True
        self._lengths: deque[int] = deque(maxlen=_ALIKE)
        self._ended_ns = self._since_ns = 0
        self._in_window = 0  # steps that have ended in the open window
        self.pauses_ns: list[
            int
        ] = []  # for how long each window's end stopped the program: 0 if it closed beside it, at the limit

    def opens(self, index: int) -> bool:
        """Return whether the second window opens with step ``index``."""
        if self.cold or self.opened:
            return False
        self.due(index)
        return self.first is not None and index >= self.first

    def due(self, index: int, ahead: int = 0) -> None:
        """If the bare steps are known well enough, choose the steps of the second window: from ``ahead`` after ``index`` on."""
        if self.first is None and not self.cold and self.clock.known():
            self.first = index + ahead
            self.last = self.first + AUTO_STEPS - 1

    def closes(self, index: int, *, marked: bool = False) -> bool:
        """Return whether the open window closes with step ``index``."""
        over = capture_range.step_ended(first=not self._in_window)
        self._in_window += 1
        if not self.cold:
            return super().closes(index) or capture_range.closed() or (over and self._in_window >= _WHOLE)
        now, before = time.perf_counter_ns(), self._ended_ns
        self._ended_ns = now
        if not before:
            self._since_ns = now
            return False
        self._lengths.append(now - before)
        if marked:
            self._alike = 0
        usual = statistics.median(self._lengths)
        steady = self._alike >= _ALIKE and max(self._lengths) <= _AS_LONG * usual
        return steady or index >= _MOST_STEPS or (index >= _LEAST_STEPS and (over or now - self._since_ns > _MOST_NS))

    def open(self, torch: Any) -> None:
        """Open the second window."""
        self._in_window = 0
        capture_range.begin()

    def close(self, torch: Any) -> bool:
        """Close the open window and return whether it was the first, after which the probe goes on."""
        begin = time.perf_counter_ns()
        was_cold, self.cold = self.cold, False
        was_open = True
        try:
            was_open = capture_range.end()
        finally:  # Ctrl-C comes in these seconds more often than elsewhere
            self.pauses_ns.append(time.perf_counter_ns() - begin if was_open else 0)
        return was_cold

    def unrecorded(self) -> dict[str, Any] | None:
        """Return the bare steps between the windows, as `StepClock.bare` does."""
        return None if self.cold else self.clock.bare(self.first if self.opened else None)

    def never_opened(self, steps: int, rule: str) -> str | None:
        """Return None: the first window opens without a step."""
        return None

    def step_ended(self, shape: Hashable) -> None:
        """Compare a step's shape with the one before, as long as the first window is open."""
        if self.cold:
            super().step_ended(shape)

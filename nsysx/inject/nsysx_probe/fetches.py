"""The enter and leave functions of a DataLoader iterator's ``__next__``: the phase of a batch, and how long it took.

A window may open with batches that workers made while the program stood still: then the wait for them shows only in bare steps, so
each batch is timed there, too. While the probe rests, that is all that it does at a batch: the clock is read twice (below 1 us).
"""

from __future__ import annotations

import threading
import time
from typing import Any

from .clock import StepClock
from .interrupts import shielded
from .phase_ranges import Phases
from .resting import Resting


class Fetches:
    """Batches count as part of the step that is open when they come, and only on the thread that drives."""

    def __init__(self, phases: Phases, resting: Resting, clock: StepClock) -> None:
        self.phases, self.resting, self.clock = phases, resting, clock
        self._main = threading.main_thread().ident
        self._began_ns = 0  # when the open fetch began, 0 without one: a loader may fetch from another one

    def enter(self, loader: Any) -> tuple[int, int]:
        """Return when the driver's fetch began (0: it is another thread's, or inside of one) and the level of its phase, 0 without."""
        level = 0 if self.resting.on else self.phases.enter_fetch(loader)
        if self._began_ns or threading.get_ident() != (self.phases.driver or self._main):
            return 0, level
        self._began_ns = time.perf_counter_ns()
        return self._began_ns, level

    @shielded
    def leave(self, token: tuple[int, int]) -> None:
        """Add the time to the open step, and close the phase."""
        began, level = token
        if began:
            self._began_ns = 0
            self.clock.fetch_ns += time.perf_counter_ns() - began
        if level:
            self.phases.leave_fetch(level)

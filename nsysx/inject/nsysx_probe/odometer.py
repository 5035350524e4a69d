"""Counts the steps of the rest of a run once all windows have been, when nothing else of the probe is left in the program.

Hosts and devices change their speed within minutes, and a mean over some seconds is not that of an hour: of 20,000 steps on an H100
the 1,211 beside the windows took 4.96 ms, the 18,500 that followed 4.12. So the step of the one optimizer that ends each step keeps
one call: it adds one and looks at the clock (0.8 us).
"""

from __future__ import annotations

import time
from typing import Any

from .output import Output
from .patch import Patcher, nothing
from .probe_bounds import ODOMETER_BLOCK_NS, ODOMETER_BLOCKS


class Odometer:
    """``written`` is called now and then, so that a program that is killed has its count."""

    def __init__(self, out: Output) -> None:
        self.out = out
        self.written: Any = None
        self._patcher: Patcher | None = None
        self._key: int | None = None  # of the optimizer
        self._steps = -1  # from the beginning of the first one on
        self._now_ns = self._due_ns = 0
        self._every_ns = ODOMETER_BLOCK_NS
        self._marks: list[tuple[int, int]] = []  # steps so far, and when (ns)

    def arm(self, patcher: Patcher, written: Any) -> None:
        """Note who exchanges code, and what writes the record."""
        self._patcher, self.written = patcher, written

    def start(self, optimizer: Any, *, told: bool) -> None:
        """Count the steps of an optimizer from now on. ``told``: all steps of optimizers are told (``step``) without our doing."""
        self._key, self._steps, self._due_ns = None, -1, 0
        self._marks.clear()
        if self._patcher is not None and optimizer is not None:
            self._key = id(optimizer)
            if not told:
                self._patcher.around(type(optimizer).step, "rest", "args[0]", self.step, nothing)

    def step(self, optimizer: Any) -> None:
        """An optimizer's step begins."""
        try:
            if id(optimizer) != self._key:
                return
            now = self._now_ns = time.perf_counter_ns()
            self._steps += 1
            if now >= self._due_ns:
                self._mark(now)
        except BaseException as error:
            self.out.fail("odometer", error)

    def _mark(self, now: int) -> None:
        self._due_ns = now + self._every_ns
        self._marks.append((self._steps, now))
        if len(self._marks) > ODOMETER_BLOCKS:
            self._every_ns *= 2
            self._marks = self._marks[::2]
            if self.written is not None:
                self.written()

    def record(self) -> dict[str, Any] | None:
        """Return steps, ns (from the beginning of the first one to the end of the last), and blocks.

        These are [steps, ns] each, in order, and sum to the whole. None without any step.
        """
        if self._steps < 1:
            return None
        marks = [*self._marks, (self._steps, self._now_ns)]
        blocks = [[b - a, end - begin] for (a, begin), (b, end) in zip(marks, marks[1:]) if b > a]  # noqa: B905, RUF007 - Python 3.9
        return {"steps": self._steps, "ns": self._now_ns - self._marks[0][1], "blocks": blocks}

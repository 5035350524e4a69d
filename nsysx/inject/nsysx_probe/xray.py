"""X-ray steps: the few steps that carry everything, their modules, operators with shapes, and the line of the program behind each call.

All other steps carry their border and their phases alone, and inherit the rest by the sequence of their launches
(``events/sequence.py``). Which steps are X-rayed, ``marking`` decides: they are the marked ones, but never the very first step, which
compiles. NSYSX_XRAY says what they carry: all, lines (no operators), or none (then no module is marked either).
"""

from __future__ import annotations

import statistics
from typing import Any

from . import backend as backends
from .clock import StepClock
from .kernel_launches import KernelLaunches
from .line_ranges import LineRanges
from .operator_ranges import OperatorRanges
from .output import Output
from .probe_bounds import MOST_XRAY_STEPS, XRAY_CAPTURE_NS, XRAY_RECENT_STEPS
from .returned_values import ReturnedValues
from .sources import Sources


class Xray:
    """``on``: lines or operators are recorded now."""

    def __init__(self, torch: Any, out: Output, operators: OperatorRanges, clock: StepClock, wanted: str) -> None:
        self.out = out
        self.operators = operators
        self.clock = clock
        self.wanted = wanted  # all, lines, none
        self.sources = Sources(torch, out.environ)
        self.launches = KernelLaunches(torch, out)
        self.lines = LineRanges(out, backends.of_lines(out.backend) if wanted != "none" else None, self.sources)
        self.values = self.lines.values = ReturnedValues(torch)
        self.steps: list[int] = []  # of the last window
        self.on = False

    def start(self) -> None:
        """Begin a window, and forget what was recorded before it."""
        self.steps = []

    def begin(self, index: int) -> None:
        """X-ray step ``index``, which is about to begin on this thread."""
        if self.wanted == "none":
            return
        self._turn_on(self._usual_ns())
        self.values.begin(index)
        if self.on and len(self.steps) < MOST_XRAY_STEPS:
            self.steps.append(index)

    def begin_capture(self) -> None:
        """Record what is captured into a CUDA graph: its replays show no Python."""
        if self.wanted != "none":
            self._turn_on(XRAY_CAPTURE_NS)

    def turn_off(self) -> None:
        """Record neither lines nor operators from here on."""
        self.on = False
        self.values.end()
        try:
            self.lines.end()
        finally:  # a signal's exception may end that
            self.launches.record(False)
            self.operators.in_step(False)

    def _turn_on(self, usual_ns: int) -> None:
        self.operators.in_step(True)
        self.launches.record(self.operators.on and self.operators.shapes)
        self.lines.begin(usual_ns)
        self.on = self.lines.on or self.operators.on

    def _usual_ns(self) -> int:
        """Return how long a step takes without marks, 0 if that is not known: recorded or bare, whichever is longer.

        A recorded one may find a queue of work and run ahead of the device, which makes it shorter for the host.
        """
        plain = [period for period in self.clock.periods if not period.marked]
        kinds = ([period.ns for period in plain if period.recorded is recorded] for recorded in (True, False))
        usual = (statistics.median(lengths[-XRAY_RECENT_STEPS:]) for lengths in kinds if lengths)
        return int(max(usual, default=0))

    def record(self) -> dict[str, Any]:
        """Return what was recorded, for the probe file."""
        lines = self.lines
        return {
            "steps": self.steps,
            "lines": lines.cost_ns is not None,
            "why_not": "turned off by --xray none" if self.wanted == "none" else lines.why_not,
            "stopped": lines.stopped,
            "cost_ns": lines.cost_ns,
            "most_lines": lines.most,
            "folds": lines.folds,
            "sources": self.sources.added,
            "returned": self.values.rows(self.sources.path),
        }

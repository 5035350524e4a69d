"""Measures how long steps take, without ever waiting for the device.

By the host's clock, a step lasts from its beginning to that of the next one. If the GPU sets the pace, this is too short at
first: the host runs ahead until the launch queue is full, which a short program never reaches. So before a capture window each
step begins with an event in the current stream (2 us), and the device's times of the last of these events give the step's length.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import deque
from typing import Any, NamedTuple

from .interrupts import of_program

#: Number of steps that are remembered.
_MOST = 4_096
#: Steps at the start that do not count: caches fill, kernels are loaded, and the queue fills up.
WARM_UP = 3
#: The real step is the median over this many blocks of steps.
BLOCKS = 5
#: Least number of steps in a block.
_SMALLEST_BLOCK = 2
#: Number of events that are kept: those of the last steps before the window.
MOST_EVENTS = 65


def event_here(torch: Any) -> Any:
    """Record an event in the current stream and return it; None if CUDA is not in use or the stream is being captured."""
    cuda = torch.cuda
    if not cuda.is_initialized() or cuda.is_current_stream_capturing():
        return None
    event = cuda.Event(enable_timing=True)
    event.record()
    return event


class Period(NamedTuple):
    """A step that another one followed immediately: its number, its length, and whether it was marked and recorded."""

    number: int
    ns: int
    marked: bool
    recorded: bool


class StepClock:
    """Is told when steps begin and end, and derives their lengths."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.periods: deque[Period] = deque(maxlen=_MOST)
        self._open: tuple[int, int, bool, bool] | None = None
        self._events: deque[tuple[int, Any]] = deque(maxlen=MOST_EVENTS)

    def begin(self, index: int, *, recorded: bool = False, marked: bool = False, event: bool = False) -> None:
        """Note that step ``index`` begins now; ``event``: a capture window comes soon, so the device's time is wanted, too."""
        now = time.perf_counter_ns()
        if event:
            self._record_event(index)
        before, self._open = self._open, (index, now, marked, recorded)
        if before is not None and before[0] != index:
            self.periods.append(Period(before[0], now - before[1], before[2], before[3]))

    def stop(self) -> None:
        """Note that a step has ended and none begins immediately: its length is not known, and it is dropped."""
        self._open = None

    def move(self) -> None:
        """From here on steps begin at another place in the program: the open one has no length that is comparable."""
        self._open = None
        if self._events:
            self._events.pop()

    def _record_event(self, index: int) -> None:
        try:
            event = event_here(self.torch)
            if event is not None:
                self._events.append((index, event))
        except Exception as error:  # no device, or a failing one: use the host's clock instead
            if of_program(error):
                raise
            self._events.clear()

    def _by_device(self) -> dict[int, int]:
        """Return number -> length (ns) of each step whose first event and whose successor's event the device has reached."""
        lengths = {}
        with contextlib.suppress(Exception):
            reached = [(number, event) for number, event in self._events if event.query()]
            for (number, first), (after, last) in zip(reached, reached[1:]):  # noqa: B905, RUF007 - Python 3.9
                if after == number + 1:
                    lengths[number] = int(first.elapsed_time(last) * 1e6)
        return lengths

    def unrecorded(self, before: int | None) -> dict[str, Any] | None:
        """Return count, median_ns, low_ns, high_ns, clock and where of the unprofiled steps before step ``before``.

        The first steps and the last one, in which the capture starts, do not count. None if too few steps are left. ``clock``
        is gpu or cpu; the three times are median, minimum and maximum of the block means.
        """
        if before is None:
            return None
        steps = [p for p in self.periods if not p.recorded and p.number < before - 1]
        first = max(WARM_UP, len(steps) // BLOCKS)
        steps = steps[first:] if self.periods and self.periods[0].number < WARM_UP else steps
        device = self._by_device()
        free = [device[p.number] for p in steps if p.number in device]
        by_device = len(free) >= BLOCKS * _SMALLEST_BLOCK
        if not by_device:
            free = [p.ns for p in steps]
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
            "clock": "gpu" if by_device else "cpu",
            "where": "before the window",
        }

    def marks_cost(self) -> dict[str, Any] | None:
        """Return what marks add to a step: median_ns, low_ns, high_ns, marked_steps, unmarked_steps; None if unknown.

        This compares recorded steps of this process with and without marks: median, minimum and maximum of the marked steps,
        each minus the median of the others. The first marked step of a run or window does not count, because it has other costs.
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

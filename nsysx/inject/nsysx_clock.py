"""How long steps took, and that nothing waits for the device.

By the host's clock, a step lasts from its beginning to that of the next. Where the GPU sets the pace that is not true at first:
the host runs ahead as far as the queue allows, which a short program never reaches. So before a capture window an event is
recorded in the current stream where a step begins (2 us), and the device's own times of the last of them tell the step.
"""

from __future__ import annotations

import contextlib
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
#: Events that are kept, those of the last steps before the window.
_MOST_EVENTS = 65


def event_here(torch: Any) -> Any:
    """Record an event in the current stream and return it; None where CUDA is not in use, or the stream is being captured."""
    cuda = torch.cuda
    if not cuda.is_initialized() or cuda.is_current_stream_capturing():
        return None
    event = cuda.Event(enable_timing=True)
    event.record()
    return event


class Period(NamedTuple):
    """One step that another one followed at once: its number, how long it took, and how it ran."""

    number: int
    ns: int
    marked: bool
    recorded: bool


class StepClock:
    """Told when steps begin and end."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.periods: deque[Period] = deque(maxlen=_MOST)
        self._open: tuple[int, int, bool, bool] | None = None
        self._events: deque[tuple[int, Any]] = deque(maxlen=_MOST_EVENTS)

    def begin(self, index: int, marked: bool, recorded: bool, *, window_comes: bool = False) -> None:
        """Step ``index`` begins now; ``window_comes``: a capture window is still to open."""
        now = time.perf_counter_ns()
        if window_comes and not recorded:
            self._record_event(index)
        if self._open is not None:
            number, began, *how = self._open
            self.periods.append(Period(number, now - began, *how))
        self._open = (index, now, marked, recorded)

    def end(self, border: bool) -> None:
        """A step has ended. Unless the next one begins at once, its length is not known from its beginning alone."""
        if not border:
            self._open = None

    def _record_event(self, index: int) -> None:
        try:
            event = event_here(self.torch)
            if event is not None:
                self._events.append((index, event))
        except Exception:  # no device, or one that is in trouble: the host's clock is left
            self._events.clear()

    def _by_device(self) -> dict[int, int]:
        """Return number -> length (ns) of the steps whose two events the device has reached."""
        lengths = {}
        with contextlib.suppress(Exception):
            reached = [(number, event) for number, event in self._events if event.query()]
            for (number, first), (after, last) in zip(reached, reached[1:]):  # noqa: B905, RUF007 - Python 3.9
                if after == number + 1:
                    lengths[number] = int(first.elapsed_time(last) * 1e6)
        return lengths

    def unrecorded(self, before: int | None) -> dict[str, Any] | None:
        """Return count, median_ns, low_ns, high_ns, clock, where of the steps without a profiler before step ``before``.

        Left out are the first steps and the last one, in which the capture is started. None where too few are left. ``clock``
        is gpu or cpu.
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

"""What happens at the border between two steps: the step's range, marks on or off, the capture window, the clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from . import ranges
from .calls import ModuleCalls
from .clock import StepClock
from .marking import Marking
from .operators import Operators
from .output import Output
from .pauses import Pauses
from .steps import Steps
from .timing import Timing
from .window import Window

#: Among the steps without marks, module calls are counted only in those whose number this divides.
LOOK_EVERY = 8


class Borders:
    """``Steps`` calls ``begin`` and ``end``. ``counts`` returns the content of a capture's last info mark."""

    def __init__(self, torch: Any, out: Output, operators: Operators) -> None:
        self.torch = torch
        self.out = out
        self.operators = operators
        self.steps = Steps(self.begin, self.end, self._states)
        self.window = Window(out)
        self.clock = StepClock(torch)
        timed = out.environ.get("NSYSX_TIMING") == "1"
        first, last = self.window.first, self.window.last
        between = None if first is None or last is None else (first, last + 1)
        self.timing = Timing(torch, between) if timed else None
        out.recording = not self.window.wanted and not timed
        self.marking = Marking(out.choice("NSYSX_MARKS", ("few", "all", "off")), self._switched)
        self.pauses = Pauses(out)
        self.calls: ModuleCalls | None = None
        self.hello: Callable[[], None] = lambda: None
        self.counts: Callable[[], dict[str, Any]] = dict
        self.finished: Callable[[], None] = lambda: None
        self.optimizers: list[Any] = []  # weak references to all optimizers
        self._step_end: Any = None
        self._main_open = 0  # ranges of the main thread that another thread could not end
        self._seen = 0

    def _states(self) -> int:
        """Return the number of parameters for which optimizers hold state."""
        self.optimizers = [ref for ref in self.optimizers if ref() is not None]
        return sum(len(optimizer.state) for ref in self.optimizers if (optimizer := ref()) is not None)

    def _switched(self, on: bool) -> None:
        """Send an info mark that marks were turned on or off, and switch the module calls."""
        if self.out.recording:
            self.out.info({"marks": on, "step": self.steps.index})
        if self.calls is not None:
            self.calls.marks = on
            self.calls.use()
        if not on:
            self.operators.in_step(False)

    def operators_due(self) -> None:
        """Record operators where modules are marked, except in the very first step, which compiles."""
        self.operators.in_step(self.out.recording and self.marking.on and self.steps.index > 0)

    def begin(self, index: int) -> None:
        """Begin step ``index`` on this thread."""
        if self.timing is not None:
            self.timing.border(index)
            return
        out = self.out
        self.pauses.send()
        if self.window.wanted and self.window.opens(index):
            self._start_capture()
        self.marking.step_begins(index)
        if self.calls is not None:
            self.calls.counting = out.recording and index % LOOK_EVERY == 0
        self.clock.begin(
            index, self.marking.on, out.recording, window_comes=self.window.wanted and not self.window.opened
        )
        self._shape()  # what came before does not belong to this step
        self.operators_due()
        if not out.recording:
            return
        backend = out.backend
        text = out.text(ranges.step(index))
        if threading.current_thread() is threading.main_thread():
            self._step_end = self._pop  # noted before the push, with no call in between
            backend.push(text)
        else:  # at exit another thread may have to end it
            token = backend.start(text)
            self._step_end = lambda: backend.end(token)
        next(out.counts["step"])

    def end(self) -> None:
        """End the open step."""
        if self.timing is not None:
            self.timing.border(None)
            if self.timing.window and self.steps.index + 1 >= self.timing.window[1]:
                self.out.disarm()
            return
        end, self._step_end = self._step_end, None
        if end is not None:
            end()
        self.pauses.send()
        border = self.steps.closed_by == "border"
        if not border:
            self.operators.in_step(False)
        shape = self._shape()
        self.clock.end(border)
        self.window.step_ended(shape)
        if self.out.recording:
            self.marking.step_ended(self.steps.index, shape, border)
            if self.window.closes(self.steps.index):
                self._stop_capture()

    def _pop(self) -> None:
        """End the range on the main thread, by that thread itself."""
        self._main_open += 1
        if threading.current_thread() is threading.main_thread():
            self.leave()

    def leave(self) -> None:
        """End what only the main thread, which is this one, can end."""
        while self._main_open:
            self._main_open -= 1
            self.out.backend.pop()

    def _shape(self) -> tuple[int | None, int]:
        """Return the shape of what ran since the last call: number of module calls, if counted, and a hash over the phases."""
        before, self._seen = self._seen, self.calls.seen() if self.calls is not None else 0
        phases, self.out.shape = self.out.shape, 0
        counted = self.out.recording and (self.marking.on or (self.calls is not None and self.calls.counting))
        return self._seen - before if counted else None, phases

    def _start_capture(self) -> None:
        self.window.profiler(self.torch, "cudaProfilerStart")
        self.window.opened = True
        self.out.recording = True
        self.marking.start(self.window.steps)
        self.hello()
        if self.calls is not None:
            self.calls.marks = self.marking.on
            self.calls.use()

    def _stop_capture(self) -> None:
        self.out.info(self.counts())
        self.out.recording = False
        self.window.profiler(self.torch, "cudaProfilerStop")
        self.out.disarm()  # nothing is left to do: the rest of the program runs without the probe
        self.finished()

"""Decides which steps nsys captures: all, those of ``NSYSX_STEPS=A:B``, or with ``auto`` a window that opens once steps repeat."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from . import capture_range, draining
from .clock import StepClock
from .interrupts import of_program
from .output import Output
from .probe_bounds import AUTO_ALIKE, AUTO_LEAST_BEFORE, AUTO_MOST_BEFORE, MOST_CLOCK_EVENTS, PLAIN_STEPS, XRAY_STEPS

#: ``auto``: how many steps are captured. The first one is X-rayed, too, in case the program ends before the window.
AUTO_STEPS = 1 + PLAIN_STEPS + XRAY_STEPS


class CaptureWindow:
    """``first`` and ``last`` are the steps A and B-1, None until they are known; without a window ``wanted`` is False.

    ``others`` is the process that has the windows, if it is not this one; ``rank`` the number of this one in its job, if it was asked for.
    ``two``, ``cold``, ``after`` and ``over`` belong to a run with two windows (`probe_windows`), ``together`` to one of several ranks.
    """

    two = cold = after = over = together = False
    pauses_ns: list[int] | None = None
    count = 0  # windows that were opened, where a run has several
    others = ""
    rank: str | None = None
    apart = ""  # why the ranks of its job are not at a step's end together by the number of the step
    kind: Callable[[], str] = staticmethod(lambda: "")  # returns what completes a step

    def __init__(self, out: Output, clock: StepClock) -> None:
        self.out, self.clock = out, clock
        self.first: int | None = None
        self.last: int | None = None
        self.auto = False
        self.opened = False
        self._shape: Hashable = None
        self._alike = 0
        text = out.environ.get("NSYSX_STEPS", "")
        text = "" if text == capture_range.MODE else text
        first, _, end = text.partition(":")
        if text == "auto":
            self.auto = True
        elif first.isdecimal() and end.isdecimal() and int(first) < int(end):
            self.first, self.last = int(first), int(end) - 1
        elif text:
            out.errors.append(f"NSYSX_STEPS={text[:40]!r} is neither A:B with A < B nor auto")
        self.wanted = self.auto or self.first is not None

    @property
    def steps(self) -> int | None:
        """Return how many steps the window has, None while that is not known."""
        return None if self.first is None or self.last is None else self.last - self.first + 1

    def opens(self, index: int) -> bool:
        """Return whether the capture begins with step ``index``."""
        if self.first is None and self.auto and self._time_has_come(index):
            self.first, self.last = index, index + AUTO_STEPS - 1
        return self.first is not None and self.last is not None and self.first <= index <= self.last and not self.opened

    def near(self, index: int) -> bool:
        """Return whether the window comes so soon after step ``index`` that the device's times of steps are wanted."""
        return self.wanted and not self.opened and (self.first is None or self.first - index < MOST_CLOCK_EVENTS)

    def _time_has_come(self, index: int) -> bool:
        return index >= AUTO_MOST_BEFORE or (index >= AUTO_LEAST_BEFORE and self._alike >= AUTO_ALIKE)

    def step_ended(self, shape: Hashable) -> None:
        """Compare a step's shape with the one before, to see whether steps repeat."""
        self._alike = self._alike + 1 if shape == self._shape else 0
        self._shape = shape

    def comes(self, index: int, ahead: int) -> bool:
        """Return whether the probe has to follow step ``index`` in full, because the window is open or at most ``ahead`` steps away."""
        return self.first is not None and index >= self.first - ahead

    def closes(self, index: int, *, marked: bool = False) -> bool:
        """Return whether the capture ends with step ``index``, whose modules were ``marked``."""
        return self.is_last(index)

    def is_last(self, index: int) -> bool:
        """Return whether step ``index`` is the last one of the open window, as far as that is known while the step is open."""
        return self.last is not None and index >= self.last

    def comes_together(self, index: int) -> bool:
        """Return whether all ranks of the job are at a step's end, so that the window can close with step ``index``."""
        return True

    def left(self, index: int) -> int | None:
        """Return how many steps of the open window follow step ``index``, None while that is not known."""
        return None if self.last is None else max(self.last - index, 0)

    def begin(self) -> None:
        """Have nsys open the window, before the step with which it opens."""

    def never_opened(self, steps: int, rule: str) -> str | None:
        """Return why nothing was captured and what would help; None if no window was asked for or it opened."""
        if not self.wanted or self.opened:
            return None
        wanted = f"step {self.first}" if self.first is not None else "the steps that --steps auto waits for"
        if steps <= 0:
            seen = "the program made no step that the probe could see"
            cure = "call nsysx.step() at the start of each iteration, or leave --steps out"
        else:
            seen = f"the program made {steps} step{'s' if steps > 1 else ''} (rule {rule})"
            cure = "name earlier steps, call nsysx.step() at the start of each iteration, or leave --steps out"
        return f"the capture never began: {wanted} never came, {seen}; {cure}"

    def open(self, torch: Any) -> None:
        """Open the window."""
        self.profiler(torch, "cudaProfilerStart")

    def close(self, torch: Any) -> bool:
        """Close the window and return whether the probe goes on, which it does not."""
        draining.drain(self.clock.longest_ns())
        self.profiler(torch, "cudaProfilerStop")
        return False

    def restart(self, index: int) -> bool:
        """Steps of another kind begin with ``index``. Return whether those before have had their window."""
        return self.opened

    def may_reopen(self) -> bool:
        """Return whether one more window may open after the last one."""
        return False

    def reopen(self, index: int) -> None:
        """Time bare steps from ``index`` on, and then open a window again."""

    def unrecorded(self) -> dict[str, Any] | None:
        """Return the steps before the window, as `StepClock.unrecorded` does."""
        return self.clock.unrecorded(self.first) if self.opened else None

    def marks_cost(self) -> dict[str, Any] | None:
        """Return `StepClock.marks_cost`."""
        return self.clock.marks_cost()

    def profiler(self, torch: Any, call: str) -> None:
        """Call cudaProfilerStart or cudaProfilerStop, for which nsys listens; if that is not possible, note why."""
        try:
            if not torch.backends.cuda.is_built():
                note = f"{call} was not called: this torch is built without CUDA"
            elif not torch.cuda.is_available():
                note = f"{call} was not called: no CUDA device"
            else:
                getattr(torch.cuda.cudart(), call)()
                return
        except Exception as error:
            if of_program(error):
                raise
            note = f"{call}: {type(error).__name__}: {error}"
        self.out.note(note)

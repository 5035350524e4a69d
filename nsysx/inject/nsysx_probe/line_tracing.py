"""Lines by ``sys.settrace`` (Python 3.10 and 3.11), on the thread that drives the steps alone.

Python then calls a function for each Python function that begins. Those of libraries are left alone from there on.
"""

from __future__ import annotations

import sys
import time
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from .interrupts import SETS_HANDLER, SUSPENDED, sets_timer, shielded
from .probe_bounds import TIMED_CALLS
from .sources import OWN_FILES

if TYPE_CHECKING:
    from .line_ranges import LineRanges


class Tracing:
    """One turn of lines after the other."""

    def __init__(self, lines: LineRanges) -> None:
        self.lines = lines
        self._outer: list[FrameType] = []
        self._still: list[FrameType] = []  # those that run without lines for now
        self._packages = True
        self._calls = 0
        self._given: Any = self._called  # one object, so that it is known again

    def unavailable(self) -> str | None:
        """Return why there can be no lines now, or None."""
        if sys.gettrace() is not None or sys.getprofile() is not None:
            return "a tracer, debugger, coverage or profiler is active"
        return None

    def start(self, outer: list[FrameType]) -> None:
        """Begin; ``outer`` are the frames of the program that run now."""
        self._packages = True
        self._outer = [frame for frame in outer if frame.f_trace is None]
        for frame in self._outer:
            frame.f_trace = self._within
        sys.settrace(self._given)

    def stop(self) -> None:
        """End: no frame is traced any more. A tracer that the program has begun meanwhile stays."""
        if sys.gettrace() is self._given:
            sys.settrace(None)
        for frame in self._outer:
            frame.f_trace = None
        self._outer = []
        self._resume()

    def without_packages(self) -> None:
        """Go on without the lines of packages."""
        self._packages = False

    def fold(self, _code: CodeType) -> None:
        """Go on without the lines of a code: its frames say so when they come to their next one."""

    def unfold(self, _codes: list[CodeType]) -> None:
        """Have the lines of codes again."""
        self._resume()

    def _resume(self) -> None:
        for frame in self._still:
            frame.f_trace_lines = True
        self._still = []

    @shielded
    def _called(self, frame: FrameType, event: str, _arg: Any) -> Any:
        try:
            # With no call before: no handler of the program runs here, so none raises where a shielded function of the probe begins,
            # or where a generator is given up, which drops what is raised. With one jump for both, which is not made where either
            # is so: Python 3.10 runs handlers at jumps that are made.
            lines, code = self.lines, frame.f_code
            if (code.co_filename in OWN_FILES) | (code.co_flags & lines.passed_over):
                frame.f_trace = None  # where it was followed before, nothing is called when it is given up
                return None
            if code is SETS_HANDLER and sets_timer(frame):
                lines.passed_over = SUSPENDED
            if not lines.on:  # the program has put back what it had found
                self.stop()
                return None
            self._calls += 1
            begin = 0 if self._calls % TIMED_CALLS else time.perf_counter_ns()
            kind = lines.wants(code)
            if begin:
                lines.took(time.perf_counter_ns() - begin)
            if event != "call" or not kind or (kind == "package" and not self._packages) or id(code) in lines.folded:
                return None
            lines.enter(code)
            if frame.f_lasti > 0 and frame.f_lineno != code.co_firstlineno:  # a generator goes on
                lines.line(code, frame.f_lineno)
            return self._within
        except Exception as error:
            self.lines.fail(error)
        return None

    def _within(self, frame: FrameType, event: str, arg: Any) -> Any:
        lines = self.lines
        try:
            if not lines.on:
                return None
            if event == "line" and id(frame.f_code) in lines.folded:
                frame.f_trace_lines = False
                self._still.append(frame)
            elif event == "line":
                lines.line(frame.f_code, frame.f_lineno)
            elif event == "return":  # of a yield and of an exception, too
                lines.leave(frame.f_code)
                lines.returned(frame, arg)
                if frame in self._still:  # it is kept no longer than it runs
                    self._still.remove(frame)
                    frame.f_trace_lines = True
        except Exception as error:
            lines.fail(error)
        return self._within

"""Lines by ``sys.monitoring`` (Python 3.12 and newer).

Python tells of each function that begins; those of libraries say at once that they want no more of it, and the program's own get
the events of their lines. So library code and what compilers generate run as they are. It is the interpreter that is watched, so
all threads are.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from .interrupts import SETS_HANDLER, SUSPENDED, sets_timer, shielded
from .probe_bounds import LOOP_LINES
from .sources import OWN_FILES

if TYPE_CHECKING:
    from .line_ranges import LineRanges

#: Ids of tools that no tool of Python's documentation claims; those that are claimed say who looks on.
_IDS = (4, 3, 5)
_OTHERS = {0: "a debugger", 1: "coverage", 2: "a profiler"}


class Monitoring:
    """One turn of lines after the other; the id is held only while they are on."""

    def __init__(self, lines: LineRanges) -> None:
        self.lines = lines
        self._api: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        self._id: int | None = None
        self._codes: dict[
            int, tuple[CodeType, bool]
        ] = {}  # those whose lines are told, and whether they are a package's
        self._same = 0
        self._packages = True  # those of packages are told

    def unavailable(self) -> str | None:
        """Return why there can be no lines now, or None."""
        if sys.gettrace() is not None or sys.getprofile() is not None:
            return "a tracer, debugger or profiler is active"
        for number, who in _OTHERS.items():
            if self._api.get_tool(number) is not None:
                return f"{who} is active ({self._api.get_tool(number)})"
        if all(self._api.get_tool(number) is not None for number in _IDS):
            return "other tools use all of sys.monitoring"
        return None

    def start(self, outer: list[FrameType]) -> None:
        """Begin; ``outer`` are the frames of the program that run now."""
        api, events = self._api, self._api.events
        self._packages, self._same = True, 0
        self._id = next(number for number in _IDS if api.get_tool(number) is None)
        api.use_tool_id(self._id, "nsysx")
        callbacks = {
            events.PY_START: self._begins,
            events.PY_RESUME: self._resumes,
            events.PY_THROW: self._throws,
            events.PY_RETURN: self._returns,
            events.PY_YIELD: self._ends,
            events.PY_UNWIND: self._unwinds,
            events.LINE: self._line,
        }
        for event, callback in callbacks.items():
            api.register_callback(self._id, event, callback)
        self._local = events.LINE | events.PY_RETURN | events.PY_YIELD | events.PY_RESUME | events.PY_START
        for frame in outer:
            self._follow(frame.f_code)
        api.restart_events()
        api.set_events(self._id, events.PY_START | events.PY_RESUME | events.PY_THROW | events.PY_UNWIND)

    def stop(self) -> None:
        """End: every code is as it was."""
        number, self._id = self._id, None
        if number is None:
            return
        api = self._api
        api.set_events(number, 0)
        for code, _ in list(self._codes.values()):
            api.set_local_events(number, code, 0)
        self._codes = {}
        for event in (1 << n for n in range(20)):
            try:
                api.register_callback(number, event, None)
            except ValueError:
                continue
        api.free_tool_id(number)

    def without_packages(self) -> None:
        """Go on without the lines of packages."""
        for code, package in list(self._codes.values()):
            if package and self._id is not None:
                self._api.set_local_events(self._id, code, 0)
        self._packages = False

    def fold(self, code: CodeType) -> None:
        """Go on without the lines of a code, and without its frames that begin from now on."""
        events = self._api.events
        self._api.set_local_events(self._id, code, events.PY_RETURN | events.PY_YIELD)

    def unfold(self, codes: list[CodeType]) -> None:
        """Have the lines of codes again."""
        for code in codes:
            self._api.set_local_events(self._id, code, self._local)
        self._api.restart_events()

    def _follow(self, code: CodeType) -> bool:
        """Ask for the lines of a code, and return whether they are told."""
        if id(code) in self.lines.folded:
            return False
        followed = self._codes.get(id(code))
        if followed is not None:
            return self._packages or not followed[1]
        kind = self.lines.wants(code)
        if not kind or self._id is None or not (self._packages or kind == "user"):
            return False
        self._codes[id(code)] = code, kind == "package"
        self._api.set_local_events(self._id, code, self._local)
        return True

    # ---- what Python tells ------------------------------------------------------------------------------------------

    @shielded
    def _begins(self, code: CodeType, _offset: int) -> Any:
        try:
            # With no call before: no handler of the program runs here, so none raises where a shielded function of the probe begins.
            if code.co_filename in OWN_FILES:
                return self._api.DISABLE
            if code is SETS_HANDLER and sets_timer(sys._getframe(1)):
                self.lines.passed_over = SUSPENDED
            if code.co_flags & self.lines.passed_over or not self._follow(code):
                return self._api.DISABLE
            self.lines.enter(code)
        except Exception as error:
            self.lines.fail(error)
        return None

    @shielded
    def _resumes(self, code: CodeType, _offset: int) -> Any:
        try:
            if code.co_flags & self.lines.passed_over or not self._follow(code):
                return self._api.DISABLE
            self.lines.enter(code)
            self.lines.line(code, sys._getframe(1).f_lineno)
        except Exception as error:
            self.lines.fail(error)
        return None

    @shielded
    def _throws(self, code: CodeType, _offset: int, _exception: BaseException) -> None:
        try:
            if not code.co_flags & self.lines.passed_over and id(code) in self._codes:
                self.lines.enter(code)
        except Exception as error:
            self.lines.fail(error)

    def _returns(self, code: CodeType, offset: int, value: Any) -> Any:
        goes_on = self._ends(code, offset, value)
        try:
            self.lines.returned(sys._getframe(1), value)
        except Exception as error:
            self.lines.fail(error)
        return goes_on

    def _ends(self, code: CodeType, _offset: int, _value: Any) -> Any:
        try:
            if not self.lines.leave(code) and id(code) in self.lines.folded:
                return self._api.DISABLE
        except Exception as error:
            self.lines.fail(error)
        return None

    @shielded
    def _unwinds(self, code: CodeType, _offset: int, _exception: BaseException) -> None:
        try:
            if not code.co_flags & self.lines.passed_over and id(code) in self._codes:
                self.lines.leave(code)
        except Exception as error:
            self.lines.fail(error)

    def _line(self, code: CodeType, number: int) -> Any:
        try:
            if self.lines.line(code, number):
                self._same = 0
                return None
            self._same += 1
            if self._same > LOOP_LINES:  # a loop in this line
                self._same = 0
                return self._api.DISABLE
        except Exception as error:
            self.lines.fail(error)
        return None

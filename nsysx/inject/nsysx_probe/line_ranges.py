"""Each line of the program's own code as a nested range, while an X-ray step runs: ``PATH:LINE FUNCTION`` in a domain of its own.

A frame's range lasts from one line to the next line of that frame, to its return or to its unwinding; what it calls is inside. On
the thread that drives the steps they are pushed and popped. What other threads run begins and ends as ranges of their own (start
and end), because whoever turns lines off has to end those, too.

Which code gets ranges, ``sources`` decides. How Python tells of lines depends on its version: ``monitoring`` or ``tracing``. Where a
tracer, a debugger, coverage or a profiler is at work, there are no lines: these see every Python function that runs, ours too.

Where the program handles a timer, its generators have no lines of their own, but those of who asks them for more: Python drops what is
raised where a generator is given up, and the program would wait for its handler's exception in vain. A step in which it sets such a handler
goes on in this way.

A step may have ``MOST_STEP_LINES`` lines, packages fewer, and lines may cost as much time as the step takes without them. After that the
function that runs is one range, ``PATH:-LINE FUNCTION`` with the line of its definition, until another function of the program begins
or it ends: a loop of a million lines is known by its function, and by the shares of its lines so far. After ``MOST_FOLDS`` of these
ranges the rest of the step has no lines, and what stopped them is noted.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import CodeType, FrameType
from typing import Any

from . import ranges
from .backend import Backend, nowhere
from .interrupts import SUSPENDED, handles_timer
from .line_tracing import Tracing
from .monitoring import Monitoring
from .output import Output
from .probe_bounds import (
    LINE_MOST_NS,
    LINES_LEAST_NS,
    MOST_FOLDS,
    MOST_LINE_TEXTS,
    MOST_PACKAGE_LINES,
    MOST_STEP_LINES,
    TIMED_LINES,
)
from .returned_values import ReturnedValues
from .sources import Sources


class Open:
    """The open frames of the program on one thread, innermost last: each is [code, its text or None, token of a started range]."""

    __slots__ = ("drives", "frames", "turn")

    def __init__(self, turn: int, *, drives: bool) -> None:
        self.frames: list[list[Any]] = []
        self.turn = turn  # in which turn of the lines they were opened
        self.drives = drives


class Own(threading.local):
    """What is open on this thread."""

    def __init__(self) -> None:
        self.now = Open(-1, drives=False)


class LineRanges:
    """``why_not``: why there are no lines at all; ``stopped``: what ended them within a step."""

    def __init__(self, out: Output, backend: Backend | None, sources: Sources) -> None:
        self.out = out
        self.sources = sources
        self.values: ReturnedValues | None = None  # who looks at what functions return
        self.passed_over = 0  # codes with one of these flags have no lines
        self.wants = sources.kind
        self.why_not = None if backend is not None else "only the package nvtx has ranges in a domain of their own"
        self.stopped: str | None = None
        self.folds = 0  # in the step with most
        self.folded: set[int] = set()  # ids of codes that have no lines for now
        self.on = False
        self.usual_ns = 0  # how long a step takes without lines, 0 if no step has been timed yet
        self._began_ns = 0  # when this step began
        self.most = 0  # events of lines in one step
        self.cost_ns: int | None = None  # what lines cost in the costliest step, from every TIMEDth of them
        self._backend = backend or nowhere("off")
        self._push, self._pop = self._backend.push, self._backend.pop
        # By the code's id and the line's number: two codes are equal that differ in their file alone. So codes are kept.
        self._texts: dict[int, dict[int, tuple[Any, bool]]] = {}
        self._codes: list[CodeType] = []
        self._own = Own()
        self._turn = 0
        self._pid = os.getpid()
        self._others: list[list[list[Any]]] = []  # the open frames of other threads
        self._events = self._of_packages = self._of_others = self._timed_ns = self._made = 0
        self._folds: list[CodeType] = []  # of this step
        self._most_events, self._more_ns = MOST_STEP_LINES, 0  # the bounds of this step
        self._engine: Any = (Monitoring if hasattr(sys, "monitoring") else Tracing)(self)

    # ---- on and off -------------------------------------------------------------------------------------------------

    def begin(self, usual_ns: int) -> None:
        """Turn lines on for a step that is about to begin on this thread and usually takes so long."""
        self.usual_ns, self._began_ns = usual_ns, time.perf_counter_ns()
        try:
            self._settle()
            if not self.on and self.why_not is None:
                self.why_not = self._engine.unavailable()
                if self.why_not is None:
                    self.passed_over = SUSPENDED if handles_timer() else 0
                    self._on()
        except Exception as error:
            self.fail(error)

    def end(self) -> None:
        """Turn lines off."""
        try:
            self._off()
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Go on without lines for good, and note why. Raises ``error`` again if it is the program's."""
        self.out.wrong("lines", error)
        self.why_not = f"{type(error).__name__}: {error}"[:200]
        try:
            self._off()
        except Exception:
            self.on = False

    def _on(self) -> None:
        self._turn += 1
        self._own.now = self._cleared(drives=True)
        outer = self._outer()
        self.on = True
        for frame in outer:
            self.enter(frame.f_code)
            self.line(frame.f_code, frame.f_lineno)
        self._engine.start(outer)

    def _outer(self) -> list[FrameType]:
        """Return the frames of the program that run on this thread now, the outermost first."""
        frames: list[FrameType] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if not frame.f_code.co_flags & self.passed_over and self.wants(frame.f_code):
                frames.append(frame)
            frame = frame.f_back
        return frames[::-1]

    def _off(self) -> None:
        if not self.on:
            return
        try:
            self._end_all()
        except BaseException:  # a signal's handler, maybe in the middle of it
            self._end_all()
            raise

    def _end_all(self) -> None:
        self.on = False
        self._engine.stop()
        if os.getpid() == self._pid:  # a forked child sends nothing
            opened = self._own.now
            if opened.drives and opened.turn == self._turn:
                self._close(opened.frames)
            for frames in self._others:
                self._close(frames)
        self._others = []
        self._settle()

    def _settle(self) -> None:
        """Note what the lines of a step have cost, and begin to count anew."""
        if self._events:
            self.most = max(self.most, self._events)
            self.cost_ns = max(self.cost_ns or 0, self._timed_ns * TIMED_LINES)
            self.folds = max(self.folds, len(self._folds))
        self._events = self._of_packages = self._of_others = self._timed_ns = 0
        self._folds, self._most_events, self._more_ns = [], MOST_STEP_LINES, 0
        self.folded.clear()

    def _close(self, frames: list[list[Any]]) -> None:
        while frames:  # a frame leaves the list when its range has ended: a handler's exception may come before
            self._end(frames[-1])
            del frames[-1]

    def _cleared(self, *, drives: bool) -> Open:
        """End what this thread has left open in a turn that another thread has ended; return what it opens in this turn."""
        if self._own.now.drives:
            self._close(self._own.now.frames)
        return Open(self._turn, drives=drives)

    def _another(self) -> Open:
        """Return what a thread that does not drive opens in this turn, of which it tells for the first time."""
        opened = self._own.now = self._cleared(drives=False)
        self._others.append(opened.frames)
        return opened

    # ---- what the engines tell --------------------------------------------------------------------------------------

    def enter(self, code: CodeType) -> None:
        """A frame of the program begins or goes on, on this thread."""
        opened = self._own.now
        if opened.turn != self._turn:
            opened = self._another()
        opened.frames += [[code, None, None]]
        if self.folded and opened.drives:  # what is below has lines again when this returns
            self._unfold()

    def leave(self, code: CodeType) -> bool:
        """A frame of the program returns, yields or is unwound, on this thread; return whether it is one that has begun."""
        opened = self._own.now
        frames = opened.frames
        if opened.turn != self._turn or not frames:
            return False
        if frames[-1][0] is not code and not any(frame[0] is code for frame in frames):
            return False
        while True:
            frame = frames[-1]
            self._end(frame)
            del frames[-1]
            if frame[0] is code:
                return True

    def returned(self, frame: FrameType, value: Any) -> None:
        """A frame of the program returns a value, on this thread."""
        opened = self._own.now
        if self.values is None or value is None or not opened.drives or opened.turn != self._turn:
            return
        if self.wants(frame.f_code) == "user":
            self.values.returned(frame, value)

    def line(self, code: CodeType, number: int) -> bool:
        """The innermost frame of the program begins a line; return whether it is another one than before."""
        self._events += 1
        if self._events % TIMED_LINES:
            return self._line(code, number)
        begin = time.perf_counter_ns()
        another = self._line(code, number)
        self.took(time.perf_counter_ns() - begin, code)
        return another

    def took(self, ns: int, code: CodeType | None = None) -> None:
        """Add what one of ``TIMED_LINES`` lines or calls took, and stop if all of them have taken as long as the step without them.

        That is at least what the program itself has taken of this step until now: of the first steps nothing else is known.
        """
        self._timed_ns += min(ns, LINE_MOST_NS)
        lines_ns = self._timed_ns * TIMED_LINES
        if lines_ns <= max(self.usual_ns, LINES_LEAST_NS) + self._more_ns:
            return
        if lines_ns > time.perf_counter_ns() - self._began_ns - lines_ns + self._more_ns:
            self._fold(code, "lines had taken as long as a step")

    def _line(self, code: CodeType, number: int) -> bool:
        opened = self._own.now
        if opened.turn != self._turn:
            opened = self._another()
        frames = opened.frames
        while frames and frames[-1][0] is not code:
            self._end(frames[-1])
            del frames[-1]
        if not frames:
            frames += [[code, None, None]]
        frame = frames[-1]
        try:
            text = self._texts[id(code)][number]
        except KeyError:
            text = self._text(code, number)
        before = frame[1]
        if before is text:
            return False
        if opened.drives:
            if before is not None:
                frame[1] = None
                self._pop()
            frame[1] = text
            self._push(text[0])
        elif self._of_others < MOST_STEP_LINES:
            self._of_others += 1
            self._end(frame)
            frame[2] = self._backend.start(text[0])
            frame[1] = text
        if text[1] or self._events >= self._most_events:
            self._bound(code, package=text[1])
        return True

    def _bound(self, code: CodeType, *, package: bool) -> None:
        """Fold at the most lines of a step, or go on without those of packages at the most of these."""
        if self._events >= self._most_events:
            self._fold(code, f"{MOST_STEP_LINES:,} lines in one step")
        elif package:
            self._of_packages += 1
            if self._of_packages == MOST_PACKAGE_LINES:
                self.stopped = self.stopped or f"{MOST_PACKAGE_LINES:,} lines of packages in one step: no more of these"
                self._engine.without_packages()

    def _end(self, frame: list[Any]) -> None:
        if frame[2] is not None:
            token = frame[2]
            frame[1] = frame[2] = None
            self._backend.end(token)
        elif frame[1] is not None:
            frame[1] = None  # with no jump before the call, where Python 3.10 runs handlers
            self._backend.pop()

    def _text(self, code: CodeType, number: int) -> tuple[Any, bool]:
        """Return the text of a line, made once, and whether it is a package's."""
        path, package = self.sources.path(code), self.wants(code) == "package"
        text = self._backend.prepare(ranges.line(path, number, getattr(code, "co_qualname", code.co_name)))
        if self._made < MOST_LINE_TEXTS:
            self._made += 1
            if id(code) not in self._texts:
                self._texts[id(code)] = {}
                self._codes.append(code)
            self._texts[id(code)][number] = text, package
            if number > 0:
                self.sources.seen(path, number, package)
        return text, package

    def _fold(self, code: CodeType | None, why: str) -> None:
        """Let the function that runs be one range, or stop where that has not helped, or it runs on another thread."""
        opened = self._own.now
        if code is None or not (opened.drives and self.on) or len(self._folds) >= MOST_FOLDS:
            self._stop(why)
            return
        self._folds.append(code)
        self._most_events = self._events + MOST_STEP_LINES // MOST_FOLDS
        self._more_ns += max(self.usual_ns, LINES_LEAST_NS) // MOST_FOLDS
        self.folded.add(id(code))
        self._engine.fold(code)
        frame = opened.frames[-1]
        if frame[0] is code:
            self._end(frame)
            frame[1] = self._text(code, -code.co_firstlineno)
            self._push(frame[1][0])

    def _unfold(self) -> None:
        """Give functions their lines again, but those that were folded twice."""
        again = [code for code in self._folds if id(code) in self.folded and self._folds.count(code) < 2]
        self.folded.difference_update(map(id, again))
        if again:
            self._engine.unfold(again)

    def _stop(self, why: str) -> None:
        """End the lines of this step; if another thread has brought that about, at the step's end."""
        if self._own.now.drives and self.on:
            self.stopped = why
            self._off()

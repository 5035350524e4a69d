"""Finds the main loop of a program that calls no network, steps no optimizer and marks nothing: a simulation, a solver (Python 3.12 on).

A thread looks, once the device is in use, whether anything has made steps. Where nothing has for a while, it looks which functions of the
program's own stay on the main thread's stack, and ``sys.monitoring`` tells for seconds where these jump back: the rounds of their loops.
The outermost loop of which enough rounds came is the main one, if they take long enough and allocate on the device. From then on only its
jump is told (below 1 us a round), and is the border of a step. Loops with short rounds are told of a few times, and then no more.

Below 3.12 Python tells of a loop only by its lines, which costs too much.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from types import CodeType
from typing import Any

from .draining import is_one_of_several
from .interrupts import of_program, shielded
from .output import Output
from .probe_bounds import (
    LOOP_CODE_SHARE,
    LOOP_FEWEST_ROUNDS,
    LOOP_LOOK_S,
    LOOP_LOOKS,
    LOOP_MOST_TRIES,
    LOOP_QUIET_S,
    LOOP_QUIET_TIMES,
    LOOP_SHORTEST_NS,
    LOOP_WATCH_S,
)
from .sole_work import SoleWork
from .sources import Sources

#: Ids of tools of ``sys.monitoring`` that no tool of Python's documentation claims, those last that lines take first.
_IDS = (5, 3, 4)


class _Rounds:
    """Rounds of a loop: how many, and when the first and the last of them began."""

    __slots__ = ("allocated", "code", "count", "first_ns", "last_ns", "place")

    def __init__(self, code: CodeType, now: int, allocated: int) -> None:
        self.code, self.count, self.first_ns, self.last_ns, self.allocated = code, 0, now, now, allocated
        self.place: list[Any] = []  # file and line, once it is the main one

    @property
    def round_ns(self) -> int:
        """Return how long a round takes, in the mean."""
        return (self.last_ns - self.first_ns) // max(self.count, 1)


class MainLoop:
    """``start`` it once; it ends by itself where something else makes steps."""

    def __init__(self, torch: Any, out: Output, sources: Sources, work: SoleWork) -> None:
        self.torch, self.out = torch, out
        self._sources, self._work = sources, work
        self._main = threading.main_thread().ident or 0
        self._pid = os.getpid()
        self._stopped: threading.Event | None = None
        self._id: int | None = None
        self._codes: list[CodeType] = []  # followed ones, the outermost first
        self._loops: dict[tuple[int, int], _Rounds] = {}  # (id of a code, where its loop begins)
        self._chosen: tuple[int, int] | None = None
        self._anew = False  # another loop was the main one before

    def start(self) -> None:
        """Begin to look, in a thread of its own."""
        if hasattr(sys, "monitoring"):
            self._stopped = threading.Event()
            threading.Thread(target=self._look, args=(self._stopped,), name="nsysx main loop", daemon=True).start()

    def stop(self) -> None:
        """Look no longer."""
        if self._stopped is not None:
            self._stopped.set()
            self._stopped = None
            self._unfollow()

    # ---- looking ----------------------------------------------------------------------------------------------------

    def _look(self, stopped: threading.Event) -> None:
        tries, pause_s = 0, LOOP_LOOK_S
        try:
            while not stopped.wait(pause_s) and tries < LOOP_MOST_TRIES and not self._work.has_other_steps(loop=False):
                if self._work.prepares():
                    continue
                if is_one_of_several():  # ranks would find their loops at different times
                    break
                tries, pause_s = tries + 1, LOOP_LOOK_S
                if self._find(stopped):
                    self._stay(stopped)
                else:
                    pause_s *= 2**tries
        except Exception as error:
            self.out.wrong("main loop", error)
        self.stop()

    def _find(self, stopped: threading.Event) -> bool:
        """Return whether the main loop was found, and follow it."""
        codes = self._on_stack(stopped)
        if not codes or not self._follow(codes) or stopped.wait(LOOP_WATCH_S):
            return False
        chosen = self._choice()
        if chosen is None:
            self._unfollow()
            return False
        self._follow_one(chosen)
        return True

    def _follow_one(self, chosen: tuple[int, int]) -> None:
        """Have the rounds of the main loop told, and no others."""
        for code in self._codes:
            if id(code) == chosen[0]:
                lines = [line for start, end, line in code.co_lines() if start <= chosen[1] < end and line]
                self._loops[chosen].place = [self._sources.path(code), *(lines or [code.co_firstlineno])]
            else:
                sys.monitoring.set_local_events(self._id, code, 0)  # type: ignore[attr-defined,unused-ignore]
        self._chosen = chosen

    def _on_stack(self, stopped: threading.Event) -> list[CodeType]:
        """Return the functions of the program that stay on the main thread's stack, the outermost first."""
        seen: dict[CodeType, list[int]] = {}
        for _ in range(LOOP_LOOKS):
            codes = []
            frame = sys._current_frames().get(self._main)
            while frame is not None:
                codes.append(frame.f_code)
                frame = frame.f_back
            for depth, code in enumerate(dict.fromkeys(reversed(codes))):
                if self._sources.kind(code) == "user":
                    seen.setdefault(code, []).append(depth)
            del frame
            if stopped.wait(LOOP_LOOK_S / LOOP_LOOKS):
                return []
        often = {code: depths for code, depths in seen.items() if len(depths) >= LOOP_CODE_SHARE * LOOP_LOOKS}
        return sorted(often, key=lambda code: min(often[code]))

    def _choice(self) -> tuple[int, int] | None:
        """Return the outermost loop with enough rounds that are long enough, and allocate on the device; None without one."""
        allocated = self._allocated()
        depth = {id(code): n for n, code in enumerate(self._codes)}
        fit = [
            (depth[key[0]], -loop.round_ns, key)
            for key, loop in list(self._loops.items())
            if loop.count >= LOOP_FEWEST_ROUNDS
            and loop.round_ns >= LOOP_SHORTEST_NS
            and (allocated is None or allocated - loop.allocated >= loop.count)
        ]
        return min(fit)[2] if fit else None

    def _allocated(self) -> int | None:
        """Return how often memory of the devices was taken so far, None without one, or if the allocator does not tell."""
        if self.torch.version.cuda is None:
            return None
        stats = self.torch._C._cuda_memoryStats
        try:
            return sum(int(stats(n)["allocation"]["all"]["allocated"]) for n in range(self.torch.cuda.device_count()))
        except Exception as error:
            if of_program(error):
                raise
            return None

    def _stay(self, stopped: threading.Event) -> None:
        """Wait until the loop has ended, or something else makes steps."""
        loop = self._loops[self._chosen] if self._chosen else None
        while loop is not None and not stopped.wait(LOOP_LOOK_S) and not self._work.has_other_steps(loop=True):
            quiet_ns = time.perf_counter_ns() - loop.last_ns
            if quiet_ns > max(LOOP_QUIET_S * 1e9, LOOP_QUIET_TIMES * loop.round_ns):
                break
        self._unfollow()

    # ---- what Python tells ------------------------------------------------------------------------------------------

    def _follow(self, codes: list[CodeType]) -> bool:
        """Have the jumps of functions told; return whether that is possible."""
        api = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        free = [number for number in _IDS if api.get_tool(number) is None]
        if len(free) < 2 or any(api.get_tool(number) is not None for number in (0, 1, 2)):
            return False  # one is left for the lines; a debugger, coverage or a profiler is at work
        self._loops, self._codes, self._chosen, self._id = {}, codes, None, free[0]
        api.use_tool_id(self._id, "nsysx")
        api.register_callback(self._id, api.events.JUMP, self._jumps)
        for code in codes:
            api.set_local_events(self._id, code, api.events.JUMP)
        api.restart_events()
        return True

    def _unfollow(self) -> None:
        number, self._id = self._id, None
        if number is None or os.getpid() != self._pid:
            return
        api = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        with contextlib.suppress(ValueError):  # another thread was faster
            for code in self._codes:
                api.set_local_events(number, code, 0)
            api.register_callback(number, api.events.JUMP, None)
            api.free_tool_id(number)
        self._anew = self._anew or self._chosen is not None
        self._chosen = None

    @shielded
    def _jumps(self, code: CodeType, offset: int, destination: int) -> Any:
        """Python jumps in one of these functions; back if it is a loop's round."""
        try:
            if destination > offset or self._id is None:
                return sys.monitoring.DISABLE  # type: ignore[attr-defined,unused-ignore]
            if threading.get_ident() != self._main:
                return None
            key, now = (id(code), destination), time.perf_counter_ns()
            if self._chosen is not None and key != self._chosen:
                return sys.monitoring.DISABLE  # type: ignore[attr-defined,unused-ignore]
            loop = self._loops.get(key)
            if loop is None:
                loop = self._loops[key] = _Rounds(code, now, self._allocated() or 0)
                return None
            loop.count, loop.last_ns = loop.count + 1, now
            if self._chosen is None:
                short = loop.count >= LOOP_FEWEST_ROUNDS and loop.round_ns < LOOP_SHORTEST_NS
                return sys.monitoring.DISABLE if short else None  # type: ignore[attr-defined,unused-ignore]
            anew, self._anew = self._anew, False
            self._work.round(key, loop.place, anew=anew)
        except Exception as error:
            if of_program(error):
                raise
            self.out.fail("main loop", error)
        return None

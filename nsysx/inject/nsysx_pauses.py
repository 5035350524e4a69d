"""Notes where Python itself stands still: garbage collections, and compilations of ``torch.compile`` with their reason.

Both are kept in memory when they end and sent as marks between two steps: each says how long ago it ended and how long it
took, and a program that collects often pays for two small calls each time, never for a range.

Python calls whoever listens in ``gc.callbacks``, and an exception in there is printed and lost. A signal that came during a
collection (Ctrl-C, a scheduler's SIGTERM) would be handled in the first function of Python that runs after it, and what its
handler raises would be lost too. So our function must be one in which Python looks for no signal: it calls nothing, since
each call looks, and its RESUME, with which every function looks, is replaced by that of a coroutine, which does not.
"""

from __future__ import annotations

import dis
import gc
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType
from typing import Any

from nsysx_output import Output

#: Shorter collections of the young generations are not kept: they come by the thousand and explain nothing.
LONG_NS = 100_000
#: Collections that are kept between two steps, and what one process sends at most: nvtx never forgets a text.
_MOST_KEPT, _MOST_SENT = 1_000, 20_000
_MOST_REASON = 300
#: The oldest Python in which no operator but a call looks for signals.
_OLDEST = (3, 10)
#: Resuming after ``await``: from this argument on RESUME looks for no signal (CPython 3.11 and newer).
_AFTER_AWAIT = 3


class _Clock:
    """``-_Clock()`` reads the clock without a call: a built-in function is not a method, so it gets no argument."""

    __neg__ = time.perf_counter_ns


class _Thread:
    """``-_Thread()`` is the number that the system gave this thread."""

    __neg__ = threading.get_native_id


def listener(kept: list[Any], long_ns: int = LONG_NS) -> Callable[[str, dict[str, int]], None]:
    """Return the function for ``gc.callbacks`` that adds what is full (generation 2) or long to ``kept``. It calls nothing.

    Added are: when it ended (``time.perf_counter_ns``), ns, generation, objects collected, thread.
    """
    clock: Any = _Clock()
    thread: Any = _Thread()
    began = 0
    room = _MOST_KEPT

    def collected(phase: str, info: dict[str, int]) -> None:
        try:
            nonlocal began, room, kept
            if phase == "start":
                began = -clock
            elif began:
                ended = -clock
                if not kept:
                    room = _MOST_KEPT
                if room and (info["generation"] == 2 or ended - began >= long_ns):
                    kept += ((ended, ended - began, info["generation"], info["collected"], -thread),)
                    room -= 1
                began = 0
        except Exception:
            began = 0

    return collected


def _without_signals(code: CodeType) -> CodeType:
    """Return code for which Python looks for no signal when it enters it."""
    changed = bytearray(code.co_code)
    at = next(i.offset for i in dis.get_instructions(code) if i.opname == "RESUME")
    changed[at + 1] = _AFTER_AWAIT
    return code.replace(co_code=bytes(changed))


def _prepare() -> bool:
    """Make ``listener`` return functions that no signal enters; say whether this Python lets us."""
    if sys.implementation.name != "cpython" or sys.version_info < _OLDEST:
        return False
    if sys.version_info < (3, 11):
        return True  # there a ``try`` at the very beginning is enough
    try:
        made = listener.__code__  # changed in here, where ``nsysx_dynamo`` finds it
        parts = tuple(_without_signals(c) if isinstance(c, CodeType) else c for c in made.co_consts)
        listener.__code__ = made.replace(co_consts=parts)
    except Exception:
        return False
    return True


_READY = _prepare()


class Pauses:
    """What stood still since the last look. ``send`` is called between steps, on the thread that drives them."""

    def __init__(self, out: Output) -> None:
        self.out = out
        self.listens = False
        self.left_out = 0
        self._kept: list[Any] = []
        self._sent = 0
        self._last: Any = None  # the last compilation that was looked at
        self._on = False

    def arm(self) -> Callable[[], None] | None:
        """Listen from now on; return what ends it, None where this Python cannot be listened to unnoticed."""
        self._on = True
        if not _READY:
            return None
        listen = listener(self._kept)
        gc.callbacks.append(listen)
        self.listens = True

        def remove() -> None:
            self._on = False
            if listen in gc.callbacks:
                gc.callbacks.remove(listen)

        return remove

    def send(self) -> None:
        """Send what ended since the last look; outside of the capture window it is forgotten."""
        if not self._on:
            return
        try:
            taken = self._kept[:]
            del self._kept[: len(taken)]
            compiled = self._compiled()
            if not self.out.recording:
                return
            for ended, ns, generation, collected, thread in taken:
                ago = time.perf_counter_ns() - ended
                self._mark(
                    "gc",
                    {"ago_ns": ago, "ns": ns, "generation": generation, "collected": collected, "thread": thread},
                )
            for one in compiled:
                self._mark("compile", _compilation(one))
        except Exception as error:
            self._on = False
            self.out.wrong("pauses", error)

    def _mark(self, kind: str, about: dict[str, Any] | None) -> None:
        if about is None:
            return
        if self._sent >= _MOST_SENT:
            self.left_out += 1
            return
        self._sent += 1
        self.out.pause(kind, about)

    def _compiled(self) -> list[Any]:
        """Return what torch noted of its compilations since the last look; it keeps the last 64."""
        utils = sys.modules.get("torch._dynamo.utils")
        noted = getattr(utils, "_compilation_metrics", None)
        if not noted or noted[-1] is self._last:
            return []
        newest_first = []
        for one in reversed(list(noted)):
            if one is self._last:
                break
            newest_first.append(one)
        self._last = newest_first[0]
        return newest_first[::-1]


def _compilation(noted: Any) -> dict[str, Any] | None:
    """Return what is sent of one of torch's CompilationMetrics; None where this torch does not say when it was."""
    start, end = getattr(noted, "start_time_us", None), getattr(noted, "end_time_us", None)
    if not isinstance(start, int) or not isinstance(end, int):
        return None
    reason, failed = getattr(noted, "recompile_reason", None), getattr(noted, "fail_type", None)
    return {
        "ago_ns": max(0, time.time_ns() - end * 1000),
        "ns": (end - start) * 1000,
        "id": str(getattr(noted, "compile_id", "") or ""),
        "function": str(getattr(noted, "co_name", "") or "")[:100],
        "file": str(getattr(noted, "co_filename", "") or "")[-200:],
        "line": getattr(noted, "co_firstlineno", None),
        "backward": getattr(noted, "is_forward", None) is False,
        "reason": reason.split("\n")[0][:_MOST_REASON] if isinstance(reason, str) else None,
        "failed": str(failed)[:100] if failed else None,
    }

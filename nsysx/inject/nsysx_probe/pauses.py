"""Records when Python itself pauses: for garbage collections, and for compilations of ``torch.compile`` with their reason.

Each is kept in memory when it ends and sent as a mark between two steps, with how long ago it ended and how long it took. So a
program that collects often pays for two small calls each time and never for a range.

Python calls the functions in ``gc.callbacks``; an exception there is printed and lost. If a signal arrives during a collection
(Ctrl-C, a scheduler's SIGTERM), Python handles it in the first Python function that runs afterwards, and an exception from the
handler would be lost there, too. So our callback must be a function in which Python does not check for signals. It makes no calls,
because Python checks at each call, and its RESUME instruction, which checks at the start of every function, is replaced by that of
a coroutine, which does not check.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from .interrupts import without_signals
from .output import Output
from .probe_bounds import LONG_PAUSE_NS, MOST_KEPT_PAUSES, MOST_REASON_LETTERS, MOST_SENT_PAUSES

#: The oldest Python in which no operator except a call checks for signals.
_OLDEST = (3, 10)


class _Clock:
    """``-_Clock()`` reads the clock without a call instruction: a built-in function is not bound, so it gets no argument."""

    __neg__ = time.perf_counter_ns


class _Thread:
    """``-_Thread()`` is the system's id of this thread."""

    __neg__ = threading.get_native_id


def listener(kept: list[Any], long_ns: int = LONG_PAUSE_NS) -> Callable[[str, dict[str, int]], None]:
    """Return a function for ``gc.callbacks`` that appends full (generation 2) and long collections to ``kept``. It makes no calls.

    Each entry holds the end (``time.perf_counter_ns``), the duration in ns, generation, objects collected, and thread id.
    """
    clock: Any = _Clock()
    thread: Any = _Thread()
    began = 0
    room = MOST_KEPT_PAUSES

    def collected(phase: str, info: dict[str, int]) -> None:
        try:
            nonlocal began, room, kept
            if phase == "start":
                began = -clock
            elif began:
                ended = -clock
                if not kept:
                    room = MOST_KEPT_PAUSES
                if room and (info["generation"] == 2 or ended - began >= long_ns):
                    kept += ((ended, ended - began, info["generation"], info["collected"], -thread),)
                    room -= 1
                began = 0
        except Exception:
            began = 0

    return collected


def _prepare() -> bool:
    """Make ``listener`` return functions in which no signal is handled; return whether this Python allows it."""
    if sys.implementation.name != "cpython" or sys.version_info < _OLDEST:
        return False
    if sys.version_info < (3, 11):
        return True  # in 3.10 a ``try`` at the very beginning is enough
    try:
        listener.__code__ = without_signals(listener.__code__)  # changed in place, so that ``dynamo`` finds it
    except Exception:
        return False
    return True


_READY = _prepare()


class Pauses:
    """The pauses since the last look. ``send`` is called between steps, on the thread that drives them."""

    def __init__(self, out: Output) -> None:
        self.out = out
        self.listens = False
        self.left_out = 0
        self._kept: list[Any] = []
        self._sent = 0
        self._last: Any = None  # the last compilation that was seen
        self._on = False

    def arm(self) -> Callable[[], None] | None:
        """Start listening; return the function that ends it, or None if this Python does not allow a safe callback."""
        self._on = True
        self._compiled()  # what was compiled before belongs to nobody's step
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
        """Send the pauses that ended since the last look; outside the capture window, drop them."""
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
            for metrics in compiled:
                self._mark("compile", _compilation(metrics))
        except Exception as error:
            self.out.wrong("pauses", error)
            self._on = False

    def _mark(self, kind: str, about: dict[str, Any] | None) -> None:
        if about is None:
            return
        if self._sent >= MOST_SENT_PAUSES:
            self.left_out += 1
            return
        self._sent += 1
        self.out.pause(kind, about)

    def _compiled(self) -> list[Any]:
        """Return torch's metrics of the compilations since the last look; torch keeps those of the last 64."""
        utils = sys.modules.get("torch._dynamo.utils")
        noted = getattr(utils, "_compilation_metrics", None)
        if not noted or noted[-1] is self._last:
            return []
        newest_first = []
        for metrics in reversed(list(noted)):
            if metrics is self._last:
                break
            newest_first.append(metrics)
        self._last = newest_first[0]
        return newest_first[::-1]


def _compilation(metrics: Any) -> dict[str, Any] | None:
    """Return what is sent of one of torch's CompilationMetrics; None if this torch does not record start and end."""
    start, end = getattr(metrics, "start_time_us", None), getattr(metrics, "end_time_us", None)
    if not isinstance(start, int) or not isinstance(end, int):
        return None
    reason, failed = getattr(metrics, "recompile_reason", None), getattr(metrics, "fail_type", None)
    return {
        "ago_ns": max(0, time.time_ns() - end * 1000),
        "ns": (end - start) * 1000,
        "id": str(getattr(metrics, "compile_id", "") or ""),
        "function": str(getattr(metrics, "co_name", "") or "")[:100],
        "file": str(getattr(metrics, "co_filename", "") or "")[-200:],
        "line": getattr(metrics, "co_firstlineno", None),
        "backward": getattr(metrics, "is_forward", None) is False,
        "reason": reason.split("\n")[0][:MOST_REASON_LETTERS] if isinstance(reason, str) else None,
        "failed": str(failed)[:100] if failed else None,
    }

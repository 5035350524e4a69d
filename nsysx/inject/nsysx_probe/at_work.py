"""Tells when nsys has begun to trace the CUDA calls of this process, after another process has opened a window.

It begins there 0.07 to 0.8 s later (H100, nsys 2025.3). A launch in between is lost, and one at the very moment has no kernel. A call of
the driver that does nothing takes 0.2 us by itself and 0.55 to 0.75 us once it is traced, so its time tells. Standard library only.
"""

from __future__ import annotations

import time

from . import draining
from .interrupts import of_program
from .probe_bounds import (
    AT_WORK_LONGEST_S,
    AT_WORK_LOOK_S,
    BARE_CALLS,
    KERNELS_AFTER_CALLS_S,
    TRACED_CALLS,
    TRACED_LONGER,
)

if False:  # importing typing takes milliseconds
    from typing import Any


#: What each wait was, in order: ``ns``, ``seen`` (nsys has begun), and the call's time before and at the end (``bare_ns``, ``traced_ns``).
waits: list[dict[str, Any]] = []


class CallTracing:
    """Is made before a window opens, and waits after that until nsys traces this process."""

    def __init__(self) -> None:
        self._bare_ns = _shortest_ns(BARE_CALLS)

    def wait(self) -> None:
        """Wait until calls take longer, where this process uses a device; not for good, because nsys may trace no calls."""
        if self._bare_ns is None:
            return
        begin, until = time.perf_counter_ns(), time.monotonic() + AT_WORK_LONGEST_S
        ns = _shortest_ns(TRACED_CALLS) or 0
        while not self._traced(ns) and time.monotonic() < until:
            time.sleep(AT_WORK_LOOK_S)
            ns = _shortest_ns(TRACED_CALLS) or 0
        if self._traced(ns):
            time.sleep(KERNELS_AFTER_CALLS_S)
        waited = time.perf_counter_ns() - begin
        waits.append({"ns": waited, "seen": self._traced(ns), "bare_ns": self._bare_ns, "traced_ns": ns})

    def _traced(self, ns: int) -> bool:
        return ns > TRACED_LONGER * (self._bare_ns or 0)


def _shortest_ns(calls: int) -> int | None:
    """Return the shortest time of so many calls of the driver that do nothing; None if this thread uses no device.

    Who only asks whether there is a device, as every optimizer of torch does, has begun to use the driver, but no context.
    """
    try:
        import ctypes

        context, clock = ctypes.c_void_p(), time.perf_counter_ns
        cuda = draining.driver(ctypes.PyDLL)
        if cuda is None or cuda.cuCtxGetCurrent(ctypes.byref(context)) or not context.value:
            return None
        call, to, times = cuda.cuCtxGetCurrent, ctypes.byref(context), []
        for _ in range(calls):
            begin = clock()
            call(to)
            times.append(clock() - begin)
        return min(times)
    except Exception as error:  # an unknown driver
        if of_program(error):
            raise
        return None

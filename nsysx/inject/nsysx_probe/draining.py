"""Waits until the devices have done what was launched, before a window of nsys closes: it drops what they have not done by then.

Where the GPU sets the pace, the host is up to 1,024 launches ahead: on an H100, windows over steps of 14 ms on the GPU and 4 ms on
the host lost 1,467 of 2,104 kernels.

Nothing may be synchronized for it: a collective that waits for another rank, or a kernel that never ends, would hold the program
for good. So an event is recorded that captures all streams of a device's context, side streams of torch and streams that other
libraries made included (``cuCtxRecordEvent``; drivers before CUDA 12.5 have none: a synchronize then, which nobody waits for longer
than for the event), and the event is asked until it has come or the time is up. That happens in a thread of its own, whose calls can
neither disturb a capture that the program begins meanwhile nor change the context that is current for the program.

The driver is the library that the program has loaded; without one there is nothing to wait for. Standard library only.
"""

from __future__ import annotations

import _thread
import os
import sys
import time

if False:  # importing typing takes milliseconds
    from collections.abc import Callable
    from typing import Any

#: A wait ends after this time (s) and so many of the longest steps so far, at the latest after ``_LONGEST_S``: a queue holds up to
#: 1,024 launches, which may be as many steps if each is one graph.
_WAIT_S, _WAIT_STEPS, _LONGEST_S = 10.0, 64, 60.0
#: The same for one of several processes, whose device may wait for one that is not there.
_WAIT_OF_RANK_S, _STEPS_OF_RANK = 5.0, 8
#: How long to sleep between two looks at an event, at first and at most (s).
_LOOK_S, _MOST_S = 0.001, 0.01
#: The same where the program's other threads are held back meanwhile (us).
_HELD_US = 20_000

#: Numbers of cuda.h: an event without time, the mode in which a thread's calls disturb no capture, the stream that waits for all
#: others but those that asked not to, and results.
_DISABLE_TIMING, _RELAXED, _LEGACY = 2, 2, 1
_DONE, _NOT_READY, _CAPTURES = 0, 600, range(900, 910)

#: What each wait was, in order: ``ns``, ``rested`` (the devices have done everything), ``beside`` (the program was not stopped for it).
waits: list[dict[str, Any]] = []
#: The CUDA graphs that are being captured now. A device with a stream that is captured takes no event of ours.
captured: set[int] = set()


def longest_wait_s(longest_ns: int, several: bool) -> float:
    """Return how long a wait may take, by the longest step so far."""
    least, steps = (_WAIT_OF_RANK_S, _STEPS_OF_RANK) if several else (_WAIT_S, _WAIT_STEPS)
    return float(min(least + steps * longest_ns / 1e9, _LONGEST_S))


def drain(longest_ns: int = 0, *, several: bool = False) -> bool | None:
    """Wait until the devices have done what was launched; return whether they have, None if there is no device in use.

    ``several``: this process is one of several that may wait for each other on their devices.
    """
    cuda = _driver()
    if cuda is None or _captures():
        return None
    begin, answers = time.perf_counter_ns(), []
    until = time.monotonic() + longest_wait_s(longest_ns, several)
    ended = _thread.allocate_lock()
    ended.acquire()

    def wait() -> None:
        try:
            answers.append(_wait(cuda, until, time.sleep))
        except Exception:  # an unknown driver
            pass
        finally:
            ended.release()

    _thread.start_new_thread(wait, ())
    ended.acquire(timeout=max(until - time.monotonic(), 0) + 1)  # what cannot be asked for is not waited for either
    return _noted(begin, answers[0] if answers else False, beside=False)


def drain_beside(longest_ns: int = 0) -> bool | None:
    """Do the same where the program goes on meanwhile, for a window that closes in the middle of something.

    All threads of Python but this one are held back, so that they launch next to nothing: one at a time runs for a moment, whenever
    this one looks.
    """
    if _driver() is None or captured:
        return None
    begin, rested = time.perf_counter_ns(), False
    try:
        import ctypes

        cuda, held = _driver(ctypes.PyDLL), ctypes.PyDLL(None).usleep  # they keep the interpreter's lock

        def sleep(_seconds: float) -> None:
            held(_HELD_US)

        until = time.monotonic() + longest_wait_s(longest_ns, several=True)
        answer: bool | None = True
        while answer and not rested and time.monotonic() < until:
            sleep(0)
            since = time.monotonic()
            answer = _wait(cuda, until, sleep)
            rested = bool(answer) and time.monotonic() - since < 1e-6 * _HELD_US  # nothing was left to do
        if answer is None:
            return None
    except Exception:
        pass
    return _noted(begin, rested, beside=True)


def _noted(begin_ns: int, rested: bool | None, *, beside: bool) -> bool | None:
    if rested is not None:
        waits.append({"ns": time.perf_counter_ns() - begin_ns, "rested": rested, "beside": beside})
    return rested


def _driver(loader: Any = None) -> Any:
    """Return the driver's library, None if the program has not loaded it."""
    try:
        import ctypes

        return (loader or ctypes.CDLL)("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except (ImportError, OSError, AttributeError):
        return None


def _captures() -> bool:
    """Return whether a stream of the program is being captured, as far as that is known without asking a captured one."""
    if captured:
        return True
    torch: Any = sys.modules.get("torch")
    try:
        return bool(torch and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
    except Exception:  # a failing device; signals come again at the next call
        return False


def _wait(cuda: Any, until: float, sleep: Callable[[float], object]) -> bool | None:
    """Wait, on this thread, until all devices in use have done what was launched; return whether they have, None if none is in use."""
    import ctypes as c

    cuda.cuThreadExchangeStreamCaptureMode(c.byref(c.c_int(_RELAXED)))
    count = c.c_int()
    if cuda.cuDeviceGetCount(c.byref(count)):  # the program has not begun to use the driver
        return None
    asked: list[Callable[[], bool | None]] = []
    kept: list[int] = []
    try:
        for device in range(count.value):
            flags, active, context = c.c_uint(), c.c_int(), c.c_void_p()
            if cuda.cuDevicePrimaryCtxGetState(device, c.byref(flags), c.byref(active)) or not active.value:
                continue
            if not cuda.cuDevicePrimaryCtxRetain(c.byref(context), device):
                kept.append(device)
            asked.append(_question(cuda, context))
        return _answered(asked, until, sleep) if asked else None
    finally:
        for device in kept:
            cuda.cuDevicePrimaryCtxRelease_v2(device)


def _question(cuda: Any, context: Any) -> Callable[[], bool | None]:
    """Return what tells whether the device has done all that was launched so far in a context; None: it will not tell."""
    import ctypes as c

    event, status = c.c_void_p(), c.c_int()
    if cuda.cuCtxSetCurrent(context) or cuda.cuStreamIsCapturing(c.c_void_p(_LEGACY), c.byref(status)):
        return lambda: None
    record = getattr(cuda, "cuCtxRecordEvent", None)
    if record is None or cuda.cuEventCreate(c.byref(event), _DISABLE_TIMING):
        return _synchronized(context)
    result = record(context, event)
    if result:
        cuda.cuEventDestroy_v2(event)
        return (lambda: None) if result in _CAPTURES else _synchronized(context)

    def ask() -> bool | None:
        answer = cuda.cuEventQuery(event)
        if answer == _NOT_READY:
            return False
        cuda.cuEventDestroy_v2(event)
        return True if answer == _DONE else None

    return ask


def _synchronized(context: Any) -> Callable[[], bool | None]:
    """Return what tells whether a synchronize of the context has returned, in a thread that nobody has to wait for."""
    import ctypes as c

    results: list[int] = []
    cuda = _driver()

    def wait() -> None:
        cuda.cuThreadExchangeStreamCaptureMode(c.byref(c.c_int(_RELAXED)))
        results.append(cuda.cuCtxSetCurrent(context) or cuda.cuCtxSynchronize())

    _thread.start_new_thread(wait, ())
    return lambda: False if not results else True if results[0] == _DONE else None


def _answered(asked: list[Callable[[], bool | None]], until: float, sleep: Callable[[float], object]) -> bool:
    """Ask each again and again until it says yes, or the time is up; return whether all have said yes."""
    rested, look = True, _LOOK_S
    for ask in asked:
        answer = ask()
        while answer is False and time.monotonic() < until:
            sleep(look)
            look = min(1.2 * look, _MOST_S)
            answer = ask()
        rested = rested and bool(answer)
    return rested

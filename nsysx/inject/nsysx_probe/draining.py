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

from .probe_bounds import (
    DRAIN_HELD_LOOK_S,
    DRAIN_LONGEST_S,
    DRAIN_LOOK_S,
    DRAIN_MOST_LOOK_S,
    DRAIN_OF_RANK_S,
    DRAIN_S,
    DRAIN_STEPS,
    NEVER_SWITCHES_S,
)

if False:  # importing typing takes milliseconds
    from collections.abc import Callable
    from typing import Any

#: The operation of flock that shares a file or fails at once (LOCK_SH | LOCK_NB).
_SHARED_AT_ONCE = 5

#: Numbers of cuda.h: an event without time, the mode in which a thread's calls disturb no capture, the stream that waits for all
#: others but those that asked not to, and results.
_DISABLE_TIMING, _RELAXED, _LEGACY = 2, 2, 1
_DONE, _NOT_READY, _CAPTURES = 0, 600, range(900, 910)

#: Environment variables with which launchers say how many processes a job has.
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")

#: What each wait was, in order: ``ns``, ``rested`` (the devices have done everything), ``beside`` (the program was not stopped for it).
waits: list[dict[str, Any]] = []
#: The CUDA graphs that are being captured now. A device with a stream that is captured takes no event of ours.
captured: set[int] = set()


def is_one_of_several() -> bool:
    """Return whether this process works with others: torch.distributed knows, or before it starts the launcher."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized():
        return bool(distributed.get_world_size() > 1)
    return any(os.environ.get(name, "1") not in ("", "0", "1") for name in _SIZES)


def longest_wait_s(longest_ns: int, *, beside: bool = False, several: bool = False) -> float:
    """Return how long a wait may take, by the longest step so far; ``beside``: in the middle of something.

    ``several``: this process is one of several that may wait for each other on their devices.
    """
    if beside:
        return DRAIN_OF_RANK_S if several else DRAIN_LONGEST_S
    return min(DRAIN_S + DRAIN_STEPS * longest_ns / 1e9, DRAIN_LONGEST_S)


def drain(longest_ns: int = 0, within_s: float | None = None) -> bool | None:
    """Wait until the devices have done what was launched; return whether they have, None if there is no device in use.

    ``within_s``: no longer than this, else as `longest_wait_s` has it.
    """
    cuda = driver()
    if cuda is None or _captures():
        return None
    begin, answers = time.perf_counter_ns(), []
    until = time.monotonic() + (longest_wait_s(longest_ns) if within_s is None else within_s)
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


class Held:
    """Holds all other threads of Python from when the devices are at rest to the end of the ``with``; they may launch nothing meanwhile.

    ``rested`` tells whether the devices are; None if no device is in use. Until they are, one thread at a time runs for a moment,
    whenever this one looks: a device may wait for something that only the program can do.
    """

    def __init__(self, *, several: bool = False) -> None:
        self.rested: bool | None = None
        self._several = several
        self._usual_s = sys.getswitchinterval()
        self._libc: Any = None

    def __enter__(self) -> None:
        if driver() is None:
            return
        begin, until = time.perf_counter_ns(), time.monotonic() + longest_wait_s(0, beside=True, several=self._several)
        while captured and time.monotonic() < until:  # a graph that is captured ends by itself, if nobody is held
            time.sleep(DRAIN_LOOK_S)
        try:
            import ctypes

            self._libc = ctypes.PyDLL(None)  # what it calls keeps the interpreter's lock
            self.rested = not captured and self._come_to_rest(driver(ctypes.PyDLL), until)
        except Exception:
            self.rested = False
        _noted(begin, self.rested, beside=True)

    def _come_to_rest(self, cuda: Any, until: float) -> bool | None:
        answer = _wait(cuda, until, lambda _seconds: self._sleep(DRAIN_HELD_LOOK_S))
        while answer and time.monotonic() < until:
            sys.setswitchinterval(NEVER_SWITCHES_S)  # no other thread can ask for the interpreter's lock any more
            looks = [self._look(cuda, until) for _ in range(2)]
            if all(looks):
                return True
            sys.setswitchinterval(self._usual_s)
            self._sleep(DRAIN_HELD_LOOK_S)
        return None if answer is None else False

    def _look(self, cuda: Any, until: float) -> bool:
        """Wait a moment, in which calls of the program outside Python end, and return whether next to nothing is left to be done."""
        self._sleep(DRAIN_HELD_LOOK_S)
        since = time.monotonic()
        return bool(_wait(cuda, until, self._sleep)) and time.monotonic() - since < DRAIN_HELD_LOOK_S

    def __exit__(self, *_what: object) -> None:
        sys.setswitchinterval(self._usual_s)

    def _sleep(self, seconds: float) -> None:
        self._libc.usleep(round(1e6 * seconds))

    def rename(self, path: str, to: str) -> None:
        """Rename a file."""
        if self.rested:
            self._libc.rename(os.fsencode(path), os.fsencode(to))
        else:
            os.rename(path, to)  # noqa: PTH104

    def until_unlocked(self, path: str) -> None:
        """Wait until nobody has locked a file (flock) any more, at the latest after ``DRAIN_LONGEST_S``."""
        until, libc = time.monotonic() + DRAIN_LONGEST_S, self._libc
        file = libc.open(os.fsencode(path), os.O_RDONLY | os.O_CLOEXEC)
        while file >= 0 and libc.flock(file, _SHARED_AT_ONCE) < 0 and time.monotonic() < until:
            self._sleep(DRAIN_MOST_LOOK_S)
        if file >= 0:
            libc.close(file)


def _noted(begin_ns: int, rested: bool | None, *, beside: bool) -> bool | None:
    if rested is not None:
        waits.append({"ns": time.perf_counter_ns() - begin_ns, "rested": rested, "beside": beside})
    return rested


def driver(loader: Any = None) -> Any:
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
    cuda = driver()

    def wait() -> None:
        cuda.cuThreadExchangeStreamCaptureMode(c.byref(c.c_int(_RELAXED)))
        results.append(cuda.cuCtxSetCurrent(context) or cuda.cuCtxSynchronize())

    _thread.start_new_thread(wait, ())
    return lambda: False if not results else True if results[0] == _DONE else None


def _answered(asked: list[Callable[[], bool | None]], until: float, sleep: Callable[[float], object]) -> bool:
    """Ask each again and again until it says yes, or the time is up; return whether all have said yes."""
    rested, look = True, DRAIN_LOOK_S
    for ask in asked:
        answer = ask()
        while answer is False and time.monotonic() < until:
            sleep(look)
            look = min(1.2 * look, DRAIN_MOST_LOOK_S)
            answer = ask()
        rested = rested and bool(answer)
    return rested

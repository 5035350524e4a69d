"""Brings the devices of a process to rest when ``nsysx run`` ends a recording in the middle of something, and keeps them so until it has.

nsys drops what a device has not done when a recording ends, and only the program itself can tell when its devices have done what it
launched. So each process with the probe looks now and then for a file of ``nsysx run``. When it is there, the process lets its devices
come to rest while its other threads of Python are held back, says so by a file of its own, and holds them until ``nsysx run`` gives up
its lock of that file (flock): because the recording has ended, because another process cannot come to rest, or because it has ended
itself. ``recording.limiter`` is the other side. Standard library only.
"""

from __future__ import annotations

import _thread
import os
import time

from .probe_bounds import LIMIT_LOOK_S

if False:  # importing typing takes milliseconds
    from collections.abc import Callable

#: Files beside the probe's own: something is recorded; what is recorded ends at once, so that all devices are to come to rest.
OPEN, REST = "window-open", "window-rests"
#: What stands before the process number in the file of a process: it watches; its devices come to rest; they do so no more, because they
#: rest, or because its time is up.
WATCHES, DRAINS, RESTS, BUSY = "limit-watches-", "limit-drains-", "limit-rests-", "limit-busy-"


def watch_whole() -> None:
    """Watch for the end of a recording of everything, where it has a limit."""
    folder = os.environ.get("NSYSX_PROBE_DIR")
    if folder and os.environ.get("NSYSX_LIMIT"):
        watch(folder, lambda: is_open(folder))


def is_open(folder: str) -> bool:
    """Return whether something is recorded."""
    return os.path.exists(f"{folder}/{OPEN}")  # noqa: PTH110 - importing pathlib takes milliseconds


def watch(folder: str, goes_on: Callable[[], bool]) -> None:
    """Look for the end of the recording, in a thread of its own, as long as ``goes_on`` says so."""
    _thread.start_new_thread(_watch, (folder, goes_on))


def _watch(folder: str, goes_on: Callable[[], bool]) -> None:
    try:
        process = str(os.getpid())
        os.close(os.open(f"{folder}/{WATCHES}{process}", os.O_CREAT | os.O_WRONLY))
        while goes_on():
            time.sleep(LIMIT_LOOK_S)
            if os.path.exists(f"{folder}/{REST}"):  # noqa: PTH110
                return _rest(folder, process)
    except Exception:  # the interpreter is going, or the folder is
        pass
    return None


def _rest(folder: str, process: str) -> None:
    """Let the devices come to rest, say whether they have, and if so hold the program until ``nsysx run`` lets it go."""
    from . import draining

    os.rename(f"{folder}/{WATCHES}{process}", f"{folder}/{DRAINS}{process}")  # noqa: PTH104
    held = draining.Held(several=draining.is_one_of_several())
    with held:
        sign = RESTS if held.rested is not False else BUSY
        held.rename(f"{folder}/{DRAINS}{process}", f"{folder}/{sign}{process}")
        if held.rested:
            held.until_unlocked(f"{folder}/{REST}")

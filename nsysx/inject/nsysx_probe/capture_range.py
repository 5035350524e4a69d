"""Asks for nsys's capture windows where a run has two of them (``NSYSX_STEPS=windows``).

nsys opens and closes them with one NVTX range, which a process of ``nsysx run`` holds (``recording.range_holder``). The first window
opens before the command starts, so it holds the cold start, of whichever process. The process that makes steps first claims the
windows: it says when they close and when the second one opens. All others are recorded as long as a window is open.

What holds the range goes on when nsys is at work in its own process; in another one nsys may begin later. So who opens a window waits
until nsys is at work here, too. A range of this process would be there at once, but nsys 2025.3 ends the program at the second range
if it is of another process than the first. Standard library only.
"""

from __future__ import annotations

import _thread
import os
import time

from . import at_limit
from .interrupts import of_program
from .probe_bounds import NSYS_BEGINS_S

if False:  # importing typing takes milliseconds
    from typing import Any

#: What nsys waits for: ``--nvtx-capture=TEXT@DOMAIN``. No other range of the domain has this text.
TEXT, DOMAIN = "capture-window", "nsysx"
#: The setting of nsys with which nothing of it stays in the program's calls after a window.
DETACHED = "CuptiFinalizeOnStop=true"
#: Says that a run has two windows.
MODE = "windows"
#: Where the windows are asked for: the name of an abstract Unix socket.
ADDRESS = "NSYSX_WINDOWS"
#: Files of the probe beside its own: the last window of steps has closed (it holds the process to end for ``--then stop``); a step has
#: ended in the open window.
CLOSED, STEPPED = "windows-closed", "window-has-steps"
#: ``nsysx run`` makes these: the open window has reached the limit and is to close with a step; who holds the range is to close it now.
LIMIT, CUT = "window-limit", "window-cut"

# Functions that open and close a window; empty where there are no windows.
_calls: list[Any] = []
_open: list[Any] = []  # not empty while a window is open, as far as this process knows
_over: list[str] = []  # the process that had both windows, before this one came
# Whether the program that this one has replaced had closed its window; empty if there was none.
_replaced: list[bool] = []
_limited: list[str] = []  # where the files about the limit are; empty without a limit
_ending = _thread.allocate_lock()


def _ask(text: str) -> str:
    """Return the answer of the process that holds the range, "" if it is gone. Raises what a signal's handler raises."""
    from _socket import AF_UNIX, SOCK_STREAM, socket

    link = socket(AF_UNIX, SOCK_STREAM)
    try:
        link.connect("\0" + os.environ.get(ADDRESS, ""))
        link.send(text.encode() + b"\n")
        return link.recv(256).decode().strip()
    except Exception as error:
        if of_program(error):  # a TimeoutError is an OSError
            raise
        return ""
    finally:
        link.close()


def here() -> None:
    """Tell that this process has torch, so that it may make steps, and learn whether windows can be had."""
    environ = os.environ
    if environ.get("NSYSX_STEPS") != MODE or not environ.get(ADDRESS) or _calls or _over or _replaced:
        return
    answer, _, pid = _ask(f"here {_key()}").partition(" ")
    if answer == "over":
        _over.append(pid)
    elif answer == "replaced":
        _replaced.append(True)
    elif answer:
        _open[:] = [1] if answer == "open" else []
        _calls[:] = [_begin, _end]
        if environ.get("NSYSX_LIMIT") and environ.get("NSYSX_PROBE_DIR"):
            _limited.append(environ["NSYSX_PROBE_DIR"])
            if _open:
                _watch()


def _begin() -> int:
    """Have the second window opened by the process that opened the first, and wait until nsys is at work in this one, too."""
    _ask("begin")
    time.sleep(NSYS_BEGINS_S)
    return 1


def _end(_window: Any) -> None:
    """Have the window closed by the process that opened it."""
    _ask("end")


def claim(*, several: bool) -> str:
    """Claim the windows for this process, or for the job that it is one of ``several`` ranks of.

    Return the process that has them, "" if it is this one.
    """
    answer = _ask(f"claim {_key() if several else os.getpid()}").split()
    if answer[:1] != ["yes"]:
        return answer[1] if len(answer) > 1 else "0"
    _open[:] = [1] if answer[1] == "open" else []
    return ""


def _key() -> str:
    """Return what all ranks of a job that one launcher has started here have in common, of this start of them."""
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    return "-".join([str(os.getppid()), *("".join(os.environ.get(name, "").split()) for name in names)])


def replaced() -> bool:
    """Return whether this program has replaced (exec) the one that had the first window."""
    return bool(_replaced)


def unrecorded() -> bool:
    """Return whether nothing of this program is recorded: both windows were another's, or that of the one that it has replaced."""
    return bool(_over or _replaced)


def had_by() -> str:
    """Return the process that had both windows before this one came, "" if there was none."""
    return _over[0] if _over else ""


def begin() -> None:
    """Open a window; nsys needs 0.2 s for it."""
    if not _open:
        _open.append(_calls[0]())
        if _limited:
            _watch()


def end() -> bool:
    """Close the window and return whether one was open; nsys needs 3 s for it."""
    with _ending:
        if closed() or not _open:
            _open.clear()
            return False
        _calls[1](_open.pop())
        return True


def _watch() -> None:
    """Watch whether the open window ends at the limit, in the middle of something."""
    window = list(_open)
    at_limit.watch(_limited[0], lambda: _open == window and not closed())


def step_ended(first: bool) -> bool:
    """Note the ``first`` step that has ended in the open window, and return whether the window has reached the limit."""
    if not _limited:
        return False
    if first:
        try:
            os.close(os.open(f"{_limited[0]}/{STEPPED}", os.O_CREAT | os.O_WRONLY))
        except OSError:  # a folder that takes no file is no failure of the program
            pass
    return os.path.exists(f"{_limited[0]}/{LIMIT}")  # noqa: PTH110


def closed() -> bool:
    """Return whether the window was closed at the limit, while the program was in the middle of something."""
    return bool(_limited) and not (_open and at_limit.is_open(_limited[0]))


def ours() -> bool:
    """Return whether this process may have windows."""
    return bool(_calls)

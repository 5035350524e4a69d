"""Holds the NVTX range that opens and closes nsys's capture windows, as ``python -I -S range_holder.py ADDRESS FOLDER TEXT DOMAIN``.

What nsys captures is decided for all processes at once, by one range. A process of the program cannot hold it: which one makes the
steps is not known when the first window opens, and whoever ends takes the range along. So this process opens the first window before
the command starts, and then does what the probe of the process asks for that makes steps first. It has the environment that nsys
gives to what it records.

On stdin is ``nsysx run``: when that ends, so does this. On stdout goes ``open`` once the first window is open. At ADDRESS, a Unix
socket, each process of the program asks in one line and gets one line (``inject.nsysx_probe.capture_range`` asks):

* ``here KEY``: Python has imported torch. ``open``, ``closed``, or ``over PID``: a window is open, none is, or there will be none any more,
  because process PID had both. ``replaced``: it stands in the place (exec) of the process whose window has closed.
* ``claim KEY``: it has made a step. ``yes open`` or ``yes closed`` if the windows are its own from now on; ``no PID`` if they are those
  of another process that still runs. The ranks of a job have one key, at each start of them another one.
* ``begin``: whoever has the windows wants the second one, or one more. They are opened from here, too: nsys takes the range of one process
  only. With nsys 2025.3 (H100) it ended the program (SIGTERM) and lost the first report where another process had the second range,
  with 2023.4 at the third.
* ``end``: the open window is to be closed from here. ``1`` if that changed something. At the limit ``nsysx run`` asks for it, by a file.

Where who had the windows ended before its second one, whoever comes next gets a first window of its own; ranks that their launcher
has started anew do so, too, where those before ended in the second one. With words after DOMAIN they are run as the command, in place
of ``nsysx run``.

Standard library only.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import struct
import sys
from _socket import AF_UNIX, SO_PEERCRED, SOCK_STREAM, SOL_SOCKET, socket
from collections.abc import Callable
from typing import Any

#: Beside the probe's files: a window is open; a step has ended in it; ``nsysx run`` wants it closed. As in ``capture_range``.
OPEN, STEPPED, CUT = "window-open", "window-has-steps", "window-cut"
#: How often it looks for the last of them while a window is open, and for the end of a command of its own (s).
_LOOK_S = 0.25
#: Who connects asks at once.
_ASKS_S = 5.0


def began(pid: int) -> str:
    """Return when a process began, which no other process of its number has in common with it; "" if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib doubles the start-up time
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def _runs(process: tuple[int, str]) -> bool:
    """Return whether a process still runs that began then."""
    return bool(process[1]) and began(process[0]) == process[1]


def _started_anew(before: str, key: str) -> bool:
    """Return whether two keys are of two starts of the ranks of one job; the start stands last in them."""
    job, _, start = key.rpartition("-")
    return bool(job) and before.rpartition("-")[0] == job and before.rpartition("-")[2] != start


class CaptureWindows:
    """Which window is open, and whose they are. ``begin`` opens one and returns its number; ``end`` takes that number."""

    def __init__(self, folder: str, begin: Callable[[], Any], end: Callable[[Any], Any]) -> None:
        self._folder, self._begin, self._end = folder, begin, end
        self._range: list[Any] = []  # the number of the open range
        self._key = ""
        self._of: dict[int, str] = {}  # the processes that have the windows, and when they began
        self._first = 0  # the process that came first of them
        self._second = self._over = False  # the second window was opened; it has closed
        self._there: dict[int, str] = {}  # the processes with torch, and when they began

    @property
    def open(self) -> bool:
        """Return whether a window is open."""
        return bool(self._range)

    def begin(self) -> bool:
        """Open a window; nsys needs 0.2 s for it. Return whether none was open."""
        if self._range:
            return False
        self._range.append(self._begin())
        self._sign(OPEN, made=True)
        return True

    def end(self) -> bool:
        """Close the window; nsys needs 3 s for it. Return whether one was open."""
        if not self._range:
            return False
        try:
            self._end(self._range.pop())
        finally:
            self._over = self._second
            for name in (STEPPED, OPEN):
                self._sign(name, made=False)
        return True

    def look(self) -> None:
        """Close the window if ``nsysx run`` asks for it."""
        if self._range and os.path.exists(f"{self._folder}/{CUT}"):  # noqa: PTH110
            self.end()

    def answer(self, pid: int, words: list[str]) -> str:
        """Return the answer to what a process asks."""
        asked, key = words[0] if words else "", words[1] if len(words) > 1 else str(pid)
        if asked == "here":
            return self._here(pid, key)
        if asked == "claim":
            return self._claim(pid, key)
        if asked == "end" and pid in self._of:
            return str(int(self.end()))
        if pid not in self._of:
            return "0"
        opened = asked == "begin" and self.begin()
        self._second, self._over = self._second or opened, self._over and not opened
        return str(int(opened))

    def _end_left(self, key: str) -> None:
        """Close the second window if whoever had it has ended: nothing else can.

        There is no other, but for ranks that are started anew: those before did not come to an end of their own.
        """
        if self._second and self._left() and self.end() and _started_anew(self._key, key):
            self._second = self._over = False

    def _here(self, pid: int, key: str) -> str:
        self._there[pid] = began(pid)
        if not self.open and self._of.get(pid) == self._there[pid]:
            return "replaced"
        self._end_left(key)
        if self._over:
            return f"over {self._first}"
        if pid in self._of:  # it goes on in the window of the program that it has replaced
            del self._of[pid]
        if self._left() and not self.open:
            self._hand_over("", {})
            self.begin()
        return "open" if self.open else "closed"

    def _claim(self, pid: int, key: str) -> str:
        self._end_left(key)
        if key == self._key and self._of:
            self._of[pid] = began(pid)
        elif self._over or (self._of and not self._left()):
            return f"no {self._first}"
        else:
            again = bool(self._of) and not self.open
            self._hand_over(key, {pid: began(pid)})
            if again:
                self.begin()
        return "yes open" if self.open else "yes closed"

    def _left(self) -> bool:
        """Return whether all processes that had the windows have ended."""
        return bool(self._of) and not any(map(_runs, self._of.items()))

    def _hand_over(self, key: str, to: dict[int, str]) -> None:
        self._key, self._of, self._first, self._second = key, to, next(iter(to), 0), False

    def _sign(self, name: str, *, made: bool) -> None:
        """Make or remove one of the files; a folder that takes none is no failure of the program."""
        with contextlib.suppress(OSError):
            if made:
                os.close(os.open(f"{self._folder}/{name}", os.O_CREAT | os.O_WRONLY))
            else:
                os.unlink(f"{self._folder}/{name}")  # noqa: PTH108


def serve(windows: CaptureWindows, listener: socket, ended: Callable[[], bool], watched: list[int]) -> None:
    """Answer until who started this has ended."""
    listens = listener.fileno()
    while not ended():
        ready = select.select([listens, *watched], [], [], _LOOK_S if windows.open or not watched else None)[0]
        windows.look()
        if listens in ready:
            with contextlib.suppress(OSError):
                fd, _ = listener._accept()  # type: ignore[attr-defined]
                _talk(windows, socket(AF_UNIX, SOCK_STREAM, 0, fd))


def _talk(windows: CaptureWindows, link: socket) -> None:
    """Answer one process of this user; every user of the machine can see the address."""
    try:
        pid, uid, _ = struct.unpack("3i", link.getsockopt(SOL_SOCKET, SO_PEERCRED, struct.calcsize("3i")))
        link.settimeout(_ASKS_S)
        if uid == os.getuid():
            link.send(windows.answer(pid, link.recv(4096).decode("ascii", "replace").split()).encode() + b"\n")
    finally:
        link.close()


def main(argv: list[str]) -> int:
    """Hold the windows until ``nsysx run`` or the command has ended; return the exit code."""
    address, folder, text, domain, *command = argv
    listener = socket(AF_UNIX, SOCK_STREAM)
    listener.bind("\0" + address)
    listener.listen(128)
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "inject"))  # noqa: PTH100, PTH118, PTH120
    nvtx_range = importlib.import_module("nsysx_probe.nvtx_range")
    begin, end = nvtx_range.range_of(os.environ.get("NVTX_INJECTION64_PATH", ""), text, domain)
    windows = CaptureWindows(folder, begin, end)
    windows.begin()
    if not command:
        os.write(1, b"open\n")
        serve(windows, listener, lambda: bool(select.select([0], [], [], 0)[0]), [0])
        return 0
    pid, status = os.posix_spawnp(command[0], command, os.environ), [-1]

    def ended() -> bool:
        done, how = os.waitpid(pid, os.WNOHANG)
        status[:] = [os.waitstatus_to_exitcode(how)] if done else status
        return bool(done)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(windows, listener, ended, [])
    return status[0] if status[0] >= 0 else 128 - status[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

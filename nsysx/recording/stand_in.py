"""What nsys starts in place of the command, as ``python -I -S stand_in.py ADDRESS [COMMAND, only so that the report shows it]``.

nsys puts its child into a session without a terminal, behind pipes, with umask 0, and forgets it when nsys itself fails.
But nsys records any process that has the right environment. So this stand-in hands its environment to ``nsysx run``, which
starts the command itself, in the user's session, and the stand-in keeps nsys waiting until the command has ended. Only where
the command must descend from nsys (sampling follows the process tree) does the stand-in start it, with the streams, the umask
and the blocked signals that ``nsysx run`` sends.

The link is a Unix socket. To nsysx go the environment, then lines ``pid N``, ``end CODE``, ``failed ERRNO``, ``signal N``.
From nsysx come ``wait PID``, or ``start LENGTH`` with what to start, and finally ``exit CODE``. Standard library only.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import time
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket

#: How often the stand-in looks for nsysx's orders and for the command's end while it waits.
_LOOK_S = 0.2
#: stdin, stdout and stderr.
_FDS = 3


class Link:
    """The connection to ``nsysx run``."""

    def __init__(self, address: str) -> None:
        self._socket = socket(AF_UNIX, SOCK_STREAM)
        self._socket.connect("\0" + address)
        self._read = b""
        self.open = True
        self.streams: list[int] = []

    def send(self, data: bytes) -> None:
        """Send ``data``. A broken connection is not an error: the command goes on without nsysx."""
        try:
            view = memoryview(data)
            while view:
                view = view[self._socket.send(view) :]
        except OSError:
            self.open = False

    def take(self, count: int = 0, patience_s: float | None = None) -> bytes:
        """Return ``count`` bytes, or without a count one line; b"" after ``patience_s`` without it or after the connection's end."""
        while self.open:
            if count and len(self._read) >= count:
                taken, self._read = self._read[:count], self._read[count:]
                return taken
            if not count and b"\n" in self._read:
                taken, self._read = self._read.split(b"\n", 1)
                return taken
            if not select.select([self._socket], [], [], patience_s)[0]:
                return b""
            data, extra, _, _ = self._socket.recvmsg(65536, 64)
            for level, kind, fds in extra:
                if level == SOL_SOCKET and kind == SCM_RIGHTS:
                    usable = len(fds) - len(fds) % 4
                    self.streams += [
                        int.from_bytes(fds[start : start + 4], sys.byteorder) for start in range(0, usable, 4)
                    ]
            self.open = bool(data)
            self._read += data
        return b""


def pass_on_signals(link: Link) -> None:
    """Tell nsysx if nsys wants the command to end (``--duration``). Signals are blocked in this process."""
    if signal.SIGTERM in signal.sigpending():
        signal.sigwaitinfo({signal.SIGTERM})
        link.send(b"signal %d\n" % signal.SIGTERM)


def wait_for_nsysx(link: Link, pid: int | None) -> int:
    """Wait until nsysx reports the command's end, and return its exit code; if nsysx is gone, wait for ``pid`` and return 0."""
    while link.open:
        words = link.take(patience_s=_LOOK_S).split()
        if words[:1] == [b"exit"]:
            return int(words[1])
        pass_on_signals(link)
    while pid is not None and os.path.exists("/proc/%d" % pid):  # noqa: PTH110, UP031 - pathlib doubles the start-up time
        time.sleep(_LOOK_S)
    return 0


def spawn(words: list[bytes], streams: list[int]) -> int:
    """Start the command with the user's streams and signals and return its process id. Raises OSError."""
    umask, blocked, ignored, count, *rest = words
    command = rest[int(count) :]
    environment = dict(entry.split(b"=", 1) for entry in rest[: int(count)])
    os.umask(int(umask))
    actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(streams[:_FDS])]
    mask = [int(number) for number in blocked.split(b",") if number]
    # Not as nsys passed them on: it resets some and ignores others.
    # SIGCHLD alone gets its default: a command that ends while this process ignores it leaves no exit code.
    stays = {int(number) for number in ignored.split(b",") if number} - {signal.SIGCHLD}
    for number in stays:
        signal.signal(number, signal.SIG_IGN)
    default = signal.valid_signals() - stays - {signal.SIGKILL, signal.SIGSTOP}
    try:
        return os.posix_spawnp(
            command[0], command, environment, file_actions=actions, setpgroup=0, setsigmask=mask, setsigdef=default
        )
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        words = [b"/bin/sh", *command]  # a script without "#!" in its first line: every shell runs it with sh
        return os.posix_spawn(
            words[0], words, environment, file_actions=actions, setpgroup=0, setsigmask=mask, setsigdef=default
        )


def start_here(link: Link, length: int) -> int:
    """Start the command from here, report its process id and its end to nsysx, and return its exit code."""
    words = link.take(length).split(b"\0")
    try:
        pid = spawn(words, link.streams)
    except OSError as error:
        link.send(b"failed %d\n" % (error.errno or 0))
        return wait_for_nsysx(link, None)
    for fd in link.streams:
        os.close(fd)
    link.send(b"pid %d\n" % pid)
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        time.sleep(0.02)
        pass_on_signals(link)
    code = os.waitstatus_to_exitcode(status)
    link.send(b"end %d\n" % code)
    wait_for_nsysx(link, None)
    return code if code >= 0 else 128 - code


def main(argv: list[str]) -> int:
    """Stand in for the command until it has ended; return its exit code."""
    link = Link(argv[0])
    # Not os.environ: in the C locale Python has added LC_CTYPE to it.
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123
        environment = file.read()
    link.send(b"%d\n%b" % (len(environment), environment))
    order = link.take().split()
    if order[:1] == [b"start"]:
        return start_here(link, int(order[1]))
    return wait_for_nsysx(link, int(order[1]) if order[:1] == [b"wait"] else None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

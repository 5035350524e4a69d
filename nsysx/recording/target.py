"""The command: started by this process, in the user's own session, or where it must be by the stand-in below nsys."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from nsysx.recording.inbox import Came
from nsysx.recording.stand_in_link import StandIn


class Target(Protocol):
    """A command that was started. ``status`` is its exit code, negative for a signal, None while it runs."""

    pid: int
    status: int | None
    lost: bool
    end_ns: int | None

    def poll(self) -> int | None:
        """Look whether it has ended and return its status."""

    def receive(self, came: Came) -> None:
        """Give it a signal that came to us, unless it has got it already."""

    def stopped(self) -> bool:
        """Say whether it has stopped, as a terminal's suspend key does, since that was last asked."""


class Own:
    """The command as our child: in the user's session and process group, as if the shell had started it. Raises OSError."""

    def __init__(self, command: Sequence[str], environment: Mapping[bytes, bytes], mask: frozenset[int]) -> None:
        self.status: int | None = None
        self.lost = False
        self.end_ns: int | None = None
        self._stopped = False
        self.pid = _spawn(command, environment, mask)

    def poll(self) -> int | None:
        """Look whether it has ended and return its status."""
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                break
            if os.WIFSTOPPED(status):
                self._stopped = os.WSTOPSIG(status) != signal.SIGTRAP
            elif os.WIFCONTINUED(status):
                self._stopped = False
            else:
                self.status, self.end_ns = os.waitstatus_to_exitcode(status), time.time_ns()
        return self.status

    def receive(self, came: Came) -> None:
        """Give it a signal that came to us, unless it has got it already."""
        if not came.by_all and self.poll() is None:
            with contextlib.suppress(OSError):
                os.kill(self.pid, came.number)

    def stopped(self) -> bool:
        """Say whether it has stopped, as a terminal's suspend key does, since that was last asked."""
        self.poll()
        was, self._stopped = self._stopped, False
        return was


def _spawn(command: Sequence[str], environment: Mapping[bytes, bytes], mask: frozenset[int]) -> int:
    # Python ignores these two for itself, and what is ignored stays ignored over exec.
    default = [signal.SIGPIPE, signal.SIGXFSZ]
    words = list(command)
    try:
        return os.posix_spawnp(words[0], words, environment, setsigmask=mask, setsigdef=default)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        words = ["/bin/sh", shutil.which(words[0]) or words[0], *words[1:]]  # no first line "#!": what every shell does
        return os.posix_spawn(words[0], words, environment, setsigmask=mask, setsigdef=default)


class Below:
    """The command as a child of the stand-in: in a session without a terminal, where only we give it signals. Raises OSError."""

    def __init__(self, command: Sequence[str], stand_in: StandIn, mask: frozenset[int]) -> None:
        self.status: int | None = None
        self.lost = False
        self.end_ns: int | None = None
        self._link = stand_in
        self._stopped = False
        umask = os.umask(0o77)
        os.umask(umask)
        numbers = ",".join(str(int(number)) for number in sorted(mask))
        stand_in.start([str(umask), numbers, *command])
        self.pid = stand_in.pid_of_command()

    def poll(self) -> int | None:
        """Look whether it has ended and return its status."""
        if self.status is None:
            self.status = self._link.command_status()
            if self.status is None and not self._link.open and not os.path.exists(f"/proc/{self.pid}"):  # noqa: PTH110
                self.lost = True
                self.status = 0
            if self.status is not None:
                self.end_ns = time.time_ns()
        return self.status

    def receive(self, came: Came) -> None:
        """Give it a signal: to its whole group what a terminal gives to all, also when the terminal wants it to stop."""
        number = signal.SIGSTOP if came.number in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU) else came.number
        to_all = came.by_all or number in (signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM, signal.SIGHUP)
        self._stopped = number == signal.SIGSTOP
        with contextlib.suppress(OSError):
            (os.killpg if to_all else os.kill)(self.pid, number)

    def stopped(self) -> bool:
        """Say whether it has stopped, as a terminal's suspend key does, since that was last asked."""
        was, self._stopped = self._stopped, False
        return was

"""The command, started by this process in the user's session, or, where it must descend from nsys, by the stand-in."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Protocol

from nsysx.recording.inbox import STOPPING, Inherited, ReceivedSignal
from nsysx.recording.stand_in_link import StandIn


class Target(Protocol):
    """A command that was started. ``status`` is its exit code, negative for a signal, None while it runs.

    ``lost``: it has ended and its status is not known. ``end_ns``: its end in ns since 1970, None while it runs.
    """

    pid: int
    status: int | None
    lost: bool
    end_ns: int | None

    def poll(self) -> int | None:
        """Check whether it has ended, and return its status."""

    def receive(self, received: ReceivedSignal) -> None:
        """Pass on a signal that this process received, unless the command has already got it."""

    def stopped(self) -> bool:
        """Return whether it has stopped, as by a terminal's suspend key, since the last call."""


class DirectChild:
    """The command as our child, in the user's session and process group as if the shell had started it. Raises OSError."""

    def __init__(self, command: Sequence[str], environment: Mapping[bytes, bytes], inherited: Inherited) -> None:
        self.status: int | None = None
        self.lost = False
        self.end_ns: int | None = None
        self._stopped = False
        self.pid = _spawn(command, environment, inherited)

    def poll(self) -> int | None:
        """Check whether it has ended, and return its status."""
        while self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:  # something else in this process has taken its status
                self.lost, self.status, self.end_ns = True, 0, time.time_ns()
                break
            if pid == 0:
                break
            if os.WIFSTOPPED(status):
                self._stopped = os.WSTOPSIG(status) != signal.SIGTRAP
            elif os.WIFCONTINUED(status):
                self._stopped = False
            else:
                self.status, self.end_ns = os.waitstatus_to_exitcode(status), time.time_ns()
        return self.status

    def receive(self, received: ReceivedSignal) -> None:
        """Pass on a signal that this process received, unless the command has already got it."""
        if not received.by_all and self.poll() is None:
            with contextlib.suppress(OSError):
                os.kill(self.pid, received.number)

    def stopped(self) -> bool:
        """Return whether it has stopped, as by a terminal's suspend key, since the last call."""
        self.poll()
        was, self._stopped = self._stopped, False
        return was


def _spawn(command: Sequence[str], environment: Mapping[bytes, bytes], inherited: Inherited) -> int:
    """Start the command and return its process id. Raises OSError."""
    words, start = list(command), _forked if signal.SIGCHLD in inherited.ignored else _spawned
    try:
        return start(words, environment, inherited)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        # A script without "#!" in its first line: every shell runs it with sh.
        words = ["/bin/sh", shutil.which(words[0]) or words[0], *words[1:]]
        return start(words, environment, inherited)


#: Python ignores these two signals, and an ignored signal stays ignored across exec.
_NOT_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)


def _spawned(words: list[str], environment: Mapping[bytes, bytes], inherited: Inherited) -> int:
    return os.posix_spawnp(words[0], words, environment, setsigmask=inherited.blocked, setsigdef=_NOT_IGNORED)


def _forked(words: list[str], environment: Mapping[bytes, bytes], inherited: Inherited) -> int:
    """Start a command that ignores SIGCHLD, which posix_spawn can only give it by inheritance.

    This process itself must not ignore it, not even for a moment: the status of a child that ends then is lost.
    """
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of threads (--clocks): the child only sets signals and execs
        pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            for number in {signal.SIGINT, *_NOT_IGNORED} - inherited.ignored:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, inherited.blocked)
            os.execvpe(words[0], words, environment)
        except OSError as error:
            os.write(writes, b"%d" % (error.errno or 0))
        finally:
            os._exit(127)
    os.close(writes)
    with os.fdopen(reads, "rb") as file:  # ends when the child has become the command
        refused = file.read()
    if refused:
        os.waitpid(pid, 0)
        raise OSError(int(refused), os.strerror(int(refused)))
    return pid


class StandInChild:
    """The command as a child of the stand-in, in a session without a terminal where only we send it signals. Raises OSError."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[bytes, bytes], stand_in: StandIn, inherited: Inherited
    ) -> None:
        self.status: int | None = None
        self.lost = False
        self.end_ns: int | None = None
        self._link = stand_in
        self._stopped = False
        umask = os.umask(0o77)
        os.umask(umask)
        blocked, ignored = (",".join(map(str, map(int, s))) for s in (inherited.blocked, inherited.ignored))
        entries = [name + b"=" + value for name, value in environment.items()]
        stand_in.start([str(umask), blocked, ignored, str(len(entries)), *entries, *command])
        self.pid = stand_in.pid_of_command()

    def poll(self) -> int | None:
        """Check whether it has ended, and return its status."""
        if self.status is None:
            self.status = self._link.command_status()
            if self.status is None and not self._link.open and not os.path.exists(f"/proc/{self.pid}"):  # noqa: PTH110
                self.lost = True
                self.status = 0
            if self.status is not None:
                self.end_ns = time.time_ns()
        return self.status

    def receive(self, received: ReceivedSignal) -> None:
        """Pass on a signal, to the whole group where a terminal or a job's end would; one that suspends becomes SIGSTOP."""
        number = signal.SIGSTOP if received.number in STOPPING else received.number
        to_all = received.by_all or number in (signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM, signal.SIGHUP)
        self._stopped = number == signal.SIGSTOP
        with contextlib.suppress(OSError):
            (os.killpg if to_all else os.kill)(self.pid, number)

    def stopped(self) -> bool:
        """Return whether it was told to stop since the last call."""
        was, self._stopped = self._stopped, False
        return was

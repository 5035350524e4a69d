"""Takes the signals sent to ``nsysx run`` one at a time, and tells whether each went to it alone or to its whole group."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nsysx.recording.process_activity import stat_of
from nsysx.recording.recording_bounds import BUSY_WITNESS_S, FRESH_SIGNAL_NS, SI_KERNEL, WITNESS_S

WITNESS = Path(__file__).parent / "witness.py"

#: Signals that end a command without a handler. While no command runs, they end whatever nsysx waits for.
ENDING = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))
#: Sent by a terminal's suspend key, and to a background job that reads from or writes to the terminal.
STOPPING = frozenset((signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU))
#: Faults of this process itself; Python's own crash handler needs them unblocked.
_FAULTS = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS))
#: Everything else that can be caught, also what ends no program: one that resizes its output waits for SIGWINCH.
PASSED_ON = frozenset(signal.valid_signals()) - _FAULTS - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
#: Python ignores these from its start, so how they were inherited cannot be known: the command gets the default.
_IGNORED_BY_PYTHON = frozenset((signal.SIGPIPE, signal.SIGXFSZ))


@dataclass(frozen=True, slots=True)
class ReceivedSignal:
    """A signal that arrived. ``by_all``: the whole process group got it, and so did a command in the same group."""

    number: int
    by_all: bool
    from_terminal: bool


@dataclass(frozen=True, slots=True)
class Inherited:
    """The signals that were blocked and those that were ignored when this process began: the command starts with the same."""

    blocked: frozenset[int] = frozenset()
    ignored: frozenset[int] = frozenset()


class Inbox:
    """Blocks signals in this process and in everything it starts, and hands them out one at a time.

    nsys and its helpers inherit the blocked signals: nothing but SIGKILL ends them before they have written the report,
    not even a scheduler that signals every process of a job.
    """

    def __init__(self) -> None:
        asked = (PASSED_ON | {signal.SIGCHLD}) - _IGNORED_BY_PYTHON
        ignored = frozenset(number for number in asked if signal.getsignal(number) is signal.SIG_IGN)
        self.inherited = Inherited(ignored=ignored)
        self.received: list[int] = []
        self._witness: subprocess.Popen[bytes] | None = None
        self._seen: list[tuple[int, int]] = []

    def __enter__(self) -> Inbox:
        if signal.SIGCHLD in self.inherited.ignored:  # then nobody would learn how a child ended
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        blocked = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGCHLD}))
        self.inherited = replace(self.inherited, blocked=blocked)
        words = [sys.executable, "-I", "-S", str(WITNESS), *(str(int(number)) for number in sorted(PASSED_ON))]
        with contextlib.suppress(OSError), self.starting():
            self._witness = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._witness is not None:
            self._witness.kill()
            self._witness.wait()
            if self._witness.stdout is not None:
                self._witness.stdout.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, self.inherited.blocked)
        if signal.SIGCHLD in self.inherited.ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Unblock SIGCHLD meanwhile, so that a process started in this block learns of its children; all else stays blocked."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})

    def wait(self, seconds: float, *, ignored: bool = False) -> ReceivedSignal | None:
        """Return the next signal, or None if none arrived within ``seconds`` or a child changed its state.

        A signal that was ignored from the start (nohup, a job in the background of a script) ends nothing here. With ``ignored`` it is
        returned all the same: the command starts with it ignored, but may have installed a handler of its own.
        """
        info = signal.sigtimedwait({*PASSED_ON, signal.SIGCHLD}, seconds)
        if info is None or info.si_signo == signal.SIGCHLD or info.si_pid == os.getpid():  # SIGPIPE of our own writing
            return None
        number = info.si_signo
        if number in self.inherited.ignored and not ignored:
            return None
        self.received.append(number)
        witnessed = self._witnessed(number)
        return ReceivedSignal(number, witnessed or info.si_code == SI_KERNEL, info.si_code == SI_KERNEL)

    def _witnessed(self, number: int) -> bool:
        """Return whether the witness has just got this signal, too."""
        began = time.monotonic()
        stream = self._witness.stdout if self._witness is not None else None
        while True:
            fresh = time.monotonic_ns() - FRESH_SIGNAL_NS
            self._seen = [seen for seen in self._seen if seen[1] > fresh]
            for seen in self._seen:
                if seen[0] == number:
                    self._seen.remove(seen)
                    return True
            if stream is None:
                return False
            if not select.select([stream], [], [], WITNESS_S)[0]:
                stat = stat_of(self._witness.pid) if self._witness is not None else None
                # R: also one that waits for a processor.
                if stat is not None and stat[0] in "RD" and time.monotonic() - began < BUSY_WITNESS_S:
                    continue
                return False
            data = os.read(stream.fileno(), 65536)
            if not data:  # the witness has ended
                return False
            self._seen += [(int(a), int(b)) for a, b in (line.split() for line in data.splitlines())]

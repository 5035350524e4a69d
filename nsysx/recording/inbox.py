"""Signals to ``nsysx run``, taken one by one where they are wanted, and for whom each was meant."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WITNESS = Path(__file__).parent / "witness.py"

#: Signals that would end the command, were it not for a handler of its own: they also end what runs without it.
ENDING = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))
#: What a terminal's suspend key and background reads and writes do.
STOPPING = frozenset((signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU))
_OTHERS = frozenset(
    (
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGALRM,
        signal.SIGCONT,
        signal.SIGVTALRM,
        signal.SIGPROF,
        signal.SIGIO,
        signal.SIGPWR,
        *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
    )
)
PASSED_ON = ENDING | STOPPING | _OTHERS

#: From the kernel, that is from a terminal: sent to the whole group (asm-generic/siginfo.h).
_SI_KERNEL = 0x80
#: A scheduler signals the processes of a job one after the other; the witness may be the last.
_WITNESS_S = 0.1
_FRESH_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Came:
    """A signal that came. ``by_all``: the command has got it, too, where it is in the same group as this process."""

    number: int
    by_all: bool
    from_terminal: bool


class Inbox:
    """Holds signals back from this process and everything that it starts, and gives them out one at a time.

    nsys and its helpers inherit that they are held back: nothing but SIGKILL ends them before they have written the report,
    not even a scheduler that signals every process of a job.
    """

    def __init__(self) -> None:
        ignored = {number for number in PASSED_ON if signal.getsignal(number) is signal.SIG_IGN}
        self._numbers = PASSED_ON - ignored  # nohup: what was ignored stays ignored, here and in the command
        self.mask: frozenset[int] = frozenset()
        self.came: list[int] = []
        self._witness: subprocess.Popen[bytes] | None = None
        self._seen: list[tuple[int, int]] = []

    def __enter__(self) -> Inbox:
        self.mask = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, {*self._numbers, signal.SIGCHLD}))
        words = [sys.executable, "-I", "-S", str(WITNESS), *(str(int(number)) for number in sorted(self._numbers))]
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
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Let what is started in here hear of its own children, which is all that it may."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})

    def wait(self, seconds: float) -> Came | None:
        """Return the next signal, None when none came within ``seconds`` or a child changed its state."""
        info = signal.sigtimedwait({*self._numbers, signal.SIGCHLD}, seconds)
        if info is None or info.si_signo == signal.SIGCHLD:
            return None
        number = info.si_signo
        self.came.append(number)
        witnessed = self._witnessed(number)
        return Came(number, witnessed or info.si_code == _SI_KERNEL, info.si_code == _SI_KERNEL)

    def _witnessed(self, number: int) -> bool:
        """Say whether the witness got this signal, too, just now."""
        until = time.monotonic() + _WITNESS_S
        stream = self._witness.stdout if self._witness is not None else None
        while True:
            fresh = time.monotonic_ns() - _FRESH_NS
            self._seen = [seen for seen in self._seen if seen[1] > fresh]
            for seen in self._seen:
                if seen[0] == number:
                    self._seen.remove(seen)
                    return True
            if stream is None or not select.select([stream], [], [], max(0.0, until - time.monotonic()))[0]:
                return False
            data = os.read(stream.fileno(), 65536)
            if not data:  # the witness has gone
                return False
            self._seen += [(int(a), int(b)) for a, b in (line.split() for line in data.splitlines())]

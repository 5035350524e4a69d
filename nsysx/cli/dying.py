"""How this process ends by a signal, so that a shell sees what it would see without nsysx."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import NoReturn

#: prctl(2): a process that is not dumpable leaves no core file.
_PR_SET_DUMPABLE = 4


class EndedBy(Exception):  # noqa: N818 - it reports how something ended, not an error
    """All is said and written; this process must still end by the signal ``number``."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def die_of(number: int) -> NoReturn:
    """End by a signal. A shell that waits stops its loop after SIGINT, but goes on after any exit code, even 130."""
    with contextlib.suppress(Exception):  # the command has already left a core file if there is one to leave
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # the first process of a container is not killed by its own signal

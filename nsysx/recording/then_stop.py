"""``--then stop``: ends the command once its last window of steps is recorded, as a user would: with Ctrl-C, then with SIGTERM."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from nsysx.inject.nsysx_probe.capture_range import CLOSED
from nsysx.recording.inbox import ReceivedSignal
from nsysx.recording.process_activity import stat_of
from nsysx.recording.recording_bounds import STOPPED_GRACE_S
from nsysx.recording.run_messages import say
from nsysx.recording.target import Target

#: What the command is sent, and how long it has before the next: a handler of Ctrl-C may write a checkpoint.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopper:
    """Is asked again and again by who waits for the command; ``sent`` are the signals that it has sent so far.

    They go to the process that made the steps, which the probe names: a shell that waits for it would die and leave it behind.
    """

    def __init__(self, probe_dir: Path) -> None:
        self._sign = probe_dir / CLOSED  # the probe makes this file
        self._since = 0.0
        self._inner = 0  # the process that made the steps, if that is not the command
        self._began: list[str] = []
        self.sent: list[int] = []

    def look(self, target: Target, *, all_recorded: bool = False) -> None:
        """Send the next signal if it is time for it; ``all_recorded``: the recording has ended at its limit."""
        if len(self.sent) == len(_SIGNALS) or not (all_recorded or self._sign.exists()):
            return
        now = time.monotonic()
        if self.sent and (now - self._since < STOPPED_GRACE_S or (self._inner and not self.runs())):
            return
        if not self.sent:
            say("everything is recorded that was asked for; ending the command, as --then stop asks")
            self._find(target)
        self._since = now
        self.sent.append(_SIGNALS[len(self.sent)])
        if self._inner:
            with contextlib.suppress(OSError):
                os.kill(self._inner, self.sent[-1])
        else:
            target.receive(ReceivedSignal(self.sent[-1], by_all=False, from_terminal=False))

    def _find(self, target: Target) -> None:
        """Find the process that made the steps, if it still runs and is not the command itself."""
        try:
            pid = int(self._sign.read_text())
        except (OSError, ValueError):
            return
        stat = stat_of(pid)
        if pid != target.pid and stat is not None:
            self._inner, self._began = pid, stat[19:20]

    def runs(self) -> bool:
        """Return whether the process that the signals went to still runs, if that is not the command."""
        stat = stat_of(self._inner) if self._inner else None
        return stat is not None and stat[0] not in "ZX" and stat[19:20] == self._began

    def waits(self) -> bool:
        """Return whether that process is to be waited for although the command has ended."""
        patient = len(self.sent) < len(_SIGNALS) or time.monotonic() - self._since < STOPPED_GRACE_S
        return bool(self.sent) and patient and self.runs()

    def ended(self, status: int) -> bool:
        """Return whether a command that ended with ``status``, negative for a signal, ended because of what was sent.

        What waits for a process in Python ends with 1 if that process ended by a signal.
        """
        codes = [code for number in self.sent for code in (-number, 128 + number)]
        return status in codes or bool(self._inner and self.sent and status in (0, 1))

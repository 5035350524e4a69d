"""``--then stop``: ends the command once its last window of steps is recorded, as a user would: with Ctrl-C, then with SIGTERM."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from nsysx.inject.nsysx_probe.capture_range import CLOSED
from nsysx.recording.inbox import ReceivedSignal
from nsysx.recording.talk import say
from nsysx.recording.target import Target

#: What the command is sent, and how long it has before the next: a handler of Ctrl-C may write a checkpoint.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_GRACE_S = 30.0


class Stopper:
    """Is asked again and again by who waits for the command; ``sent`` are the signals that it has sent so far."""

    def __init__(self, probe_dir: Path) -> None:
        self._sign = probe_dir / CLOSED  # the probe makes this file
        self._since = 0.0
        self.sent: list[int] = []

    def look(self, target: Target, *, all_recorded: bool = False) -> None:
        """Send the next signal if it is time for it; ``all_recorded``: the recording has ended at its limit."""
        if len(self.sent) == len(_SIGNALS) or not (all_recorded or self._sign.exists()):
            return
        now = time.monotonic()
        if self.sent and now - self._since < _GRACE_S:
            return
        if not self.sent:
            say("everything is recorded that was asked for; ending the command, as --then stop asks")
        self._since = now
        self.sent.append(_SIGNALS[len(self.sent)])
        target.receive(ReceivedSignal(self.sent[-1], by_all=False, from_terminal=False))

    def ended(self, status: int) -> bool:
        """Return whether a command that ended with ``status``, negative for a signal, ended because of what it was sent."""
        return any(status in (-number, 128 + number) for number in self.sent)

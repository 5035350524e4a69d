"""Waits for the command as a shell's ``time`` would: signals reach it, and a suspend key stops us with it."""

from __future__ import annotations

import os
import signal
import time

from nsysx.recording.inbox import STOPPING, Inbox
from nsysx.recording.target import Own, Target

#: A suspend key's signal may stop the command only after it has put its terminal in order.
_STOPS_WITHIN_S = 2.0
#: A child's end is told at once; this is for where that gets lost, and for what is not our child.
_OWN_STEP_S, _OTHER_STEP_S = 0.25, 0.05


class Follower:
    """Follows one command; `step` is called until it has ended."""

    def __init__(self, target: Target, inbox: Inbox) -> None:
        self._target, self._inbox = target, inbox
        self._stop_until = 0.0
        self._step_s = _OWN_STEP_S if isinstance(target, Own) else _OTHER_STEP_S

    def step(self) -> None:
        """Wait a moment for a signal or the command's end, and do what a signal asks for."""
        came = self._inbox.wait(self._step_s)
        if came is not None:
            self._target.receive(came)
            if came.number in STOPPING:
                self._stop_until = time.monotonic() + _STOPS_WITHIN_S
                time.sleep(0.02)  # it needs a moment
        if time.monotonic() < self._stop_until and self._target.stopped():
            self._stop_until = 0.0
            stop()


def stop() -> None:
    """Stop this process, as the shell expects it from a job that stops; returns when it is continued."""
    os.kill(os.getpid(), signal.SIGSTOP)

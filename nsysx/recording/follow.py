"""Waits for the command as a shell's ``time`` would: signals reach the command, and a suspend key stops nsysx with it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence

from nsysx.recording.inbox import STOPPING, Inbox
from nsysx.recording.recording_bounds import CHILD_LOOK_S, OTHER_LOOK_S, SUSPENDED_WITHIN_S
from nsysx.recording.target import DirectChild, Target


class Follower:
    """Follows one command; call `step` until the command has ended."""

    def __init__(self, target: Target, inbox: Inbox) -> None:
        self._target, self._inbox = target, inbox
        self._stop_until = 0.0
        self._step_s = CHILD_LOOK_S if isinstance(target, DirectChild) else OTHER_LOOK_S

    def step(self) -> None:
        """Wait a moment for a signal or for the command's end, pass a signal on, and stop if the command stops."""
        received = self._inbox.wait(self._step_s, ignored=True)
        if received is not None:
            self._target.receive(received)
            if received.number in STOPPING:
                self._stop_until = time.monotonic() + SUSPENDED_WITHIN_S
                time.sleep(0.02)  # the command needs a moment to stop
        if time.monotonic() < self._stop_until and self._target.stopped():
            self._stop_until = 0.0
            stop()


def run_alone(command: Sequence[str], environment: Mapping[str, str], inbox: Inbox) -> Target:
    """Run the command without nsys and return it when it has ended. Raises OSError."""
    encoded = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
    target = DirectChild(command, encoded, inbox.inherited)
    follower = Follower(target, inbox)
    while target.poll() is None:
        follower.step()
    return target


def stop() -> None:
    """Stop this process, as the shell expects of a suspended job; return when it is continued."""
    os.kill(os.getpid(), signal.SIGSTOP)

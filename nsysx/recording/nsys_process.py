"""One run of nsys with all that belongs to it: whether it works, hangs or has ended, and how to end it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from nsysx.recording.inbox import Inbox

#: nsys that neither computes nor waits for a disk for so long does not come back. Measured: never over 1 s when it works.
IDLE_S = 7.0
#: How often it is looked at; reading /proc costs about a millisecond.
_LOOK_S = 0.25
#: After so long without a look this process stood still, and nsys with it: a paused virtual machine, a frozen container.
_STOOD_STILL_S = 2.0
#: An agent whose nsys was killed uses up to 3.3 % of a processor for ever, waiting (measured): work is more than this, over so long.
_WORKS, _WORKS_OVER_S = 0.1, 1.0
#: And so long it is waited for: nobody is left who would tell it to go on.
_ORPHANS_S = 3.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: A process that was just made shows its name a moment later; a killed one in the middle of a disk access is gone later still.
_QUIET_LOOKS, _KILL_S = 3, 5.0


def _stat_of(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name: state, parent, ...; None when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _words_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


class NsysProcess:
    """An nsys in a session of its own, since it dies of SIGHUP, with its words in a log."""

    def __init__(
        self, words: Sequence[str], log: Path, inbox: Inbox, environment: Mapping[str, str] | None = None
    ) -> None:
        self.words, self.log = list(words), log
        with log.open("wb") as sink, inbox.starting():
            self.process = subprocess.Popen(
                self.words,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=None if environment is None else dict(environment),
                start_new_session=True,
            )
        self.not_ours: set[int] = set()
        # nsys 2022 puts the name of the command between the two.
        self._name = re.compile(rb"--session-name=profile-(.*-)?%d" % self.process.pid, re.DOTALL)
        self._cost: dict[int, int] = {}
        self._looks: list[bool] = []
        self._active = time.monotonic()
        self._looked = self._costed = self._active - _LOOK_S
        self._alive = True

    def said(self) -> str:
        """Return what it has said so far."""
        return self.log.read_text(errors="replace")

    def members(self, *, leftovers: bool = False) -> list[int]:
        """Return the processes of nsys: itself, its agent, and their children, without the command's.

        With ``leftovers`` those, too, that its death has left without a parent: they do nothing for the report.
        """
        stats = {
            int(place.name): stat
            for place in Path("/proc").glob("[0-9]*")
            if (stat := _stat_of(int(place.name))) and stat[0] != "Z"
        }
        pid_of_nsys = self.process.pid
        pids = [pid for pid in stats if pid == pid_of_nsys or self._belongs(_words_of(pid))]
        if leftovers:
            pids += [
                pid for pid, stat in stats.items() if int(stat[3]) == pid_of_nsys and pid not in pids
            ]  # of its session
        for pid in pids:  # grows while it is walked
            pids += [child for child, stat in stats.items() if int(stat[1]) == pid and child not in self.not_ours]
        return pids

    def _belongs(self, words: list[bytes]) -> bool:
        """Say whether these are the words of its agent, or of itself while it is making one."""
        return any(map(self._name.fullmatch, words)) or words[:-1] == [os.fsencode(word) for word in self.words]

    def look(self) -> bool:
        """Say whether anything of it is still there, noting whether it has worked since it was last looked at.

        While nsys itself is there, whatever it does is work. What its death has left behind works only if it does much.
        """
        unseen = time.monotonic() - self._looked
        if unseen >= _LOOK_S:
            self._looked = time.monotonic()
            self._active += max(unseen - _STOOD_STILL_S, 0.0)
            stats = {pid: stat for pid in self.members() if (stat := _stat_of(pid)) is not None}
            cost = {pid: int(stat[11]) + int(stat[12]) for pid, stat in stats.items()}  # ticks in user and system mode
            # Waits for a disk, or for a processor that others have: now and then even what does nothing is seen so.
            self._looks.append(any(stat[0] in "DR" for stat in stats.values()))
            since, others = self._looked - self._costed, cost.keys() != self._cost.keys()
            orphans = self.process.poll() is not None
            if others or not orphans or since >= _WORKS_OVER_S:
                used = sum(ticks - self._cost.get(pid, 0) for pid, ticks in cost.items()) / _TICKS_PER_S
                waits = sum(self._looks) > max(len(self._looks) / 2, 2) if orphans else any(self._looks)
                if others or waits or used > (_WORKS * since if orphans else 0):
                    self._active = self._looked
                self._cost, self._costed, self._looks = cost, self._looked, []
            self._alive = bool(cost)
        return self._alive or self.process.poll() is None

    def wakes(self) -> None:
        """Count its idleness from now on: it was waiting for somebody else."""
        self._active = time.monotonic()
        self._looked = self._active - _LOOK_S

    def hangs(self) -> bool:
        """Say whether it was seen doing nothing for too long."""
        return self._looked - self._active > (IDLE_S if self.process.poll() is None else min(IDLE_S, _ORPHANS_S))

    def ended_by_itself(self) -> bool:
        """Say whether nsys itself has ended, and not of a signal; its agent may still be there."""
        code = self.process.poll()
        return code is not None and code >= 0

    def kill(self) -> None:
        """End it at once, with everything that belongs to it, also what it was just starting."""
        quiet, until = 0, time.monotonic() + _KILL_S
        while quiet < _QUIET_LOOKS and time.monotonic() < until:
            members = self.members(leftovers=True)
            quiet = 0 if members else quiet + 1
            for pid in members:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()
            time.sleep(0.01)
        self.process.wait()

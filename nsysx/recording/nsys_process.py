"""One run of nsys with all its processes: tells whether it works, hangs or has ended, and can kill it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from nsysx.recording.find_nsys import a_working_folder
from nsysx.recording.inbox import Inbox
from nsysx.recording.process_activity import stat_of
from nsysx.recording.recording_bounds import (
    AGENT_WORKS_OVER_S,
    AGENT_WORKS_SHARE,
    KILLED_WITHIN_S,
    NSYS_IDLE_S,
    NSYS_LOOK_S,
    ORPHANED_AGENT_S,
    QUIET_LOOKS,
    STOOD_STILL_S,
)

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def words_of(pid: int) -> list[bytes]:
    """Return the command line of a process, [] if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


class NsysProcess:
    """An nsys in its own session, because SIGHUP kills it, with its output in a log."""

    def __init__(
        self, words: Sequence[str], log: Path, inbox: Inbox, environment: Mapping[str, str] | None = None
    ) -> None:
        self.words, self.log = list(words), log
        self._inbox, self._environment = inbox, environment
        with log.open("wb") as sink, inbox.starting():
            self.process = self._started(self.words, sink)
        self.not_ours: set[int] = set()
        # nsys 2022 puts the command's name between "profile-" and the process id.
        self._name = re.compile(rb"--session-name=profile-(.*-)?%d" % self.process.pid, re.DOTALL)
        self._cost: dict[int, int] = {}
        self._looks: list[bool] = []
        self._active = time.monotonic()
        self._looked = self._costed = self._active - NSYS_LOOK_S
        self._alive = True

    def _started(self, words: Sequence[str], sink: IO[bytes] | int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=None if self._environment is None else dict(self._environment),
            start_new_session=True,
            cwd=a_working_folder(),
        )

    def helper(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start another nsys that finds the session of this one. Raises OSError."""
        with self._inbox.starting():
            return self._started(words, subprocess.DEVNULL)

    def output(self) -> str:
        """Return what it has printed so far; "" if the folder of the results has been deleted."""
        try:
            return self.log.read_text(errors="replace")
        except OSError:
            return ""

    def members(self, *, leftovers: bool = False) -> list[int]:
        """Return the process ids of nsys, its agent and their children, without the command's.

        With ``leftovers`` also those that lost their parent when nsys died: they do nothing for the report.
        """
        stats = {
            int(entry.name): stat
            for entry in Path("/proc").glob("[0-9]*")
            if (stat := stat_of(int(entry.name))) and stat[0] != "Z"
        }
        pid_of_nsys = self.process.pid
        pids = [pid for pid in stats if pid == pid_of_nsys or self._belongs(words_of(pid))]
        if leftovers:
            in_session = [pid for pid, stat in stats.items() if int(stat[3]) == pid_of_nsys]
            pids += [pid for pid in in_session if pid not in pids]
        for pid in pids:  # the list grows during the loop
            pids += [child for child, stat in stats.items() if int(stat[1]) == pid and child not in self.not_ours]
        return pids

    def _belongs(self, words: list[bytes]) -> bool:
        """Return whether these are the words of nsys's agent, or of nsys's own copy that is about to become the agent."""
        return any(map(self._name.fullmatch, words)) or words[:-1] == [os.fsencode(word) for word in self.words]

    def look(self) -> bool:
        """Return whether any of its processes is left, and note whether they have worked since the last look.

        While nsys itself runs, anything that its processes do counts as work. After its death the others count as working
        only if they do much.
        """
        unseen = time.monotonic() - self._looked
        if unseen >= NSYS_LOOK_S:
            self._looked = time.monotonic()
            self._active += max(unseen - STOOD_STILL_S, 0.0)
            # Asked before the look, which may not show what nsys starts meanwhile and leaves behind.
            orphans = self.process.poll() is not None
            stats = {pid: stat for pid in self.members() if (stat := stat_of(pid)) is not None}
            cost = {pid: int(stat[11]) + int(stat[12]) for pid, stat in stats.items()}  # ticks in user and system mode
            # D: waiting for a disk; R: running or waiting for a processor. An idle process is seen so now and then, too.
            self._looks.append(any(stat[0] in "DR" for stat in stats.values()))
            since, changed = self._looked - self._costed, cost.keys() != self._cost.keys()
            if changed or not orphans or since >= AGENT_WORKS_OVER_S:
                used = sum(ticks - self._cost.get(pid, 0) for pid, ticks in cost.items()) / _TICKS_PER_S
                busy = sum(self._looks) > max(len(self._looks) / 2, 2) if orphans else any(self._looks)
                if changed or busy or used > (AGENT_WORKS_SHARE * since if orphans else 0):
                    self._active = self._looked
                self._cost, self._costed, self._looks = cost, self._looked, []
            self._alive = bool(cost) or not orphans
        return self._alive or self.process.poll() is None

    def wakes(self) -> None:
        """Count idle time from now on, because until now nsys was waiting for somebody else."""
        self._active = time.monotonic()
        self._looked = self._active - NSYS_LOOK_S

    def hangs(self) -> bool:
        """Return whether it has been idle for too long."""
        return self._looked - self._active > (
            NSYS_IDLE_S if self.process.poll() is None else min(NSYS_IDLE_S, ORPHANED_AGENT_S)
        )

    def ended_by_itself(self) -> bool:
        """Return whether nsys itself has ended without a signal; its agent may still be there."""
        code = self.process.poll()
        return code is not None and code >= 0

    def kill(self) -> None:
        """Kill it at once with all its processes, including one that it is just starting."""
        quiet, until = 0, time.monotonic() + KILLED_WITHIN_S
        while quiet < QUIET_LOOKS and time.monotonic() < until:
            members = self.members(leftovers=True)
            quiet = 0 if members else quiet + 1
            for pid in members:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()
            time.sleep(0.01)
        self.process.wait()

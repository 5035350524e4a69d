"""Where the ranks of a job stop together: at a step's end, so that nsys can open or close a window for all of them.

When a window ends, nsys takes CUPTI out of every process, and waits in each until its device has nothing to do. A rank that went on
would have collectives in its queue that wait for the rank that closes the window, which waits for nsys: nsys gives up after 30 s,
events of that rank are lost, and CUPTI stays in its calls (two H100s, nsys 2025.3). So each rank waits here until the others of its
node have come and, before a window ends, until its own device has done what was launched.

Ranks tell each other by empty files beside the probe's own; which ranks these are, ``job_ranks`` knows. Standard library only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from . import draining
from .gathering import Gathering
from .interrupts import with_covered_jumps
from .job_ranks import JobRanks
from .probe_bounds import MEETING_LOOK_S, MEETING_S, MEETING_STEPS


class Meeting:
    """The ranks of a job that one nsys records, which tell each other by files in ``folder``; ``number`` counts the meetings from 0 on.

    Where several runs of nsysx record the job, on nodes of their own, each has such a meeting at the same step, and their leading ranks
    wait for each other.
    """

    def __init__(self, folder: str, job: JobRanks) -> None:
        self._folder, self._job = folder or os.devnull, job  # without a folder no file can be made
        self.number = 0
        self.gathering = Gathering(folder, job)

    @property
    def chooses(self) -> bool:
        """Return whether this rank chooses the steps for the whole job."""
        return self._job.chooses

    @property
    def several_runs(self) -> bool:
        """Return whether several runs of nsysx record the job."""
        return self._job.several_runs

    def comes_together(self, index: int, *, drained: bool = True) -> bool:
        """Return whether all ranks are where the next meeting can be held, at the end of step ``index``; if so, they wait for it there.

        ``drained``: with nothing left for their devices to do, as a window's end needs it. Where several runs record the job, that is
        so with the number of the step.
        """
        return self.several_runs or self.gathering.come(self.number, index, drained=drained)

    @property
    def apart(self) -> str:
        """Return why the number of a step does not say where all ranks are together, "" if it does."""
        return self.gathering.apart if not self.several_runs and self.gathering.are_apart() else ""

    def lead(self, act: Callable[[], Any]) -> None:
        """Call ``act`` if this rank leads, and wait for nobody: what needs no meeting of ranks that are apart."""
        number, self.number = self.number, self.number + 1
        if self._job.leads:
            try:
                act()
            finally:
                self._sign("done", number, self._job.rank)

    def led(self) -> bool:
        """Return whether the leading rank has done what the others wait for, or this is that rank."""
        return self._job.leads or os.path.exists(self._path("done", self.number, self._job.here[0]))  # noqa: PTH110

    @with_covered_jumps
    def hold(self, act: Callable[[], Any], longest_ns: int, *, drained: bool = False) -> bool:
        """Stop until all ranks are here, let the one that leads call ``act``, and go on together; return whether all came.

        ``longest_ns`` is the longest step so far. With ``drained`` the devices have done their work before this rank counts as here;
        for a rank that does not come nobody waits as long as for the device of one that has.
        """
        until, beyond = time.monotonic() + MEETING_S + MEETING_STEPS * longest_ns / 1e9, 0.0
        number, self.number = self.number, self.number + 1
        self._sign("comes", number, self._job.rank)
        if drained:
            beyond = draining.longest_wait_s(longest_ns)
            draining.drain(longest_ns)
        self._sign("here", number, self._job.rank)
        longest = until + MEETING_S * (1 + self._job.several_runs)
        if not self._job.leads:
            leader = self._job.here[0]
            came = self._wait([self._path("comes", number, leader)], longest)
            return self._wait([self._path("done", number, leader)], longest + came * beyond)
        try:
            others = [rank for rank in self._job.here if rank != self._job.rank]
            came = self._wait([self._path("comes", number, rank) for rank in others], until)
            rest = [rank for rank in others if os.path.exists(self._path("comes", number, rank))]  # noqa: PTH110
            came = self._wait([self._path("here", number, rank) for rank in rest], until + beyond) and came
            act()
            if self._job.link is not None:
                came = self._job.link.gather(number, longest + beyond - MEETING_LOOK_S) and came
        finally:  # also where a signal ends the wait: nobody else waits for this rank then
            self._sign("done", number, self._job.rank)
        return came

    def announce(self, step: int) -> None:
        """Say, long enough before, with which step all hold the next meeting."""
        self._write(step)
        if self._job.link is not None:
            self._job.link.announce(self.number, step)

    def announced(self) -> int | None:
        """Return the step of the next meeting if one was announced."""
        try:
            with open(self._path("step", self.number)) as file:  # noqa: PTH123 - importing pathlib takes milliseconds
                return int(file.read())
        except (OSError, ValueError):
            pass
        step = None if self._job.link is None else self._job.link.announced(self.number)
        if step is not None:
            self._write(step)
        return step

    def _write(self, step: int) -> None:
        path = self._path("step", self.number)
        try:
            with open(f"{path}-{self._job.rank}", "w") as file:  # noqa: PTH123
                file.write(str(step))
            os.replace(f"{path}-{self._job.rank}", path)  # noqa: PTH105
        except OSError:
            pass

    def _path(self, *name: object) -> str:
        return f"{self._folder}/{'-'.join(map(str, (name[0], self._job.start, *name[1:])))}"

    def _sign(self, *name: object) -> None:
        try:
            os.close(os.open(self._path(*name), os.O_CREAT | os.O_WRONLY))
        except OSError:  # a full disk: the others wait for as long as they do for one that never comes
            pass

    def _wait(self, paths: list[str], until: float) -> bool:
        """Wait for these files; return whether all are there."""
        while paths:
            paths = [path for path in paths if not os.path.exists(path)]  # noqa: PTH110
            if paths and time.monotonic() > until:
                return False
            if paths:
                time.sleep(MEETING_LOOK_S)
        return True

"""Finds a moment in which all ranks of a job are at a step's end, where the number of the step does not name it.

A learner and an actor, a teacher and a student or a rank that evaluates make steps of different kinds or at different rates. One that
stops at a step of a given number may stop while another is in a collective and waits for it: neither would come. So each rank first
says that it has enough steps. When all have, each offers, at the end of its steps, to wait there for a moment, with nothing left for
its device to do. The leading rank takes the offers if it finds all of them, and so the ranks are together; a rank whose time is up
before takes its offer back and goes on to its next step's end. A file that is renamed by one and deleted by the other is only one's: no
rank believes that all are there while another has gone. What was waited for in vain is bounded; after that there is no meeting.

Ranks of one kind stop at the same number. If one does not come soon, they are taken for ranks apart. So they are before a window ends
if a device does not come to rest there soon after that of another rank: a stage of a pipeline has launched the receipt of what the
stage before, which stands still as well, sends in its next step. Standard library only.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import deque

from . import draining
from .interrupts import with_covered_jumps
from .job_ranks import JobRanks
from .probe_bounds import (
    DRAIN_S,
    GATHERING_DECIDED_S,
    GATHERING_LEAST_S,
    GATHERING_LOST_S,
    GATHERING_MOST_S,
    GATHERING_RESTS_S,
    GATHERING_STEPS,
    GATHERING_TOGETHER_S,
    MEETING_LOOK_S,
)

APART, GIVEN_UP = "apart", "given-up"


class Gathering:
    """The same ranks as a `Meeting`, before each of its meetings. ``apart``: the number of a step does not say where they are together."""

    def __init__(self, folder: str, job: JobRanks) -> None:
        self._folder, self._job = folder or os.devnull, job
        self._lengths: deque[int] = deque(maxlen=2 * GATHERING_STEPS)
        self._tried = -1  # the step at whose end the last try was
        self._came = -1  # the number of the meeting for which all have come
        self._longest_s = 0.0  # how long an offer stands, once all have enough steps
        self._lost_s = 0.0
        self.apart = "" if job.alike else f"steps of different kinds: {', '.join(sorted(set(job.kinds)))}"

    def step_ended(self, length_ns: int) -> None:
        """Note the length of a step."""
        self._lengths.append(max(length_ns, 1))

    def part(self) -> None:
        """Say that the number of a step does not say where the ranks are together."""
        self._sign(APART)

    def are_apart(self) -> bool:
        """Return whether the ranks make steps of different kinds or at different rates."""
        if not self.apart and self._is_there(APART):
            self.apart = "steps that do not end together"
        return bool(self.apart)

    def given_up(self) -> bool:
        """Return whether the ranks have never been at a step's end together, and do not try any more."""
        return bool(self.apart) and self._is_there(GIVEN_UP)

    @with_covered_jumps
    def come(self, number: int, index: int, *, drained: bool = True) -> bool:
        """Return whether all are together at the end of step ``index``, for meeting ``number``; if so, all stay until it is held.

        ``drained``: with nothing left for their devices to do.
        """
        if self._came == number:
            return True
        if self._tried == index or self.given_up():
            return False
        self._tried = index
        if self.are_apart():
            if not self._all_have_enough(number):
                return False
            longest_s = self._longest_s
            if draining.drain(within_s=longest_s) is False:
                return self._in_vain(longest_s)
        else:
            longest_s = GATHERING_TOGETHER_S + 2 * self._usual_s()
        begin = time.monotonic()
        # Offers to wait at the step of one number are others than those of ranks apart: they may all have been taken for nothing.
        if self._meets(str(number) if self.apart else f"{number}-alike", begin + longest_s):
            if not drained or self.apart or self._all_rest(number):
                self._came = number
                return True
        elif self.are_apart():
            return self._in_vain(time.monotonic() - begin)
        self.part()
        return False

    def _all_rest(self, number: int) -> bool:
        """Wait until no device of these ranks, which stand still, has anything to do; return whether that came soon.

        A device may have a long queue, but those of one job come to its end about together, because of their collectives.
        """
        rests = [self._path("rests", number, rank) for rank in self._job.here]
        until, after_first_s = time.monotonic() + DRAIN_S, GATHERING_RESTS_S + 2 * self._usual_s()
        first_seen, rested, look_s = False, False, GATHERING_LEAST_S
        while not all(map(os.path.exists, rests)):
            if not rested and draining.drain(within_s=look_s) is not False:
                rested = True
                self._sign("rests", number, self._job.rank)
            look_s = min(2 * look_s, GATHERING_MOST_S)
            if not first_seen and any(map(os.path.exists, rests)):
                first_seen, until = True, min(until, time.monotonic() + after_first_s)
            # Who rests waits longer than those that do not, and so says none that all are here while another goes on.
            if self._is_there(APART) or time.monotonic() > until + rested * 2 * GATHERING_DECIDED_S:
                return False
            time.sleep(MEETING_LOOK_S)
        return True

    def _in_vain(self, seconds: float) -> bool:
        self._lost_s += seconds
        # Ranks of one kind have waited for each other before, and where they work in turn, each of them loses as much.
        if self._lost_s > GATHERING_LOST_S / (2 if self._job.alike else 1):
            self._sign(GIVEN_UP)
        return False

    def _usual_s(self) -> float:
        return statistics.median(self._lengths) / 1e9 if self._lengths else 0.0

    def _all_have_enough(self, number: int) -> bool:
        """Say how long this rank's steps are, and return whether all others have said so, too."""
        length_file = self._path("enough", number, self._job.rank)
        if not os.path.exists(length_file):  # noqa: PTH110
            self._write(length_file, repr(self._usual_s()))
        try:
            usual_s = [float(self._read(self._path("enough", number, rank))) for rank in self._job.here]
        except (OSError, ValueError):
            return False
        # Within two of the others' steps each of them comes to a step's end, or waits for this rank and does not come.
        self._longest_s = min(max(GATHERING_LEAST_S, 2 * max(usual_s)), GATHERING_MOST_S)
        return True

    def _meets(self, number: str, until: float) -> bool:
        """Offer to wait until then, and return whether all were there."""
        offer = self._path("offers", number, self._job.rank)
        self._sign("offers", number, self._job.rank)
        try:
            while not self._is_there("together", number):
                if self._job.leads and self._takes_all(number):
                    return True
                if time.monotonic() > until or (not self.apart and self._is_there(APART)):
                    break
                time.sleep(MEETING_LOOK_S)
            else:
                return True
        finally:  # also where a signal ends the wait
            withdrawn = self._withdraws(offer)
        until = time.monotonic() + GATHERING_DECIDED_S
        while not withdrawn and not self._is_there("together", number):  # it was taken: the leading rank decides now
            if time.monotonic() > until:
                return False
            time.sleep(MEETING_LOOK_S)
            withdrawn = self._withdraws(offer)
        return not withdrawn

    def _withdraws(self, offer: str) -> bool:
        try:
            os.unlink(offer)  # noqa: PTH108
        except OSError:
            return self._job.leads  # nobody takes its offer
        return True

    def _takes_all(self, number: str) -> bool:
        """Take the offers of all other ranks, or none; return whether all were there."""
        others = [self._path("offers", number, rank) for rank in self._job.here if rank != self._job.rank]
        if not all(map(os.path.exists, others)):
            return False
        taken: list[str] = []
        try:
            for offer in others:
                os.rename(offer, f"{offer}-taken")  # noqa: PTH104
                taken.append(offer)
        except OSError:  # one has just gone on
            for offer in taken:
                os.rename(f"{offer}-taken", offer)  # noqa: PTH104
            return False
        self._sign("together", number)
        return self._is_there("together", number)

    def _path(self, *name: object) -> str:
        return f"{self._folder}/{'-'.join(map(str, ('gathering', self._job.start, *name)))}"

    def _is_there(self, *name: object) -> bool:
        return os.path.exists(self._path(*name))  # noqa: PTH110

    def _sign(self, *name: object) -> None:
        self._write(self._path(*name), "")

    def _write(self, path: str, text: str) -> None:
        try:
            with open(f"{path}+{self._job.rank}", "w") as file:  # noqa: PTH123 - importing pathlib takes milliseconds
                file.write(text)
            os.replace(f"{path}+{self._job.rank}", path)  # noqa: PTH105
        except OSError:  # a full disk: nobody comes together
            pass

    def _read(self, path: str) -> str:
        with open(path) as file:  # noqa: PTH123
            return file.read()

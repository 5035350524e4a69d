"""The two windows of a run that is asked for no steps in particular (``NSYSX_STEPS=windows``), and the bare steps between them.

The first holds the cold start: it opens before the command starts (``capture_range``) and closes when warm-up is over and enough steps were
alike. Then steps run without the profiler, and the clock times them. The second holds steps like those. After it bare steps are
timed once more, because a host's speed drifts, and then the probe leaves. Where most time goes to steps of another kind later, it comes
back for them (`later_kind`).

That holds where nsys takes CUPTI out of the program at a window's end (``recording.window_plan.detaching``). Where CUPTI stays, steps
are up to a third longer from the first window on: those between the windows are noted as such, those after them not at all.

Of a job, the windows are over the same steps on every rank, so that none waits for another more than once for each. What nsys records
is decided for all processes of a node at once, so one rank of those opens and closes them; the others begin and stop with their ranges
at the same steps, and each times its own bare steps. All of them stand still meanwhile (``meeting``). Ranks whose steps are of different
kinds have no steps in common: each has enough of its own in a window, which closes where all are at a step's end (``gathering``).
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

from . import capture_range, draining
from .at_work import CallTracing
from .capture_window import AUTO_STEPS, CaptureWindow
from .clock import StepClock
from .draining import is_one_of_several
from .interrupts import of_program
from .job_ranks import RollCall
from .meeting import Meeting
from .output import Output
from .probe_bounds import (
    FIRST_WINDOW_ALIKE,
    FIRST_WINDOW_LEAST,
    FIRST_WINDOW_LONGER,
    FIRST_WINDOW_NS,
    FIRST_WINDOW_STEPS,
    RANKS_AHEAD,
    RANKS_ASK_S,
    RANKS_COME_S,
    RANKS_FIRST_WINDOW,
    RUNS_AHEAD_NS,
    SECOND_WINDOW_WHOLE,
)

#: With this step at the latest a rank knows the others that make steps as it does.
_RANKS_KNOWN = RANKS_FIRST_WINDOW - RANKS_AHEAD


class TwoWindows(CaptureWindow):
    """``cold``: the first window is open. ``first`` and ``last`` are the steps of the second one, None until they are known."""

    def __init__(self, out: Output, clock: StepClock) -> None:
        super().__init__(out, clock)
        self.wanted = self.cold = self.two = True
        self.count = 1
        self.after = False  # the second window has closed, and bare steps are timed once more
        self._detached = capture_range.DETACHED in out.environ.get("NSYS_CONFIG_DIRECTIVES", "")
        self._between: dict[str, Any] | None = None
        self._marks_cost: dict[str, Any] | None = None
        self._lengths: deque[int] = deque(maxlen=2 * FIRST_WINDOW_ALIKE)
        self._ended_ns = self._since_ns = 0
        self._in_window = 0  # steps that have ended in the open window
        self._ending = False  # the limit is reached
        self._from = 0  # the first step of this kind
        self._several = False  # the program is one of several processes
        self._roll: RollCall | None = None  # of the ranks of its job, as long as not all have come
        self._meeting: Meeting | None = None  # of these ranks, once they are known
        self._looks_at = self._looks_until = 0.0  # when to look for them again, and how long
        self._stranger = ""  # why they are not
        self._longest_ns = 0  # the longest step of a job
        self._never = False  # they are never at a step's end together
        self._begun = False  # the second window was opened
        self._claimed = False  # the windows are this process's own
        # For how long each window's end stopped the program: 0 if it closed beside it, at the limit.
        self.pauses_ns: list[int] | None = None

    def opens(self, index: int) -> bool:
        """Return whether the second window opens with step ``index``."""
        if self.cold or (self.opened and not self.after):
            return False
        return self.comes(index, 0) and not self.after

    def comes(self, index: int, ahead: int) -> bool:
        """Return whether step ``index`` is followed in full: bare steps are known well enough, or a window is open.

        That chooses the steps of the second window, from ``ahead`` after ``index`` on, or ends the probe's work.
        """
        if self.others:
            return True
        if self.after:
            self.over = self.over or self.clock.is_long_enough()
            return self.over
        if self.first is None and not self.cold:
            self._choose(index, ahead)
        return super().comes(index, ahead)

    def _choose(self, index: int, ahead: int) -> None:
        """Choose the steps of the second window, from ``ahead`` after ``index`` on, once bare steps are known."""
        if self._meeting is not None and self._meeting.apart:
            if self.clock.is_long_enough() if self._meeting.chooses else self._meeting.led():
                self.first = index + ahead
        elif self._meeting is not None:
            self.first = self._meeting.announced()
        apart = self._meeting is not None and self._meeting.apart
        if self.first is None and not apart and self.clock.is_long_enough():
            if self._meeting is None:
                self.first = index + ahead
            elif self._meeting.chooses:
                late_ns = RUNS_AHEAD_NS if self._meeting.several_runs else 0
                self.first = index + ahead + RANKS_AHEAD + late_ns // int(statistics.median(self._lengths))
                self._meeting.announce(self.first)
        if self.first is not None:
            self.last = self.first + AUTO_STEPS - 1

    def near(self, index: int) -> bool:
        """Return whether the device's times of steps are wanted: they are between the windows and after them."""
        return self.after or super().near(index)

    def closes(self, index: int, *, marked: bool = False) -> bool:
        """Return whether the open window closes with step ``index``."""
        if not self._has_them():
            return False
        over = capture_range.step_ended(first=not self._in_window)
        self._in_window += 1
        now, before = time.perf_counter_ns(), self._ended_ns
        self._ended_ns = now
        if self._several and self._meeting is None:
            self._meet(index)
        if self._given_up(self._meeting):
            return False
        if self._meeting is not None:
            return self._closes_together(self._meeting, index, now - before if before else 0, over=over)
        if not self.cold:
            if over and self._in_window >= SECOND_WINDOW_WHOLE and not self._ending:  # one more step, for the X-ray
                self._ending, self.last = True, min(index + 1, self.last or 0)
            return super().closes(index) or capture_range.closed()
        if not before:
            self._since_ns = now
            return False
        self._several = self._several or is_one_of_several()
        if self._several:  # closing would stop the others in a collective, for which nsys waits 30 s
            return over
        self._lengths.append(now - before)
        if marked:
            self._alike = 0
        return (
            (self._alike >= FIRST_WINDOW_ALIKE and self._as_long())
            or index - self._from >= FIRST_WINDOW_STEPS
            or (index - self._from >= FIRST_WINDOW_LEAST and (over or now - self._since_ns > FIRST_WINDOW_NS))
        )

    def _as_long(self) -> bool:
        """Return whether no step is far longer than the others, or the longest one is as long as the longest of as many before.

        A program that waits for its GPU in each 8th step has a step of eight among short ones, time after time.
        """
        last, before = list(self._lengths)[-FIRST_WINDOW_ALIKE:], list(self._lengths)[:-FIRST_WINDOW_ALIKE]
        longest = max(last)
        if longest <= FIRST_WINDOW_LONGER * statistics.median(last):
            return True
        both = sorted((longest, max(before, default=0)))
        return len(before) == FIRST_WINDOW_ALIKE and both[1] <= FIRST_WINDOW_LONGER * both[0]

    def _closes_together(self, meeting: Meeting, index: int, length_ns: int, *, over: bool) -> bool:
        """Return whether the window of all ranks closes with step ``index``, which took so long."""
        self._lengths.append(max(length_ns, 1))
        self._longest_ns = max(self._longest_ns, length_ns)
        meeting.gathering.step_ended(length_ns)
        if (
            over
            and self._in_window >= (FIRST_WINDOW_LEAST if self.cold else SECOND_WINDOW_WHOLE)
            and meeting.announced() is None
        ):
            meeting.announce(index + RANKS_AHEAD)
        return self.is_last(index) and self.comes_together(index)

    def comes_together(self, index: int) -> bool:
        """Return whether all ranks of the job are at a step's end, so that the window can close with step ``index``."""
        if self._meeting is None:
            return super().comes_together(index)
        together = self._meeting.comes_together(index)
        self.apart = self._meeting.apart
        return together

    def _given_up(self, meeting: Meeting | None) -> bool:
        """Return whether the ranks are never together at a step's end: the open window stays open then."""
        if meeting is not None and meeting.gathering.given_up():
            self._meeting, self._never = None, True
            self._stranger = (
                f"its ranks, which make {self.apart}, were never at a step's end together with idle devices"
            )
        return self._never

    def _meet(self, index: int) -> None:
        """Learn who the other ranks of the job are, if all of them have come."""
        late, now = index > _RANKS_KNOWN, time.monotonic()
        if self._roll is None or (late and now < self._looks_at):
            return
        self._looks_at, self._looks_until = now + RANKS_ASK_S, self._looks_until or now + RANKS_COME_S
        try:
            job = self._roll.look(last=index >= _RANKS_KNOWN)
        except Exception as error:
            if of_program(error):
                raise
            self._roll, self._stranger = None, f"{type(error).__name__}: {error}"[:200]
            return
        if job is not None:
            folder = self.out.environ.get("NSYSX_PROBE_DIR", "")
            self._meeting, self._roll, self.together = Meeting(folder, job), None, True
            self.rank = str(job.rank)
            if late:  # some had made many steps before others made one
                self._meeting.gathering.part()
        elif now > self._looks_until:
            self._roll, self._stranger = None, "not all ranks make steps under nsysx"

    def _call_roll(self) -> None:
        """Say to the other ranks of the job which run records this one."""
        try:
            self._roll = RollCall(self.out.environ.get(capture_range.ADDRESS, ""), self.kind())
        except Exception as error:
            if of_program(error):
                raise
            self._stranger = f"its ranks have no store of torch.distributed ({type(error).__name__})"

    def is_last(self, index: int) -> bool:
        """Return whether step ``index`` is the last one of the open window."""
        if self._meeting is None:
            return super().is_last(index)
        planned = index >= RANKS_FIRST_WINDOW - 1 if self.cold else super().is_last(index)
        announced = None if planned else self._meeting.announced()
        return planned or (announced is not None and (index >= announced or bool(self._meeting.apart)))

    def left(self, index: int) -> int | None:
        """Return how many steps of the open window follow step ``index``, None while that is not known."""
        if self._meeting is None:
            return super().left(index)
        if self.cold or (self._meeting.apart and self.last is not None and index > self.last):
            return None
        announced, left = self._meeting.announced(), super().left(index)
        return left if announced is None or left is None else min(max(announced - index, 0), left)

    def _has_them(self) -> bool:
        """Return whether this process has the windows: it asks for them when its first step has ended."""
        if not self._claimed and not self.others:
            self._several = is_one_of_several()
            self.others = capture_range.claim(several=self._several)
            self._claimed = not self.others
            if self.others:  # everything of this process is recorded, as long as a window of the other one is open
                self.wanted = self.cold = self.two = self.together = False
            else:
                self.pauses_ns = []
                if self._several:
                    self._call_roll()
        return self._claimed

    def open(self, torch: Any) -> None:
        """Open the second window, unless that was done when the step before ended."""
        self.begin()

    def begin(self) -> None:
        """Open the second window, together with the other ranks of a job."""
        if self._begun:
            return
        self._begun, self._in_window = True, 0
        self.count += 1
        tracing = CallTracing()
        if self._meeting is None:
            capture_range.begin()
        elif self._meeting.apart or not self._meeting.comes_together(self.first or 0, drained=False):
            self._meeting.lead(capture_range.begin)
        else:
            self._meeting.hold(capture_range.begin, self._longest_ns)
        tracing.wait()

    def close(self, torch: Any) -> bool:
        """Close the open window and return whether the probe goes on to time bare steps."""
        if not self.cold:
            self._between, self._marks_cost = self.unrecorded(), self.clock.marks_cost()
        begin = time.perf_counter_ns()
        was_cold, self.cold = self.cold, False
        stood = True
        try:
            stood = self._end(torch)
        finally:  # Ctrl-C comes in these seconds more often than elsewhere
            if self.pauses_ns is not None:
                self.pauses_ns.append(time.perf_counter_ns() - begin if stood else 0)
        self.after = not was_cold and self._detached and self.out.environ.get("NSYSX_THEN") != "stop"
        return was_cold or self.after

    def restart(self, index: int) -> bool:
        """Steps of another kind begin with ``index``: those before tell nothing of them. Return whether those have had their window.

        Ranks of a job go by the number of the step.
        """
        if self.others or self._several or self.opened:
            return self.opened
        self._from, self._alike = index, 0
        self._lengths.clear()
        if not self.cold and not self._begun:
            self.first = self.last = None
            self.clock.start_bare(index)
        return False

    def may_reopen(self) -> bool:
        """Return whether one more window may open after the last one: for a single process that goes on."""
        return self._claimed and not self._several and self.out.environ.get("NSYSX_THEN") != "stop"

    def reopen(self, index: int) -> None:
        """Time bare steps from ``index`` on, and then open a window again."""
        self.first = self.last = None
        self.opened = self.after = self.over = self._begun = self._ending = False
        self._between = self._marks_cost = None
        self.restart(index)

    def _end(self, torch: Any) -> bool:
        """Have nsys close the window; return whether the program stood still for it."""
        if self._meeting is not None:
            self._meeting.hold(capture_range.end, self._longest_ns, drained=True)
            return True
        if not capture_range.closed():
            draining.drain(self.clock.longest_ns())
        return capture_range.end()

    def unrecorded(self) -> dict[str, Any] | None:
        """Return the bare steps between the windows, as `StepClock.bare` does, with what `_after` returns of those after them.

        ``detached``: nothing of nsys was in the calls of these steps.
        """
        if self.cold or self.others or (self.after and self._between is None):
            return None
        if self._between is None:
            bare = self.clock.bare(self.first if self.opened else None)
            return None if bare is None else {**bare, **_after(), "detached": self._detached}
        again = self.clock.bare(None) if self.after else None
        if again is None:
            return self._between
        return {**self._between, **_after(**again)}

    def marks_cost(self) -> dict[str, Any] | None:
        """Return `StepClock.marks_cost` of the last window."""
        return self._marks_cost if self.after else super().marks_cost()

    def never_opened(self, steps: int, rule: str) -> str | None:
        """Return why there is no second window if that is so because of other processes; the first window opens without a step."""
        if not (self.cold and self._several):
            return None
        why = self._stranger or "they began without a process group"
        return f"one window was recorded and no step was timed: the program is one of several processes, and {why}"

    def step_ended(self, shape: Hashable) -> None:
        """Compare a step's shape with the one before, as long as the first window is open."""
        if self.cold:
            super().step_ended(shape)


def _after(
    lengths_ns: Sequence[int] = (), fetch_ns: Sequence[int] = (), loop_ns: Sequence[int] = (), **_more: object
) -> dict[str, Any]:
    """Return what the record holds of the bare steps after the second window."""
    return {"after_ns": [*lengths_ns], "after_fetch_ns": [*fetch_ns], "after_loop_ns": [*loop_ns]}

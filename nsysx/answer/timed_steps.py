"""What a change is worth where the step without the profiler was timed, and no replay can say what it consists of."""

from __future__ import annotations

from typing import NamedTuple

from nsysx import units
from nsysx.answer.change_savings import about, likely_ns, margins_ns
from nsysx.catalogue import StepLimit, StepPart
from nsysx.model import Finding, Summary


class TimedWorth(NamedTuple):
    """The timed step before and after a change (ns), and the least and the most factor; ``bound``: nothing likely is known."""

    now_ns: int
    then_ns: int
    times: tuple[float, float]
    bound: bool

    @property
    def words(self) -> str:
        """From which to which step, in words."""
        best = ", at best" if self.bound else ""
        return f"{units.duration(self.now_ns)} → {units.duration(self.then_ns)} a step unprofiled{best}"


def timed_worth(summary: Summary, chosen: Finding | None) -> TimedWorth | None:
    """Return what a change is worth of a step that was timed; None where none was, and for a change of what the GPU computes.

    The GPU's own work takes as long as recorded. What is left of the timed step it waits: by the same factor shorter than it waited
    while it was recorded, whatever it waited for.
    """
    timed, recorded = summary.verdict.timed_ns, summary.step.shown_ns
    if timed is None or not recorded or chosen is None or not (saving := likely_ns(summary, chosen)):
        return None
    waits = {part.value for part in StepPart if part.idle or part == StepPart.COMM}
    works = sum(ns for part, ns in summary.verdict.parts.items() if part not in waits)
    cause = about(chosen)
    if cause not in (StepLimit.LAUNCH, StepLimit.SYNC, StepLimit.ALLOC, StepLimit.INPUT, StepLimit.COMM):
        return None
    if not works < timed <= recorded:
        return None
    shorter = (timed - works) / (recorded - works)
    bound = chosen.saving.bound  # no replay made exactly the change
    less, more = (saving, 0) if bound else margins_ns(summary, chosen) or (0, 0)

    def left_ns(saved: int) -> int:
        return round(max(timed - shorter * saved, works))

    low, then, high = (left_ns(saved) for saved in (saving + more, saving, saving - less))
    return TimedWorth(timed, then, (round(timed / high, 3), round(timed / low, 3)), bound)

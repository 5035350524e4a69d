"""What a rule works with: the frames of one report, and what changes of its steps are worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import polars as pl

from nsysx import units
from nsysx.analyses import gpu_ledger
from nsysx.catalogue import StepPart
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case_frames import CaseFrames
from nsysx.findings._finding_bounds import SAME_WORK_REPEATS_SHARE
from nsysx.findings._fix import Fix as Fix
from nsysx.findings._fix import Need as Need
from nsysx.findings._fix import State as State
from nsysx.findings._fix import way as way
from nsysx.findings._freed_time import StepOnDevice, saved_by_times
from nsysx.findings._hidden_host import host_is_hidden
from nsysx.findings._once import calls_of as calls_of
from nsysx.findings._once import ops_of as ops_of
from nsysx.findings._roof_room import within_roofs
from nsysx.findings._rule import Rule as Rule
from nsysx.findings._slower_host import lost_to_slower_host_ns
from nsysx.frames import intervals
from nsysx.judging.limits import not_recorded_ns
from nsysx.judging.schedule import schedule_of
from nsysx.model import Finding, Scope
from nsysx.replay.edits import freed_ns, shortened
from nsysx.replay.engine import Edit, Replay, replayed_scope
from nsysx.saving import Saving as Saving

#: The columns of a place in the program.
SITE = ("module", "phase", "file", "line")


@dataclass(frozen=True)
class Case(CaseFrames):
    """Frames, and what changes are worth: what a rule works with."""

    @cached_property
    def _of_shown(self) -> float:
        """What a saving of replayed steps is of the shown one: what rare long steps add is not in the steps that were replayed."""
        if self._trusted is None or self._trusted.steps >= self.steps or self.profile.steps.in_rounds:
            return self._beside_replayed
        window, last = self._trusted.window, self._trusted.window.first + self._trusted.steps - 1
        rare = not_recorded_ns(self.profile, self.process, window.device, window.first, last)
        return self._beside_replayed * max(0.0, 1 - max(rare, 0.0) / max(self.step_ns, 1))

    def worth(self, *edits: Edit, cause: Sequence[StepPart] = (), bound: bool = False) -> Saving:
        """Return what a change saves by the replay, scaled to the step that the verdict speaks of.

        ``cause``: parts of the verdict that cap the saving; ``bound``: it is an upper bound, whose ``most_ns`` has the replay's error.
        """
        if not isinstance(self.replay, Replay):
            return Saving(None, f"no replay: {self.replay.reason}" if self.replay else "no replay")
        if not self.replay.trusted:
            times = self._by_times(edits) if shortened(edits) and not bound else None
            return times or Saving(
                None, f"no claim: the replay misses the recorded step by {units.share(self.replay.error, 1)}"
            )
        if not any(map(self._reaches, edits)):
            return Saving(None, "not replayed: it lies outside the steps that the replay covers", covered=False)
        edits = within_roofs(self.profile, edits)
        outcome = self.replay.saving(*edits)
        cap = self.taken_by(cause) if cause and self.rows(gpu_ledger.KEY) else self.step_ns
        saving = self._beside_schedule(min(max(0, round(outcome.saving_ns * self._of_shown)), max(cap, 0)), edits)
        bar = round(outcome.bar_ns * self._of_shown)
        timed = None if (gone := shortened(edits)) is None else self.timed_ops(self.ops["op"].is_in(gone), "op")
        works = self.step_ns if timed is None else self.per_step(int(timed["ns"].sum()))
        repeats = round(SAME_WORK_REPEATS_SHARE * (self.step_ns - cap))
        most = max(saving, min(saving + bar, cap + repeats, works)) if bound else None
        waited_for = host_is_hidden(self.taken_by, self.step_ns, timed, self.replay.idle_before())
        if most is not None and timed is not None and waited_for and outcome.limited_by_host:
            # A host that waits for a busy GPU is not seen at work: what the replay takes for its work is the most that it may be.
            most = max(most, min(self.per_step(round(freed_ns(edits, timed))), max(cap, 0)))
            saving = (saving + most) // 2
            saving, most = self._beside_schedule(saving, edits), self._beside_schedule(most, edits)
        sure = f"{'replay error ' if bound else ''}±{units.duration(bar)}"
        if saving < bar:
            sure += ", so perhaps nothing"
        scope, then = replayed_scope(self.profile), (outcome.moves_to, outcome.next_limit)
        host_ns = round(outcome.host_ns * self._beside_replayed)
        return Saving(saving, sure, bound, bar, most, None, "replay", scope, *then, host_ns)

    def _beside_schedule(self, saving: int, edits: Sequence[Edit]) -> int:
        """Return a saving (ns) as far as the schedule of a pipeline allows it: by itself it leaves a stage idle for a share of its work."""
        work = self.taken_by((StepPart.WORK,)) if self.schedule_idle_share else 0
        left = work - self.per_step(freed_ns(edits, self.timed_ops(self.ops["op"].is_not_null(), "op"))) if work else 0
        shortest = round(min(max(left, 0), self.step_ns - saving) * (1 + self.schedule_idle_share))
        # A step that is shorter has another schedule, as an interleaved one.
        return (
            saving
            if not work or self.step_ns < work * (1 + self.schedule_idle_share)
            else min(saving, self.step_ns - shortest)
        )

    @cached_property
    def schedule_idle_share(self) -> float:
        """How long the schedule of a pipeline leaves a stage idle by itself, as a share of what it computes; 0 for ranks that are none."""
        settings, rows = settings_of(self.profile), (self.ranks.rows if self.ranks is not None else None) or ()
        schedule = schedule_of(rows, settings.micro_batches() if settings is not None else None)
        return 0.0 if schedule is None else schedule.of_work

    def worth_between(
        self,
        least: Sequence[Edit],
        likely: Sequence[Edit],
        most: Sequence[Edit],
        why: str,
        *,
        cause: Sequence[StepPart] = (),
    ) -> Saving:
        """Return what is likely saved by the replay, between the least and the most that edits of GPU work save; ``why``: what that is.

        A step that is limited by the GPU may turn out shorter than the host's work in the replay, but not than the work that is left.
        """
        told, low, high = (self.worth(*edits, cause=cause, bound=True) for edits in (likely, least, most))
        if told.likely_ns is None or low.likely_ns is None or high.likely_ns is None:
            return told
        freed = freed_ns(most, self.ops.select("op", ns=pl.col("end_ns") - pl.col("start_ns")))
        busy = intervals.length(self.ops["start_ns"].to_numpy(), self.ops["end_ns"].to_numpy())  # beside each other
        stays = self.per_step(max(0.0, busy - freed))
        best = max(high.likely_ns, min(high.most_ns or 0, self.per_step(freed), self.step_ns - stays))
        best = max(told.likely_ns, min(best, self.step_ns - stays))
        error = max(0, told.likely_ns - low.likely_ns, lost_to_slower_host_ns(told))
        return replace(told, confidence=why, bound=False, error_ns=error, most_ns=best, source="limits")

    def _reaches(self, edit: Edit) -> bool:
        """Return whether the replay covers any call or op that an edit names; an edit that names none applies to all."""
        calls, ops = getattr(edit, "calls", None), getattr(edit, "ops", None)
        if ops is not None:
            calls = self.ops.filter(pl.col("op").is_in(list(ops)))["call"].drop_nulls().to_list()
        return calls is None or not self._replayed_calls.isdisjoint(calls)

    @cached_property
    def _replayed_calls(self) -> frozenset[int]:
        return calls_of(self.replayed)

    def bound(self, ns: float, why: str) -> Saving:
        """Return an upper bound that needs no replay: the time per step (ns) that a change removes; ``why`` says which."""
        return Saving(min(round(max(0, ns)), self.step_ns), why, bound=True, source="time")

    def worth_or_time(self, ns: float, why: str, *edits: Edit, cause: Sequence[StepPart] = ()) -> Saving:
        """Return what a change saves at best by the replay, or the time per step (ns) that it removes; not past a distrusted replay."""
        worth = self.worth(*edits, cause=cause, bound=True)
        distrusted = isinstance(self.replay, Replay) and not self.replay.trusted
        return self.bound(ns, why) if worth.likely_ns is None and not self.stepless and not distrusted else worth

    def worth_or_freed(self, *edits: Edit, cause: Sequence[StepPart] = (), bound: bool = False) -> Saving:
        """Return what a change saves by the replay; where that misses the recorded steps, by the recorded times of the work that goes."""
        worth = self.worth(*edits, cause=cause, bound=bound)
        distrusted = isinstance(self.replay, Replay) and not self.replay.trusted
        return (self._by_times(edits) or worth) if worth.likely_ns is None and distrusted else worth

    def _by_times(self, edits: Sequence[Edit]) -> Saving | None:
        if not isinstance(self.replay, Replay) or self.stepless:
            return None
        idle = self.taken_by(part for part in StepPart if part.idle)
        step = StepOnDevice(self.ops.filter(self.ops["device"] == self.device), self.per_step, self.step_ns, idle)
        return saved_by_times(step, edits, self.replay.error)

    def lost(self, cost_ns: int, worth: Saving, *, as_recorded: bool = False) -> int:
        """Return the time lost per step (ns): at least what a change saves, at most the whole step, as recorded or without tracing."""
        return min(max(cost_ns, worth.likely_ns or 0), self.recorded_ns if as_recorded else self.step_ns)

    @property
    def covered(self) -> Scope:
        """What a finding covers: the frames, on the shown device."""
        return self.scope if self.device is None else self.scope.on(self.device)

    def no_steps(self, rule: Rule) -> list[Finding]:
        """Return that a rule needs steps."""
        if self.profile.steps.source != "capture":
            reason = "the whole capture is shown (--steps all): warm-up and steady work cannot be told apart"
            return self.cannot_tell(rule, reason, "nsysx report without --steps all")
        return self.cannot_tell(
            rule, "the capture has no steps: warm-up and steady work cannot be told apart", "nsysx run -- CMD"
        )

    def clear(self, rule: Rule, detail: str) -> list[Finding]:
        """Return that a rule looked and found nothing."""
        return [Finding(rule.code, rule.slug, "clear", rule.title, detail, scope=self.covered)]

    def cannot_tell(self, rule: Rule, detail: str, fix: str = "") -> list[Finding]:
        """Return that the capture does not hold what a rule needs."""
        return [Finding(rule.code, rule.slug, "cannot_tell", rule.title, detail, fix=fix)]


#: For findings about something other than the step's time: a wrong reading, a one-time cost.
NO_SAVING = Saving(None, "not a cost of the step")

"""What a rule works with: profile, tables and replay of one report, the shown process, and sums per step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import polars as pl

from nsysx import units
from nsysx.analyses import gpu_ledger
from nsysx.analyses.helpers import tables as tables_of
from nsysx.catalogue import StepLimit, StepPart
from nsysx.events import bare, layers
from nsysx.events.attribute import IN_STEP
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._finding_bounds import SAME_WORK_REPEATS_SHARE, WAITED_FOR_SHARE
from nsysx.findings._fix import Fix as Fix
from nsysx.findings._fix import Need as Need
from nsysx.findings._fix import State as State
from nsysx.findings._fix import way as way
from nsysx.findings._freed_time import StepOnDevice, saved_by_times
from nsysx.findings._names import called
from nsysx.findings._once import calls_of as calls_of
from nsysx.findings._once import ops_of as ops_of
from nsysx.findings._roof_room import within_roofs
from nsysx.findings._rule import Rule as Rule
from nsysx.findings._slower_host import lost_to_slower_host_ns
from nsysx.frames import intervals, lookup
from nsysx.judging import waiting
from nsysx.judging.limits import WindowLimits, limits_of, not_recorded_ns
from nsysx.judging.program import Program, program_of
from nsysx.judging.schedule import schedule_of
from nsysx.model import Finding, Row, Scope, Table
from nsysx.replay.edits import freed_ns, shortened
from nsysx.replay.engine import Edit, Replay, Withheld, idle_of, replayed_scope
from nsysx.rows import R, TableOf
from nsysx.saving import NOTABLE
from nsysx.saving import Saving as Saving

#: The columns of a place in the program.
SITE = ("module", "phase", "file", "line")


@dataclass(frozen=True)
class Case:
    """Frames here hold the steady steps of the shown process alone, so that sums over ``steps`` are per step.

    ``ranks`` is the table that compares all ranks of the job, None where there is none; ``shown_rank`` is the number of the one that is
    shown, None if one report holds them all.
    """

    profile: Profile
    tables: Mapping[str, Table]
    replay: Replay | Withheld | None
    ranks: Table | None = None
    shown_rank: int | None = None

    @property
    def process(self) -> int:
        """The shown process."""
        return self.profile.steps.process

    @property
    def scope(self) -> Scope:
        """What the frames cover."""
        return self.profile.scope

    @property
    def steps(self) -> int:
        """How many steps the frames cover; a capture without steps is one."""
        return self.scope.steps or 1

    @property
    def stepless(self) -> bool:
        """Whether the frames cover no steps, so that all sums are over the whole of the process, first calls included."""
        return not self.scope.steps

    @property
    def per(self) -> str:
        """What a sum is taken over, in words: "per step"."""
        return self.scope.each

    @property
    def device(self) -> int | None:
        """The device on which the shown process works most."""
        return self.profile.device

    @property
    def window(self) -> tuple[int, int]:
        """The steady steps on the timeline of the busiest device, else on the CPU; (0, 0) when there are none."""
        return self.profile.window

    @cached_property
    def recorded_ns(self) -> int:
        """The mean steady step as recorded; 0 when the report has no events."""
        return int(self.scope.per_step(self.window[1] - self.window[0]))

    @cached_property
    def step_ns(self) -> int:
        """The step that costs and savings are shares of: without the profiler, or as recorded if that is not known."""
        if self._trusted:
            return round(self._trusted.real_ns * self._beside_replayed)
        timed = bool(self.rows(gpu_ledger.KEY)) and self.limits.unprofiled
        return round(self.limits.per_step(self.limits.window_ns)) if timed else self.recorded_ns

    @cached_property
    def longest_step_ns(self) -> int:
        """The mean step beyond which nothing can save: slow steps that came while nsys recorded nothing count, too."""
        timed = bare.of_process(self.profile.trace.capture, self.process)
        return max(self.step_ns, round(sum(timed) / len(timed)) if len(timed) else 0)

    @cached_property
    def _of_shown(self) -> float:
        """What a saving of replayed steps is of the shown one: what rare long steps add is not in the steps that were replayed."""
        if self._trusted is None or self._trusted.steps >= self.steps or self.profile.steps.in_rounds:
            return self._beside_replayed
        window, last = self._trusted.window, self._trusted.window.first + self._trusted.steps - 1
        rare = not_recorded_ns(self.profile, self.process, window.device, window.first, last)
        return self._beside_replayed * max(0.0, 1 - max(rare, 0.0) / max(self.step_ns, 1))

    @cached_property
    def _beside_replayed(self) -> float:
        """The length of the verdict's step, in replayed steps; the two differ where the replay covers only some of the steps."""
        replayed_ns = self._trusted.real_ns if self._trusted else 0
        if not replayed_ns or not self.rows(gpu_ledger.KEY) or not self.limits.unprofiled:
            return 1.0
        return self.limits.per_step(self.limits.window_ns) / replayed_ns

    @property
    def _trusted(self) -> Replay | None:
        return self.replay if isinstance(self.replay, Replay) and self.replay.trusted else None

    @property
    def calls(self) -> pl.DataFrame:
        """API calls."""
        return self.profile.steady_calls

    @cached_property
    def replayed(self) -> pl.DataFrame:
        """The calls that the replay covers and can edit: call, module, phase; none without a replay."""
        calls = self.calls["call", "module", "phase"]
        if not isinstance(self.replay, Replay):
            return calls.clear()
        return calls.filter(self.replay.covered(self.calls))

    @property
    def ops(self) -> pl.DataFrame:
        """GPU ops."""
        return self.profile.steady_ops

    @cached_property
    def kernels(self) -> pl.DataFrame:
        """The kernels among ``ops``: op, name, family, module, phase, ns (duration)."""
        return self.timed_ops(self.ops["op_kind"] == "kernel", "op", "name", "family", "module", "phase")

    def timed_ops(self, chosen: pl.Series, *columns: str) -> pl.DataFrame:
        """Return these columns and ``ns`` (duration) of the chosen GPU ops."""
        return self.ops.select(*columns, ns=pl.col("end_ns") - pl.col("start_ns")).filter(chosen)

    def of_kind(self, *kinds: str) -> pl.DataFrame:
        """Return the API calls of these kinds with ``ns`` (duration), file, line."""
        calls = self.calls.filter(self.calls["kind"].is_in(kinds))
        return self.with_lines(calls.with_columns(ns=pl.col("end_ns") - pl.col("start_ns")))

    def with_lines(self, calls: pl.DataFrame) -> pl.DataFrame:
        """Add file, line to calls."""
        lines = self.profile.lines()
        return calls.join(lines, on="call", how="left", maintain_order="left")

    def is_call(self, call: pl.Series) -> pl.Series:
        """Return whether these are calls of ``calls``."""
        return lookup.among(self.calls["call"], call)

    def is_op(self, op: pl.Series) -> pl.Series:
        """Return whether these are ops of ``ops``."""
        return lookup.among(self.ops["op"], op)

    @cached_property
    def idle(self) -> pl.DataFrame:
        """The idle pieces of the busiest device in the window, clipped to it, with ``ns``, and ``real_ns`` without tracing."""
        return self.profile.once(idle_of)

    def real_part(self, calls: frozenset[int]) -> float:
        """Return the share of the idle time begun in these calls that stays without tracing; of all idle time if none did."""
        began = self.idle["began_in"].is_in(list(calls)).fill_null(False)
        idle = self.idle.filter(began) if began.any() else self.idle
        return float(idle["real_ns"].sum() / max(int(idle["ns"].sum()), 1)) if idle.height else 1.0

    @property
    def upload_waits(self) -> pl.DataFrame:
        """The synchronize calls that PyTorch makes directly after a copy from pageable memory to the device: call, copy."""
        return self.profile.once(waiting.uploads)

    def rows(self, key: str) -> Sequence[Row]:
        """Return the rows of a table, none when it was not recorded."""
        table = self.tables.get(key)
        return (table.rows or ()) if table else ()

    def typed_rows(self, table: TableOf[R]) -> Sequence[R]:
        """Return the rows of a table whose columns mypy knows, none when it was not recorded."""
        return cast(Sequence[R], self.rows(table.key))

    def module(self, row: Row) -> str:
        """Return what the module of a place is called, "" where it is unknown or the place lies outside every module."""
        module = str(row.get("module") or "")
        return called(self.profile, module) if module != IN_STEP else ""

    def in_module(self, row: Row) -> str:
        """Return " in MODULE" for a place, "" without one."""
        return f" in {layers.bare(module)}" if (module := self.module(row)) else ""

    def missing(self, key: str) -> str | None:
        """Return why the capture does not hold a table, None when it does."""
        return tables_of.missing(self.tables, key)

    @cached_property
    def program(self) -> Program:
        """What kind of program this is."""
        return program_of(self.profile)

    @property
    def limits(self) -> WindowLimits:
        """Where the time of the busiest device goes: the parts that the verdict and its picture show."""
        return limits_of(self.profile)

    def lost_to(self, code: StepLimit) -> int:
        """Return the time that a verdict code accounts for, per step (ns); 0 where no GPU work was recorded."""
        return round(self.limits.per_step(self.limits.lost.get(code, 0))) if self.rows(gpu_ledger.KEY) else 0

    def taken_by(self, parts: Iterable[StepPart]) -> int:
        """Return the time that parts of the verdict take per step (ns); 0 where no GPU work was recorded."""
        return round(self.limits.per_step(sum(self.limits.parts[p] for p in parts))) if self.rows(gpu_ledger.KEY) else 0

    def per_step(self, ns: float) -> int:
        """Return a sum over the frames per step."""
        return round(self.scope.per_step(ns))

    def often(self, count: int, singular: str, several: str) -> str:
        """Return how often something happens in a step: "1 copy", "2 copies", or "20 copies in 30 steps"."""
        each, left_over = divmod(count, self.steps)
        if left_over:
            return f"{units.count(count)} {singular if count == 1 else several} in {self.steps} steps"
        return f"{units.count(each)} {singular if each == 1 else several}"

    def notable(self, ns_per_step: float, share: float = NOTABLE) -> bool:
        """Return whether a time per step is at least this share of the step."""
        return ns_per_step > 0 and ns_per_step >= share * self.step_ns

    def share(self, ns_per_step: float) -> str:
        """Return a time per step as a share of the step, for people; without steps of what the verdict divides."""
        return units.share(
            ns_per_step, self.limits.real_ns if self.stepless and self.rows(gpu_ledger.KEY) else self.step_ns
        )

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
        gone = shortened(edits)
        timed = None if gone is None else self.timed_ops(self.ops["op"].is_in(gone), "op")
        works = self.step_ns if timed is None else self.per_step(int(timed["ns"].sum()))
        repeats = round(SAME_WORK_REPEATS_SHARE * (self.step_ns - cap))
        most = max(saving, min(saving + bar, cap + repeats, works)) if bound else None
        waited_for = self.taken_by(part for part in StepPart if part.idle) <= WAITED_FOR_SHARE * self.step_ns
        if most is not None and timed is not None and waited_for and outcome.limited_by_host:
            # A host that waits for a busy GPU is not seen at work: what the replay takes for its work is the most that it may be.
            most = max(most, min(self.per_step(round(freed_ns(edits, timed))), max(cap, 0)))
            saving = (saving + most) // 2
            saving, most = self._beside_schedule(saving, edits), self._beside_schedule(most, edits)
        sure = f"{'replay error ' if bound else ''}±{units.duration(bar)}"
        if saving < bar:
            sure += ", so perhaps nothing"
        scope, then = replayed_scope(self.profile), (outcome.moves_to, outcome.next_limit)
        return Saving(saving, sure, bound, bar, most, None, "replay", scope, *then)

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
        error = max(0, told.likely_ns - low.likely_ns, lost_to_slower_host_ns(told, self.step_ns))
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

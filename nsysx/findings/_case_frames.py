"""The frames of one report that a rule works with: profile, tables and replay, the shown process, and sums per step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast

import polars as pl

from nsysx import units
from nsysx.analyses import gpu_ledger
from nsysx.analyses.helpers import tables as tables_of
from nsysx.catalogue import StepLimit, StepPart
from nsysx.events import bare, layers
from nsysx.events.attribute import IN_STEP
from nsysx.events.profile import Profile
from nsysx.findings._names import called
from nsysx.frames import lookup
from nsysx.judging import waiting
from nsysx.judging.limits import WindowLimits, limits_of
from nsysx.judging.program import Program, program_of
from nsysx.model import Row, Scope, Table
from nsysx.replay.engine import Replay, Withheld, idle_of
from nsysx.rows import R, TableOf
from nsysx.saving import NOTABLE

T = TypeVar("T")


@dataclass(frozen=True)
class CaseFrames:
    """Frames here hold the steady steps of the shown process alone, so that sums over ``steps`` are per step.

    ``ranks`` is the table that compares all ranks of the job, None where there is none; ``shown_rank`` is the number of the one that is
    shown, None if one report holds them all.
    """

    profile: Profile
    tables: Mapping[str, Table]
    replay: Replay | Withheld | None
    ranks: Table | None = None
    shown_rank: int | None = None

    def once(self, make: Callable[[Any], T]) -> T:
        """Return ``make(self)``, made once for all who ask with the same function: of what all ranks tell, not this profile alone."""
        if make not in self._made:
            self._made[make] = make(self)
        value: T = self._made[make]
        return value

    @cached_property
    def _made(self) -> dict[Callable[[Any], Any], Any]:
        return {}

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

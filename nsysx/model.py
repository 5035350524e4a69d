"""Frozen records that cross rooms. Standard library only, so that every room may import them cheaply.

The Summary is all that renderers see, and its ``to_json`` is the contract ``nsysx.summary/1``: only additive within a
major number. A table that was not recorded is ``None`` there, and ``quality`` says why and how to record it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, cast

from nsysx import records
from nsysx.advice import UNDECIDED, Alternative, Answer, Condition, Tried
from nsysx.errors import NsysxError
from nsysx.gpus import Gpu
from nsysx.pictures import Strip, Timeline
from nsysx.rows import Column as Column
from nsysx.rows import R, TableOf
from nsysx.saving import FINDING_KEYS
from nsysx.saving import Saving as Saving
from nsysx.scope import Scope as Scope  # a record like the others here
from nsysx.step_time import Step
from nsysx.step_time import Unprofiled as Unprofiled

SCHEMA = "nsysx.summary/1"

Row = Mapping[str, Any]


def _scoped(record: Any) -> dict[str, Any]:
    """Return a record's fields, its scopes as JSON values."""
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    return {k: v.to_json() if isinstance(v, Scope) else v for k, v in values.items()}


@dataclass(frozen=True, slots=True)
class TableSpec:
    """How a table is shown, declared with the analysis that makes it; nothing else needs to know the table.

    ``covers`` says what its sums cover: the "steady" events, those of the "shown device", the "replayed" steps, the "whole"
    capture, or for each of its "rows" something else (column ``steps``). ``place`` orders tables, lowest first.
    ``intro`` is its caption, ``first`` names columns in order of importance, ``bar`` the column with bars, ``unknown`` the text
    for a null in the first column, ``hide`` columns that only serve programs. The sum of the columns ``order``, else ``bar``, orders rows.

    ``group`` is the closed line of the page in which it stands, in the order of ``place``. ``matters`` are the findings and limits
    (codes) for which the page has it; if empty, it always does. ``stepless``: so does the page of a capture without steps.

    ``depth``: 0 is shown everywhere, 1 is left out of the terminal if there are steps, 2 is left out unless asked for, and the page
    folds its rows. ``rows``: the most worth showing. ``keep``: if not all fit, those with most in this column stay. ``tree``: rows are
    modules below their callers. ``ledger``: bars of parts, no grid. ``unseen``: only for programs. ``terms``: columns of the glossary.
    """

    covers: Literal["steady", "shown device", "replayed", "whole", "rows"] = "whole"
    place: int = 1000
    group: Literal["where", "module-tables", "kernel-tables", "waiting", "rank-tables", "experts"] = "experts"
    intro: str = ""
    first: tuple[str, ...] = ()
    bar: str = ""
    order: tuple[str, ...] = ()
    unknown: str = "-"
    hide: tuple[str, ...] = ()
    depth: int = 0
    rows: int = 1 << 30
    keep: str = ""
    tree: bool = False
    ledger: bool = False
    unseen: bool = False
    terms: tuple[str, ...] = ()
    matters: tuple[str, ...] = ()
    stepless: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """One answer as rows. ``rows`` is None if the capture does not hold it; ``reason`` then says why.

    ``scope`` is what its sums cover; None if each row has its own scope (``steps``), or there are no sums.
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...] | None
    reason: str = ""
    scope: Scope | None = None
    shown: TableSpec = field(default_factory=TableSpec)

    def typed_rows(self, table: TableOf[R]) -> Sequence[R]:
        """Return its rows with the columns that mypy knows, empty if it was not recorded."""
        return cast(Sequence[R], self.rows or ())


Doubt = Literal["", "cause", "findings", "numbers", "everything"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line about how far the capture can be trusted; ``fix`` is a command or change that would fix it.

    ``table`` is the key of the missing table if the line is about one. ``doubt`` is what a line that is not ok makes doubtful: every
    one of the "numbers", of which the reader is warned before anything else, "everything", so that nothing is claimed at all, what was
    found to be the "cause", or that nothing else could be found ("findings"); ``short`` says it in fewer words than ``detail``.
    """

    check: str
    status: Literal["ok", "warn", "missing"]
    detail: str
    fix: str = ""
    table: str = ""
    doubt: Doubt = ""
    short: str = ""

    @staticmethod
    def no_table(table: Table) -> Check:
        """Return the line that says why a table is missing."""
        return Check(f"table {table.key}", "missing", table.reason, table=table.key)


def in_order(checks: Iterable[Check]) -> tuple[Check, ...]:
    """Return checks in reading order: trouble first, missing tables last."""
    order = {"missing": 0, "warn": 1, "ok": 2}
    return tuple(sorted(checks, key=lambda c: (bool(c.table), 0 if c.table else order[c.status])))


@dataclass(frozen=True, slots=True)
class Capture:
    """Allow-listed facts about where the numbers come from. ``utc_epoch_ns`` is event time zero.

    ``content_id`` is the same for every export and copy of one capture, and differs between captures. ``driver_version`` and
    ``sm_clock_mhz``, the median clock of the busiest GPU as sampled by `nsysx run --clocks`, are null if they were not recorded.
    ``cupti_left`` holds the ids of the processes of which nsys says that CUPTI left them at the end of the (first) window, null for
    one that it does not name. ``never`` names the message of `nsys_messages` that says why a capture without CUDA has none, where nsys
    wrote none itself, else null.
    """

    files: tuple[str, ...]
    nsys_version: str | None
    schema_version: str | None
    gpus: tuple[Gpu, ...]
    processes: tuple[Row, ...]
    duration_ns: int | None
    diagnostics: tuple[Row, ...]
    utc_epoch_ns: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    probe: tuple[Row, ...] = ()
    exit_code: int | None = None
    content_id: str = ""
    driver_version: str | None = None
    sm_clock_mhz: int | None = None
    cupti_left: tuple[int | None, ...] = ()
    never: str | None = None


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps and the rule that found them.

    ``steady`` is the first and last index of the steady steps, inclusive. ``whole``: ledgers and per-step tables cover the
    whole capture, so none of their figures may be divided by a number of steps. ``trend`` is the course of the steady steps:
    kind, change, spread, every, excess_ns, note (words to quote, empty for level steps). ``between`` has one row for each
    stretch after step ``index`` that is not a step, such as an evaluation: index, gpu_ns, gpu_busy_ns, cpu_ns, evaluation. Means
    are over the steady steps and are shown, because the parts of a step add up to its mean; medians show how even the steps are.

    ``levels`` has one row for each level of their lengths, the usual one first: median_ns, count (steps), every (k for each k-th
    step, null if not regular), mean_ns, low_ns, high_ns. ``coverage`` says how the time from the first to the last CUDA call or
    GPU work of the process (wall_ns) divides on its busiest device, without one on the CPU: steady_ns, share (of wall_ns in
    steady steps), loop_ns (first to last step), loop_share (of loop_ns), and rest, a row for everything else: what, ns; steady_ns
    and the rest sum to wall_ns. It is null without steps. ``parts``: a step is so many of what ``rule`` marks, and what comes before.
    ``all_steady``, if ``steady`` is not all of them: steps, mean_ns, median_ns, low_ns, high_ns of all; so are trend and coverage.
    ``sampled``, if some steps of a long capture were read: how many (``read``; ``rows`` has these, ``count`` is of all); ``usual_ns``, the
    mean of all later steps but the rare long ones, ``error``, by which share the mean of ``steady`` is off it, and those ``long`` ones.
    """

    source: str
    rule: str
    count: int
    steady: tuple[int, int] | None
    cpu_median_ns: int | None
    gpu_median_ns: int | None
    rows: tuple[Row, ...]
    whole: bool = False
    trend: Row = field(default_factory=dict)
    between: tuple[Row, ...] = ()
    cpu_mean_ns: int | None = None
    gpu_mean_ns: int | None = None
    scope: Scope | None = None
    levels: tuple[Row, ...] = ()
    coverage: Row | None = None
    parts: int = 1
    all_steady: Row | None = None
    sampled: Row | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits the step: one code, one sentence, the numbers behind it, and their scope.

    ``parts``: where the device's time goes, by `StepPart` (ns of one step, or of the whole window without steps); they sum to ``step_ns``,
    the step that the sentence speaks of. ``recorded_ns``: as recorded, if that differs enough; ``timed_ns``: bare, if no replay divides
    it; ``estimated``: not measured bare. ``line``: that of most of the GPU's work; ``idle_at``: of most idle time for a host, or pauses.
    """

    code: str
    sentence: str
    evidence: tuple[str, ...] = ()
    scope: Scope | None = None
    step_ns: int | None = None
    parts: Mapping[str, int] = field(default_factory=dict)
    recorded_ns: int | None = None
    estimated: bool = False
    host: str = "Python"
    late_rank: int | None = None
    line: Row = field(default_factory=dict)
    idle_at: Row = field(default_factory=dict)
    timed_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one rule: found, clear, or cannot tell.

    ``paste`` makes the change, ``condition`` must hold for it, ``conditions`` are tested. ``because``: the end of the detail, on a wrong
    reading. ``*_as_recorded``: so are they; all other times are of the shown step. ``own_ns_per_step``: what counts here alone, sums
    stay within the step. ``stepless_ns``: the cost where there are no steps. ``overlaps``: findings about the same time, or that save more
    together than both are about. ``remedies``: what ``fix`` advises, any will do. ``unexplained``: it only says what to record.
    """

    code: str
    slug: str
    verdict: Literal["found", "clear", "cannot_tell"]
    title: str
    detail: str
    where: Row = field(default_factory=dict)
    cost_ns_per_step: int | None = None
    saving: Saving = field(default_factory=Saving)
    fix: str = ""
    evidence: tuple[Row, ...] = field(default=(), repr=False)
    paste: str = ""
    condition: str = ""
    scope: Scope | None = None
    because: str = ""
    title_as_recorded: bool = False
    cost_as_recorded: bool = False
    unexplained: bool = False
    stepless_ns: int | None = None
    conditions: tuple[Condition, ...] = ()
    own_ns_per_step: int | None = None
    overlaps: tuple[int, ...] = ()
    remedies: tuple[Alternative, ...] = ()

    @property
    def saving_ns_per_step(self) -> int | None:
        """What the change saves of a step (ns), under the name that it has in the JSON; None where no claim can be made."""
        return self.saving.likely_ns

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: what the finding saves stands among them, not in an object of its own."""
        records_of = {key: [asdict(r) for r in getattr(self, key)] for key in ("conditions", "remedies")}
        values = {**_scoped(self), **self.saving.to_json(), **records_of}
        return {key: values[key] for key in FINDING_KEYS}

    def typed_rows(self, table: TableOf[R]) -> Sequence[R]:
        """Return the evidence with the columns that mypy knows, empty if it is the evidence of another rule."""
        return cast(Sequence[R], self.evidence) if self.code == table.key else ()


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything that is shown, and nothing else."""

    version: str
    capture: Capture = field(repr=False)
    quality: tuple[Check, ...] = field(repr=False)
    totals: Row = field(repr=False)
    steps: Steps = field(repr=False)
    verdict: Verdict
    tables: Mapping[str, Table] = field(repr=False)
    replay: Row | None = field(repr=False)
    findings: tuple[Finding, ...] | None = field(repr=False)
    timelines: tuple[Timeline, ...] = field(default=(), repr=False)
    strips: tuple[Strip, ...] = field(default=(), repr=False)
    unprofiled: Unprofiled | None = None
    tried: tuple[Tried, ...] = field(default=(), repr=False)
    answer: Answer = field(default=UNDECIDED, repr=False)

    @property
    def step(self) -> Step:
        """The step that every time refers to, without the profiler where the verdict knows it, and the same as recorded."""
        steps, verdict, late = self.steps, self.verdict, self.verdict.late_rank
        mean_ns = steps.cpu_mean_ns if steps.gpu_mean_ns is None else steps.gpu_mean_ns
        recorded_ns = None if steps.whole or steps.source == "capture" else verdict.recorded_ns or mean_ns
        waits = late is not None and any(r["rank"] == late for r in self.rows("ranks"))
        marked = verdict.recorded_ns is not None
        return Step.completed(self.unprofiled, verdict.step_ns, recorded_ns, marked=marked, waits_for_rank=waits)

    def rows(self, key: str) -> Sequence[Row]:
        """Return the rows of a table, empty if it was not recorded."""
        table = self.tables.get(key)
        return (table.rows or ()) if table else ()

    def typed_rows(self, table: TableOf[R]) -> Sequence[R]:
        """Return the rows of a table whose columns mypy knows, empty if it was not recorded."""
        return cast(Sequence[R], self.rows(table.key))

    def recorded(self, table: TableOf[R]) -> Sequence[R] | None:
        """Return the rows of a table whose columns mypy knows, None if it was not recorded."""
        held = self.tables.get(table.key)
        return cast(Sequence[R] | None, held.rows if held else None)

    def scope_of(self, row: Row) -> Scope:
        """Return the scope of a row that has its own: its ``process`` and its ``steps``."""
        shown, process = self.steps.scope or Scope("capture", ()), row.get("process")
        steps = (row["steps"] or 0) if "steps" in row else shown.steps
        covered = shown.of if bool(steps) == bool(shown.steps) else "steady" if steps else "capture"
        return Scope(covered, () if process is None else (process,), steps=steps)

    def to_json(self) -> dict[str, Any]:
        """Return the Summary as plain JSON values, keys as in the contract."""
        # Not asdict: it would copy thousands of rows value by value.
        return {
            "schema": SCHEMA,
            "tool": {"version": self.version},
            "capture": asdict(self.capture),
            "quality": [asdict(c) for c in self.quality],
            "totals": dict(self.totals),
            "steps": _scoped(self.steps),
            "verdict": _scoped(self.verdict),
            "answer": asdict(self.answer),
            **{key: None if t.rows is None else [dict(r) for r in t.rows] for key, t in self.tables.items()},
            "replay": None if self.replay is None else dict(self.replay),
            "unprofiled": None if self.unprofiled is None else asdict(self.unprofiled),
            "tried": [asdict(t) for t in self.tried],
            "findings": None if self.findings is None else [f.to_json() for f in self.findings],
            "scopes": {key: t.scope.to_json() for key, t in self.tables.items() if t.scope},
        }

    @staticmethod
    def from_json(data: object, name: str = "this") -> Summary:
        """Return the Summary that ``to_json`` made; ``name`` is what errors call it.

        A table comes back with its rows, reason and scope, without its title and columns, which the JSON does not hold;
        timelines are not in it at all. What a later version added is left out. Raises NsysxError, exit code 3, for anything
        else than a Summary, one of another major version, and one whose fields are missing or of another type.
        """
        schema = data.get("schema") if isinstance(data, Mapping) else None
        if not isinstance(data, Mapping) or not isinstance(schema, str) or not schema.startswith("nsysx.summary/"):
            hint = "Make one with: nsysx report FILE.sqlite --json FILE.json"
            raise NsysxError(f"{name}: is not a Summary of nsysx", slug="not-a-summary", hint=hint)
        if schema != SCHEMA:
            hint = "Make it again from the report, or use the nsysx that made it"
            raise NsysxError(f"{name}: is {schema[:40]}, but this nsysx reads {SCHEMA}", slug="other-schema", hint=hint)
        try:
            return _from_json(data)
        except records.UnreadableError as error:
            raise NsysxError(f"{name}: the Summary is damaged: {error}", slug="bad-summary") from error


#: Keys of the JSON that are neither a field of the Summary nor a table.
_OTHER_KEYS = ("schema", "tool", "scopes")


def _from_json(data: Mapping[str, Any]) -> Summary:
    """Return a Summary from its JSON. Raises records.UnreadableError."""
    values = {**data, "version": records.mapping(data.get("tool"), "tool").get("version"), "tables": {}}
    if isinstance(findings := data.get("findings"), list):
        values["findings"] = [Saving.nested(f) if isinstance(f, Mapping) else f for f in findings]
    summary = records.record(Summary, values, "Summary")
    scopes = records.mapping(data.get("scopes", {}), "scopes")
    reasons = {check.table: check.detail for check in summary.quality if check.table}
    tables = {
        key: Table(
            key,
            key,
            columns=(),
            rows=None if rows is None else records.rows(rows, key),
            reason=reasons.get(key, ""),
            scope=records.record(Scope, scopes[key], f"scopes.{key}") if key in scopes else None,
        )
        for key, rows in data.items()
        if key not in _OTHER_KEYS and key not in Summary.__dataclass_fields__
    }
    return replace(summary, tables=tables)

"""The answer for programs: a few kB of JSON with stable ids, numbers with their units and scope, and how to check each.

It needs none of the tables of ``--json``. It says what limits the step and how long the step is without a profiler (``verdict``,
``step``, ``gpu``), what to change, what that saves and when to stop (``findings``), what waits cost and where they move
(``waits``), what launches cost (``launches``), what is paid only once (``paid_once``), what the program's own clocks read beside
the true kernel times (``clocks``), and what is not known and which flag would record it (``unknown``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from nsysx import units
from nsysx.advice import Answer, Bar
from nsysx.analyses import events, launches, stopwatch, waits
from nsysx.analyses.helpers.step_record import rows_of
from nsysx.analyses.launches import LaunchRow
from nsysx.analyses.waits import WaitRow
from nsysx.answer import bars, subject
from nsysx.model import Finding, Row, Scope, Summary
from nsysx.render import answer as answers
from nsysx.render.answer import Worded
from nsysx.render.safe_text import clean, harmless_json, shorten_kernel, without_homes
from nsysx.rows import R, TableOf

BRIEF_SCHEMA = "nsysx.brief/1"

#: Most rows of each list: more than anybody acts on.
_MOST_FINDINGS, _MOST_ROWS, _MOST_BARS, _MOST_UNKNOWN = 12, 3, 8, 8

Json = dict[str, Any]


#: Tables whose columns mypy does not know.
_STOPWATCH: TableOf[Row] = TableOf(stopwatch.KEY)
_EVENTS: TableOf[Row] = TableOf(events.KEY)


def _text(value: object, limit: int) -> str:
    return clean(str(value)[: 4 * limit], limit)


def _ns(value: float | None) -> int | None:
    return None if value is None else round(value)


def _where(row: Row) -> Json:
    """Return the place in the program that a row names."""
    return {k: _text(row[k], 160) for k in ("module", "phase", "near", "file", "line") if row.get(k) is not None}


def of(summary: Summary, *, redact: bool = True) -> str:
    """Return the answer of a Summary as JSON. Times are in ns, and per step where ``over`` names steps."""
    worded = answers.build(summary, redact=redact)
    content: Json = {
        "schema": BRIEF_SCHEMA,
        "report": worded.facts[0],
        "verdict": {"code": summary.verdict.code, "sentence": worded.sentence},
        "step": _step(summary, worded),
        "gpu": _parts(summary),
        "picture": [_bar(b) for b in worded.bars[:_MOST_BARS] if b != bars.step_bar(summary)],
        "do_first": _do_first(worded, summary.answer),
        "findings": _findings(summary, worded),
        "how_sure": [
            {"about": s.about, "level": s.level, "reason": s.reason, "settle_with": s.command} for s in worded.sure
        ],
        "waits": _rows(summary, waits.ROWS, lambda r: r["total_ns"], _wait),
        "launches": _rows(summary, launches.ROWS, lambda r: r["launches"], _launch),
        "paid_once": _paid_once(summary),
        "clocks": {
            "synchronize": _rows(summary, _STOPWATCH, lambda r: r.get("custom"), _clock, only=_is_measured),
            "events": _rows(summary, _EVENTS, lambda r: r.get("windows"), _window),
        },
        "unknown": [
            {"what": _text(c.check, 80), "why": _text(c.detail, 160), "record_with": _text(c.fix, 100)}
            for c in summary.quality
            if c.status == "missing" and c.fix
        ][:_MOST_UNKNOWN],
        "ask_next": list(worded.commands),
    }
    content = without_homes(content) if redact else content
    return harmless_json(json.dumps(content, indent=1, ensure_ascii=False)) + "\n"


def _step(summary: Summary, worded: Worded) -> Json:
    """Return the step as recorded and without the profiler, with its bounds; null values where there are no steps."""
    real = summary.unprofiled
    low, high = summary.step.bounds_ns or (None, None)
    return {
        "recorded_ns": worded.profiled_ns,
        "unprofiled_ns": summary.step.real_ns,
        "low_ns": low,
        "high_ns": high,
        "source": None if real is None else real.source,
        "steady": sum(bool(r.get("steady")) for r in rows_of(summary.steps)),
        "found_by": _text(summary.steps.rule, 160),
        "levels_as_recorded": [
            {k: r[k] for k in ("median_ns", "count", "every")}
            for r in summary.steps.levels[:_MOST_ROWS]
            if len(summary.steps.levels) > 1
        ],
        "coverage": _coverage(summary),
    }


def _coverage(summary: Summary) -> Json | None:
    """Return how much of the recorded time the steady steps are, and what else it holds; they sum to it. None without steps."""
    covered = summary.steps.coverage
    if covered is None:
        return None
    rest = {_text(r["what"], 80): r["ns"] for r in covered["rest"]}
    return {"recorded_ns": covered["wall_ns"], "steady_steps_ns": covered["steady_ns"], "rest_ns": rest}


def _bar(bar: Bar) -> Json:
    """Return another bar of the first screen: a rank, a module, a window or a way of timing."""
    parts = [{"what": p.label, "ns": round(p.ns), "idle": p.idle} for p in bar.parts if p.label]
    return {"label": bar.label, "total_ns": round(bar.total_ns), "parts": parts}


def _parts(summary: Summary) -> Json | None:
    """Return what the busiest GPU does in the step, or in the capture where there is none; null without GPU work."""
    verdict = summary.verdict
    if subject.ledger_row(summary) is None or not verdict.step_ns:
        return None
    parts = [{"what": p.label, "ns": round(p.ns), "idle": p.idle} for p in bars.step_parts(summary)]
    stepped = summary.step.shown_ns is not None
    return {
        "over": "one step" if stepped else "the whole capture",
        "total_ns": verdict.step_ns,
        "busy_ns": sum(p["ns"] for p in parts if not p["idle"]),
        "parts": parts,
    }


# ---------------------------------------------------------------- findings


def _do_first(worded: Worded, answer: Answer) -> Json:
    """Return the first card: the change, and the step before and after it; ``code`` is empty where there is none."""
    return {
        "code": worded.code,
        "do": worded.do,
        "paste": worded.paste,
        "condition": worded.condition,
        "where": worded.where,
        "now_ns": worded.now_ns,
        "then_ns": worded.then_ns,
        "at_best": worded.bound,
        "best_ns": answer.best_ns,
        "tried": list(worded.tried[:_MOST_ROWS]),
    }


def _findings(summary: Summary, worded: Worded) -> list[Json]:
    findings = [f for f in summary.findings or () if f.verdict == "found"][:_MOST_FINDINGS]
    seen: dict[str, int] = {}
    return [_finding(f, summary, worded, seen) for f in findings]


def _id(finding: Finding, seen: dict[str, int]) -> str:
    """Return a finding's id: its code and place, which the same finding has in other reports, too."""
    where = "/".join(_text(finding.where[k], 80) for k in ("module", "phase", "file", "line") if finding.where.get(k))
    name = finding.code + (f"@{where}" if where else "")
    seen[name] = seen.get(name, 0) + 1
    return name if seen[name] == 1 else f"{name}#{seen[name]}"


def _finding(finding: Finding, summary: Summary, worded: Worded, seen: dict[str, int]) -> Json:
    saving, cost = _saving(finding, summary, worded.now_ns), finding.cost_ns_per_step
    findings = summary.findings or ()
    scope = finding.scope or summary.steps.scope
    return {
        "id": _id(finding, seen),
        "code": finding.code,
        "what": _text(finding.title, 160),
        "where": _where(finding.where),
        "over": scope.label if scope else "",
        "saving": saving,
        "cost": None if cost is None else {"value": cost, "unit": "ns per step"},
        "overlaps": " ".join(dict.fromkeys(findings[n].code for n in finding.overlaps)),
        "do": _text(finding.fix, 300),
        "check": f"nsysx compare {worded.facts[0]} AFTER.sqlite",
        "stop_if": _stop(finding, saving, worded.now_ns),
    }


def _saving(finding: Finding, summary: Summary, now: int | None) -> Json | None:
    saving = summary.step.saves_ns(finding.saving)
    if saving is None or now is None:
        return None
    error = finding.saving.error_ns or 0
    high = (
        (summary.step.saves_at_most_ns(finding.saving) or saving) if finding.saving.bound else min(now, saving + error)
    )
    low = 0 if finding.saving.bound else max(0, saving - error)
    return {"value": saving, "unit": "ns per step", "low": low, "high": high, "bound": finding.saving.bound}


def _stop(finding: Finding, saving: Json | None, now: int | None) -> str:
    """Return the observation that shows that the change did not work."""
    if saving is None or now is None:
        return f"a report of the changed program still has {finding.code} here"
    if not saving["low"]:
        return f"a step of the changed program is no shorter than {units.duration(now)}"
    return f"a step of the changed program takes more than {units.duration(now - saving['low'])}"


# ---------------------------------------------------------------- what tables say


def _rows(
    summary: Summary,
    table_of: TableOf[R],
    largest: Callable[[R], float | None],
    make: Callable[[R, Scope | None], Json],
    *,
    only: Callable[[R], bool] = lambda _: True,
) -> list[Json] | None:
    """Return the top rows of a table by what ``largest`` says of each; null where the table was not recorded."""
    table = summary.tables.get(table_of.key)
    if table is None or table.rows is None:
        return None
    rows = sorted(filter(only, summary.of(table_of)), key=lambda r: -(largest(r) or 0))
    scope = table.scope if table.scope is None or len(table.scope.processes) < 2 else None
    over = table.scope.label if table.scope else "in the whole capture"
    return [{**make(row, scope), "over": over} for row in rows[:_MOST_ROWS]]


def _each(value: float | None, scope: Scope | None) -> int | None:
    """Return a table's sum per step; the sum itself where the table has no steps."""
    return None if value is None else round(scope.per_step(value) if scope else value)


def _wait(row: WaitRow, scope: Scope | None) -> Json:
    return {
        "call": _text(row["api"], 80),
        "where": _where(row),
        "wait_ns": _each(row["total_ns"], scope),
        "for_earlier_work_ns": _each(row["backlog_ns"], scope),
        "gpu_idle_ns": _each(row["idle_caused_ns"], scope),
        "saving_ns": _each(row.get("saving_ns"), scope),
        "moves_to": None if not row.get("moves_to") else _text(row["moves_to"], 160),
    }


def _launch(row: LaunchRow, scope: Scope | None) -> Json:
    calls = row["launches"] if scope is None or not scope.steps else scope.per_step(row["launches"])
    return {"call": _text(row["name"], 80), "calls": calls, "median_ns": _ns(row["median_ns"])}


def _paid_once(summary: Summary) -> Json | None:
    """Return the CPU time that a run pays only once, and what for; null where the start was not recorded."""
    table = summary.tables.get("first_calls")
    if table is None or table.rows is None:
        return None
    rows = sorted(table.rows, key=lambda r: -(r["one_time_ns"] or 0))
    return {
        "total_ns": sum(r["one_time_ns"] or 0 for r in rows),
        "largest": [
            {"what": shorten_kernel(_text(r["name"], 400), 100), "kind": r["what"], "ns": r["one_time_ns"]}
            for r in rows[:_MOST_ROWS]
        ],
    }


def _is_measured(row: Row) -> bool:
    return bool(row.get("both_from") == "measured")


def _clock(row: Row, _: Scope | None) -> Json:
    """Return what a CPU clock around a kernel reads, by where the program synchronizes; medians."""
    return {
        "kernel": shorten_kernel(_text(row["name"], 400), 100),
        "kernel_ns": _ns(row["kernel_ns"]),
        "before_and_after_ns": _ns(row["both_ns"]),
        "only_before_ns": _ns(row["before_ns"]),
        "only_after_ns": _ns(row["after_ns"]),
        "nowhere_ns": _ns(row["none_ns"]),
    }


def _window(row: Row, _: Scope | None) -> Json:
    """Return what the windows between two cuda.Events at one place read: the first and the median."""
    return {
        "windows": row["windows"],
        "first_ns": _ns(row["first_ns"]),
        "median_ns": _ns(row["median_ns"]),
        "kernel_ns": _ns(row["kernel_median_ns"]),
    }

"""What the outputs show of a Summary: its rank and device, whether its step is a mean of unlike ones, and what a finding changes."""

from __future__ import annotations

from nsysx import findings
from nsysx.analyses import gpu_ledger
from nsysx.answer.answer_bounds import LEAST_LEADING_SHARE
from nsysx.catalogue import StepLimit, StepPart
from nsysx.events import levels, measuring
from nsysx.events.levels import Level
from nsysx.model import Finding, Summary
from nsysx.ranks import rank_table


def on_average(summary: Summary) -> bool:
    """Return whether the steady steps have so different lengths that their mean, the shown step, is the length of none."""
    course = summary.steps.trend.get("kind")
    return course in ("growing", "falling") or bool(levels.note(tuple(Level(**r) for r in summary.steps.levels)))


def measures(summary: Summary) -> bool:
    """Return whether the program measures single operations: what its clocks read leads, whatever the GPU waits for meanwhile."""
    return summary.steps.rule.endswith(measuring.WHY)


def ledger_row(summary: Summary) -> gpu_ledger.GpuRow | None:
    """Return the row of the busiest device of the shown process, None without GPU work."""
    rows = summary.typed_rows(gpu_ledger.ROWS)
    scope = summary.verdict.scope or summary.steps.scope
    shown = scope.processes if scope is not None else ()
    of_shown = [r for r in rows if r["process"] in shown] or list(rows)
    return max(of_shown, key=lambda r: r["busy_ns"], default=None)


def about_loop(summary: Summary) -> Finding | None:
    """Return the finding about what runs between the steps, None where there is none."""
    told = (f for f in summary.findings or () if f.verdict == "found" and findings.rule_of(f.code).about == "loop")
    return next(told, None)


def rank_waited_for(summary: Summary) -> rank_table.RankRow | None:
    """Return the row of the rank that the verdict names as late, None where it names none."""
    late = summary.verdict.late_rank
    return None if late is None else next((r for r in summary.typed_rows(rank_table.ROWS) if r["rank"] == late), None)


def of_a_job(summary: Summary) -> bool:
    """Return whether several ranks of a job are known."""
    return len(summary.typed_rows(rank_table.ROWS)) > 1


def paced(summary: Summary) -> Finding | None:
    """Return the finding about a line that waits for what comes by a clock, None where none does: a shorter step waits for it, too."""
    findings_made = (f for f in summary.findings or () if f.verdict == "found")
    return next((f for f in findings_made if any(row.get("beat_ns") for row in f.evidence)), None)


def names_its_change(finding: Finding) -> bool:
    """Return whether a finding's first remedy is for what was recorded, such as a call of a library, and not for any chain of kernels."""
    return bool(finding.remedies) and not findings.for_anything(finding.remedies[0].name)


def replayed(summary: Summary) -> bool:
    """Return whether a replay comes near the recorded steps, so that it can price changes."""
    return summary.replay is not None and bool(summary.replay.get("trusted", True))


def beside_computing_ns(summary: Summary) -> int | None:
    """Return what the GPU does not compute of a step (ns), where that is little: without any replay, no change of anything but its kernels
    saves more. None where the step is not known, or the GPU has more such time.
    """
    parts = summary.verdict.parts
    whole, beside = sum(parts.values()), sum(ns for part, ns in parts.items() if part != StepPart.WORK)
    if summary.step.shown_ns is None or summary.verdict.code != StepLimit.GPU or not whole:
        return None
    return beside if beside < LEAST_LEADING_SHARE * whole else None

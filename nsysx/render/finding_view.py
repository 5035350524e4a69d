"""Findings as text: what they cost and save, in the time of the shown step or named as recorded."""

from __future__ import annotations

from dataclasses import dataclass

from nsysx import units
from nsysx.model import Column, Finding, Row, Summary, Table
from nsysx.render import step_time
from nsysx.render.advice import NOTABLE
from nsysx.render.grids import Grid, Texts, grid
from nsysx.render.safe_text import clean, file_name


@dataclass(frozen=True, slots=True)
class FindingView:
    """A finding with its numbers as text."""

    code: str
    verdict: str
    title: str
    detail: str
    where: str
    cost: str
    cost_time: str
    saving: str
    confidence: str
    fix: str
    evidence: Grid | None
    notable: bool = False


def _where(where: Row, texts: Texts) -> str:
    """Return a place in the program as text."""
    parts = []
    if where.get("module"):
        parts.append(f"module {texts(where['module'], 120)}")
    if where.get("phase"):
        parts.append(texts(where["phase"], 40))
    if where.get("file"):
        line = f":{where['line']}" if where.get("line") else ""
        parts.append(f"{texts(file_name(str(where['file'])[:2000], texts.redact), 160)}{line}")
    return ", ".join(parts)


def no_first(summary: Summary) -> str:
    """Return why there is nothing to do first."""
    if summary.replay is None or not summary.replay.get("trusted", True):
        return "What a change would save cannot be said: there is no replay of steady steps that could be trusted."
    return "Nothing that was looked for saves 1 % of the step."


def finding_of(finding: Finding, summary: Summary, texts: Texts, width: int) -> FindingView:
    """Return a finding as text: its saving in the time of the shown step, its cost named where it is not."""
    saving = step_time.saving_ns(summary, finding)
    cost = "" if finding.cost_ns_per_step is None else units.duration(finding.cost_ns_per_step)
    evidence = None
    if finding.evidence:
        names = {k: v for row in finding.evidence for k, v in row.items()}
        columns = tuple(
            Column(k, "Int64" if isinstance(v, int | float) else "String", "", "") for k, v in names.items()
        )
        table = Table("", "Evidence", columns, finding.evidence)
        evidence = grid(table, top=20, redact=texts.redact, width=width)
    return FindingView(
        code=clean(finding.code, 20),
        verdict=finding.verdict,
        title=step_time.title(summary, finding, texts(finding.title, 200))
        if finding.verdict == "found"
        else texts(finding.title, 200),
        detail=texts(finding.detail, 2000),
        where=_where(finding.where, texts),
        cost=cost,
        cost_time="as recorded" if step_time.in_recorded_time(summary) and finding.cost_as_recorded else "",
        saving="" if not saving else ("at most " if finding.bound else "") + units.duration(saving),
        confidence=texts(finding.confidence, 200),
        fix=texts(finding.fix, 2000),
        evidence=evidence,
        notable=(saving or 0) >= NOTABLE * (step_time.step_ns(summary) or 0) and bool(saving),
    )


def findings_of(summary: Summary, texts: Texts, width: int) -> tuple[FindingView, ...] | None:
    """Return the findings: found first by saving, then what cannot be told, then what is clear."""
    if summary.findings is None:
        return None
    order = {"found": 0, "cannot_tell": 1, "clear": 2}
    ranked = sorted(summary.findings, key=lambda f: (order[f.verdict], -(f.saving_ns_per_step or 0), f.code))
    return tuple(finding_of(f, summary, texts, width) for f in ranked)

"""Findings as text: what they cost and save, in the time of the shown step, or marked as recorded."""

from __future__ import annotations

from dataclasses import dataclass

from nsysx import units
from nsysx.answer.bars import called
from nsysx.events.layers import bare
from nsysx.model import Column, Finding, Row, Summary, Table
from nsysx.render.answer_text import listed
from nsysx.render.grids import CellTexts, Grid, grid
from nsysx.render.safe_text import clean, file_name
from nsysx.saving import NOTABLE


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
    overlaps: str = ""
    counted: str = ""
    line: str = ""
    paste: str = ""
    condition: str = ""


def _place_text(where: Row, summary: Summary, texts: CellTexts) -> str:
    """Return a place in the program as text; a phase that is the whole place stands once."""
    parts = []
    module, phase = (str(where.get(k) or "") for k in ("module", "phase"))
    if module:
        parts.append(texts(called(summary, module), 120))
    if phase and phase != bare(module):
        parts.append(texts(phase, 40))
    if where.get("near"):
        parts.append(texts(where["near"], 120))
    return ", ".join(filter(None, (*parts, _line(where, texts))))


def _line(where: Row, texts: CellTexts) -> str:
    """Return the line of a place, or its file; "" without one."""
    if not where.get("file"):
        return ""
    line = f":{where['line']}" if where.get("line") else ""
    # With its folder, as the answer has it: tables have bare names, and JSON the whole path.
    return f"{texts(file_name(str(where['file'])[:2000], True), 160)}{line}"


def _one_name(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return the rows with one column of names where each row has a name in only one of the first two: a part, or a kernel."""
    heads = list(dict.fromkeys(k for row in rows for k in row))
    texts = [k for k in heads if all(isinstance(row.get(k, ""), str) for row in rows)]
    if len(texts) < 2 or any(bool(row.get(texts[0])) == bool(row.get(texts[1])) for row in rows):
        return rows
    first, other = texts[:2]
    return tuple(
        {first: row.get(first) or row[other], **{k: v for k, v in row.items() if k not in (first, other)}}
        for row in rows
    )


def _news(finding: Finding) -> tuple[Row, ...]:
    """Return the evidence without what the answer alone asks of it (yes or no) and what the detail says in the same words.

    Where only a name is left of it there is none.
    """
    heads = dict.fromkeys(k for row in finding.evidence for k in row)
    detail = finding.detail.casefold()

    def is_news(head: str) -> bool:
        values = [row[head] for row in finding.evidence if row.get(head) is not None]
        if all(isinstance(v, bool) for v in values):
            return False
        return not all(isinstance(v, str) and v and v.rstrip(".").casefold() in detail for v in values)

    shown = [head for head in heads if is_news(head)]
    if not any(isinstance(row.get(head), int | float) for row in finding.evidence for head in shown) and len(shown) < 2:
        return ()
    return tuple({k: v for k, v in row.items() if k in shown} for row in finding.evidence)


def finding_of(finding: Finding, summary: Summary, texts: CellTexts, width: int) -> FindingView:
    """Return a finding as text. Its saving is time of the shown step; its cost says so where it is as recorded."""
    saving = summary.step.saves_ns(finding.saving)
    told = summary.answer
    last = told.do[-1].finding if told.do else None
    if saving and last is not None and finding is (summary.findings or ())[last] and told.now_ns and told.then_ns:
        saving = told.now_ns - told.then_ns  # of one fact, one number
    cost = "" if finding.cost_ns_per_step is None else units.duration(finding.cost_ns_per_step)
    evidence = None
    if news := _news(finding):
        rows = _one_name(news)
        names = {k: v for row in rows for k, v in row.items()}
        columns = tuple(
            Column(k, "Int64" if isinstance(v, int | float) else "String", "", "") for k, v in names.items()
        )
        table = Table("", "Evidence", columns, rows)
        evidence = grid(table, top=20, redact=texts.redact, width=width)
    title = texts(finding.title, 200)
    if title.startswith("*:"):
        title = f"Repeated blocks{title[1:]}"
    return FindingView(
        code=clean(finding.code, 20),
        verdict=finding.verdict,
        title=summary.step.marks_title(title, as_recorded=finding.title_as_recorded)
        if finding.verdict == "found"
        else title,
        detail=texts(finding.detail, 2000),
        where=_place_text(finding.where, summary, texts),
        line=_line(finding.where, texts),
        cost=cost,
        cost_time="as recorded" if summary.step.marked and finding.cost_as_recorded else "",
        saving="" if not saving else ("at most " if finding.saving.bound else "") + units.duration(saving),
        confidence=texts(finding.saving.confidence, 200),
        fix=texts(finding.fix, 2000),
        evidence=evidence,
        overlaps=listed(
            tuple(dict.fromkeys(summary.findings[n].code for n in finding.overlaps)) if summary.findings else ()
        ),
        counted=_counted_share(finding, summary),
        paste=finding.paste,
        condition=texts(finding.condition, 2000),
        notable=(saving or 0) >= NOTABLE * (summary.step.shown_ns or 0) and bool(saving),
    )


def _counted_share(finding: Finding, summary: Summary) -> str:
    """Return how much of a cost counts with the finding, where others that it overlaps with count the rest: each time counts once."""
    cost, counted = finding.cost_ns_per_step, finding.own_ns_per_step
    step = summary.step.shown_ns
    if cost is None or counted is None or not finding.overlaps or not step or cost - counted < NOTABLE * step:
        return ""
    if counted < NOTABLE * step:
        return "all of it also counted elsewhere"
    return f"{units.duration(counted)} of it not counted elsewhere"


def findings_of(summary: Summary, texts: CellTexts, width: int) -> tuple[FindingView, ...] | None:
    """Return the findings: that of the first screen, the others found by saving, those that cannot be told, those that are clear."""
    if summary.findings is None:
        return None
    first = {a.finding for a in summary.answer.do}
    rest = [f for index, f in enumerate(summary.findings) if index not in first]
    shown = [f for index, f in enumerate(summary.findings) if index in first]
    shown += [f for verdict in ("found", "cannot_tell", "clear") for f in rest if f.verdict == verdict]
    return tuple(finding_of(f, summary, texts, width) for f in shown)

"""What stands below the list of what to do: the findings that are not in it, and what the capture does not hold."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from nsysx import units
from nsysx.model import Summary
from nsysx.render import finding_view
from nsysx.render.answer_text import first_clause
from nsysx.render.grids import Cell, CellTexts, Grid, Head
from nsysx.render.view import View

_HEADS = (
    Head("found", "found", "What was seen; the whole text is in --full", False),
    Head("where", "where", "Module and phase, or what lies beside it", False),
    Head("cost", "costs a step", "Time of one step that it takes, as recorded where it says so", True),
    Head("saving", "saves a step", "By how much one step gets shorter without it; savings overlap, do not add", True),
    Head("fix", "what to do", "The change that would mend it", False),
    Head("code", "code", "nsysx explain CODE says how it is found", False),
)


def table(summary: Summary, listed: Collection[int], *, redact: bool) -> Grid | None:
    """Return the findings that are not in the list, those that save most first; None where there are none."""
    texts, rows = CellTexts(redact), []
    for index, finding in enumerate(summary.findings or ()):
        if finding.verdict != "found" or index in listed:
            continue
        shown = finding_view.finding_of(finding, summary, texts, 84)
        saving = summary.step.saves_ns(finding.saving) or 0
        cost = finding.cost_ns_per_step
        seen = Cell(shown.title, shown.title.lower(), shown.detail)
        time = Cell(f"{units.duration(cost)} {shown.cost_time}".strip(), float(cost)) if cost is not None else Cell("-")
        saves = Cell(shown.saving, float(saving), shown.confidence) if shown.saving else Cell("-")
        fix = first_clause(shown.fix)
        what = Cell(fix or "-", fix.lower(), shown.fix)
        where = Cell(shown.where or "-", shown.where.lower())
        rows.append((saving, (seen, where, time, saves, what, Cell(shown.code, shown.code))))
    rows.sort(key=lambda row: -row[0])
    heads = [i for i, _ in enumerate(_HEADS) if any(line[i].text != "-" for _, line in rows)]
    cells = tuple(tuple(line[i] for i in heads) for _, line in rows)
    return Grid("other-findings", "Other findings", "", tuple(_HEADS[i] for i in heads), cells) if rows else None


@dataclass(frozen=True, slots=True)
class Absent:
    """What is not known for one reason: names of tables and findings, the reason, and what records it ("" if nothing does)."""

    names: tuple[str, ...]
    reason: str
    record: str


#: How a reason goes on where the next recording can hold what this one lacks.
_RECORD = ". To record it: "


def absent(shown: View) -> tuple[Absent, ...]:
    """Return what the capture does not hold, all that one option records together; last what the program does not do."""
    groups: dict[str, dict[str, None]] = {}
    reasons: dict[str, tuple[str, str]] = {}
    lacks = [(f.title, f.detail, f.fix) for f in shown.findings or () if f.verdict == "cannot_tell"]
    lacks += [(grid.title, grid.reason, "") for grid in shown.grids if not grid.rows]
    for name, text, fix in lacks:
        reason, _, record = text.partition(_RECORD)
        key = record or fix or reason
        groups.setdefault(key, {})[name] = None
        reasons.setdefault(key, (reason, record or fix))
    ordered = sorted(groups, key=lambda key: not reasons[key][1])
    return tuple(Absent(tuple(groups[key]), *reasons[key]) for key in ordered)

"""What programs read of a finding: its id, its place, what it saves, and what it needs. All ns are of one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nsysx.advice import Condition
from nsysx.analyses import lines
from nsysx.answer import change_savings
from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.model import Finding, Row, Summary
from nsysx.render.safe_text import clean, shorten_path
from nsysx.render.small_json import Json, cut

#: Keys of a place in the program, in the order in which they stand in an id.
_OF_ID = ("module", "phase", "file", "line")


def ids_of(summary: Summary) -> list[str]:
    """Return the id of each finding, in their order: its code and place, which the same finding has in other reports, too."""
    seen: dict[str, int] = {}
    names = []
    for finding in summary.findings or ():
        where = "/".join(_end(key, finding.where[key]) for key in _OF_ID if finding.where.get(key))
        name = finding.code + (f"@{where}" if where else "")
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names


def _end(key: str, value: object) -> str:
    """Return the part of a place that stands in an id: of a file its name alone, which is the same on other machines."""
    text = clean(str(value)[:2000], 2000)
    return text.replace("\\", "/").rpartition("/")[2][-60:] if key == "file" else shorten_path(text, 60)


def index_of(summary: Summary, wanted: str) -> int:
    """Return the place of the finding with an id, or the first with a code. Raises NsysxError, exit code 2, if there is none."""
    names = ids_of(summary)
    if wanted in names:
        return names.index(wanted)
    of_code = [i for i, name in enumerate(names) if name.partition("@")[0].partition("#")[0] == wanted.upper()]
    if of_code:
        told = (i for i in of_code if (summary.findings or ())[i].verdict == "found")
        return next(told, of_code[0])
    there = [name for name, f in zip(names, summary.findings or (), strict=True) if f.verdict == "found"]
    hint = f"Found: {', '.join(there[:8]) or 'nothing'}"
    raise NsysxError(f"{clean(wanted, 80)}: no such finding", slug="no-finding", hint=hint, exit_code=EXIT_USAGE)


def place_of(summary: Summary, where: Row, room: int = 120) -> Json:
    """Return a place as JSON: module, phase, near, file (texts), line (a number), and text, what stands in the line."""
    shown: Json = {key: cut(where[key], room) for key in ("module", "phase", "near") if where.get(key)}
    if where.get("file"):
        shown["file"] = shorten_path(clean(str(where["file"])[-2000:], 2000), room)
    if str(where.get("line") or "").isdecimal():
        shown["line"] = int(where["line"])
    text = _line_text(summary, where)
    if text:
        shown["text"] = cut(text, room)
    return shown


def _line_text(summary: Summary, where: Row) -> str:
    """Return what stands in the line of a place, "" where that was not recorded."""
    if not where.get("file") or not where.get("line"):
        return ""
    same = (
        r for r in summary.typed_rows(lines.ROWS) if r["file"] == where["file"] and str(r["line"]) == str(where["line"])
    )
    return next((str(r["text"]) for r in same if r["text"]), "")


def saving_of(summary: Summary, finding: Finding) -> Json | None:
    """Return what a change saves of the shown step, with the interval that holds it; null where no claim can be made.

    ``bound``: likely_ns is the most that it can save, and the least is nothing. Of the change that the answer begins with, it
    is what the answer says.
    """
    answer, now = summary.answer, summary.step.shown_ns
    if _is_first(summary, finding):
        if answer.then_ns is None or answer.now_ns is None:
            return None
        low, high = answer.then_low_ns, answer.then_high_ns
        return {
            "likely_ns": answer.now_ns - answer.then_ns,
            "low_ns": None if high is None else answer.now_ns - high,
            "high_ns": None if low is None else answer.now_ns - low,
            "bound": answer.bound,
        }
    likely = summary.step.saves_ns(finding.saving)
    if likely is None or now is None:
        return None
    if change_savings.is_bound(summary, finding):
        return {"likely_ns": likely, "low_ns": 0, "high_ns": likely, "bound": True}
    margins = change_savings.margins_ns(summary, finding)
    least = None if change_savings.may_make_longer(finding) else 0
    low, high = (None, None) if margins is None else (likely - margins[0], min(now, likely + margins[1]))
    low = low if low is None or least is None else max(least, low)
    return {"likely_ns": likely, "low_ns": low, "high_ns": high, "bound": False}


def _is_first(summary: Summary, finding: Finding) -> bool:
    """Return whether a finding is the one that the answer begins with."""
    last = summary.answer.do[-1].finding if summary.answer.do else None
    return last is not None and (summary.findings or ())[last] is finding


def saving_reason(summary: Summary, finding: Finding) -> str:
    """Return how sure a saving is, or why none is claimed."""
    of_step = finding.saving.likely_ns is not None
    if of_step and _is_first(summary, finding) and summary.answer.then_ns is None and summary.answer.now_ns is not None:
        return summary.answer.certainty.reason or summary.answer.worth
    return finding.saving.confidence or "no replay holds this change"


def states_of(conditions: Sequence[Condition]) -> Mapping[str, str]:
    """Return the state of each thing that a change needs: holds, violated or unknown."""
    return {cut(c.name, 80): c.state for c in conditions}


def shown_value(value: Any) -> Any:
    """Return a value of a row as JSON: numbers as they are, texts harmless."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float(f"{value:.6g}") if abs(value) < float("inf") else None
    if isinstance(value, Mapping):
        return {clean(k, 60): shown_value(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [shown_value(v) for v in value]
    return clean(str(value)[:2000], 300)

"""The answer as text: some twenty lines for a terminal, as many of Markdown for a ticket, and a small JSON for programs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from nsysx import units
from nsysx.model import Finding, Summary
from nsysx.render import answer as answers
from nsysx.render import bars, step_time
from nsysx.render.advice import Also
from nsysx.render.answer import Answer
from nsysx.render.bars import Bar
from nsysx.render.safe_text import clean, scrub

BRIEF_SCHEMA = "nsysx.brief/1"

#: Findings in the brief: more than anybody acts on.
_MOST_FINDINGS = 12


def change(said: Answer) -> str:
    """Return "15.4 ms → 3.2 ms at best", "" where no step after the change can be said."""
    if said.now_ns is None or said.then_ns is None:
        return ""
    best = " at best" if said.bound else ""
    return f"{units.duration(said.now_ns)} → {units.duration(said.then_ns)} a step{best}"


def parts_text(bar: Bar) -> str:
    """Return the parts of a bar in words, as they stand."""
    return ", ".join(bars.words(p, bar.total_ns) for p in bar.parts)


def also_worth(line: Also) -> str:
    """Return what another finding is worth: "up to 1.2 ms", "" where it is no time of the step."""
    return "" if line.saving_ns is None else f"{'up to ' if line.bound else ''}{units.duration(line.saving_ns)}"


def worth_text(said: Answer) -> str:
    """Return what the change is worth, in one sentence."""
    arrow = change(said)
    if not arrow:
        return said.worth
    if not said.real:
        return f"{arrow}, in the profiler's time"
    return arrow if said.bound else f"{arrow}: {said.worth}"


# ---------------------------------------------------------------- Markdown


def markdown_lines(said: Answer, escape: Any) -> Iterator[str]:
    """Yield the lines of the answer; ``escape`` makes a text inert in Markdown."""
    yield f"**{escape(said.sentence)}**"
    yield ""
    yield f"{escape(' · '.join(said.facts))}"
    yield ""
    for alarm in said.alarms[:2]:
        yield f"> Read with care: {escape(alarm)}"
    where = f" ({escape(said.where)})" if said.where else ""
    yield f"- **Do this:** {escape(said.do)}{where}"
    yield f"- **Worth:** {escape(worth_text(said))}"
    for sure in said.sure:
        command = f" `{sure.command}`" if sure.command else ""
        yield f"- **{escape(sure.about)}:** {sure.level}. {escape(sure.reason)}{command}"
    if said.bars:
        yield ""
        yield "| " + escape(said.bars_title) + " | time | parts |"
        yield "|---|---:|---|"
        for bar in said.bars[:4]:
            yield f"| {escape(bar.label)} | {units.duration(bar.total_ns)} | {escape(parts_text(bar))} |"
    if said.also:
        yield ""
        yield "Also found (savings overlap, do not add):"
        for line in said.also:
            yield f"- {line.code} {escape(line.text)}" + (f": {worth}" if (worth := also_worth(line)) else "")


# ---------------------------------------------------------------- for programs


def _number(finding: Finding, summary: Summary, now: int | None) -> dict[str, Any] | None:
    saving = step_time.saving_ns(summary, finding)
    if saving is None or now is None:
        return None
    error = finding.error_ns or 0
    high = min(now, saving + error)
    low = 0 if finding.bound else max(0, saving - error)
    return {"value": saving, "unit": "ns per step", "low": low, "high": high, "bound": finding.bound}


def brief(summary: Summary, said: Answer) -> str:
    """Return the answer for programs: a few kB of JSON with stable ids, numbers with units, and how to check each."""

    def text(value: object, limit: int) -> str:
        return clean(scrub(str(value)[: 4 * limit]), limit)

    found = [f for f in summary.findings or () if f.verdict == "found"][:_MOST_FINDINGS]
    name = said.facts[0] if said.facts else "REPORT"
    real = summary.unprofiled
    content = {
        "schema": BRIEF_SCHEMA,
        "verdict": {"code": summary.verdict.code, "sentence": said.sentence},
        "step": {
            "recorded_ns": said.profiled_ns,
            "unprofiled_ns": None if real is None else real.step_ns,
            "low_ns": None if real is None else real.low_ns,
            "high_ns": None if real is None else real.high_ns,
            "source": None if real is None else real.source,
            "steady": sum(bool(r.get("steady")) for r in summary.steps.rows),
            "found_by": text(summary.steps.rule, 160),
        },
        "gpu": [
            {
                "label": b.label,
                "total_ns": round(b.total_ns),
                "parts": [{"what": p.label, "ns": round(p.ns)} for p in b.parts],
            }
            for b in said.bars[:8]
        ],
        "findings": [
            {
                "id": f"{f.code}:{i}",
                "code": f.code,
                "what": text(f.title, 160),
                "where": {k: text(v, 160) for k, v in f.where.items() if v is not None},
                "saving": _number(f, summary, said.now_ns),
                "cost": None
                if f.cost_ns_per_step is None
                else {
                    "value": f.cost_ns_per_step,
                    "unit": "ns per step",
                    "time": "as recorded" if step_time.in_recorded_time(summary) else "of the shown step",
                },
                "do": text(f.fix, 300),
                "check": f"nsysx compare {name} AFTER.sqlite",
                "stop_if": "the step without profiler is not shorter by at least the low end of the saving",
            }
            for i, f in enumerate(found)
        ],
        "how_sure": [
            {"about": s.about, "level": s.level, "reason": s.reason, "settle_with": s.command} for s in said.sure
        ],
        "unknown": [
            {"what": text(c.check, 80), "why": text(c.detail, 200), "record_with": text(c.fix, 120)}
            for c in summary.quality
            if c.status == "missing" and c.fix
        ][:8],
        "ask_next": list(said.commands),
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def of(summary: Summary, *, redact: bool = True) -> str:
    """Return the brief of a Summary."""
    return brief(summary, answers.build(summary, redact=redact))


# ---------------------------------------------------------------- terminal


def wrapped(text: str, width: int, head: str = "", indent: int = 7) -> list[str]:
    """Return a paragraph with a head in front, its other lines ``indent`` in."""
    body = textwrap.wrap(text, max(20, width - indent), break_long_words=True) or [""]
    return [f"{head:<{indent}}{body[0]}", *(" " * indent + line for line in body[1:])]

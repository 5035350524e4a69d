"""The short form for a ticket: GitHub, GitLab and Jira read it, and no name in it can become markup, a mention or a link."""

from __future__ import annotations

import re

from nsysx import units
from nsysx.model import Summary
from nsysx.render import view
from nsysx.render.safe_text import shorten

_MARKUP = re.compile(r"([\\`*_\[\]<>#|~@&$])")


def escape(text: str) -> str:
    """Return ``text`` such that Markdown shows it as it is: no markup, HTML, mention, issue link, table cell or formula."""
    text = _MARKUP.sub(lambda m: f"&#{ord(m[1])};", text)
    text = text.replace("://", "&#58;//").replace("www.", "www&#46;")
    return re.sub(r"^(\s*)([-+=!]|\d+[.)])", lambda m: m[1] + "".join(f"&#{ord(c)};" for c in m[2]), text)


def _table(grid: view.Grid, columns: int) -> list[str]:
    """Return one grid as a Markdown table."""
    heads = grid.heads[:columns]
    lines = [
        "| " + " | ".join(escape(h.label) for h in heads) + " |",
        "|" + "|".join("---:" if h.numeric else "---" for h in heads) + "|",
    ]
    lines += ["| " + " | ".join(escape(shorten(c.text, 70)) for c in row[:columns]) + " |" for row in grid.rows or ()]
    return lines


def render(summary: Summary, *, top: int = 10, redact: bool = False) -> str:
    """Return the verdict, the ledgers, the findings and the main tables as Markdown; ``top`` bounds the rows of each table."""
    shown = view.build(summary, top=top, redact=redact, width=70)
    out = [
        f"### {escape(shown.title) or 'nsysx report'}: {escape(shown.verdict_label)}",
        "",
        f"**{escape(shown.sentence)}**",
        "",
    ]
    if shown.first:
        worth = f" Saves {escape(shown.first.saving)} per step." if shown.first.saving else ""
        out += [f"First: {escape(shown.first.title)}.{worth} {escape(shown.first.fix)}".rstrip(), ""]
    elif shown.no_first:
        out += [escape(shown.no_first), ""]
    out += [escape(f"{shown.step_times} {shown.steps_line}".strip()), ""]
    if shown.ledgers:
        out += [f"**Where the step goes** ({escape(shown.ledger_title)})", ""]
        for ledger in shown.ledgers[:4]:
            out += [f"| {escape(ledger.label)} | {units.duration(ledger.window_ns)} | |", "|---|---:|---:|"]
            for part in ledger.parts:
                if part.ns:
                    name = f"idle: {part.label}" if part.idle else part.label
                    out.append(
                        f"| {escape(name)} | {units.duration(part.ns)} | {units.share(part.ns, ledger.window_ns)} |"
                    )
            out.append("")
    found = [f for f in shown.findings or () if f.verdict == "found"]
    if found:
        out += ["**Findings**", ""]
        for f in found[:top]:
            worth = f", saves {f.saving} per step ({f.confidence})" if f.saving else ""
            out.append(f"- {escape(f'{f.code} {f.title}{worth}')}" + (f" ({escape(f.where)})" if f.where else ""))
        out.append("")
    for grid in shown.grids:
        columns = summary.tables[grid.key].shown.ticket
        if columns and grid.rows:
            notes = [grid.scope, f"first {len(grid.rows)} of {len(grid.rows) + grid.folded}" if grid.folded else ""]
            more = f" ({', '.join(n for n in notes if n)})" if any(notes) else ""
            out += [f"**{escape(grid.title)}**{more}", "", *_table(grid, columns), ""]
    problems = [c for c in shown.quality if c.status != "ok"]
    if problems:
        out += ["**Quality of the capture**", ""]
        out += [
            f"- {escape(c.check)}, {c.status}: {escape(c.detail)}" + (f" Fix: {escape(c.fix)}" if c.fix else "")
            for c in problems
        ]
        out.append("")
    facts = "; ".join(f"{f.label}: {f.value}" for f in shown.capture if not f.label.startswith("Option"))
    out.append(f"<sub>{escape(facts)}</sub>")
    return "\n".join(out) + "\n"

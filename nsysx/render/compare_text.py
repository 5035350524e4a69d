"""A comparison on a terminal, about 25 lines in 80 columns, and as Markdown for a ticket."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from nsysx.comparing.comparison import TABLES
from nsysx.comparing.difference_answer import Comparison
from nsysx.render import compare_view as view
from nsysx.render.markdown import cell, escape
from nsysx.render.render_bounds import TERMINAL_PARTS, TERMINAL_ROWS, TERMINAL_WARNINGS
from nsysx.render.safe_text import clean, shorten

_STYLES = {"faster": "bold green", "slower": "bold red", "same": "bold", "cannot_tell": "bold yellow"}


class _Printer:
    def __init__(self, console: Console) -> None:
        self.console = console
        self.width = max(40, min(console.width, 100))
        self.ascii = not (console.encoding or "ascii").lower().replace("-", "").startswith("utf")

    def plain(self, text: str) -> str:
        """Return ``text`` in characters that this console can show."""
        return text.replace("…", "~").encode("ascii", "backslashreplace").decode() if self.ascii else text

    def text(self, text: str, style: str = "") -> None:
        """Print a paragraph."""
        for row in textwrap.wrap(self.plain(text), self.width, subsequent_indent="  ") or [""]:
            self.console.print(Text(row, style), soft_wrap=True)

    def rows(self, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
        """Print rows under their heads, numbers to the right."""
        if not rows:
            return
        widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
        # The name has what the others leave.
        widths[0] = max(12, min(widths[0], self.width - sum(widths[1:]) - 2 * (len(widths) - 1)))
        for n, row in enumerate((heads, *rows)):
            cells = [
                shorten(c, w).ljust(w) if i in (0, len(row) - 1) else c[:w].rjust(w)
                for i, (c, w) in enumerate(zip(row, widths, strict=True))
            ]
            line = self.plain("  ".join(cells).rstrip())
            self.console.print(Text(line, "dim" if not n else ""), soft_wrap=True)


def _cells_without_interval(line: view.ComparedLine) -> tuple[str, ...]:
    """Return the cells of a row without its interval, for which a terminal has no room."""
    *times, _interval, what, verdict = line.cells
    return (*times, what, verdict)


def terminal(answer: Comparison, console: Console) -> None:
    """Print the answer, its caveats, its parts, and what changed most."""
    out = _Printer(console)
    out.text(clean(answer.sentence, 1500), _STYLES[answer.verdict])
    warned = view.warnings(answer)
    for line in [*warned[:TERMINAL_WARNINGS], *(clean(n, 400) for n in answer.notes)]:
        out.text(f"! {line}", "yellow")
    if len(warned) > TERMINAL_WARNINGS:
        out.text(f"! {len(warned) - TERMINAL_WARNINGS} more differences between the captures: --json", "yellow")
    for line in view.unknowns(answer):
        if "cannot be known" in line:
            out.text(f"? {line}", "dim")
    out.text("")
    shown = [_cells_without_interval(part) for part in view.part_lines(answer, TERMINAL_PARTS, 40)]
    name = "part" if answer.whole else "part of the step"
    out.rows((name, "before", "after", "difference", view.share_head(answer), "verdict"), shown)
    lines = [
        _cells_without_interval(view.line(table.key, row, 30))
        for table in TABLES
        if table.leads
        for row in [r for r in view.changed(answer.tables[table.key]) if answer.changes_the_step(r)][:TERMINAL_ROWS]
    ]
    if lines:
        out.text("")
        name = "changed most" if answer.whole else "changed most, a step"
        out.rows((name, "before", "after", "difference", "count", "verdict"), lines)
    out.text("")
    out.text(view.basis(answer), "dim")


def markdown(answer: Comparison, *, top: int = 10, redact: bool = False) -> str:
    """Return the answer for a ticket; ``top`` bounds the rows of each table."""
    out = [f"### {view.LABELS[answer.verdict]}", "", f"**{escape(clean(answer.sentence, 1500))}**", ""]
    out += [f"- Read with care: {escape(line)}" for line in view.warnings(answer)]
    out += [f"- {escape(clean(note, 400))}" for note in answer.notes]
    out += [f"- Not known: {escape(line)}" for line in view.unknowns(answer)]
    out += ["", escape(view.basis(answer)), "", "**What the difference is made of**", ""]
    heads = ("part", "before", "after", "difference", "interval", view.share_head(answer), "verdict")
    out += _table(heads, [part.cells for part in view.part_lines(answer, top, 70)])
    out += ["", "<details><summary>Row by row</summary>"]
    unchanged = []
    for key, every in answer.tables.items():
        rows = view.changed(every)
        if rows:
            more = f" (first {top} of {len(rows)})" if len(rows) > top else ""
            out += ["", f"**{view.TITLES[key]}** that changed{'' if answer.whole else ', per step'}{more}", ""]
            out += _table(view.HEADS, [view.line(key, r, 70, redact=redact).cells for r in rows[:top]])
        elif every:
            unchanged.append(view.TITLES[key])
    if unchanged:
        out += ["", f"No row that surely changed: {'; '.join(unchanged)}."]
    return "\n".join([*out, "", "</details>"]) + "\n"


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 2) + "---|"]
    return lines + ["| " + " | ".join(map(cell, row)) + " |" for row in rows]

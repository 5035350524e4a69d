"""The report on a terminal: the order of the page, at home in 80 columns, in a pipe, without colour and without Unicode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from nsysx import units
from nsysx.model import Summary
from nsysx.render import view
from nsysx.render.clean import shorten, shorten_kernel

_STYLES = {
    "compute": "green",
    "comm": "cyan",
    "copy": "yellow",
    "memset": "bright_yellow",
    "launch": "blue",
    "sync": "red",
    "alloc": "magenta",
}
_ASCII = str.maketrans({"…": "~", "→": ">", "×": "x", "–": "-", "—": "-", "█": "#", "░": ".", "▏": "|"})
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
_MIN_NAME = 16


class _Out:
    """Prints onto one console: keeps to its width, and to the characters that it can show."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.width = max(40, console.width)
        self.encoding = console.encoding or "ascii"
        self.unicode = self.encoding.lower().replace("-", "").startswith("utf") and not console.options.ascii_only

    def text(self, text: str, style: str = "") -> Text:
        """Return ``text`` as it can be shown here; never read as markup."""
        if not self.unicode:
            text = text.translate(_ASCII).encode(self.encoding, "backslashreplace").decode(self.encoding)
        return Text(text, style=style)

    def line(self, text: str = "", style: str = "") -> None:
        """Print a paragraph, wrapped at the width."""
        self.console.print(self.text(text, style), soft_wrap=False, width=min(self.width, 100))

    def head(self, text: str, note: str = "") -> None:
        """Print the head of a section after an empty line."""
        line = self.text(text, "bold")
        if note:
            line.append_text(self.text(f"  {note}", "dim"))
        self.console.print()
        self.console.print(line)

    def bar(self, share: float, width: int) -> str:
        """Return a bar for ``share`` of ``width`` characters; anything above zero shows."""
        eighths = 0 if share <= 0 else max(1, round(min(1.0, share) * width * 8))
        if not self.unicode:
            return "#" * max(1, round(eighths / 8)) if eighths >= 4 else "." * bool(eighths)
        return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]


def _ledger(out: _Out, ledger: view.Ledger) -> None:
    """Print one ledger: a bar per part, and the sum."""
    label = "idle: profiler itself"
    names = [f"idle: {p.label}" if p.idle else p.label for p in ledger.parts if p.ns]
    wide = min(max([len(label), *map(len, names)]), max(14, out.width - 34))
    room = max(6, min(40, out.width - wide - 26))
    table = RichTable.grid(padding=(0, 1))
    table.add_column(width=wide + 2, no_wrap=True)
    table.add_column(justify="right", width=9, no_wrap=True)
    table.add_column(justify="right", width=6, no_wrap=True)
    table.add_column(width=room, no_wrap=True)
    for part, name in zip((p for p in ledger.parts if p.ns), names, strict=True):
        style = "dim" if part.idle else _STYLES.get(part.kind, "")
        fraction = part.ns / ledger.window_ns if ledger.window_ns else 0
        table.add_row(
            out.text(f"  {shorten(name, wide)}"),
            out.text(units.duration(part.ns)),
            out.text(units.share(part.ns, ledger.window_ns)),
            out.text(out.bar(fraction, room), style),
        )
    out.console.print(out.text(f"{ledger.label}: {units.duration(ledger.window_ns)}"))
    out.console.print(table)


def _cell(cell: view.Cell, width: int) -> str:
    """Return a cell's text within ``width``."""
    source = cell.full or cell.text
    return shorten_kernel(source, width) if "(" in source or "<" in source else shorten(cell.text, width)


def _fit(grid: view.Grid, width: int) -> tuple[list[int], list[int]]:
    """Return the columns of ``grid`` that fit into ``width``, most important first, and their widths."""
    rows = grid.rows or ()
    natural = [max([len(h.label), *(len(r[i].text) for r in rows)]) for i, h in enumerate(grid.heads)]
    least = [n if grid.heads[i].numeric else min(n, _MIN_NAME) for i, n in enumerate(natural)]
    least[0] = min(natural[0], max(_MIN_NAME, width * 46 // 100))
    chosen: list[int] = []
    used = 0
    for index in range(len(grid.heads)):
        need = least[index] + (2 if chosen else 0)
        if used + need <= width:
            chosen.append(index)
            used += need
    widths = {i: least[i] for i in chosen}
    for index in chosen:
        grow = min(width - used, natural[index] - widths[index])
        widths[index] += grow
        used += grow
    return chosen, [widths[i] for i in chosen]


def _grid(out: _Out, grid: view.Grid) -> None:
    """Print one table: the columns that fit, and what was left out."""
    if grid.rows is None or not grid.rows:
        out.head(grid.title)
        out.line(grid.reason if grid.rows is not None else f"Not recorded: {grid.reason}", "dim")
        return
    total = len(grid.rows) + grid.folded
    notes = [grid.scope, f"{len(grid.rows)} of {units.count(total)}" if grid.folded else ""]
    out.head(grid.title, ", ".join(n for n in notes if n))
    chosen, widths = _fit(grid, out.width)
    table = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, header_style="dim")
    for index, width in zip(chosen, widths, strict=True):
        head = grid.heads[index]
        table.add_column(
            out.text(shorten(head.label, width)),
            justify="right" if head.numeric else "left",
            width=width,
            no_wrap=True,
            overflow="crop",
        )
    for row in grid.rows:
        table.add_row(*(out.text(_cell(row[i], width)) for i, width in zip(chosen, widths, strict=True)))
    out.console.print(table)


def _quality(out: _Out, shown: view.View) -> None:
    """Print what limits the trust in the numbers, and what would cure it."""
    bad = [c for c in shown.quality if c.status != "ok"]
    good = len(shown.quality) - len(bad)
    out.head("Quality", f"{good} of {len(shown.quality)} checks passed")
    for check in bad:
        line = out.text("warning  " if check.status == "warn" else "missing  ", "yellow")
        line.append_text(out.text(f"{check.check}: {check.detail}"))
        out.console.print(line, width=min(out.width, 100))
        if check.fix:
            out.console.print(out.text(f"         → {check.fix}", "dim"), width=min(out.width, 100))


def _first(out: _Out, shown: view.View) -> None:
    """Print the change that is worth most."""
    if shown.first is None:
        return
    first = shown.first
    out.head("What to do first")
    out.line(
        first.title
        + (f": saves {first.saving} per step" if first.saving else "")
        + (f" ({first.confidence})" if first.saving and first.confidence else "")
    )
    for text in (first.where, first.fix):
        if text:
            out.line(text, "dim")


def _findings(out: _Out, findings: Iterable[view.FindingView]) -> None:
    """Print one line for each finding that was made."""
    found = [f for f in findings if f.verdict == "found"]
    if not found:
        return
    out.head("Findings")
    for f in found:
        worth = f", saves {f.saving} per step" if f.saving else ""
        out.line(f"{f.code}  {f.title}{worth}")
        if f.where:
            out.line(f"        {f.where}", "dim")


def render(summary: Summary, console: Console, *, top: int = 10, sections: Sequence[str] | None = None) -> None:
    """Print ``summary`` onto ``console``: ``top`` rows of each table; ``sections`` names tables or words of view.SECTIONS."""
    out = _Out(console)
    shown = view.build(summary, top=top, width=max(40, out.width - 10), sections=sections)

    def wanted(name: str) -> bool:
        return sections is None or name in sections

    if wanted("verdict"):
        line = out.text(f"{shown.verdict_label}: ", "bold reverse" if console.is_terminal else "")
        line.rstrip()
        headline = out.text(shown.sentence, "bold")
        console.print(line, headline, width=min(out.width, 100))
        for evidence in shown.evidence:
            out.line(f"  {evidence}", "dim")
    if wanted("first"):
        _first(out, shown)
    if wanted("steps"):
        console.print()
        out.line(f"{shown.step_times} {shown.steps_line}".strip())
    if wanted("ledger"):
        if shown.ledgers:
            out.head("Where the step goes", shown.ledger_title)
        for ledger in shown.ledgers[: max(4, top)]:
            _ledger(out, ledger)
        if shown.quiet_threads:
            more = f"{shown.quiet_threads} more thread{'s' * (shown.quiet_threads > 1)}"
            out.line(f"{more} with under 1 % of the time in CUDA calls", "dim")
        for reason in shown.ledger_reasons:
            out.line(f"Not recorded: {reason}", "dim")
    if wanted("findings") and shown.findings:
        _findings(out, shown.findings)
    for grid in shown.grids:
        if grid.rows or sections is not None:
            _grid(out, grid)
    missing = [g for g in shown.grids if not g.rows]
    if missing and sections is None:
        out.head("Not in this capture")
        for grid in missing:
            out.line(f"{grid.title}: {grid.reason}", "dim")
    if wanted("quality") and shown.quality:
        _quality(out, shown)

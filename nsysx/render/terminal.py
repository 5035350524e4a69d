"""The report on a terminal, in the order of the page; it works in 80 columns, in a pipe, without color and without Unicode."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from nsysx import units
from nsysx.catalogue import Paint
from nsysx.model import Summary
from nsysx.render import answer_text, view
from nsysx.render import code as code_of
from nsysx.render import sections as sections_of
from nsysx.render.finding_view import FindingView
from nsysx.render.grids import Grid
from nsysx.render.ledgers import Ledger
from nsysx.render.render_bounds import LEAST_NAME, LEAST_PLACE, MOST_PROSE
from nsysx.render.safe_text import shorten, shorten_column

_STYLES = {
    Paint.COMPUTE: "green",
    Paint.COMM: "cyan",
    Paint.COPY: "yellow",
    Paint.MEMSET: "bright_yellow",
    Paint.LAUNCH: "blue",
    Paint.SYNC: "red",
    Paint.ALLOC: "magenta",
}
_ASCII = str.maketrans({"…": "~", "≈": "~", "→": ">", "×": "x", "–": "-", "—": "-"})
#: Keeps a number on the line of its unit: to a console a no-break space is a space. Texts hold none, it would be an escape.
_GLUE = "\ue000"
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


class _Out:
    """Prints on one console, within its width and character set, without spaces at the ends of lines."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.width = max(40, console.width)
        self.encoding = console.encoding or "ascii"
        self.unicode = self.encoding.lower().replace("-", "").startswith("utf") and not console.options.ascii_only

    def plain(self, text: str) -> str:
        """Return ``text`` in characters that this console can show."""
        if self.unicode:
            return text
        return text.translate(_ASCII).encode(self.encoding, "backslashreplace").decode(self.encoding)

    def parts(self, *parts: tuple[str, str]) -> None:
        """Print one line of (text, style) pieces; never read as markup, never wrapped."""
        line = Text()
        for text, style in parts:
            line.append(self.plain(text), style)
        line.rstrip()
        self.console.print(line, soft_wrap=True)

    def line(
        self, text: str, style: str = "", indent: int = 0, first: tuple[str, str] = ("", ""), hung: int = 0
    ) -> None:
        """Print a wrapped paragraph with every line indented by ``indent``, those after the first by ``hung``.

        ``first`` is a styled piece in front.
        """
        room = min(self.width, MOST_PROSE)
        body = Text.assemble((self.plain(first[0]), first[1]), (answer_text.with_units(self.plain(text), _GLUE), style))
        rows = list(body.wrap(self.console, room - indent))
        if hung and len(rows) > 1:
            rest = body.plain[len(rows[0].plain) :].lstrip()
            rows[1:] = body[-len(rest) :].wrap(self.console, room - hung)
        for n, row in enumerate(rows):
            row.plain = row.plain.replace(_GLUE, " ")
            row.rstrip()
            self.console.print(Text(" " * (hung if n and hung else indent)) + row, soft_wrap=True)

    def head(self, text: str, note: str = "") -> None:
        """Print the heading of a section after an empty line."""
        self.console.print()
        self.line(f"  {note}" if note else "", "dim", first=(text, "bold"))

    def cell(self, text: str, width: int, right: bool = False) -> str:
        """Return ``text`` in exactly ``width`` columns of the terminal."""
        text = self.plain(text)
        room = width - cell_len(text)
        if room <= 0:
            return set_cell_size(text, width)
        return " " * room + text if right else text + " " * room

    def bar(self, share: float, width: int) -> str:
        """Return a bar for ``share`` of ``width`` characters; anything above zero shows."""
        eighths = 0 if share <= 0 else max(1, round(min(1.0, share) * width * 8))
        if not self.unicode:
            return "#" * max(1, round(eighths / 8)) if eighths >= 4 else ("." if eighths else "")
        return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]


def _ledgers(out: _Out, ledgers: Sequence[Ledger]) -> None:
    """Print the ledgers in one set of columns, with their bars on one time scale."""
    named = [[(f"idle: {p.label}" if p.idle else p.label, p) for p in ledger.parts if p.ns] for ledger in ledgers]
    wide = min(max([len(name) for rows in named for name, _ in rows], default=0), max(14, out.width - 34))
    room = max(6, min(40, out.width - wide - 22))
    longest = max(ledger.window_ns for ledger in ledgers) or 1
    for ledger, rows in zip(ledgers, named, strict=True):
        out.line(f"{ledger.label}: {units.duration(ledger.window_ns)}")
        for name, part in rows:
            time = out.cell(units.duration(part.ns), 9, right=True)
            share = out.cell(units.share(part.ns, ledger.window_ns), 6, right=True)
            style = "dim" if part.idle else _STYLES.get(part.kind, "")
            bar = out.bar(part.ns / longest, room)
            out.parts((f"  {out.cell(shorten(name, wide), wide)} {time} {share} ", ""), (bar, style))


def _fit(grid: Grid, width: int) -> list[tuple[int, int]]:
    """Return the columns of ``grid`` that fit ``width``, most important first, with their widths."""
    rows = grid.rows or ()
    cells = [max([1, *(cell_len(r[i].text) for r in rows)]) for i in range(len(grid.heads))]
    columns = _fit_cells(grid, width, cells)
    for index, room in columns:
        if grid.heads[index].name == "file" and room < cells[index]:  # shorter than it has room for, without folders
            texts = shorten_column([r[index].full or r[index].text for r in rows], "file", room)
            cells[index] = max(map(cell_len, texts))
            return _fit_cells(grid, width, cells)
    return columns


def _fit_cells(grid: Grid, width: int, cells: Sequence[int]) -> list[tuple[int, int]]:
    """Return the columns of ``grid`` that fit ``width``, most important first, with their widths; its ``cells`` are so wide."""
    natural = [max(len(h.label), wide) for h, wide in zip(grid.heads, cells, strict=True)]
    # The words of a figure's heading may stand below each other: else a long heading took the room of the next column.
    headed = [max(wide, *map(len, h.label.split())) for h, wide in zip(grid.heads, cells, strict=True)]
    named = [LEAST_PLACE if h.name == "file" else LEAST_NAME for h in grid.heads]
    least = [headed[i] if grid.heads[i].numeric else min(n, named[i]) for i, n in enumerate(natural)]
    least[0] = min(natural[0], max(LEAST_NAME, width * 46 // 100))
    widths: dict[int, int] = {}
    used = -2
    for index, need in enumerate(least):
        if used + 2 + need <= width:
            widths[index] = need
            used += 2 + need
    for index in widths:
        grow = min(width - used, natural[index] - widths[index])
        widths[index] += grow
        used += grow
    return list(widths.items())


def _grid(out: _Out, grid: Grid) -> None:
    """Print one table, with the columns that fit."""
    if not grid.rows:
        out.head(grid.title)
        out.line(grid.reason if grid.rows is not None else f"Not recorded: {grid.reason}", "dim")
        return
    notes = [grid.scope, f"{len(grid.rows)} of {units.count(len(grid.rows) + grid.folded)}" if grid.folded else ""]
    out.head(grid.title, ", ".join(n for n in notes if n))
    columns = [(index, width, grid.heads[index]) for index, width in _fit(grid, out.width)]
    labels = [textwrap.wrap(h.label, width) if h.numeric else [shorten(h.label, width)] for _, width, h in columns]
    deepest = max(map(len, labels))
    for words in zip(*([""] * (deepest - len(label)) + label for label in labels), strict=True):
        row = (out.cell(word, width, h.numeric) for word, (_, width, h) in zip(words, columns, strict=True))
        out.parts(("  ".join(row).rstrip(), "dim"))
    cells = []
    for index, width, head in columns:
        names = [row[index].full or row[index].text for row in grid.rows]
        texts = names if head.numeric else shorten_column(names, head.name, width)
        cells.append([out.cell(text, width, head.numeric) for text in texts])
    for line in zip(*cells, strict=True):
        out.parts(("  ".join(line), ""))


def _quality(out: _Out, shown: view.View) -> None:
    """Print what limits the trust in the numbers, and what would fix it."""
    bad = [c for c in shown.quality if c.status != "ok"]
    out.head("Quality", f"{len(shown.quality) - len(bad)} of {len(shown.quality)} checks passed")
    for check in bad:
        mark = ("warning  ", "yellow") if check.status == "warn" else ("missing  ", "dim")
        out.line(f"{check.check}: {check.detail}", first=mark)
        if check.fix:
            out.line(f"→ {check.fix}", "dim", indent=9)


def _print_first_change(out: _Out, first: FindingView) -> None:
    """Print the change worth most."""
    out.head("What to do first")
    worth = f": saves {first.saving} per step" if first.saving else ""
    sure = f" ({first.confidence})" if first.saving and first.confidence else ""
    out.line(f"{first.title}{worth}{sure}")
    for text in (first.where, first.fix):
        if text:
            out.line(text, "dim")
    _print_code(out, first, indent=2)


def _print_code(out: _Out, finding: FindingView, indent: int) -> None:
    """Print the code to paste whole, as the first screen says, and what it depends on."""
    width = min(out.width, MOST_PROSE) - indent
    for row in code_of.whole_lines(finding.paste, width):
        out.parts((f"{' ' * indent}{row}", "cyan"))
    if finding.paste and finding.condition:
        out.line(finding.condition, "dim", indent=indent)


def _findings(out: _Out, findings: Iterable[FindingView], first: FindingView | None) -> None:
    """Print each finding, with its fix where that is worth making; the code of the ``first`` change stands above."""
    shown = [f for f in findings if f.verdict == "found"]
    if not shown:
        return
    out.head("Findings", "do not add savings that overlap")
    for f in shown:
        worth = f", saves {f.saving} per step" if f.saving else ""
        worth += f" (overlaps with {f.overlaps})" if f.saving and f.overlaps else ""
        out.line(f"{f.code}  {f.title}{worth}", hung=8)
        for text in (f.where, f.fix if f.notable or f.paste else ""):
            if text:
                out.line(text, "dim", indent=8)
        if first is None or f.paste != first.paste:
            _print_code(out, f, indent=10)


def _folded(summary: Summary) -> list[str]:
    """Return the tables that are only named, because few readers come for them."""
    # A capture without steps is an experiment with single operations, and the tables about those are the answer.
    deepest = 1 if summary.steps.source == "capture" else 0
    return [key for key in view.table_keys(summary) if summary.rows(key) and summary.tables[key].shown.depth > deepest]


def render(  # noqa: C901 - one section after the other
    summary: Summary, console: Console, *, top: int = 10, sections: Sequence[str] | None = None
) -> None:
    """Print ``summary`` on ``console``: ``top`` rows of each table; ``sections`` as ``render.sections`` names them.

    Raises NsysxError for a section that does not exist.
    """
    if sections is not None:
        sections = sections_of.named(summary, sections)
    names = sections_of.names(summary)
    out = _Out(console)
    folded = _folded(summary) if sections is None else []
    made = sections if sections is not None else [name for name in names if name not in folded]
    shown = view.build(summary, top=top, width=max(40, out.width - 10), sections=made)

    def wanted(name: str) -> bool:
        return sections is None or name in sections

    if wanted("verdict"):
        out.line(shown.sentence, "bold")
        for evidence in shown.evidence:
            out.line(evidence, "dim", indent=2)
        for check in shown.alarms:
            out.line(check.detail, first=("Read with care: ", "bold yellow"))
    if wanted("first") and shown.first:
        _print_first_change(out, shown.first)
    elif wanted("first") and shown.no_first:
        out.head("What to do first")
        out.line(shown.no_first)
    if wanted("steps"):
        console.print()
        out.line(f"{shown.step_times} {shown.steps_line}".strip())
    if wanted("ledger"):
        if shown.ledgers:
            out.head(f"Where the {'step' if shown.per_step else 'time'} goes", shown.ledger_title)
            _ledgers(out, shown.ledgers[: max(4, top)])
        if shown.quiet_threads:
            more = f"{shown.quiet_threads} more thread{'s' if shown.quiet_threads > 1 else ''}"
            out.line(f"{more} with under 1 % of the time in CUDA calls", "dim")
        for reason in shown.ledger_reasons:
            out.line(f"Not recorded: {reason}", "dim")
    if wanted("findings") and shown.findings:
        _findings(out, shown.findings, shown.first if wanted("first") else None)
    for grid in shown.grids:
        if grid.rows or sections is not None:
            _grid(out, grid)
    if folded:
        out.head("More tables")
        out.line("--section NAME prints one: " + ", ".join(folded), "dim")
    missing = [g for g in shown.grids if not g.rows]
    if missing and sections is None:
        out.head("Not in this capture")
        for grid in missing:
            out.line(f"{grid.title}: {grid.reason}", indent=2)
    if wanted("quality") and shown.quality:
        _quality(out, shown)

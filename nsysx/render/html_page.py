"""The page: one self-contained HTML file that opens anywhere, loads nothing, and reads well on paper and with scripts off."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nsysx import units
from nsysx.analyses import kernels, lines, stacks
from nsysx.answer.bars import MODULES, WORK
from nsysx.judging.verdict import EACH_STEP
from nsysx.model import Summary
from nsysx.pictures import Timeline
from nsysx.ranks import rank_table, rank_waits
from nsysx.render import (
    beyond,
    code,
    cut_timeline,
    first_screen,
    glossary,
    live_timeline,
    markdown,
    page_templates,
    plots,
    step_waterfall,
    top_kernel,
    view,
)
from nsysx.render.answer_text import MOST_TIME
from nsysx.render.charts.beside import DrawingProcess
from nsysx.render.charts.colors import KIND_COLORS, MODULE_COLORS, WORK_COLORS
from nsysx.render.grids import CellTexts, Grid
from nsysx.render.render_bounds import (
    FEWEST_TOP,
    MOST_PAGE_BYTES,
    PAGE_CLEAR,
    PAGE_COLUMNS,
    PAGE_EVIDENCE,
    PAGE_EXPERT_ROWS,
    PAGE_JOB_ROWS,
    PAGE_LEDGERS,
    PAGE_PASSED,
    PAGE_PICTURED_ROWS,
    PAGE_ROWS,
    PAGE_TODO,
    PAGE_WORDS,
)

#: The colors of a bar by module and of one by kind of work, as ``answer.bars`` numbers them.
_BAR_COLORS = {f"{MODULES}{i}": c for i, c in enumerate(MODULE_COLORS)} | {
    f"{WORK}{i}": c for i, c in enumerate(WORK_COLORS)
}


def _windows(summary: Summary, redact: bool) -> tuple[str, ...]:
    """Return the titles of the timelines on the first screen: one usual step, and the slow one where steps have several lengths."""
    titles = (CellTexts(redact)(t.title, 200) for t in first_screen.windows(summary))
    return tuple(map(summary.step.of_capture, titles))


@dataclass(frozen=True, slots=True)
class Group:
    """One closed line of the page: a hint of what is inside, and the tables that open below it."""

    key: str
    title: str
    inside: str
    grids: tuple[Grid, ...]


#: The closed lines in order; a table names the one in which it stands (``TableSpec.group``).
_LINES = (
    ("where", "Where the step goes"),
    ("timelines", "Another timeline"),
    ("module-tables", "Which module"),
    ("kernel-tables", "Which kernel"),
    ("waiting", "Waits, copies, memory"),
    ("rank-tables", "Ranks"),
    ("all-findings", "Other findings"),
    ("experts", "For experts"),
    ("trust", "How far to trust this"),
)


def _hint_of_contents(key: str, shown: view.View, grids: tuple[Grid, ...], timelines: int, stepped: bool) -> str:
    """Return a closed line's hint of what is inside; ``stepped``: the capture has steps."""
    if key == "where":
        devices = sum(entry.device for entry in shown.ledgers)
        threads = len(shown.ledgers) - devices
        of_gpus, of_threads = units.several(devices, "GPU"), units.several(threads, "CPU thread")
        return f"{of_gpus}, {of_threads}{', step by step' if stepped else ''}"
    if key == "timelines":
        return "the slowest steady step" if stepped else "a closer look"
    if key == "all-findings":
        count, clear = sum(len(g.rows or ()) for g in grids), sum(f.verdict == "clear" for f in shown.findings or ())
        more = f"{count} more found, worth less; " if count else ""
        return f"{more}{clear} looked for and not found"
    if key == "trust":
        good = sum(c.status == "ok" for c in shown.quality)
        return f"{good} of {len(shown.quality)} checks passed; how it was recorded"
    rows = [f"{g.title} ({len(g.rows or ()) + g.folded:,})" for g in grids[:4]]
    return ", ".join(rows) + (f" and {len(grids) - 4} more" if len(grids) > 4 else "")


def _table_matters(summary: Summary, key: str) -> bool:
    """Return whether a table says something of the step, by what limits it and what is to be done; or of a program without steps."""
    shown = summary.tables[key].shown
    if not shown.matters or (shown.stepless and summary.steps.source == "capture"):
        return True
    codes = {summary.verdict.code, *((summary.findings or ())[index].code for index in first_screen.listed(summary))}
    return not codes.isdisjoint(shown.matters)


def _groups(summary: Summary, shown: view.View, timelines: int, redact: bool) -> tuple[Group, ...]:
    """Return the closed lines that are not empty."""
    groups, stepped = [], summary.steps.source != "capture"
    told = [g for g in shown.grids if g.rows and _table_matters(summary, g.key)]
    if of_top := top_kernel.sentence(summary, redact=redact):
        told = [replace(g, intro=f"{of_top} {g.intro}") if g.key == kernels.KEY else g for g in told]
    if (others := beyond.table(summary, first_screen.listed(summary), redact=redact)) is not None:
        told.append(replace(others, group="all-findings"))
    for key, title in _LINES:
        grids = tuple(g for g in told if g.group == key)
        drawn = {
            "where": bool(shown.ledgers or shown.ledger_reasons or shown.steps),
            "timelines": timelines > 0,
            "all-findings": shown.findings is not None,
            "trust": True,
        }
        if grids or drawn.get(key, False):
            title = title if stepped or key != "where" else "Where the time goes"
            groups.append(Group(key, title, _hint_of_contents(key, shown, grids, timelines, stepped), grids))
    return tuple(groups)


def _rows_at_once(group: str, key: str, of_job: bool) -> int:
    """Return how many rows of a table are seen at once; the page of a job has more tables."""
    if key in (stacks.KEY, rank_waits.KEY):
        return PAGE_PICTURED_ROWS
    if of_job:
        return PAGE_JOB_ROWS
    return PAGE_EXPERT_ROWS if group == "experts" else PAGE_ROWS


def render(summary: Summary, *, redact: bool = True, top: int = 50, drawing: DrawingProcess | None = None) -> str:
    """Return the page of ``summary``; ``top`` bounds the rows of each table, ``redact`` hides what names a person or machine.

    A page beyond MOST_PAGE_BYTES is made again with fewer rows. ``drawing`` draws the pictures meanwhile.
    """
    pictures = plots.pictures(summary, redact=redact)
    if drawing is not None:
        pictures = pictures.drawn_by(drawing)
    while True:
        page = _render(summary, redact, top, pictures)
        if len(page.encode()) <= MOST_PAGE_BYTES or top <= FEWEST_TOP:
            return page
        top //= 2


#: What holds text that is no prose: code, scripts, styles and what is copied; text of a picture or box, and between two tags.
_BETWEEN = re.compile(
    r"(<(script|style|pre|code|textarea)\b.*?</\2(?=>))|((?: (?:alt|title)=\"[^\"]*\")|>[^<]+(?=<))", re.DOTALL
)
_UNIT = re.compile(r"(?<=\d) (ns|us|ms|s|%|x|KiB|MiB|GiB|B|[GMk]B/s)(?![\w/])")


def typeset(page: str) -> str:
    """Return the page with numbers that do not break from their units, and microseconds as the world writes them."""

    def unit(number: re.Match[str]) -> str:
        return f"\u00a0{'µs' if number[1] == 'us' else number[1]}"

    return _BETWEEN.sub(lambda m: m[1] or _UNIT.sub(unit, m[3]), page)


def first(summary: Summary, *, redact: bool = True) -> str:
    """Return the first screen alone as a page: the answer with its bars, without tables and charts."""
    return _render(summary, redact, 1, None)


def _live(picture: Timeline, redact: bool, marks: Sequence[live_timeline.Mark]) -> Iterator[str]:
    """Yield the data of a timeline, then with fewer boxes, for a page that has no room for all."""
    yield live_timeline.data(picture, redact=redact, marks=marks)
    yield live_timeline.data(cut_timeline.thinned(picture), redact=redact, marks=marks)


def _render(summary: Summary, redact: bool, top: int, pictures: plots.Pictures | None) -> str:
    """Return the page with these pictures, without them the first screen alone."""
    whole, pictures = pictures is not None, pictures or plots.Pictures()
    shown = view.build(summary, top=top, redact=redact, width=84)
    scripts = ("timeline_data.js", "timeline_paint.js", "timeline.js", "flame.js", "page.js") if whole else ("page.js",)
    script = "".join(map(page_templates.text, scripts))
    summary = replace(summary, timelines=plots.distinct(summary.timelines))
    drawn = pictures.timelines
    screen = first_screen.build(summary, redact=redact)
    windows = _windows(summary, redact) if drawn else ()
    groups = _groups(summary, shown, len(drawn) - len(windows), redact) if whole else ()
    waterfall = step_waterfall.build(summary) if whole else ()
    of_job = len(summary.typed_rows(rank_table.ROWS)) > 1
    most = {g.key: _rows_at_once(group.key, g.key, of_job) for group in groups for g in group.grids}
    seen = [row for group in groups for g in group.grids for row in (g.rows or ())[: most[g.key]]]
    page = page_templates.template("page.html.j2").render(
        v=shown,
        screen=screen,
        windows=windows,
        legend=live_timeline.legend(first_screen.windows(summary)) if drawn else (),
        missing=summary.timelines[0].note if drawn else "",
        groups=groups,
        absent=beyond.absent(shown),
        page_rows=code.page_rows,
        most_time=MOST_TIME,
        most_rows=PAGE_ROWS,
        seen=most,
        lines_shown=lines.KEY in most,
        most_words=PAGE_WORDS,
        most_clear=PAGE_CLEAR,
        most_columns=PAGE_COLUMNS,
        most_evidence=PAGE_EVIDENCE,
        most_items=PAGE_TODO,
        most_ledgers=PAGE_LEDGERS,
        most_checks=PAGE_PASSED + sum(c.status != "ok" for c in shown.quality),
        style=page_templates.text("page.css"),
        script=script,
        script_hash=page_templates.sha256(script),
        ledger_figure=pictures.ledger,
        steps_figure=pictures.steps,
        waterfall=waterfall,
        evidence=[line for line in shown.evidence if not (waterfall and line.startswith(EACH_STEP))],
        longest=max((entry.window_ns for entry in shown.ledgers), default=0) or 1,
        timelines=drawn,
        live=live_timeline.token,
        figures=pictures.of_tables,
        ticket=markdown.render(summary, redact=redact) if whole else "",
        colors=KIND_COLORS | _BAR_COLORS,
        duration=units.duration,
        share=units.share,
        anchor=glossary.anchor,
        anchors={cell.term for row in seen for cell in row if cell.term},
        explained=glossary.explained,
    )
    page = typeset(page)
    every_mark = [*screen.marks, *[()] * len(drawn)]
    lanes = [
        _live(entry, redact, marks) for entry, marks in zip(summary.timelines[: len(drawn)], every_mark, strict=False)
    ]
    return live_timeline.fill(page, lanes)

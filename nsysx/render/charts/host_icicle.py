"""The lines that the GPU waits for, as an icicle: each box is below the one that it is a part of, and as wide as its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from nsysx import units
from nsysx.model import Row, Summary
from nsysx.render.charts.canvas import Chart, Room, boxes, draw, name_axes, time_scale, width_of, write
from nsysx.render.charts.colors import KIND_COLORS, mix, phase_color, shade
from nsysx.render.charts.flame_graph import FlameBox, boxes_json
from nsysx.render.render_bounds import (
    ICICLE_ABOVE,
    ICICLE_BELOW,
    ICICLE_FEWEST,
    ICICLE_LETTER,
    ICICLE_NARROWEST,
    ICICLE_ROW,
    ICICLE_SIDE,
)
from nsysx.render.safe_text import clean, file_name, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TABLE = "host_lines"

#: The rows of boxes from top to bottom, and the name of a box where the table has none.
_LEVELS = {"phase": "outside phases", "module": "outside modules", "line": "?", "framework": ""}


@dataclass(frozen=True, slots=True)
class IcicleTime:
    """Time (ns) of one row, with its name at each level, outermost first. ``unknown`` time is drawn gray."""

    names: tuple[str, ...]
    ns: float
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class IcicleBox:
    """A box: its level, start and end (ns), its name, and how it is painted."""

    level: int
    start: float
    end: float
    name: str
    phase: str
    unknown: bool


def _place(row: Row) -> str:
    """Return a line of code without its folders; a row without a line by its own name."""
    if not row["file"]:
        return str(row["function"])
    line = "" if row["line"] is None else f":{row['line']}"
    return f"{file_name(str(row['file'])[:2000], True).rpartition('/')[2]}{line} {row['function']}"


def chart(summary: Summary, ax: Axes | None = None) -> Chart | None:
    """Return the picture of the lines that the GPU waits for, None where fewer than two rows have idle time."""
    table = summary.tables.get(TABLE)
    rows = [r for r in (table.rows if table else None) or () if r["idle_ns"]]
    if table is None or len(rows) < 2:
        return None
    per_step = table.scope.per_step if table.scope else float
    # A level that no row names is left out.
    used = [name for name in _LEVELS if name == "line" or any(r[name] for r in rows)]
    parts = []
    for row in rows:
        named = {**row, "line": _place(row)}
        names = [clean(str(named[level] or _LEVELS[level]), 200) for level in used]
        parts.append(IcicleTime(tuple(n for n in names if n), per_step(row["idle_ns"]), unknown=not row["samples"]))
    whole, sampled = sum(p.ns for p in parts), sum(p.ns for p in parts if not p.unknown)
    most = max(parts, key=lambda p: p.ns)
    step = " per step" if table.scope and table.scope.steps else ""
    text = (
        f"{units.duration(whole)} of GPU idle time in host code{step}, {units.share(sampled, whole)} of it sampled. "
        f"Most is in {most.names[-1]}: {units.duration(most.ns)}."
    )
    frames = [FlameBox(b.level, b.start, b.end, 0.0, b.name) for b in boxes_of(parts)]
    return Chart(TABLE, partial(icicle, parts, used, ax=ax), text, text, boxes_json(frames))


def boxes_of(parts: Sequence[IcicleTime]) -> list[IcicleBox]:
    """Return the boxes: on each level, parts with one name below one box are together, largest first."""
    drawn: list[IcicleBox] = []

    def place(rows: list[IcicleTime], level: int, start: float) -> None:
        groups: dict[str, list[IcicleTime]] = {}
        for row in rows:
            if level < len(row.names):
                groups.setdefault(row.names[level], []).append(row)
        for name, below in sorted(groups.items(), key=lambda g: (-sum(r.ns for r in g[1]), g[0])):
            whole = sum(r.ns for r in below)
            drawn.append(
                IcicleBox(
                    level,
                    start,
                    end=start + whole,
                    name=name,
                    phase=below[0].names[0],
                    unknown=all(r.unknown for r in below),
                )
            )
            place(below, level + 1, start)
            start += whole

    place([p for p in parts if p.ns > 0], 0, 0.0)
    return drawn


def icicle(parts: Sequence[IcicleTime], levels: Sequence[str], width: int = 1120, ax: Axes | None = None) -> Figure:
    """Return the icicle of these parts; ``levels`` names its rows from top to bottom. Times are per step where the parts are."""
    drawn = boxes_of(parts)
    whole = max((box.end for box in drawn), default=1.0) or 1.0
    divisor, unit = time_scale(whole)

    def on(axes: Axes) -> None:
        axes.set_xlim(0, whole / divisor)
        axes.set_ylim(ICICLE_ROW * len(levels), 0)
        pixel = whole / width_of(axes)
        seen: dict[str, str] = {}
        alike: dict[tuple[str, bool], list[IcicleBox]] = {}
        for box in drawn:
            if (box.end - box.start) / pixel >= ICICLE_NARROWEST:
                color = KIND_COLORS["idle"] if box.unknown else mix(phase_color(box.phase, seen), 1 - 0.15 * box.level)
                alike.setdefault((color, box.unknown), []).append(box)
        for (color, unknown), of_color in alike.items():
            places = [
                (b.start / divisor, ICICLE_ROW * b.level + 1, (b.end - b.start) / divisor, ICICLE_ROW - 2)
                for b in of_color
            ]
            boxes(axes, places, color, edge=shade(color), line=0.67, hatch="////" if unknown else "")
            for box in of_color:
                _name(axes, box, divisor, pixel)
        name_axes(axes, f"{unit}; rows from above: {', '.join(levels)}")

    room = Room(
        width,
        ICICLE_ROW * len(levels) + ICICLE_ABOVE + ICICLE_BELOW,
        left=ICICLE_SIDE,
        right=ICICLE_SIDE,
        above=ICICLE_ABOVE,
        below=ICICLE_BELOW,
    )
    return draw(room, on, ax)


def _name(axes: Axes, box: IcicleBox, divisor: float, pixel: float) -> None:
    """Write the name and the time of a box where they fit."""
    letters = int((box.end - box.start) / pixel / ICICLE_LETTER) - 2
    if letters < ICICLE_FEWEST:
        return
    name, time = clean(box.name, 200), units.duration(box.end - box.start)
    if len(name) > letters:  # the folder of a framework's file tells least
        name = name.rpartition("/")[2]
    text = f"{name}  {time}" if len(name) + len(time) + 2 <= letters else shorten(name, letters)
    middle = ((box.start + box.end) / 2 / divisor, ICICLE_ROW * (box.level + 0.5))
    write(axes, *middle, text, color="#000000", ha="center", halo=KIND_COLORS["idle"] if box.unknown else "")

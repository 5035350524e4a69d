"""The ranks of a job side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from nsysx.catalogue import Paint
from nsysx.model import Row, Summary
from nsysx.ranks import comparison
from nsysx.ranks.comparison import RankRow
from nsysx.render.charts.canvas import (
    NAME,
    NUMBER,
    Drawing,
    Figure,
    Key,
    Picture,
    Scale,
    Tick,
    rectangle,
    ticks,
    time_scale,
    width_of,
)
from nsysx.render.charts.colors import INK, KIND_COLORS, NEUTRAL, PAPER
from nsysx.render.safe_text import clean

TABLE = comparison.KEY


class Drawn(NamedTuple):
    """A part of a rank's step: its label, its ns over the row's steps, and how it is painted."""

    label: str
    ns: Callable[[RankRow], int]
    color: str
    hatched: bool = False


def _matched_ns(row: RankRow) -> int:
    return (row["exposed_transfer_ns"] or 0) + (row["exposed_wait_ns"] or 0)


#: The parts of a rank's step, in the order of drawing; they sum to it.
RANK_PARTS = (
    Drawn("compute", lambda r: r["compute_ns"], KIND_COLORS[Paint.COMPUTE]),
    Drawn("exposed transfer", lambda r: r["exposed_transfer_ns"] or 0, KIND_COLORS[Paint.COMM]),
    Drawn("waiting for another rank", lambda r: r["exposed_wait_ns"] or 0, KIND_COLORS[Paint.COMM], hatched=True),
    Drawn("communication on no other rank", lambda r: r["comm_ns"] - _matched_ns(r), "#9fd3ef"),
    Drawn("copy", lambda r: r["copy_ns"], KIND_COLORS[Paint.COPY]),
    Drawn("memset", lambda r: r["memset_ns"], KIND_COLORS[Paint.MEMSET]),
    Drawn("idle", lambda r: r["idle_ns"], "#ececec"),
)
#: Most ranks drawn as bars; more are drawn as a heat map.
_RANK_BARS = 32
_ROW, _MAP_ROW = 24, 26


def figure(summary: Summary) -> Figure | None:
    """Return the picture of the ranks, per step."""
    rows = []
    for r in summary.of(comparison.ROWS):
        parts = {p.label: summary.scope_of(r).per_step(p.ns(r)) for p in RANK_PARTS}
        rows.append({"rank": r["rank"], "straggler": r["straggler"], **parts})
    if len(rows) < 2:
        return None
    last = next((r for r in rows if r["straggler"]), None)
    text = f"{len(rows)} ranks. " + (
        f"The others wait for rank {last['rank']}." if last else "No rank is waited for by the others."
    )
    return Figure(ranks(rows), text, text)


def ranks(rows: Sequence[Row], width: int = 1120) -> Picture:
    """Return the ranks side by side: one bar per rank, or a heat map of the parts for more than 32 ranks.

    A row has ``rank``, ``straggler`` and the ns per step of each label of RANK_PARTS.
    """
    most = max((sum(r[p.label] for p in RANK_PARTS) for r in rows), default=1) or 1
    divisor, unit = time_scale(most)
    if len(rows) > _RANK_BARS:
        return _rank_map(rows, divisor, unit, width)
    height = _ROW * len(rows) + 76
    drawing = Drawing(width, height)
    scale = Scale(0, most / divisor, 0.1 * width, 0.99 * width)
    top = height - 40 - _ROW * len(rows)
    drawing.legend(scale.start + 2, top - 14, _draw_parts(drawing, rows, top, scale, divisor))
    for index, r in enumerate(rows):
        text = f"rank {clean(r['rank'], 12)}" + (" (last)" if r.get("straggler") else "")
        drawing.text(scale.start - 8, top + _ROW * (index + 0.5), text, size=NAME, anchor="end")
    drawing.axis_below(scale, height - 40, f"mean steady step on the GPU, {unit}")
    return drawing.picture()


def _draw_parts(drawing: Drawing, rows: Sequence[Row], top: float, scale: Scale, divisor: float) -> list[Key]:
    """Draw the parts of each rank's step one after the other, with waiting hatched; return what they are called."""
    keys = []
    left = [0.0] * len(rows)
    for part in RANK_PARTS:
        values = [r[part.label] / divisor for r in rows]
        if not any(values):
            continue
        fill = drawing.hatched(part.color, PAPER) if part.hatched else part.color
        edge = part.color if part.hatched else PAPER
        boxes = "".join(
            rectangle(scale(a), top + _ROW * (index + 0.14), scale.length(b), _ROW * 0.72)
            for index, (a, b) in enumerate(zip(left, values, strict=True))
        )
        drawing.shape(boxes, fill, edge=edge, line=0.67)
        keys.append(Key(part.label, fill, edge))
        left = [a + b for a, b in zip(left, values, strict=True)]
    return keys


#: Colors of the map from nothing to the most, evenly apart: light is much, also for the color-blind (the palette is Cividis).
_CIVIDIS = (
    "#00224e",
    "#123570",
    "#3b496c",
    "#575d6d",
    "#707173",
    "#8a8678",
    "#a59c74",
    "#c3b369",
    "#e1cc55",
    "#fee838",
)
_SHADES = 64


def _shade(share: float) -> str:
    """Return the color of a share of the most."""
    step = min(max(share, 0.0), 1.0) * (len(_CIVIDIS) - 1)
    low = min(int(step), len(_CIVIDIS) - 2)
    pairs = [(int(_CIVIDIS[low][i : i + 2], 16), int(_CIVIDIS[low + 1][i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * (step - low)):02x}" for a, b in pairs)


def _rank_map(rows: Sequence[Row], divisor: float, unit: str, width: int) -> Picture:
    """Return many ranks as a heat map: a column for each rank, a line for each part of its step.

    A part that is below 1 % of the longest step everywhere has no line; the straggler has an arrow above its column.
    """
    longest = max(sum(r[p.label] for p in RANK_PARTS) for r in rows)
    parts = [p.label for p in RANK_PARTS if max(r[p.label] for r in rows) > 0.01 * longest] or ["compute"]
    height = _MAP_ROW * len(parts) + 82
    drawing = Drawing(width, height)
    top, bottom = 38, height - 44
    across = Scale(-0.5, len(rows) - 0.5, 0.19 * width, 0.9 * width)
    most = max(r[name] for r in rows for name in parts) or 1
    for line, name in enumerate(parts):
        level = top + _MAP_ROW * line
        _map_line(drawing, [r[name] / most for r in rows], across, level)
        drawing.text(across.start - 9, level + _MAP_ROW / 2, name, color=NEUTRAL, anchor="end")
    numbers = [clean(r["rank"], 12) for r in rows]
    every = range(0, len(rows), -(-len(rows) // 16))
    drawing.axis_below(across, bottom, "rank", [Tick(i, numbers[i]) for i in every])
    for column, r in enumerate(rows):
        if r.get("straggler"):
            drawing.text(across(column), 16, f"rank {numbers[column]}", size=NAME, anchor="middle", rise="bottom")
            drawing.arrow((across(column), 20), (across(column), top), INK)
    _map_scale(drawing, Scale(0, most / divisor, bottom, top), f"{unit} per step", 0.915 * width)
    return drawing.picture()


def _map_line(drawing: Drawing, shares: Sequence[float], across: Scale, top: float) -> None:
    """Draw a line of the map: in its most common color, with what differs upon it, so that no seam is seen between cells."""
    shades = [round(share * _SHADES) for share in shares]
    common = max(set(shades), key=shades.count)
    drawing.shape(rectangle(across.start, top, across.end - across.start, _MAP_ROW), _shade(common / _SHADES))
    cells: dict[int, list[str]] = {}
    column = 0
    for shade, run in groupby(shades):
        count = len(list(run))
        cells.setdefault(shade, []).append(rectangle(across(column - 0.5), top, across.length(count), _MAP_ROW))
        column += count
    for shade in sorted(cells.keys() - {common}):
        drawing.shape("".join(cells[shade]), _shade(shade / _SHADES))


def _map_scale(drawing: Drawing, scale: Scale, name: str, left: float) -> None:
    """Draw what the colors of the map stand for."""
    wide, high = 13.4, (scale.start - scale.end) / _SHADES
    for shade in range(_SHADES):
        box = rectangle(left, scale.end, wide, high * (_SHADES - shade))  # the next one is drawn upon its upper part
        drawing.shape(box, _shade(shade / (_SHADES - 1)))
    marks = ticks(scale, 21)
    drawing.shape("".join(f"M{left + wide} {scale(mark.at):.2f}h4.67" for mark in marks), edge=NEUTRAL, line=1.07)
    for mark in marks:
        drawing.text(left + wide + 9, scale(mark.at), mark.text, color=NEUTRAL)
    right = left + wide + 18 + max((width_of(mark.text, NUMBER) for mark in marks), default=0.0)
    drawing.text(right, (scale.start + scale.end) / 2, name, anchor="middle", upward=True)

"""The times of single executions of the kernels that take most time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nsysx import units
from nsysx.analyses import kernel_spread
from nsysx.analyses.kernel_spread import SpreadRow
from nsysx.catalogue import Paint
from nsysx.model import Summary
from nsysx.pictures import Strip
from nsysx.render.charts.canvas import Drawing, Figure, Picture, Scale, Tick, place, polygon, rectangle
from nsysx.render.charts.colors import INK, KIND_COLORS, NEUTRAL
from nsysx.render.labels import number
from nsysx.render.safe_text import clean, shorten_kernel

TABLE = kernel_spread.KEY

#: Height of a row and margin at the sides (CSS pixels). Names stand above their dots, so that a phone shows both.
_ROW, _SIDE = 46, 26
#: Axis ends to try, over the median, and the share of dots that may lie beyond.
_LIMITS, _BEYOND = (1.5, 2.0, 4.0, 8.0), 0.02


def _axis_end(ratios: Sequence[float]) -> float:
    """Return how far from the median the axis goes: the least end that leaves few dots outside."""
    out = {limit: sum(not 1 / limit <= r <= limit for r in ratios) for limit in _LIMITS}
    return next((limit for limit, count in out.items() if count <= _BEYOND * len(ratios)), _LIMITS[-1])


def figure(summary: Summary) -> Figure | None:
    """Return the picture of single execution times, with the table's medians and verdicts."""
    rows = {(r["name"], r.get("grid") or "", r.get("block") or ""): r for r in summary.of(kernel_spread.ROWS)}
    drawn = [(s, rows[s.name, s.grid, s.block]) for s in summary.strips if (s.name, s.grid, s.block) in rows]
    if not drawn:
        return None
    loose = [(s, row) for s, row in drawn if row["verdict"] != "steady"]
    text = f"{len(drawn) - len(loose)} of the {len(drawn)} kernels that take most time are steady"
    if len(drawn) == 1:
        text = f"The kernel that takes most time is {'not steady' if loose else 'steady'}"
    for strip, row in loose[:3]:
        spread = "" if row.get("spread") is None else f", spread {number(row['spread'], 'spread', '')}"
        text += f"; {shorten_kernel(clean(strip.name, 200), 40)}: {_verdict(row)}{spread}"
    caption = f"{text}. Each dot is one execution, first at the top (ringed), last at the bottom."
    return Figure(strips([s for s, _ in drawn], [row for _, row in drawn]), caption, caption)


def _verdict(row: SpreadRow) -> str:
    return row["verdict"].replace("_", " ")


def strips(entries: Sequence[Strip], rows: Sequence[SpreadRow], width: int = 660) -> Picture:
    """Return the times of each kernel as dots in order of time from top to bottom, over the median of its row; the first ringed.

    The verdicts of the rows stand above them. A dot outside the axis is drawn at its edge as an arrow head.
    """
    medians = [row["median_ns"] or 1 for row in rows]
    high = _axis_end([ns / median for e, median in zip(entries, medians, strict=True) for ns in e.durations_ns])
    height = _ROW * len(entries) + 64
    drawing = Drawing(width, height)
    scale = Scale(-math.log(high), math.log(high), _SIDE, width - _SIDE)  # of the logarithm
    top = height - 40 - _ROW * len(entries)
    for index, (entry, row) in enumerate(zip(entries, rows, strict=True)):
        y = top + _ROW * index
        if index % 2 == 0:
            drawing.shape(rectangle(_SIDE, y, width - 2 * _SIDE, _ROW), "#7f7f7f", opacity=0.08)
        drawing.shape(f"M{width // 2} {y + 17.5}V{y + 45}", edge=NEUTRAL, line=1.07)
        _draw_dots(drawing, [ns / medians[index] for ns in entry.durations_ns], y, scale)
        label = f"{units.count(entry.count)} runs, median {units.duration(medians[index])}: {clean(_verdict(row), 40)}"
        drawing.text(_SIDE + 2.7, y + 1, shorten_kernel(clean(entry.name, 200), 50), rise="top")
        drawing.text(width - _SIDE - 2.7, y + 1, label, color=NEUTRAL, anchor="end", rise="top")
    named = {1 / high: "", high**-0.5: "", 1.0: "median", high**0.5: "", high: ""}
    marks = [Tick(math.log(ratio), name or f"x {ratio:.2g}") for ratio, name in named.items()]
    drawing.axis_below(scale, height - 40, "time of one execution over the kernel's median", marks)
    return drawing.picture()


def _draw_dots(drawing: Drawing, ratios: Sequence[float], y: float, scale: Scale) -> None:
    """Draw one kernel's executions, the first at the top, those beyond the axis as arrow heads at its edge."""
    step = 22.0 / max(1, len(ratios) - 1)
    places = [(scale(math.log(ratio)), y + 20.2 + i * step) for i, ratio in enumerate(ratios)]
    inside = [p for p in places if scale.start <= p[0] <= scale.end]
    drawing.dots(inside, 3.5, KIND_COLORS[Paint.COMPUTE], 0.6)
    heads = [(scale.start, -2.7, level) for x, level in places if x < scale.start]
    heads += [(scale.end, 2.7, level) for x, level in places if x > scale.end]
    drawing.shape(
        "".join(polygon([(x + d, v), (x - d, v - 2.7), (x - d, v + 2.7)], closed=True) for x, d, v in heads),
        KIND_COLORS[Paint.SYNC],
    )
    x, level = min(max(places[0][0], scale.start), scale.end), places[0][1]
    drawing.shape(f"M{place(x - 3.9)} {place(level)}a3.9 3.9 0 1 0 7.8 0a3.9 3.9 0 1 0-7.8 0z", edge=INK, line=1.2)

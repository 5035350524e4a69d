"""The times of single executions of the kernels that take most time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from nsysx import units
from nsysx.analyses import kernel_spread
from nsysx.analyses.kernel_spread import SpreadRow
from nsysx.catalogue import Paint
from nsysx.model import Summary
from nsysx.pictures import Strip
from nsysx.render.charts.canvas import Chart, Room, boxes, draw, name_axes, outlines, segments, width_of, write
from nsysx.render.charts.colors import INK, KIND_COLORS, NEUTRAL
from nsysx.render.labels import number
from nsysx.render.render_bounds import STRIP_BEYOND, STRIP_DOT, STRIP_ROW, STRIP_SIDE
from nsysx.render.safe_text import clean, shorten_kernel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TABLE = kernel_spread.KEY

#: Axis ends to try, over the median, and the share of dots that may lie beyond.
_LIMITS = (1.5, 2.0, 4.0, 8.0)


def chart(summary: Summary, ax: Axes | None = None) -> Chart | None:
    """Return the picture of single execution times, with the table's medians and verdicts."""
    rows = {(r["name"], r.get("grid") or "", r.get("block") or ""): r for r in summary.typed_rows(kernel_spread.ROWS)}
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
    return Chart(TABLE, partial(strips, [s for s, _ in drawn], [row for _, row in drawn], ax=ax), caption, caption)


def _verdict(row: SpreadRow) -> str:
    return row["verdict"].replace("_", " ")


def strips(entries: Sequence[Strip], rows: Sequence[SpreadRow], width: int = 660, ax: Axes | None = None) -> Figure:
    """Return the times of each kernel as dots in order of time from top to bottom, over the median of its row; the first ringed.

    The verdicts of the rows stand above them. A dot outside the axis is drawn at its edge as an arrow head.
    """
    medians = [row["median_ns"] or 1 for row in rows]
    # The axis goes to the least end that leaves few dots outside.
    ratios = [ns / median for e, median in zip(entries, medians, strict=True) for ns in e.durations_ns]
    out = {limit: sum(not 1 / limit <= r <= limit for r in ratios) for limit in _LIMITS}
    high = next((limit for limit, count in out.items() if count <= STRIP_BEYOND * len(ratios)), _LIMITS[-1])
    end = math.log(high)

    def on(axes: Axes) -> None:
        axes.set_xlim(-end, end)  # of the logarithm
        axes.set_ylim(STRIP_ROW * len(entries), 0)
        for index, (entry, row) in enumerate(zip(entries, rows, strict=True)):
            y = STRIP_ROW * index
            if index % 2 == 0:
                boxes(axes, [(-end, y, 2 * end, STRIP_ROW)], "#7f7f7f", alpha=0.08)
            segments(axes, [[(0, y + 17.5), (0, y + 45)]], NEUTRAL, 1.07)
            _draw_dots(axes, [ns / medians[index] for ns in entry.durations_ns], y, end)
            runs = f"{units.count(entry.count)} runs, median {units.duration(medians[index])}"
            write(axes, -end, y, shorten_kernel(clean(entry.name, 200), 50), offset=(2.7, -1), va="top")
            label = f"{runs}: {clean(_verdict(row), 40)}"
            write(axes, end, y, label, color=NEUTRAL, ha="right", offset=(-2.7, -1), va="top")
        named = {1 / high: "", high**-0.5: "", 1.0: "median", high**0.5: "", high: ""}
        axes.set_xticks([math.log(r) for r in named], [name or f"x {r:.2g}" for r, name in named.items()])
        name_axes(axes, "time of one execution over the kernel's median")

    return draw(
        Room(width, STRIP_ROW * len(entries) + 64, left=STRIP_SIDE, right=STRIP_SIDE, above=24, below=40), on, ax
    )


def _draw_dots(axes: Axes, ratios: Sequence[float], y: float, end: float) -> None:
    """Draw one kernel's executions, the first at the top, those beyond the axis as arrow heads at its edge."""
    step = 22.0 / max(1, len(ratios) - 1)
    places = [(math.log(ratio), y + 20.2 + i * step) for i, ratio in enumerate(ratios)]
    inside = [p for p in places if -end <= p[0] <= end]
    pixel = 2 * end / width_of(axes)
    layers = 6  # neighbors are on different ones: within a shape, nothing is drawn over anything
    for layer in range(min(layers, len(inside))):
        dots = [[(x, level), (x + STRIP_DOT * pixel, level)] for x, level in inside[layer::layers]]
        segments(axes, dots, KIND_COLORS[Paint.COMPUTE], 3.5, alpha=0.6, dots=True)
    wide = 2.7 * pixel
    heads = [(-end, -wide, level) for x, level in places if x < -end]
    heads += [(end, wide, level) for x, level in places if x > end]
    arrows = [[(x + d, v), (x - d, v - 2.7), (x - d, v + 2.7), (x + d, v)] for x, d, v in heads]
    outlines(axes, arrows, KIND_COLORS[Paint.SYNC], layer=3)
    ring: dict[str, Any] = {
        "markersize": 7.8,
        "markerfacecolor": "none",
        "markeredgecolor": INK,
        "markeredgewidth": 1.2,
    }
    axes.plot([min(max(places[0][0], -end), end)], [places[0][1]], "o", clip_on=False, zorder=4, **ring)

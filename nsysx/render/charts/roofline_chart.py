"""The roofline of a step: each operator by the operations that it does for each byte, and how fast it does them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from nsysx import units
from nsysx.analyses import roofline as table
from nsysx.analyses.roofline import RooflineRow
from nsysx.model import Summary
from nsysx.render.charts.canvas import (
    NARROW,
    NUMBER,
    Chart,
    LegendEntry,
    Room,
    draw,
    legend,
    name_axes,
    segments,
    write,
)
from nsysx.render.charts.colors import KIND_COLORS, NEUTRAL, WORK_COLORS
from nsysx.render.render_bounds import (
    ROOFLINE_AREA,
    ROOFLINE_LEAST,
    ROOFLINE_LETTER,
    ROOFLINE_LINE,
    ROOFLINE_MOST,
    ROOFLINE_NAMED,
    ROOFLINE_SMALLEST,
)
from nsysx.render.safe_text import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TABLE = table.KEY

#: What multiplies nothing has no place on the axis of operations: it stands side by side between these (operations per byte).
_SIDE_BY_SIDE = (0.004, 0.5)
#: Width of a letter in a limit's name, which is written larger than those of operators.
_LIMIT_LETTER = ROOFLINE_LETTER * NUMBER / NARROW
_PRODUCT, _MEMORY = WORK_COLORS[0], KIND_COLORS["copy"]


class RooflinePoint(NamedTuple):
    """An operator: operations per byte (0 for one that multiplies nothing), bytes/s, share of the step's time, what bounds it."""

    name: str
    intensity: float
    bytes_per_s: float
    share: float
    roof: str

    @property
    def tflops(self) -> float:
        """How high it stands."""
        return self.intensity * self.bytes_per_s / 1e12

    @property
    def area(self) -> float:
        """The area of its circle (square pixels)."""
        return max(ROOFLINE_AREA * self.share, ROOFLINE_SMALLEST)


class RooflineLimits(NamedTuple):
    """The limits: bytes per second, and the formats with their TFLOP/s."""

    bytes_per_s: float
    products: tuple[tuple[str, float], ...]


def chart(summary: Summary, ax: Axes | None = None) -> Chart | None:
    """Return the picture of the operators with a limit, None where none has one."""
    rows = summary.typed_rows(table.ROWS)
    step = next((r for r in rows if r["by"] == table.STEP), None)
    operators = [r for r in rows if r["by"] == table.OPERATOR]
    if step is None or not step["limit_ns"] or not step["peak_bytes_per_s"]:
        return None
    points = [p for r in operators if (p := _point(r, step["gpu_ns"])) is not None]
    if not points:
        return None
    formats = {r["peak_tflops"]: r["number_format"] or "" for r in operators if r["flops"] and r["peak_tflops"]}
    products = tuple((number_format, tflops) for tflops, number_format in sorted(formats.items()) if tflops)
    table_scope = summary.tables[TABLE].scope
    gpu_ns, limit_ns = (table_scope.per_step(ns) if table_scope else ns for ns in (step["gpu_ns"], step["limit_ns"]))
    text = (
        f"Of {units.duration(gpu_ns)} GPU time, {units.share(step['unknown_ns'], step['gpu_ns'])} of it without a limit, the device needs "
        f"{units.duration(limit_ns)} at least; what is known is at "
        f"{units.share(step['limit_ns'], step['gpu_ns'] - step['unknown_ns'])} of its limits."
    )
    caption = (
        f"{text} A circle is an operator with its gradients, its area the time; the lines are the limits. Operators without products, "
        "which the memory limits, stand side by side on the left."
    )
    limits = RooflineLimits(step["peak_bytes_per_s"], products)
    shown = sorted(points, key=lambda p: -p.share)[:ROOFLINE_MOST]
    # Those that multiply nothing stand side by side, the largest to the left.
    low, high = (math.log10(x) for x in _SIDE_BY_SIDE)
    without = [p for p in shown if not p.intensity]
    between = (high - low) / max(len(without) - 1, 1)
    moved = [p._replace(intensity=10 ** (low + n * between)) for n, p in enumerate(without)]
    placed = [*moved, *(p for p in shown if p.intensity)]
    return Chart(TABLE, partial(roofline, placed, limits, ax=ax), text, caption)


def _point(row: RooflineRow, whole_ns: int) -> RooflinePoint | None:
    """Return the place of an operator, None for a small one and one without a limit."""
    moved, ns = row["moved_bytes"], row["gpu_ns"] - row["unknown_ns"]
    if not row["limit_ns"] or not moved or ns <= 0 or row["gpu_ns"] < ROOFLINE_LEAST * whole_ns:
        return None
    name, intensity = clean(row["name"] or "outside", 30), (row["flops"] or 0) / moved
    return RooflinePoint(name, intensity, moved / ns * 1e9, row["gpu_ns"] / whole_ns, row["roof"] or "")


def roofline(
    points: Sequence[RooflinePoint],
    limits: RooflineLimits,
    width: int = 1120,
    height: int = 420,
    ax: Axes | None = None,
) -> Figure:
    """Return operators on two logarithmic axes, operations per byte and TFLOP/s, below the lines of the limits."""
    slope = limits.bytes_per_s / 1e12
    most = max([t for _, t in limits.products] or [2 * max(p.intensity for p in points) * slope])
    low_x = min(_SIDE_BY_SIDE[0], *(p.intensity for p in points)) / 1.8
    high_x = max(8 * most / slope, 2 * max(p.intensity for p in points))

    def on(axes: Axes) -> None:
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(low_x, high_x)
        axes.set_ylim(0.3 * min(p.tflops for p in points), 2.2 * most)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.set_tick_params(which="minor", length=0)
        segments(axes, [[(low_x, low_x * slope), (most / slope, most)]], NEUTRAL, 1.3)
        middle, memory = math.sqrt(_SIDE_BY_SIDE[1] * most / slope), f"memory {slope:.2f} TB/s"
        write(axes, middle, middle * slope, memory, color=NEUTRAL, offset=(10, -10))
        taken = [_taken(axes, (middle, middle * slope), memory, 10, ROOFLINE_LINE / 2 - 10)]
        for number_format, tflops in limits.products:
            segments(axes, [[(tflops / slope, tflops), (high_x, tflops)]], NEUTRAL, 1.3)
            name = f"{number_format} products {tflops:,.0f} TFLOP/s"
            # Left of the corner, above the slope: circles stand below the line, and the largest reach over it.
            write(axes, tflops / slope, tflops, name, ha="right", va="bottom", color=NEUTRAL, offset=(-6, -4))
            taken.append(
                _taken(axes, (tflops / slope, tflops), name, -6 - _LIMIT_LETTER * len(name), ROOFLINE_LINE - 4)
            )
        for color, products in ((_PRODUCT, True), (_MEMORY, False)):
            group = [p for p in points if (p.roof == "products") == products]
            if group:
                places = [p.intensity for p in group], [p.tflops for p in group]
                axes.scatter(*places, s=[p.area for p in group], c=color, alpha=0.55, edgecolors=color, zorder=3)
        _names(axes, points, taken)
        name_axes(axes, "floating point operations per byte that must move", left="TFLOP/s", only=False)
        legend(
            axes, [LegendEntry("limited by products", _PRODUCT), LegendEntry("limited by the memory", _MEMORY)], rise=6
        )

    return draw(Room(width, height, left=84, right=12, above=30, below=44), on, ax)


def _names(axes: Axes, points: Sequence[RooflinePoint], taken: list[_Box]) -> None:
    """Write the names of the largest operators: upward from those that multiply nothing, which stand close together, else below."""
    named = sorted(points, key=lambda p: -p.share)[:ROOFLINE_NAMED]
    # Upward there is room only on the left: what multiplies stands near the upper edge, whatever limits it.
    beside = [p for p in named if p.roof != "products" and p.intensity <= _SIDE_BY_SIDE[1]]
    for point in beside:
        write(
            axes,
            point.intensity,
            point.tflops,
            _words(point),
            size=NARROW,
            offset=(0, _radius(point) + 4),
            upward=True,
        )
    _names_below(axes, [p for p in named if p not in beside], taken)


#: Where a line of text stands (points): its left and right end, and its upper edge.
_Box = tuple[float, float, float]


def _taken(axes: Axes, xy: tuple[float, float], text: str, right: float, top: float) -> _Box:
    """Return where a name of a limit stands, which begins so far right of a place and has its upper edge so far above it (points)."""
    x, y = (72 / axes.figure.dpi * each for each in axes.transData.transform(xy))
    return x + right, x + right + _LIMIT_LETTER * len(text), y + top


def _names_below(axes: Axes, points: Sequence[RooflinePoint], taken: list[_Box]) -> None:
    """Write the names of operators below their circles, each below those that it would cover: large products stand close together."""
    scale = 72 / axes.figure.dpi
    for point in sorted(points, key=lambda p: -p.tflops):
        x, y = (scale * each for each in axes.transData.transform((point.intensity, point.tflops)))
        half = ROOFLINE_LETTER * len(_words(point)) / 2
        left = min(0.0, scale * axes.bbox.x1 - x - half)
        top = y - _radius(point) - 3
        for low, high, other in sorted(taken, key=lambda box: -box[2]):
            if low < x + left + half and high > x + left - half and abs(top - other) < ROOFLINE_LINE:
                top = other - ROOFLINE_LINE
        taken.append((x + left - half, x + left + half, top))
        write(
            axes,
            point.intensity,
            point.tflops,
            _words(point),
            size=NARROW,
            va="top",
            ha="center",
            offset=(left, top - y),
        )


def _words(point: RooflinePoint) -> str:
    return f"{point.name} {units.share(point.share, 1)}"


def _radius(point: RooflinePoint) -> float:
    return math.sqrt(point.area / math.pi)

"""The times of single executions of the kernels that take most time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nsysx import units
from nsysx.analyses import kernel_spread
from nsysx.analyses.kernel_spread import SpreadRow
from nsysx.catalogue import Paint
from nsysx.model import Summary
from nsysx.pictures import Strip
from nsysx.render.charts.canvas import Figure, Picture, new_figure, settings, svg
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
    low, middle = 1 / high, high**0.5
    with settings():
        height = _ROW * len(entries) + 64
        drawing = new_figure(width, height)
        axes = drawing.add_axes((_SIDE / width, 40 / height, 1 - 2 * _SIDE / width, _ROW * len(entries) / height))
        for index, (entry, row) in enumerate(zip(entries, rows, strict=True)):
            y = len(entries) - 1 - index
            if index % 2 == 0:
                axes.axhspan(y - 0.5, y + 0.5, color="#7f7f7f", alpha=0.08, linewidth=0)
            axes.plot([1, 1], [y - 0.48, y + 0.12], color=NEUTRAL, linewidth=0.8)
            _draw_dots(axes, entry, y, medians[index], high)
            label = (
                f"{units.count(entry.count)} runs, median {units.duration(medians[index])}: {clean(_verdict(row), 40)}"
            )
            _above(axes, shorten_kernel(clean(entry.name, 200), 50), y, INK, right=False)
            _above(axes, label, y, NEUTRAL, right=True)
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        axes.set_xticks(
            [low, 1 / middle, 1, middle, high],
            [f"x {low:.2g}", f"x {1 / middle:.2g}", "median", f"x {middle:.2g}", f"x {high:.2g}"],
        )
        axes.minorticks_off()
        axes.set_ylim(-0.5, len(entries) - 0.5)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("time of one execution over the kernel's median", fontsize=8.5, color=NEUTRAL)
        axes.tick_params(labelsize=8)
        return svg(drawing, width, height)


def _above(axes: Any, text: str, y: float, color: str, *, right: bool) -> None:
    """Write a text at the top of the row ``y``, from the left or up to the right end."""
    axes.annotate(
        text,
        (float(right), y + 0.48),
        (-2 if right else 2, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right" if right else "left",
        va="top",
        fontsize=8,
        color=color,
    )


def _draw_dots(axes: Any, entry: Strip, y: float, median: float, high: float) -> None:
    """Draw one kernel's executions, the first at the top, those beyond the axis as arrow heads at its edge."""
    low = 1 / high
    step = 0.48 / max(1, len(entry.durations_ns) - 1)
    places = [(ns / median, y + 0.06 - i * step) for i, ns in enumerate(entry.durations_ns)]
    inside = [(x, instant) for x, instant in places if low <= x <= high]
    if inside:
        axes.scatter(
            [x for x, _ in inside],
            [instant for _, instant in inside],
            s=7,
            color=KIND_COLORS[Paint.COMPUTE],
            alpha=0.6,
            linewidths=0,
            rasterized=True,
        )
    for edge, marker, beyond in (
        (low, "<", [instant for x, instant in places if x < low]),
        (high, ">", [instant for x, instant in places if x > high]),
    ):
        if beyond:
            axes.scatter(
                [edge] * len(beyond),
                beyond,
                s=16,
                marker=marker,
                color=KIND_COLORS[Paint.SYNC],
                clip_on=False,
                linewidths=0,
                rasterized=True,
            )
    first = min(max(places[0][0], low), high)
    axes.scatter([first], [places[0][1]], s=34, facecolors="none", edgecolors=INK, linewidths=0.9, clip_on=False)

"""The ranks of a job side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nsysx.catalogue import Paint
from nsysx.model import Row, Summary
from nsysx.ranks import comparison
from nsysx.ranks.comparison import RankRow
from nsysx.render.charts.canvas import (
    Figure,
    Picture,
    legend_above,
    new_figure,
    png,
    settings,
    side_text,
    svg,
    time_scale,
)
from nsysx.render.charts.colors import INK, KIND_COLORS, NEUTRAL, PAPER
from nsysx.render.safe_text import clean

TABLE = comparison.KEY


class Drawn(NamedTuple):
    """A part of a rank's step: its label, its ns over the row's steps, and how it is painted."""

    label: str
    ns: Callable[[RankRow], int]
    color: str
    hatch: str = ""


def _matched_ns(row: RankRow) -> int:
    return (row["exposed_transfer_ns"] or 0) + (row["exposed_wait_ns"] or 0)


#: The parts of a rank's step, in the order of drawing; they sum to it.
RANK_PARTS = (
    Drawn("compute", lambda r: r["compute_ns"], KIND_COLORS[Paint.COMPUTE]),
    Drawn("exposed transfer", lambda r: r["exposed_transfer_ns"] or 0, KIND_COLORS[Paint.COMM]),
    Drawn("waiting for another rank", lambda r: r["exposed_wait_ns"] or 0, KIND_COLORS[Paint.COMM], "////"),
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
    with settings():
        most = max((sum(r[p.label] for p in RANK_PARTS) for r in rows), default=1) or 1
        divisor, unit = time_scale(most)
        if len(rows) > _RANK_BARS:
            return _rank_map(rows, divisor, unit, width)
        height = _ROW * len(rows) + 76
        drawing = new_figure(width, height)
        axes = drawing.add_axes((0.1, 40 / height, 0.89, _ROW * len(rows) / height))
        y = [len(rows) - 1 - i for i in range(len(rows))]
        _draw_parts(axes, rows, y, divisor)
        for level, r in zip(y, rows, strict=True):
            text = f"rank {clean(r['rank'], 12)}" + (" (last)" if r.get("straggler") else "")
            side_text(axes, text, level, (-6, 0), size=8.5)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_ylim(-0.5, len(rows) - 0.5)
        axes.set_xlim(0, most / divisor)
        axes.set_xlabel(f"mean steady step on the GPU, {unit}", fontsize=8.5, color=NEUTRAL)
        axes.tick_params(labelsize=8)
        legend_above(axes, 1.0, 7, handlelength=1.1, columnspacing=1.2, borderpad=0.2)
        return svg(drawing, width, height)


def _draw_parts(axes: Any, rows: Sequence[Row], y: Sequence[float], divisor: float) -> None:
    """Draw the parts of each rank's step one after the other, with waiting hatched."""
    left = [0.0] * len(rows)
    for part in RANK_PARTS:
        values = [r[part.label] / divisor for r in rows]
        if not any(values):
            continue
        axes.barh(
            y,
            values,
            0.72,
            left=left,
            color=PAPER if part.hatch else part.color,
            edgecolor=part.color if part.hatch else PAPER,
            hatch=part.hatch or None,
            linewidth=0.5,
            label=part.label,
        )
        left = [a + b for a, b in zip(left, values, strict=True)]


def _rank_map(rows: Sequence[Row], divisor: float, unit: str, width: int) -> Picture:
    """Return many ranks as a heat map: a column for each rank, a line for each part of its step.

    A part that is below 1 % of the longest step everywhere has no line; the straggler has an arrow above its column.
    """
    longest = max(sum(r[p.label] for p in RANK_PARTS) for r in rows)
    parts = [p.label for p in RANK_PARTS if max(r[p.label] for r in rows) > 0.01 * longest] or ["compute"]
    height = _MAP_ROW * len(parts) + 82
    drawing = new_figure(width, height)
    axes = drawing.add_axes((0.19, 44 / height, 0.71, _MAP_ROW * len(parts) / height))
    values = [[r[name] / divisor for r in rows] for name in parts]
    image = axes.imshow(values, aspect="auto", cmap="cividis", interpolation="nearest", vmin=0)
    axes.set_yticks(range(len(parts)), parts, fontsize=8.5)
    axes.tick_params(labelsize=8)
    axes.set_xlabel("rank", fontsize=8.5)
    numbers = [clean(r["rank"], 12) for r in rows]
    every = range(0, len(rows), -(-len(rows) // 16))
    axes.set_xticks(every, [numbers[i] for i in every])
    for column, r in enumerate(rows):
        if r.get("straggler"):
            axes.annotate(
                f"rank {numbers[column]}",
                (column, -0.5),
                (0, 14),
                textcoords="offset points",
                ha="center",
                fontsize=8.5,
                color=INK,
                arrowprops={"arrowstyle": "-|>", "color": INK, "shrinkA": 0, "shrinkB": 0},
                annotation_clip=False,
            )
    bar = drawing.colorbar(image, cax=drawing.add_axes((0.915, 44 / height, 0.012, _MAP_ROW * len(parts) / height)))
    bar.ax.tick_params(labelsize=8)
    bar.set_label(f"{unit} per step", fontsize=8)
    return png(drawing, width, height)

"""The ranks of a job side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nsysx.model import Row
from nsysx.render.charts.canvas import Picture, legend_above, new_figure, png, settings, side_text, svg, time_scale
from nsysx.render.charts.colours import INK, KIND_COLOURS, NEUTRAL, PAPER
from nsysx.render.safe_text import clean

#: The parts of a rank's step, in the order of drawing: label, colour, hatch.
RANK_PARTS = (
    ("compute", KIND_COLOURS["compute"], ""),
    ("exposed transfer", KIND_COLOURS["comm"], ""),
    ("waiting for another rank", KIND_COLOURS["comm"], "////"),
    ("communication on no other rank", "#9fd3ef", ""),
    ("copy", KIND_COLOURS["copy"], ""),
    ("memset", KIND_COLOURS["memset"], ""),
    ("idle", "#ececec", ""),
)
#: Most ranks drawn as bars; more are drawn as a heat map.
_RANK_BARS = 32
_ROW, _MAP_ROW = 24, 26


def ranks(rows: Sequence[Row], width: int = 1120) -> Picture:
    """Return the ranks side by side: one bar per rank, or a heat map of the parts for more than 32 ranks.

    A row has ``rank``, ``straggler`` and the ns per step of each label of RANK_PARTS.
    """
    with settings():
        most = max((sum(r[name] for name, _, _ in RANK_PARTS) for r in rows), default=1) or 1
        divisor, unit = time_scale(most)
        if len(rows) > _RANK_BARS:
            return _rank_map(rows, divisor, unit, width)
        height = _ROW * len(rows) + 76
        figure = new_figure(width, height)
        axes = figure.add_axes((0.1, 40 / height, 0.89, _ROW * len(rows) / height))
        y = [len(rows) - 1 - i for i in range(len(rows))]
        _draw_parts(axes, rows, y, divisor)
        for at, r in zip(y, rows, strict=True):
            text = f"rank {clean(r['rank'], 12)}" + (" (last)" if r.get("straggler") else "")
            side_text(axes, text, at, (-6, 0), size=8.5)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_ylim(-0.5, len(rows) - 0.5)
        axes.set_xlim(0, most / divisor)
        axes.set_xlabel(f"mean steady step on the GPU, {unit}", fontsize=8.5, color=NEUTRAL)
        axes.tick_params(labelsize=8)
        legend_above(axes, 1.0, 7, handlelength=1.1, columnspacing=1.2, borderpad=0.2)
        return svg(figure, width, height)


def _draw_parts(axes: Any, rows: Sequence[Row], y: Sequence[float], divisor: float) -> None:
    """Draw the parts of each rank's step one after the other, with waiting hatched."""
    left = [0.0] * len(rows)
    for name, colour, hatch in RANK_PARTS:
        values = [r[name] / divisor for r in rows]
        if not any(values):
            continue
        axes.barh(
            y,
            values,
            0.72,
            left=left,
            color=PAPER if hatch else colour,
            edgecolor=colour if hatch else PAPER,
            hatch=hatch or None,
            linewidth=0.5,
            label=name,
        )
        left = [a + b for a, b in zip(left, values, strict=True)]


def _rank_map(rows: Sequence[Row], divisor: float, unit: str, width: int) -> Picture:
    """Return many ranks as a heat map: a column for each rank, a line for each part of its step.

    A part that is below 1 % of the longest step everywhere has no line; the straggler has an arrow above its column.
    """
    longest = max(sum(r[name] for name, _, _ in RANK_PARTS) for r in rows)
    parts = [name for name, _, _ in RANK_PARTS if max(r[name] for r in rows) > 0.01 * longest] or ["compute"]
    height = _MAP_ROW * len(parts) + 82
    figure = new_figure(width, height)
    axes = figure.add_axes((0.19, 44 / height, 0.71, _MAP_ROW * len(parts) / height))
    values = [[r[name] / divisor for r in rows] for name in parts]
    image = axes.imshow(values, aspect="auto", cmap="cividis", interpolation="nearest", vmin=0)
    axes.set_yticks(range(len(parts)), parts, fontsize=8.5)
    axes.tick_params(labelsize=8)
    axes.set_xlabel("rank", fontsize=8.5)
    numbers = [clean(r["rank"], 12) for r in rows]
    every = range(0, len(rows), -(-len(rows) // 16))
    axes.set_xticks(every, [numbers[i] for i in every])
    for at, r in enumerate(rows):
        if r.get("straggler"):
            axes.annotate(
                f"rank {numbers[at]}",
                (at, -0.5),
                (0, 14),
                textcoords="offset points",
                ha="center",
                fontsize=8.5,
                color=INK,
                arrowprops={"arrowstyle": "-|>", "color": INK, "shrinkA": 0, "shrinkB": 0},
                annotation_clip=False,
            )
    bar = figure.colorbar(image, cax=figure.add_axes((0.915, 44 / height, 0.012, _MAP_ROW * len(parts) / height)))
    bar.ax.tick_params(labelsize=8)
    bar.set_label(f"{unit} per step", fontsize=8)
    return png(figure, width, height)

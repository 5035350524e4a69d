"""The ranks of a job side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from nsysx.catalogue import Paint, StepPart
from nsysx.judging import rank_waiting
from nsysx.model import Row, Summary
from nsysx.ranks import rank_table
from nsysx.ranks.rank_table import RankRow
from nsysx.render.charts.canvas import (
    NAME,
    Chart,
    LegendEntry,
    Room,
    boxes,
    draw,
    legend,
    name_axes,
    time_scale,
    typeset,
    write,
)
from nsysx.render.charts.colors import INK, KIND_COLORS, PAPER
from nsysx.render.render_bounds import RANK_BARS, RANK_MAP_ROW, RANK_ROW, RANK_SHADES
from nsysx.render.safe_text import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TABLE = rank_table.KEY


class RankBarPart(NamedTuple):
    """A part of a rank's step: its label, its ns over the row's steps, and how it is painted: with a ``hatch`` on white, or filled."""

    label: str
    ns: Callable[[RankRow], int]
    color: str
    hatch: str = ""


#: The parts of a rank's step, in the order of drawing; they sum to it.
RANK_PARTS = (
    RankBarPart("compute", lambda r: r["compute_ns"], KIND_COLORS[Paint.COMPUTE]),
    RankBarPart("exposed transfer", lambda r: r["exposed_transfer_ns"] or 0, KIND_COLORS[Paint.COMM]),
    RankBarPart("waiting for another rank", lambda r: r["exposed_wait_ns"] or 0, KIND_COLORS[Paint.COMM], "////"),
    RankBarPart(
        "communication on no other rank",
        lambda r: r["comm_ns"] - (r["exposed_transfer_ns"] or 0) - (r["exposed_wait_ns"] or 0),
        "#9fd3ef",
    ),
    RankBarPart("copy", lambda r: r["copy_ns"], KIND_COLORS[Paint.COPY]),
    RankBarPart("memset", lambda r: r["memset_ns"], KIND_COLORS[Paint.MEMSET]),
    RankBarPart(StepPart.HOST_COMM.drawn, rank_table.on_host_ns, KIND_COLORS[Paint.COMM], "....."),
    RankBarPart("idle", lambda r: r["idle_ns"] - rank_table.on_host_ns(r), "#ececec"),
)


def chart(summary: Summary, ax: Axes | None = None) -> Chart | None:
    """Return the picture of the ranks, per step."""
    rows = []
    for r in summary.typed_rows(rank_table.ROWS):
        parts = {p.label: summary.scope_of(r).per_step(p.ns(r)) for p in RANK_PARTS}
        rows.append({"rank": r["rank"], "straggler": r["straggler"], **parts})
    if len(rows) < 2:
        return None
    text = f"{len(rows)} ranks. {rank_waiting.sentence(summary.rows(TABLE))}."
    return Chart(TABLE, partial(ranks, rows, ax=ax), text, text)


def ranks(rows: Sequence[Row], width: int = 1120, ax: Axes | None = None) -> Figure:
    """Return the ranks side by side: one bar per rank, or a heat map of the parts for more than 32 ranks.

    A row has ``rank``, ``straggler`` and the ns per step of each label of RANK_PARTS.
    """
    most = max((sum(r[p.label] for p in RANK_PARTS) for r in rows), default=1) or 1
    divisor, unit = time_scale(most)
    if len(rows) > RANK_BARS:
        return _rank_map(rows, divisor, unit, width, ax)

    def on(axes: Axes) -> None:
        axes.set_xlim(0, most / divisor)
        axes.set_ylim(RANK_ROW * len(rows), 0)
        keys = _draw_parts(axes, rows, divisor)
        for index, r in enumerate(rows):
            text = f"rank {clean(r['rank'], 12)}" + (" (last)" if r.get("straggler") else "")
            write(axes, 0, RANK_ROW * (index + 0.5), text, size=NAME, ha="right", offset=(-8, 0))
        name_axes(axes, f"mean steady step on the GPU, {unit}")
        legend(axes, keys, rise=8)

    return draw(
        Room(width, RANK_ROW * len(rows) + 76, left=0.1 * width, right=0.01 * width, above=36, below=40), on, ax
    )


def _draw_parts(axes: Axes, rows: Sequence[Row], divisor: float) -> list[LegendEntry]:
    """Draw the parts of each rank's step one after the other; return what they are called."""
    keys = []
    left = [0.0] * len(rows)
    for part in RANK_PARTS:
        values = [r[part.label] / divisor for r in rows]
        if not any(values):
            continue
        fill, edge = (PAPER, part.color) if part.hatch else (part.color, PAPER)
        places = [
            (a, RANK_ROW * (i + 0.14), b, 0.72 * RANK_ROW) for i, (a, b) in enumerate(zip(left, values, strict=True))
        ]
        boxes(axes, places, fill, edge=edge, line=0.67, hatch=part.hatch)
        keys.append(LegendEntry(part.label, fill, edge if part.hatch else "none", part.hatch))
        left = [a + b for a, b in zip(left, values, strict=True)]
    return keys


def _rank_map(rows: Sequence[Row], divisor: float, unit: str, width: int, ax: Axes | None) -> Figure:
    """Return many ranks as a heat map: a column for each rank, a line for each part of its step.

    A part that is below 1 % of the longest step everywhere has no line; the straggler has an arrow above its column.
    """
    longest = max(sum(r[p.label] for p in RANK_PARTS) for r in rows)
    parts = [p.label for p in RANK_PARTS if max(r[p.label] for r in rows) > 0.01 * longest] or ["compute"]
    numbers = [clean(r["rank"], 12) for r in rows]
    values = [[r[name] / divisor for r in rows] for name in parts]
    most = max(map(max, values)) or 1.0

    def on(axes: Axes) -> None:
        # Light is much, also for the color-blind. An image holds any number of ranks.
        axes.imshow(values, aspect="auto", cmap="cividis", interpolation="none", vmin=0, vmax=most)
        axes.set_yticks(range(len(parts)), parts)
        every = range(0, len(rows), -(-len(rows) // 16))
        axes.set_xticks(every, [numbers[i] for i in every])
        axes.set_xlabel("rank", labelpad=5)
        for column, r in enumerate(rows):
            if r.get("straggler"):
                arrow = {"arrowstyle": "-|>", "color": INK, "shrinkA": 0, "shrinkB": 0}
                axes.annotate(
                    f"rank {numbers[column]}",
                    (column, -0.5),
                    (0, 18),
                    textcoords="offset points",
                    ha="center",
                    fontsize=NAME,
                    color=INK,
                    arrowprops=arrow,
                    annotation_clip=False,
                )
        _map_scale(axes, most, f"{unit} per step")

    return draw(
        Room(width, RANK_MAP_ROW * len(parts) + 82, left=0.19 * width, right=0.1 * width, above=38, below=44), on, ax
    )


def _map_scale(axes: Axes, most: float, name: str) -> None:
    """Draw what the colors of the map stand for: nothing below, the most above."""
    bar = axes.inset_axes((1.02, 0, 0.016, 1))
    shades = [[shade] for shade in range(RANK_SHADES)]
    bar.imshow(shades, origin="lower", extent=(0, 1, 0, most), aspect="auto", cmap="cividis", interpolation="none")
    bar.set_xticks([])
    bar.yaxis.tick_right()
    bar.yaxis.set_label_position("right")
    bar.set_ylabel(typeset(name))
    bar.spines[:].set_visible(False)

"""The waiting of each rank in each step as a heat map."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from nsysx import units
from nsysx.model import Summary
from nsysx.ranks import rank_waits
from nsysx.ranks.rank_waits import RankWaitRow
from nsysx.render.charts.canvas import NAME, Box, Chart, LegendEntry, Room, boxes, draw, legend, name_axes, write
from nsysx.render.charts.colors import PAPER_SHADE, WAITING
from nsysx.render.render_bounds import (
    WAIT_ABOVE,
    WAIT_BELOW,
    WAIT_HIGH,
    WAIT_LEFT,
    WAIT_LOWEST,
    WAIT_RIGHT,
    WAIT_ROW,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TABLE = rank_waits.KEY


def chart(summary: Summary, ax: Axes | None = None) -> Chart | None:
    """Return the heat map, None for fewer than two ranks or steps, and where nobody waits."""
    rows = summary.typed_rows(rank_waits.ROWS)
    longest = max((ns for r in rows for ns in r["by_step_ns"]), default=0)
    columns = max((len(r["by_step_ns"]) for r in rows), default=0)
    if len(rows) < 2 or columns < 2 or not longest:
        return None
    most = max(rows, key=lambda r: r["wait_ns"])
    waited = f"{units.duration(most['wait_ns'])} in {most['steps']} steps"
    text = (
        f"Waiting by rank (rows) and step, at most {units.duration(longest)}. Rank {most['rank']} waits most: {waited}."
    )
    return Chart(TABLE, partial(heat_map, rows, longest, columns, ax=ax), text, text)


def heat_map(rows: Sequence[RankWaitRow], longest: int, columns: int, ax: Axes | None = None) -> Figure:
    """Return the waiting of each rank in ``columns`` steps or groups of steps, ``longest`` (ns) in the strongest color."""
    tall = max(WAIT_LOWEST, min(WAIT_ROW, WAIT_HIGH / len(rows)))

    def on(axes: Axes) -> None:
        axes.set_xlim(0, columns)
        axes.set_ylim(tall * len(rows), 0)
        boxes(axes, [(0.0, 0.0, float(columns), tall * len(rows))], PAPER_SHADE, layer=0.5)
        alike: dict[int, list[Box]] = {}
        for number, row in enumerate(rows):
            for shade, begin, end in _runs(row, longest):
                alike.setdefault(shade, []).append((float(begin), tall * number, float(end - begin), tall - 1))
        for shade, places in sorted(alike.items()):
            boxes(axes, places, WAITING[shade - 1])
        named = max(1, round(14 / tall))
        for number, row in enumerate(rows):
            if number % named == 0:
                write(axes, 0, tall * (number + 0.5), f"rank {row['rank']}", size=NAME, ha="right", offset=(-6, 0))
        axes.locator_params(axis="x", integer=True)
        steps = max(r["steps"] for r in rows)
        name_axes(axes, "steady step" if steps == columns else f"{steps} steady steps in {columns} groups")
        keys = [LegendEntry(units.duration(longest * n / len(WAITING)), color) for n, color in enumerate(WAITING, 1)]
        legend(axes, keys, rise=-42, shift=7 - WAIT_LEFT)

    room = Room(
        1120,
        tall * len(rows) + WAIT_ABOVE + WAIT_BELOW,
        left=WAIT_LEFT,
        right=WAIT_RIGHT,
        above=WAIT_ABOVE,
        below=WAIT_BELOW,
    )
    return draw(room, on, ax)


def _runs(row: RankWaitRow, longest: int) -> list[tuple[int, int, int]]:
    """Return shade (1 for the least), begin and end of neighboring steps of one shade; those of nearly no waiting are left out."""
    shades = [-(-len(WAITING) * ns // longest) if ns >= longest / 20 else 0 for ns in row["by_step_ns"]]
    runs, begin = [], 0
    for shade, group in itertools.groupby(shades):
        end = begin + len(list(group))
        if shade:
            runs.append((shade, begin, end))
        begin = end
    return runs

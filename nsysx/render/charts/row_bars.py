"""Rows of boxes on one scale of time, each with its label and its value: waterfalls, and the sides of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsysx.render.charts.canvas import NAME, LegendEntry, Room, boxes, draw, legend, name_axes, time_scale, write
from nsysx.render.charts.canvas import Box as Place
from nsysx.render.charts.colors import KIND_COLORS, NEUTRAL, PAPER, PAPER_SHADE
from nsysx.render.first_screen import BarBox
from nsysx.render.render_bounds import (
    BARS_BAR,
    BARS_BELOW,
    BARS_LEAST,
    BARS_LEFT,
    BARS_NARROW,
    BARS_ROW,
    BARS_SHARE,
    BARS_TALL,
    BARS_VALUE,
)
from nsysx.render.safe_text import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class BarRow:
    """One row: its label, a time and a share as text, and its boxes (percent of the scale)."""

    label: str
    value: str
    share: str
    boxes: tuple[BarBox, ...]


#: Kinds whose color is a light gray, which hatching would hide.
_QUIET = frozenset({"outside", "idle", "profiler"})


def row_bars(
    rows: Sequence[BarRow],
    low_ns: float,
    high_ns: float,
    words: str,
    *,
    colors: Mapping[str, str] = KIND_COLORS,
    keys: Sequence[tuple[str, str]] = (),
    width: int = 1120,
    ax: Axes | None = None,
) -> Figure:
    """Return rows of boxes on a scale from ``low_ns`` to ``high_ns``; ``keys`` are kinds and what their colors stand for."""
    divisor, unit = time_scale(high_ns)
    low, high = low_ns / divisor, max(high_ns, low_ns + 1) / divisor
    narrow = width < BARS_NARROW
    tall = BARS_TALL if narrow else BARS_ROW

    def on(axes: Axes) -> None:
        axes.set_xlim(low, high)
        axes.set_ylim(tall * max(len(rows), 1), 0)
        lanes = [(low, tall * (n + 1) - BARS_BAR - 3.0, high - low, float(BARS_BAR)) for n in range(len(rows))]
        boxes(axes, lanes, "#7f7f7f", alpha=0.1)
        alike: dict[tuple[str, bool], list[Place]] = {}
        for row, (_, top, whole, bar) in zip(rows, lanes, strict=True):
            for box in row.boxes:
                corner = (low + box.left / 100 * whole, top)
                color = _paint(colors, box.kind, box.idle)
                wide = max(box.width / 100, BARS_LEAST) * whole
                alike.setdefault((color, box.idle), []).append((*corner, wide, bar))
            _words(axes, row, low, high, top, narrow)
        for (color, idle), places in alike.items():
            boxes(
                axes,
                places,
                PAPER if idle else color,
                edge=color if idle else "none",
                line=0.5 * idle,
                hatch="////" if idle else "",
            )
        name_axes(axes, f"{words}, {unit}")
        lines = 1 if not narrow else 3
        legend(
            axes,
            [LegendEntry(label, _paint(colors, kind, False)) for kind, label in keys],
            rise=6,
            columns=-(-len(keys) // lines),
        )

    above = 4 + (18 if keys and not narrow else 46 if keys else 0)
    left = 4 if narrow else BARS_LEFT
    return draw(
        Room(width, tall * len(rows) + above + BARS_BELOW, left=left, right=8, above=above, below=BARS_BELOW), on, ax
    )


def _paint(colors: Mapping[str, str], kind: str, idle: bool) -> str:
    """Return the color of a kind: light grays are tones of the paper, which are dark on a dark page."""
    if kind in _QUIET:
        return NEUTRAL if idle else PAPER_SHADE
    return colors[kind]


def _words(axes: Axes, row: BarRow, low: float, high: float, top: float, narrow: bool) -> None:
    """Write what a row is: to the left of its lane or, where that is narrow, above it."""
    if narrow:
        write(axes, low, top, shorten(row.label, 34), size=NAME, va="bottom", offset=(0, 2))
        write(axes, high, top, ", ".join(filter(None, (row.value, row.share))), ha="right", va="bottom", offset=(0, 2))
        return
    middle = top + BARS_BAR / 2
    write(axes, low, middle, shorten(row.label, 34), size=NAME, offset=(4 - BARS_LEFT, 0))
    write(axes, low, middle, row.value, ha="right", offset=(-BARS_VALUE, 0))
    write(axes, low, middle, row.share, ha="right", offset=(-BARS_SHARE, 0), color=NEUTRAL)

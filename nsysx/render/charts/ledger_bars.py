"""The ledgers as bars on one time scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsysx import units
from nsysx.advice import BarPart
from nsysx.render.charts.canvas import HEADING, NAME, Room, boxes, draw, name_axes, time_scale, width_of, write
from nsysx.render.charts.colors import INK, KIND_COLORS, NEUTRAL, PAPER, PAPER_SHADE, ink_on
from nsysx.render.ledgers import Ledger
from nsysx.render.render_bounds import LEDGER_BAR, LEDGER_ROW, LEDGER_TOP

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Kinds whose color is a light gray, which would dominate a dark page.
_QUIET = frozenset({"outside", "idle"})


def ledger(ledgers: Sequence[Ledger], per_step: bool = True, width: int = 1120, ax: Axes | None = None) -> Figure:
    """Return the ledgers as bars on one time scale: work in plain color, idle time hatched by its cause."""
    longest = max((entry.window_ns for entry in ledgers), default=1) or 1
    divisor, unit = time_scale(longest)

    def on(axes: Axes) -> None:
        axes.set_xlim(0, longest / divisor)
        axes.set_ylim(LEDGER_ROW * max(len(ledgers), 1), 0)
        pixel = longest / width_of(axes)
        for position, entry in enumerate(ledgers):
            top, left = LEDGER_TOP + LEDGER_ROW * position, 0.0
            write(
                axes,
                0,
                top,
                f"{entry.label}: {units.duration(entry.window_ns)}",
                size=HEADING,
                va="bottom",
                offset=(0, 2),
            )
            for part in entry.parts:
                if part.ns > 0:
                    _draw_part(axes, entry, part, (left / divisor, part.ns / divisor), top, part.ns / pixel)
                    left += part.ns
        name_axes(axes, f"time per step, {unit}" if per_step else f"time, {unit}")

    return draw(Room(width, LEDGER_ROW * len(ledgers) + 48), on, ax)


def _draw_part(
    axes: Axes, entry: Ledger, part: BarPart, across: tuple[float, float], top: float, wide_pixels: float
) -> None:
    """Draw one part of a bar, with the longest label that fits onto it; ``across`` is its left edge and its width."""
    # Host code and plain idle time are drawn in tones of the paper, which are dark on a dark page.
    base = PAPER_SHADE if part.kind in _QUIET else KIND_COLORS.get(part.kind, KIND_COLORS["other"])
    color = PAPER if part.idle else base
    ink = NEUTRAL if part.kind in _QUIET else base
    box = (across[0], top, across[1], LEDGER_BAR)
    boxes(axes, [box], color, edge=ink if part.idle else PAPER, line=0.8, hatch="////" if part.idle else "")
    name = f"idle: {part.label}" if part.idle else part.label
    share = units.share(part.ns, entry.window_ns)
    for text in (f"{name}: {units.duration(part.ns)}, {share}", f"{name}: {share}", name, share):
        if len(text) * 6.3 + 8 <= wide_pixels:
            written = INK if color in (PAPER, PAPER_SHADE) else ink_on(color)
            middle = (across[0] + across[1] / 2, top + LEDGER_BAR / 2)
            write(axes, *middle, text, size=NAME, color=written, ha="center", halo=color if part.idle else "")
            return

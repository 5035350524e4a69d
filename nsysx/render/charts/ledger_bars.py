"""The ledgers as bars on one time scale."""

from __future__ import annotations

from collections.abc import Sequence

from nsysx import units
from nsysx.advice import Part
from nsysx.render.charts.canvas import HEADING, NAME, Drawing, Picture, Scale, rectangle, time_scale
from nsysx.render.charts.colors import INK, KIND_COLORS, NEUTRAL, PAPER, PAPER_SHADE, ink_on
from nsysx.render.ledgers import Ledger

#: Kinds whose color is a light gray, which would dominate a dark page.
_QUIET = frozenset({"outside", "idle"})


def ledger(ledgers: Sequence[Ledger], per_step: bool = True, width: int = 1120) -> Picture:
    """Return the ledgers as bars on one time scale: work in plain color, idle time hatched by its cause."""
    row, side = 46, 9
    height = row * len(ledgers) + 48
    drawing = Drawing(width, height)
    longest = max((entry.window_ns for entry in ledgers), default=1) or 1
    divisor, unit = time_scale(longest)
    scale = Scale(0, longest / divisor, side, width - side)
    for position, entry in enumerate(ledgers):
        top = 23.5 + row * position
        drawing.text(side, top - 2, f"{entry.label}: {units.duration(entry.window_ns)}", size=HEADING, rise="bottom")
        left = 0.0
        for part in entry.parts:
            if part.ns > 0:
                _draw_part(drawing, entry, part, (scale(left / divisor), scale.length(part.ns / divisor)), top)
                left += part.ns
    below = f"time per step, {unit}" if per_step else f"time, {unit}"
    drawing.axis_below(scale, height - 44, below)
    return drawing.picture()


def _draw_part(drawing: Drawing, entry: Ledger, part: Part, across: tuple[float, float], top: float) -> None:
    """Draw one part of a bar, with the longest label that fits onto it; ``across`` is its left edge and its width."""
    # Host code and plain idle time are drawn in tones of the paper, which are dark on a dark page.
    base = PAPER_SHADE if part.kind in _QUIET else KIND_COLORS.get(part.kind, KIND_COLORS["other"])
    color = PAPER if part.idle else base
    ink = NEUTRAL if part.kind in _QUIET else base
    (left, wide), high = across, 22.6
    fill = drawing.hatched(ink, PAPER) if part.idle else base
    drawing.shape(rectangle(left, top, wide, high), fill, edge=ink if part.idle else PAPER, line=0.8)
    name = f"idle: {part.label}" if part.idle else part.label
    share = units.share(part.ns, entry.window_ns)
    for text in (f"{name}: {units.duration(part.ns)}, {share}", f"{name}: {share}", name, share):
        if len(text) * 6.3 + 8 <= wide:
            written = INK if color in (PAPER, PAPER_SHADE) else ink_on(color)
            halo = color if part.idle else ""
            drawing.text(left + wide / 2, top + high / 2, text, size=NAME, color=written, anchor="middle", halo=halo)
            return

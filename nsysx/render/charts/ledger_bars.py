"""The ledgers as bars on one time scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nsysx import units
from nsysx.advice import Part
from nsysx.render.charts.canvas import Picture, new_figure, settings, svg, time_scale
from nsysx.render.charts.colors import INK, KIND_COLORS, NEUTRAL, PAPER, PAPER_SHADE, ink_on
from nsysx.render.ledgers import Ledger

#: Kinds whose color is a light gray, which would dominate a dark page.
_QUIET = frozenset({"outside", "idle"})


def ledger(ledgers: Sequence[Ledger], per_step: bool = True, width: int = 1120) -> Picture:
    """Return the ledgers as bars on one time scale: work in plain color, idle time hatched by its cause."""
    with settings():
        row = 46
        height = row * len(ledgers) + 48
        figure = new_figure(width, height)
        axes = figure.add_axes((0.008, 44 / height, 0.984, 1 - 48 / height))
        longest = max((entry.window_ns for entry in ledgers), default=1) or 1
        divisor, unit = time_scale(longest)
        pixel = longest / (width * 0.984)
        for position, entry in enumerate(ledgers):
            y = len(ledgers) - 1 - position
            left = 0.0
            text = f"{entry.label}: {units.duration(entry.window_ns)}"
            axes.text(0, y + 0.30, text, ha="left", va="bottom", fontsize=9, color=INK)
            for part in entry.parts:
                if part.ns <= 0:
                    continue
                # Host code and plain idle time are drawn in tones of the paper, which are dark on a dark page.
                base = PAPER_SHADE if part.kind in _QUIET else KIND_COLORS.get(part.kind, KIND_COLORS["other"])
                color = PAPER if part.idle else base
                axes.barh(
                    y,
                    part.ns / divisor,
                    0.5,
                    left=left / divisor,
                    color=color,
                    linewidth=0.6,
                    edgecolor=(NEUTRAL if part.kind in _QUIET else base) if part.idle else PAPER,
                    hatch="////" if part.idle else None,
                )
                _label_part(axes, entry, part, left, y, divisor, pixel, color)
                left += part.ns
        axes.set_xlim(0, longest / divisor)
        axes.set_ylim(-0.35, len(ledgers) - 0.3)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"time per step, {unit}" if per_step else f"time, {unit}", color=NEUTRAL, fontsize=8.5)
        axes.tick_params(labelsize=8)
        return svg(figure, width, height)


def _label_part(
    axes: Any, entry: Ledger, part: Part, left: float, y: float, divisor: float, pixel: float, color: str
) -> None:
    """Write the longest label that fits onto one part of a bar."""
    name = f"idle: {part.label}" if part.idle else part.label
    share = units.share(part.ns, entry.window_ns)
    for text in (f"{name}: {units.duration(part.ns)}, {share}", f"{name}: {share}", name, share):
        if len(text) * 6.3 + 8 <= part.ns / pixel:
            axes.text(
                (left + part.ns / 2) / divisor,
                y - 0.01,
                text,
                ha="center",
                va="center_baseline",
                fontsize=8.5,
                color=INK if color in (PAPER, PAPER_SHADE) else ink_on(color),
                bbox={"facecolor": color, "edgecolor": "none", "pad": 1.2} if part.idle else None,
            )
            return

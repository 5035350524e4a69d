"""Folded stacks as a flame graph with its roots above: a box is as wide as its time and that of all below it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsysx import units
from nsysx.render.charts.canvas import Room, boxes, draw, name_axes, time_scale, width_of, write
from nsysx.render.charts.colors import FLAME, PAPER
from nsysx.render.render_bounds import (
    FLAME_ABOVE,
    FLAME_BELOW,
    FLAME_FEWEST,
    FLAME_LEAST,
    FLAME_LETTER,
    FLAME_LEVELS,
    FLAME_ROW,
    FLAME_SIDE,
)
from nsysx.render.safe_text import clean, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Names from the outermost to the innermost, and the ns of the innermost alone. A text is one with semicolons between the names.
Stacks = Mapping[tuple[str, ...], float] | Mapping[str, float]


@dataclass(frozen=True, slots=True)
class FlameBox:
    """A box: its level, start and end (ns), how much of it is its own and not that of boxes below, and its name."""

    level: int
    start_ns: float
    end_ns: float
    own_ns: float
    name: str


def frames(stacks: Stacks) -> list[FlameBox]:
    """Return the boxes of stacks, level by level within each; of the boxes below one, the longest stands first."""
    drawn: list[FlameBox] = []

    def lay(rows: list[tuple[tuple[str, ...], float]], level: int, start: float) -> None:
        groups: dict[str, list[tuple[tuple[str, ...], float]]] = {}
        for names, ns in rows:
            if level < len(names) and level < FLAME_LEVELS:
                groups.setdefault(names[level], []).append((names, ns))
        for name, inside in sorted(groups.items(), key=lambda g: (-sum(ns for _, ns in g[1]), g[0])):
            whole = sum(ns for _, ns in inside)
            alone = sum(ns for names, ns in inside if len(names) == level + 1)
            drawn.append(FlameBox(level, start, start + whole, alone, name))
            lay(inside, level + 1, start)
            start += whole

    split = [(tuple(names.split(";")) if isinstance(names, str) else names, ns) for names, ns in stacks.items()]
    lay([(names, ns) for names, ns in split if ns > 0 and names], 0, 0.0)
    return drawn


def boxes_json(drawn: Sequence[FlameBox]) -> str:
    """Return the boxes that can be seen as JSON, see `Chart`."""
    whole = max((frame.end_ns for frame in drawn), default=1.0) or 1.0
    rows = [
        (f.level, round(f.start_ns), round(f.end_ns), round(f.own_ns / (f.end_ns - f.start_ns), 2), clean(f.name, 100))
        for f in drawn
        if f.end_ns - f.start_ns >= FLAME_LEAST * whole
    ]
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"))


def flame(stacks: Stacks, words: str = "", width: int = 1120, ax: Axes | None = None) -> Figure:
    """Return the flame graph of folded stacks. The stronger a box's color, the more of it is its own; ``words`` say what the times are."""
    drawn = frames(stacks)
    whole = max((frame.end_ns for frame in drawn), default=1.0) or 1.0
    drawn = [frame for frame in drawn if frame.end_ns - frame.start_ns >= FLAME_LEAST * whole]
    levels = max((frame.level for frame in drawn), default=0) + 1
    divisor, unit = time_scale(whole)

    def on(axes: Axes) -> None:
        axes.set_xlim(0, whole / divisor)
        axes.set_ylim(FLAME_ROW * levels, 0)
        shades: dict[int, list[FlameBox]] = {}
        for frame in drawn:
            shades.setdefault(round((len(FLAME) - 1) * frame.own_ns / (frame.end_ns - frame.start_ns)), []).append(
                frame
            )
        for number, alike in sorted(shades.items()):
            places = [
                (f.start_ns / divisor, FLAME_ROW * f.level + 1, (f.end_ns - f.start_ns) / divisor, FLAME_ROW - 2)
                for f in alike
            ]
            boxes(axes, places, FLAME[number], edge=PAPER, line=0.8)
        for frame in drawn:
            _name(axes, frame, whole, divisor)
        name_axes(axes, f"{words}, {unit}" if words else unit)

    return draw(
        Room(
            width,
            FLAME_ROW * levels + FLAME_ABOVE + FLAME_BELOW,
            left=FLAME_SIDE,
            right=FLAME_SIDE,
            above=FLAME_ABOVE,
            below=FLAME_BELOW,
        ),
        on,
        ax,
    )


def _name(axes: Axes, frame: FlameBox, whole: float, divisor: float) -> None:
    """Write the name and the time of a box where they fit."""
    long = frame.end_ns - frame.start_ns
    letters = int(long / whole * width_of(axes) / FLAME_LETTER) - 1
    if letters < FLAME_FEWEST:
        return
    name, time = clean(frame.name, 200), units.duration(long)
    text = f"{name}: {time}" if len(name) + len(time) + 2 <= letters else shorten(name, letters)
    middle = ((frame.start_ns + frame.end_ns) / 2 / divisor, FLAME_ROW * (frame.level + 0.5))
    write(axes, *middle, text, ha="center")

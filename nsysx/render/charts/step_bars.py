"""The steps in order, each a stack of its parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from nsysx import units
from nsysx.render.charts.canvas import (
    Box,
    LegendEntry,
    Room,
    boxes,
    draw,
    legend,
    name_axes,
    segments,
    time_scale,
    width_of,
    write,
)
from nsysx.render.charts.colors import INK, KIND_COLORS, KIND_NAMES, phase_color
from nsysx.render.ledgers import StepBar
from nsysx.render.render_bounds import FEW_STEPS, STEP_BARS, STEP_CUT, STEP_LABEL, STEP_LETTERS, STEP_LINE
from nsysx.render.safe_text import clean, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class _Stack:
    """The bars to draw: groups of neighbors, the numbers of their steps, how wide a bar is, and the divisor of the axis."""

    groups: tuple[Sequence[StepBar], ...]
    x: tuple[float, ...]
    wide: float
    divisor: float

    def mean(self, get: Callable[[StepBar], float]) -> list[float]:
        """Return the mean of ``get(bar)`` over each group, in the unit of the axis."""
        return [sum(get(bar) for bar in group) / len(group) / self.divisor for group in self.groups]

    def bars(self, bottom: Sequence[float], heights: Sequence[float]) -> list[Box]:
        """Return a bar of each group above ``bottom``."""
        return [
            (x - self.wide / 2, low, self.wide, high)
            for x, low, high in zip(self.x, bottom, heights, strict=True)
            if high > 0
        ]


def steps(
    bars: Sequence[StepBar], on_gpu: bool, width: int = 1120, height: int = 230, ax: Axes | None = None
) -> Figure:
    """Return the steps in order, stacked by kind of GPU work or by phase; steps that are not steady are paler and hatched.

    Many steps are shown as means of neighbors; with GPU parts, a tick marks the length of the CPU step.
    """
    size = -(-len(bars) // STEP_BARS)
    groups = tuple(bars[i : i + size] for i in range(0, len(bars), size))
    longest = max(max(bar.length_ns, bar.cpu_ns or 0) for bar in bars)
    usual = [max(bar.length_ns, bar.cpu_ns or 0) for bar in bars if bar.steady]
    limit = min(longest, STEP_CUT * max(usual)) if usual else longest
    divisor, unit = time_scale(limit)
    stack = _Stack(groups, tuple(g[0].index + (len(g) - 1) / 2 for g in groups), 0.84 * size, divisor)

    names = {name for bar in bars for name in bar.parts}
    lines = 1 + (sum(min(len(name), STEP_LETTERS) + 6 for name in names) > STEP_LINE)

    def on(axes: Axes) -> None:
        first, last, margin = stack.x[0], stack.x[-1], 0.7 * stack.wide
        axes.set_xlim(first - margin, max(last, first + FEW_STEPS - 1) + margin)  # two steps are not two walls
        axes.set_ylim(0, limit / divisor * 1.04)
        keys = _draw_parts(axes, stack, on_gpu)
        keys += _draw_unsteady(axes, stack)
        if on_gpu:
            keys.insert(0, _draw_cpu_steps(axes, stack))
        _label_cut(axes, stack, limit / divisor)
        if last - first < FEW_STEPS:  # numbers of steps that there are, not of the room beside them
            axes.set_xticks(range(math.ceil(first), math.floor(last) + 1))
        else:
            axes.locator_params("x", integer=True)
        name_axes(axes, "step" if size == 1 else f"step (mean of {size} neighbors)", left=unit, only=False)
        legend(axes, keys, rise=20, columns=-(-len(keys) // lines))

    return draw(Room(width, height, left=50, right=5, above=18 + 14 * lines, below=42), on, ax)


def _part(bar: StepBar, name: str) -> float:
    return bar.parts.get(name, 0.0)


def _draw_parts(axes: Axes, stack: _Stack, on_gpu: bool) -> list[LegendEntry]:
    """Stack the named parts of each step, and the rest of its length; return what the colors stand for."""
    every = [bar for group in stack.groups for bar in group]
    names = [n for n in dict.fromkeys(name for b in every for name in b.parts) if any(b.parts.get(n) for b in every)]
    keys = []
    seen: dict[str, str] = {}
    bottom = [0.0] * len(stack.groups)
    for name in names:
        heights = stack.mean(partial(_part, name=name))
        idle = on_gpu and name == "idle"
        color = phase_color(name, seen) if not on_gpu else "#ececec" if idle else KIND_COLORS[name]
        text = "idle" if idle else KIND_NAMES.get(name, shorten(clean(name, 60), STEP_LETTERS))
        boxes(axes, stack.bars(bottom, heights), color, clip=True)
        keys.append(LegendEntry(text, color))
        bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    length = stack.mean(lambda bar: bar.length_ns)
    if any(total - low > 0.001 * total for total, low in zip(length, bottom, strict=True)):
        rest = [max(0.0, total - low) for total, low in zip(length, bottom, strict=True)]
        boxes(axes, stack.bars(bottom, rest), "#c9c9c9", clip=True)
        keys.append(LegendEntry("outside phases" if names else "step", "#c9c9c9"))
    return keys


def _draw_unsteady(axes: Axes, stack: _Stack) -> list[LegendEntry]:
    """Hatch the steps that are in no average."""
    length = stack.mean(lambda bar: bar.length_ns)
    odd = [0.0 if any(b.steady for b in group) else h for group, h in zip(stack.groups, length, strict=True)]
    if not any(odd) or all(odd):
        return []
    places = stack.bars([0.0] * len(odd), odd)
    boxes(axes, places, "#ffffff", alpha=0.33, clip=True, layer=2)
    boxes(axes, places, "none", edge="#77777788", hatch="///", clip=True, layer=2)
    return [LegendEntry("not steady", "none", edge="#777777", hatch="///")]


def _label_cut(axes: Axes, stack: _Stack, top: float) -> None:
    """Write the length of the steps that do not fit the picture."""
    low, high = axes.get_xlim()
    room = STEP_LABEL * (high - low) / width_of(axes)
    labeled = -math.inf
    for x, h in zip(stack.x, stack.mean(lambda bar: bar.length_ns), strict=True):
        if h > top * 1.04:
            text = units.duration(h * stack.divisor)
            if x - labeled >= room:
                write(axes, x, top * 1.04, text, ha="center", va="bottom", offset=(0, 1))
                labeled = x
            else:  # beside a label there is room only inside the bar
                write(axes, x, top * 0.97, text, ha="right", va="center", upward=True)


def _draw_cpu_steps(axes: Axes, stack: _Stack) -> LegendEntry:
    """Mark the length of each step on the CPU."""
    lengths = stack.mean(lambda bar: bar.cpu_ns or 0)
    half = stack.wide / 2
    marks = [[(x - half, h), (x + half, h)] for x, h in zip(stack.x, lengths, strict=True)]
    segments(axes, marks, INK, 1.6, clip=True, layer=3)
    return LegendEntry("CPU step", INK, line=1.6)

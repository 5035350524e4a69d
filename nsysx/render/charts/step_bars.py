"""The steps in order, each a stack of its parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from nsysx import units
from nsysx.render.charts.canvas import Drawing, Key, Picture, Scale, place, rectangle, time_scale
from nsysx.render.charts.colors import INK, KIND_COLORS, KIND_NAMES, phase_color
from nsysx.render.ledgers import StepBar
from nsysx.render.safe_text import clean, shorten

#: Most bars in the picture; more steps are shown as means of neighbors.
_MAX_STEPS = 160
#: End of the axis over the longest steady step: one warm-up step of seconds would flatten all others.
_CUT = 2.2
#: The room that a label needs, the width of the axes, and the room around them (CSS pixels).
_LABEL_PX, _AXES_PX, _LEFT, _ABOVE, _BELOW = 54, 1065, 50, 32, 42


@dataclass(frozen=True, slots=True)
class _Stack:
    """The bars to draw: groups of neighbors, the numbers of their steps, the scales of both axes, and the divisor of the upright one.

    ``wide`` is a bar's width on the scale of the steps.
    """

    groups: tuple[Sequence[StepBar], ...]
    x: tuple[float, ...]
    wide: float
    divisor: float
    across: Scale
    up: Scale

    def mean(self, get: Callable[[StepBar], float]) -> list[float]:
        """Return the mean of ``get(bar)`` over each group, in the unit of the axis."""
        return [sum(get(bar) for bar in group) / len(group) / self.divisor for group in self.groups]

    def bars(self, bottom: Sequence[float], heights: Sequence[float]) -> str:
        """Return a bar of each group above ``bottom`` as the data of a path."""
        wide = self.across.length(self.wide)
        return "".join(
            rectangle(self.across(x) - wide / 2, self.up(low), wide, self.up.length(high))
            for x, low, high in zip(self.x, bottom, heights, strict=True)
            if high > 0
        )


def steps(bars: Sequence[StepBar], on_gpu: bool, width: int = 1120, height: int = 230) -> Picture:
    """Return the steps in order, stacked by kind of GPU work or by phase; steps that are not steady are paler and hatched.

    Many steps are shown as means of neighbors; with GPU parts, a tick marks the length of the CPU step.
    """
    size = -(-len(bars) // _MAX_STEPS)
    groups = tuple(bars[i : i + size] for i in range(0, len(bars), size))
    names = [n for n in dict.fromkeys(name for bar in bars for name in bar.parts) if any(b.parts.get(n) for b in bars)]
    drawing = Drawing(width, height)
    longest = max(max(bar.length_ns, bar.cpu_ns or 0) for bar in bars)
    usual = [max(bar.length_ns, bar.cpu_ns or 0) for bar in bars if bar.steady]
    limit = min(longest, _CUT * max(usual)) if usual else longest
    divisor, unit = time_scale(limit)
    x = tuple(group[0].index + (len(group) - 1) / 2 for group in groups)
    wide = 0.84 * size
    # Two steps are not two walls.
    across = Scale(x[0] - wide * 0.7, max(x[-1], x[0] + 9) + wide * 0.7, _LEFT, _LEFT + _AXES_PX)
    up = Scale(0, limit / divisor * 1.04, height - _BELOW, _ABOVE)
    stack = _Stack(groups, x, wide, divisor, across, up)
    with drawing.clipped(_LEFT, _ABOVE, _AXES_PX, height - _ABOVE - _BELOW):
        keys = _draw_parts(drawing, stack, names, on_gpu)
        keys += _draw_unsteady(drawing, stack)
        if on_gpu:
            keys.insert(0, _draw_cpu_steps(drawing, stack))
    _label_cut(drawing, stack, limit / divisor)
    drawing.axis_below(across, up.start, "step" if size == 1 else f"step (mean of {size} neighbors)", whole=True)
    drawing.axis_left(up, _LEFT, unit)
    drawing.legend(_LEFT + 5, 5, keys)
    return drawing.picture()


def _part(bar: StepBar, name: str) -> float:
    return bar.parts.get(name, 0.0)


def _draw_parts(drawing: Drawing, stack: _Stack, names: Sequence[str], on_gpu: bool) -> list[Key]:
    """Stack the named parts of each step, and the rest of its length; return what the colors stand for."""
    keys = []
    seen: dict[str, str] = {}
    bottom = [0.0] * len(stack.groups)
    for name in names:
        heights = stack.mean(partial(_part, name=name))
        idle = on_gpu and name == "idle"
        color = phase_color(name, seen) if not on_gpu else "#ececec" if idle else KIND_COLORS[name]
        text = "idle" if idle else KIND_NAMES.get(name, shorten(clean(name, 60), 24))
        drawing.shape(stack.bars(bottom, heights), color)
        keys.append(Key(text, color))
        bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    length = stack.mean(lambda bar: bar.length_ns)
    if any(total - low > 0.001 * total for total, low in zip(length, bottom, strict=True)):
        rest = [max(0.0, total - low) for total, low in zip(length, bottom, strict=True)]
        drawing.shape(stack.bars(bottom, rest), "#c9c9c9")
        keys.append(Key("outside phases" if names else "step", "#c9c9c9"))
    return keys


def _draw_unsteady(drawing: Drawing, stack: _Stack) -> list[Key]:
    """Hatch the steps that are in no average."""
    length = stack.mean(lambda bar: bar.length_ns)
    odd = [0.0 if any(b.steady for b in group) else h for group, h in zip(stack.groups, length, strict=True)]
    if not any(odd) or all(odd):
        return []
    path = stack.bars([0.0] * len(odd), odd)
    lines = drawing.hatched("#333333", period=10.67)
    drawing.shape(path, "#ffffff", opacity=0.33)
    drawing.shape(path, lines, opacity=0.3)
    return [Key("not steady", lines, edge="#777777")]


def _label_cut(drawing: Drawing, stack: _Stack, top: float) -> None:
    """Write the length of the steps that do not fit the picture."""
    labeled = -math.inf
    for x, h in zip(stack.x, stack.mean(lambda bar: bar.length_ns), strict=True):
        if h > top * 1.04:
            text, middle = units.duration(h * stack.divisor), stack.across(x)
            if middle - labeled >= _LABEL_PX:
                drawing.text(middle, _ABOVE - 2, text, anchor="middle", rise="bottom")
                labeled = middle
            else:  # beside a label there is room only inside the bar
                drawing.text(middle, stack.up(top * 0.97), text, anchor="end", upward=True)


def _draw_cpu_steps(drawing: Drawing, stack: _Stack) -> Key:
    """Mark the length of each step on the CPU."""
    wide = stack.across.length(stack.wide)
    drawing.shape(
        "".join(
            f"M{place(stack.across(x) - wide / 2)} {place(stack.up(h))}h{place(wide)}"
            for x, h in zip(stack.x, stack.mean(lambda bar: bar.cpu_ns or 0), strict=True)
        ),
        edge=INK,
        line=1.6,
    )
    return Key("CPU step", INK, line=1.6)

"""The steps in order, each a stack of its parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from nsysx import units
from nsysx.render.charts.canvas import Picture, legend_above, new_figure, settings, svg, time_scale
from nsysx.render.charts.colors import INK, KIND_COLORS, KIND_NAMES, NEUTRAL, phase_color
from nsysx.render.ledgers import StepBar
from nsysx.render.safe_text import clean, shorten

#: Most bars in the picture; more steps are shown as means of neighbors.
_MAX_STEPS = 160
#: End of the axis over the longest steady step: one warm-up step of seconds would flatten all others.
_CUT = 2.2
#: The room that a label needs, and the width of the axes (CSS pixels).
_LABEL_PX, _AXES_PX = 54, 1060


@dataclass(frozen=True, slots=True)
class _Stack:
    """The bars to draw: groups of neighbors, their places, their width, and the divisor of the axis."""

    groups: tuple[Sequence[StepBar], ...]
    x: tuple[float, ...]
    wide: float
    divisor: float

    def mean(self, get: Callable[[StepBar], float]) -> list[float]:
        """Return the mean of ``get(bar)`` over each group, in the unit of the axis."""
        return [sum(get(bar) for bar in group) / len(group) / self.divisor for group in self.groups]


def steps(bars: Sequence[StepBar], on_gpu: bool, width: int = 1120, height: int = 230) -> Picture:
    """Return the steps in order, stacked by kind of GPU work or by phase; steps that are not steady are paler and hatched.

    Many steps are shown as means of neighbors; with GPU parts, a tick marks the length of the CPU step.
    """
    size = -(-len(bars) // _MAX_STEPS)
    groups = tuple(bars[i : i + size] for i in range(0, len(bars), size))
    names = [n for n in dict.fromkeys(name for bar in bars for name in bar.parts) if any(b.parts.get(n) for b in bars)]
    with settings():
        figure = new_figure(width, height)
        axes = figure.add_axes((0.045, 42 / height, 0.951, 1 - 74 / height))
        longest = max(max(bar.length_ns, bar.cpu_ns or 0) for bar in bars)
        usual = [max(bar.length_ns, bar.cpu_ns or 0) for bar in bars if bar.steady]
        limit = min(longest, _CUT * max(usual)) if usual else longest
        divisor, unit = time_scale(limit)
        x = tuple(group[0].index + (len(group) - 1) / 2 for group in groups)
        stack = _Stack(groups, x, 0.84 * size, divisor)
        _draw_parts(axes, stack, names, on_gpu)
        _draw_unsteady(axes, stack, limit / divisor)
        if on_gpu:
            _draw_cpu_steps(axes, stack)
        axes.set_ylim(0, limit / divisor * 1.04)
        axes.set_xlim(x[0] - stack.wide * 0.7, max(x[-1], x[0] + 9) + stack.wide * 0.7)  # two steps are not two walls
        axes.set_xlabel("step" if size == 1 else f"step (mean of {size} neighbors)", fontsize=8.5, color=NEUTRAL)
        axes.set_ylabel(unit, fontsize=8.5, color=NEUTRAL)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.tick_params(labelsize=8, labelcolor=NEUTRAL)
        legend_above(axes, 1.1, min(10, len(names) + 3), handlelength=1.1, columnspacing=1.2)
        return svg(figure, width, height)


def _part(bar: StepBar, name: str) -> float:
    return bar.parts.get(name, 0.0)


def _draw_parts(axes: Any, stack: _Stack, names: Sequence[str], on_gpu: bool) -> None:
    """Stack the named parts of each step, and the rest of its length."""
    seen: dict[str, str] = {}
    bottom = [0.0] * len(stack.groups)
    for name in names:
        heights = stack.mean(partial(_part, name=name))
        idle = on_gpu and name == "idle"
        color = phase_color(name, seen) if not on_gpu else "#ececec" if idle else KIND_COLORS[name]
        text = "idle" if idle else KIND_NAMES.get(name, shorten(clean(name, 60), 24))
        axes.bar(stack.x, heights, stack.wide, bottom=bottom, color=color, label=text, linewidth=0)
        bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    length = stack.mean(lambda bar: bar.length_ns)
    if any(total - low > 0.001 * total for total, low in zip(length, bottom, strict=True)):
        rest = [max(0.0, total - low) for total, low in zip(length, bottom, strict=True)]
        label = "outside phases" if names else "step"
        axes.bar(stack.x, rest, stack.wide, bottom=bottom, color="#c9c9c9", label=label, linewidth=0)


def _draw_unsteady(axes: Any, stack: _Stack, top: float) -> None:
    """Hatch the steps that are in no average, and write the length of those that do not fit the picture."""
    length = stack.mean(lambda bar: bar.length_ns)
    odd = [
        (a, h) for a, group, h in zip(stack.x, stack.groups, length, strict=True) if not any(b.steady for b in group)
    ]
    if odd and len(odd) < len(stack.groups):
        axes.bar(
            [a for a, _ in odd],
            [h for _, h in odd],
            stack.wide,
            color="#ffffff55",
            edgecolor="#777777",
            hatch="///",
            linewidth=0,
            label="not steady",
        )
    labeled, room = None, _LABEL_PX * (max(stack.x[-1], stack.x[0] + 9) - stack.x[0] + 2) / _AXES_PX
    for a, h in zip(stack.x, length, strict=True):
        if h > top * 1.04:
            text = units.duration(h * stack.divisor)
            if labeled is None or a - labeled >= room:
                axes.text(a, top * 1.05, text, ha="center", va="bottom", fontsize=8, color=INK)
                labeled = a
            else:  # beside a label there is room only inside the bar
                axes.text(a, top * 0.97, text, ha="center", va="top", rotation=90, fontsize=8, color=INK)


def _draw_cpu_steps(axes: Any, stack: _Stack) -> None:
    """Mark the length of each step on the CPU."""
    axes.hlines(
        stack.mean(lambda bar: bar.cpu_ns or 0),
        [a - stack.wide / 2 for a in stack.x],
        [a + stack.wide / 2 for a in stack.x],
        color=INK,
        linewidth=1.2,
        label="CPU step",
    )

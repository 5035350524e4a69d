"""The time of one step by stack of lines as flame graphs: the GPU's, and that of the thread that drives the steps."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Literal

from nsysx import units
from nsysx.analyses import stacks
from nsysx.answer.bars import each
from nsysx.model import Summary
from nsysx.render.charts.canvas import Chart
from nsysx.render.charts.flame_graph import boxes_json, flame, frames

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def times_of(summary: Summary, column: Literal["gpu_ns", "host_ns"]) -> dict[tuple[str, ...], float]:
    """Return the time (ns) of one step by folded stack; none without lines."""
    per_step = each(summary)
    stacks_ns = {
        tuple(r["stack"].split(";")): per_step(r[column]) for r in summary.typed_rows(stacks.ROWS) if r[column]
    }
    # What all stacks have in common, such as runpy and main, says nothing; what no line is known for has no stack.
    levels = zip(*(names for names in stacks_ns if len(names) > 1), strict=False)
    alike = len(list(itertools.takewhile(lambda names: len(set(names)) == 1, levels)))
    return {names[max(0, alike - 1) :] if len(names) > 1 else names: ns for names, ns in stacks_ns.items()}


def chart_of(
    summary: Summary, column: Literal["gpu_ns", "host_ns"], name: str, words: str, ax: Axes | None = None
) -> Chart | None:
    """Return the flame graph of a column of the table by stack, None for fewer than two stacks; ``words`` name its times."""
    times = times_of(summary, column)
    if len(times) < 2:
        return None
    most, whole = max(times, key=lambda names: times[names]), sum(times.values())
    inner = most[-1]
    alt = f"{words} by line: most is at {inner}, {units.duration(times[most])}, {units.share(times[most], whole)}."
    caption = f"{words}, by the lines that called each other, outermost above."
    return Chart(name, partial(flame, times, words, ax=ax), alt, caption, boxes_json(frames(times)))

"""The time of one step of the thread that drives it, by line, as a flame graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsysx.analyses import stacks
from nsysx.model import Summary
from nsysx.render.charts.canvas import Chart
from nsysx.render.charts.line_flame import chart_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TABLE = stacks.KEY


def chart(summary: Summary, ax: Axes | None = None) -> Chart | None:
    """Return the picture, None without lines."""
    return chart_of(summary, "host_ns", "flame-host", "Host time of one step", ax)

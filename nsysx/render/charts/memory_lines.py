"""Memory over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from nsysx import units
from nsysx.analyses import memory as table
from nsysx.model import Summary
from nsysx.render.charts.canvas import DASHES, Chart, LegendEntry, Room, draw, legend, name_axes, time_scale
from nsysx.render.charts.colors import KIND_COLORS
from nsysx.render.render_bounds import MEMORY_LEGEND
from nsysx.render.safe_text import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TABLE = table.KEY

#: Kinds of memory, in colors that no kind of work has on the same picture.
_MEMORY_COLORS = {"device": "#0072B2", "pinned": "#D55E00", "managed": "#CC79A7"}


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """Memory of one kind over time: (ns, bytes). ``device`` is None where all lines are of one."""

    device: int | None
    kind: str
    points: tuple[tuple[float, float], ...]

    @property
    def name(self) -> str:
        """What the line is called."""
        return clean(self.kind if self.device is None else f"GPU {self.device} {self.kind}", 40)

    @property
    def peak_bytes(self) -> float:
        """The most that it reaches."""
        return max(size for _, size in self.points)


def chart(summary: Summary, ax: Axes | None = None) -> Chart | None:
    """Return the picture of memory over time."""
    rows = summary.typed_rows(table.ROWS)
    if len(rows) < 2:
        return None
    places = {(r["process"], r["device"]) for r in rows}
    points: dict[tuple[int | None, str], list[tuple[float, float]]] = {}
    for row in rows:
        device = row["device"] if len(places) > 1 else None
        points.setdefault((device, row["kind"]), []).append((row["time_ns"], row["peak_bytes"]))
    lines = [MemoryLine(device, kind, tuple(line_points)) for (device, kind), line_points in points.items()]
    lines = sorted(lines, key=lambda line: -line.peak_bytes)[:6]
    peaks = ", ".join(f"{line.name} peaks at {units.size(line.peak_bytes)}" for line in lines)
    text = f"Memory since the capture began: {peaks}."
    return Chart(TABLE, partial(memory, lines, ax=ax), text, text)


def memory(lines: Sequence[MemoryLine], width: int = 1120, height: int = 230, ax: Axes | None = None) -> Figure:
    """Return bytes over time (ns) as one stepped line for each kind of memory, its peak written beside it."""
    last = max((time_ns for line in lines for time_ns, _ in line.points), default=1)
    most = max((size for line in lines for _, size in line.points), default=1) or 1
    time, unit = time_scale(last)
    divisor, name = next(
        ((d, n) for d, n in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")) if most >= 2 * d), (1, "bytes")
    )
    begun = min((time_ns for line in lines for time_ns, size in line.points if size > most / 50), default=0)

    def on(axes: Axes) -> None:
        axes.set_xlim(max(0, begun - 0.03 * (last - begun)) / time, last / time)
        axes.set_ylim(0, most / divisor * 1.06)
        keys = []
        for position, line in enumerate(lines):
            color, dashed = _MEMORY_COLORS.get(line.kind, KIND_COLORS["other"]), position > 0
            x = [*(time_ns / time for time_ns, _ in line.points), last / time]
            y = [size / divisor for _, size in (*line.points, line.points[-1])]
            if not dashed:
                axes.fill_between(x, y, 0, step="post", color=color, alpha=0.15, linewidth=0)
            axes.plot(x, y, color=color, linewidth=1.87, linestyle=DASHES if dashed else "-", drawstyle="steps-post")
            keys.append(
                LegendEntry(f"{line.name}, peak {units.size(line.peak_bytes)}", color, line=1.87, dashed=dashed)
            )
        name_axes(axes, f"{unit} from the start of the capture", left=name, only=False)
        legend(axes, keys, rise=5, columns=min(len(keys), MEMORY_LEGEND - 1))

    return draw(Room(width, height, left=84, right=4, above=32, below=42), on, ax)

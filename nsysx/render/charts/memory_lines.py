"""Memory over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsysx import units
from nsysx.analyses import memory as table
from nsysx.model import Summary
from nsysx.render.charts.canvas import Drawing, Figure, Key, Picture, Scale, place, time_scale
from nsysx.render.charts.colors import KIND_COLORS
from nsysx.render.safe_text import clean

TABLE = table.KEY

#: Kinds of memory, in colors that no kind of work has on the same picture.
_MEMORY_COLORS = {"device": "#0072B2", "pinned": "#D55E00", "managed": "#CC79A7"}
#: More entries of the legend than these take a second line.
_LINE = 5


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


def figure(summary: Summary) -> Figure | None:
    """Return the picture of memory over time."""
    rows = summary.of(table.ROWS)
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
    return Figure(memory(lines), text, text)


def memory(lines: Sequence[MemoryLine], width: int = 1120, height: int = 230) -> Picture:
    """Return bytes over time (ns) as one stepped line for each kind of memory, its peak written beside it."""
    drawing = Drawing(width, height)
    last = max((time_ns for line in lines for time_ns, _ in line.points), default=1)
    most = max((size for line in lines for _, size in line.points), default=1) or 1
    time, unit = time_scale(last)
    divisor, name = next(
        ((d, n) for d, n in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")) if most >= 2 * d), (1, "bytes")
    )
    begun = min((time_ns for line in lines for time_ns, size in line.points if size > most / 50), default=0)
    left, right, above, below = 84, width - 4, 32, height - 42
    across = Scale(max(0, begun - 0.03 * (last - begun)) / time, last / time, left, right)
    up = Scale(0, most / divisor * 1.06, below, above)
    keys = []
    with drawing.clipped(left, above, right - left, below - above):
        for position, line in enumerate(lines):
            color = _MEMORY_COLORS.get(line.kind, KIND_COLORS["other"])
            dash = "" if position == 0 else "9.3 3.7"
            first_ns, first = line.points[0]
            begin = place(across(first_ns / time))
            path = f"M{begin} {place(up(first / divisor))}" + "".join(
                f"H{place(across(time_ns / time))}V{place(up(size / divisor))}" for time_ns, size in line.points[1:]
            )
            path += f"H{right}"
            if position == 0:
                drawing.shape(f"{path}V{below}H{begin}z", color, opacity=0.15)
            drawing.shape(path, edge=color, line=1.87, dash=dash)
            keys.append(Key(f"{line.name}, peak {units.size(line.peak_bytes)}", color, line=1.87, dash=dash))
    drawing.axis_below(across, below, f"{unit} from the start of the capture")
    drawing.axis_left(up, left, name)
    drawing.legend(left, above - 10 if len(keys) < _LINE else 7, keys)
    return drawing.picture()

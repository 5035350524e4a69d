"""One window as lanes: CPU threads above, GPU streams below, and the work queued for each device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nsysx import units
from nsysx.catalogue import Paint
from nsysx.pictures import Counters, Lane, Queue, Span, Timeline
from nsysx.render.charts.canvas import (
    NAME,
    NARROW,
    SMALLEST,
    Drawing,
    Key,
    Picture,
    Scale,
    Tick,
    place,
    polygon,
    rectangle,
    time_scale,
)
from nsysx.render.charts.colors import INK, KIND_COLORS, KIND_NAMES, NEUTRAL, ink_on, phase_color, shade
from nsysx.render.safe_text import clean, scrub, shorten, shorten_kernel

#: Most arrows from a launch to its kernel; more would hide the lanes.
_MAX_ARROWS = 8


def _split(spans: Sequence[Span], pixel_ns: float) -> tuple[list[Span], dict[int, dict[str, float]]]:
    """Return the boxes that are wide enough to draw and, for all others, how much of each pixel every kind fills (0 to 1).

    No box may look longer than it is: a GPU that is busy for a tenth of each pixel must not look busy.
    """
    wide: list[Span] = []
    filled: dict[int, dict[str, float]] = {}
    for span in spans:
        length = span.end_ns - span.start_ns
        if length >= 2 * pixel_ns and span.covered_ns is None:
            wide.append(span)
            continue
        density = 1.0 if span.covered_ns is None else min(1.0, span.covered_ns / max(1, length))
        for column in range(int(span.start_ns / pixel_ns), int(span.end_ns / pixel_ns) + 1):
            part = min(span.end_ns, (column + 1) * pixel_ns) - max(span.start_ns, column * pixel_ns)
            if part > 0:
                kinds = filled.setdefault(column, {})
                kinds[span.kind] = kinds.get(span.kind, 0.0) + part * density / pixel_ns
    return wide, filled


#: Height of a lane, of its boxes, and of a strip below the lanes with the room above it; room to the left of the lanes, to their
#: right, below them and above them, without marks (CSS pixels).
_ROW, _BOX, _DEEP, _LEFT, _RIGHT, _BELOW, _ABOVE = 30, 21.6, 54, 176, 12, 68, 16


class _Place(NamedTuple):
    """Where a lane is drawn: the height of its middle, and how long a pixel is (ns)."""

    middle: float
    pixel_ns: float

    def x(self, ns: float) -> float:
        """Return the place of an instant of the window."""
        return _LEFT + ns / self.pixel_ns

    def box(self, start_ns: float, long_ns: float) -> str:
        """Return a box as the data of a path."""
        return rectangle(self.x(start_ns), self.middle - _BOX / 2, long_ns / self.pixel_ns, _BOX)


def timeline(picture: Timeline, *, redact: bool = True, width: int = 1120, span_ns: int | None = None) -> Picture:
    """Return one window as lanes: CPU threads above (waits hatched), GPU streams below, arrows from launch to start.

    Below them is the work queued for each device, and its counters where they were sampled. ``span_ns`` is the length of the
    time axis, for pictures to be compared; it is at least the window.
    """
    lanes = picture.lanes
    strips: tuple[Queue | Counters, ...] = (*picture.queues, *picture.counters)
    top = _ABOVE + 14 * bool(picture.marks)
    bottom = top + _ROW * len(lanes)
    height = bottom + _DEEP * len(strips) + _BELOW
    drawing = Drawing(width, height, paper="#ffffff")
    window = max(1, picture.end_ns - picture.start_ns, span_ns or 0)
    divisor, unit = time_scale(window)
    across = Scale(0, window / divisor, _LEFT, width - _RIGHT)
    pixel = window / (across.end - across.start)
    seen: dict[str, str] = {}
    places = [_Place(top + _ROW * (index + 0.5), pixel) for index in range(len(lanes))]
    names = lane_names(lanes, redact)
    for index, (lane, middle) in enumerate(zip(lanes, places, strict=True)):
        if index % 2 == 0:
            drawing.shape(rectangle(_LEFT, middle.middle - _ROW / 2, across.end - _LEFT, _ROW), "#f6f6f6")
        _draw_lane(drawing, lane, middle, seen, redact)
        _lane_name(drawing, _LEFT - 8, middle.middle, names[index])
    _draw_arrows(drawing, lanes, places, across.end)
    for position, strip in enumerate(strips):
        up = Scale(0, 1, bottom + _DEEP * (position + 1), bottom + _DEEP * position + 15)
        if isinstance(strip, Queue):
            _draw_queue(drawing, strip, up, pixel)
        else:
            _draw_counters(drawing, strip, up, pixel)
    for instant, name in picture.marks:
        x = places[0].x(instant) if places else _LEFT
        drawing.shape(f"M{place(x)} {top}V{bottom}", edge=INK, line=1.2, dash="4.8 3.6")
        drawing.text(x, top - 2.4, clean(name, 60), rise="bottom")
    drawing.axis_below(across, height - _BELOW, f"{unit} from the start of the window")
    _draw_legend(drawing, lanes)
    return drawing.picture()


def lane_names(lanes: Sequence[Lane], redact: bool) -> list[str]:
    """Return the names of the lanes; where a thread has two, each says what it shows."""
    called = [clean(lane.label, 60) for lane in lanes]
    which = {"phases": ": phases", "api": ": CUDA calls"}
    names = [
        name + (which.get(lane.role, "") if called.count(name) > 1 else "")
        for name, lane in zip(called, lanes, strict=True)
    ]
    return [shorten(scrub(name) if redact else name, 28) for name in names]


def _lane_name(drawing: Drawing, x: float, y: float, text: str) -> None:
    """Write the name of a lane to its left."""
    drawing.text(x, y, text, size=NAME, anchor="end")


def _draw_queue(drawing: Drawing, queue: Queue, up: Scale, pixel: float) -> None:
    """Draw how much GPU work is launched and has not yet run, with its peak as text."""
    most = max(max(queue.queued_ns), 1)
    points = [
        (_LEFT + instant / pixel, up(ns / most)) for instant, ns in zip(queue.at_ns, queue.queued_ns, strict=True)
    ]
    around = [(points[0][0], up.start), *points, (points[-1][0], up.start)]
    drawing.shape(polygon(around, closed=True), KIND_COLORS[Paint.COMM], opacity=0.55)
    drawing.shape(polygon(points), edge=KIND_COLORS[Paint.LAUNCH], line=1.2)
    drawing.axis_left(up, _LEFT, marks=[Tick(0, "0"), Tick(1, units.duration(most))], size=SMALLEST)
    _lane_name(drawing, _LEFT - 52, up(0.5), f"GPU {queue.device}: work queued")


#: Colors of the counters, in their order.
_COUNTER_COLORS = (NEUTRAL, KIND_COLORS[Paint.COMPUTE], KIND_COLORS[Paint.SYNC])


def _draw_counters(drawing: Drawing, counters: Counters, up: Scale, pixel: float) -> None:
    """Draw the shares of a device's counters, each as a line, with its name in the same color."""
    for position, (name, shares) in enumerate(counters.shares.items()):
        color = _COUNTER_COLORS[position % len(_COUNTER_COLORS)]
        pieces: list[list[tuple[float, float]]] = [[]]
        for instant, share in zip(counters.at_ns, shares, strict=True):
            if share is not None:
                pieces[-1].append((_LEFT + instant / pixel, up(share)))
            elif pieces[-1]:
                pieces.append([])
        drawing.shape("".join(polygon(piece) for piece in pieces if piece), edge=color, line=1.2)
        right = 1 - 0.1 * (len(counters.shares) - position)
        x = _LEFT + right * (drawing.width - _RIGHT - _LEFT)
        drawing.text(x, up(1) - 2, clean(name, 20), size=SMALLEST, color=color, rise="bottom")
    drawing.axis_left(up, _LEFT, marks=[Tick(0, "0"), Tick(1, "100 %")], size=SMALLEST)
    _lane_name(drawing, _LEFT - 52, up(0.5), shorten(clean(counters.label, 60), 24))


def lane_color(lane: Lane, span_kind: str, seen: dict[str, str]) -> str:
    """Return the color of a kind on a lane."""
    if lane.role == "phases":
        return phase_color(span_kind, seen)
    return KIND_COLORS.get(span_kind, KIND_COLORS[Paint.OTHER])


def _draw_lane(drawing: Drawing, lane: Lane, where: _Place, seen: dict[str, str], redact: bool) -> None:
    """Draw one lane: wide boxes with their names, the rest as columns as high as the share of time that they fill."""
    wide, filled = _split(lane.spans, where.pixel_ns)
    boxes: dict[str, list[str]] = {}
    waits: list[str] = []
    for span in wide:
        color = lane_color(lane, span.kind or span.label, seen)
        length = span.end_ns - span.start_ns
        boxes.setdefault(color, []).append(where.box(span.start_ns, length))
        if span.backlog_ns > 2 * where.pixel_ns:
            waits.append(where.box(span.start_ns, min(span.backlog_ns, length)))
    for color, drawn in boxes.items():
        drawing.shape("".join(drawn), color, edge=shade(color), line=0.33)
    if waits:
        drawing.shape("".join(waits), drawing.hatched("#ffffff"))
    for color, columns in _columns(lane, filled, where, seen):
        drawing.shape(columns, color)
    for span in wide:
        _name_box(drawing, lane, span, where, lane_color(lane, span.kind or span.label, seen), redact)


def _name_box(drawing: Drawing, lane: Lane, span: Span, where: _Place, color: str, redact: bool) -> None:
    """Write the name of a box onto it where there is room."""
    length = span.end_ns - span.start_ns
    room = int((length / where.pixel_ns - 10) / 5.8)
    if room < 1:
        return
    name = clean(span.label, 200)
    name = scrub(name) if redact else name
    if room < min(len(name), 12):
        return
    text = shorten_kernel(name, min(60, room)) if lane.role == "stream" else shorten(name, min(60, room))
    halo = color if span.backlog_ns > 2 * where.pixel_ns else ""
    middle = where.x(span.start_ns + length / 2)
    drawing.text(middle, where.middle, text, size=NARROW, color=ink_on(color), anchor="middle", halo=halo)


def _columns(
    lane: Lane, filled: dict[int, dict[str, float]], where: _Place, seen: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield color and data of a path for the columns of a lane, each a pixel wide, every kind in front of those that stand on it."""
    bottom = where.middle + _BOX / 2
    tops: dict[str, list[tuple[int, float]]] = {}  # of each kind: its columns, and where it ends in them
    for column, kinds in sorted(filled.items()):
        top, scale = bottom, 1 / max(1.0, sum(kinds.values()))
        for kind in sorted(kinds):
            top -= max(0.05, kinds[kind] * scale) * _BOX  # even the shortest box shows as a line
            tops.setdefault(kind, []).append((column, top))
    for kind in sorted(tops, reverse=True):
        path, last = "", None
        for column, top in tops[kind]:
            if column - 1 != last:
                path += f"V{place(bottom)}z" * bool(path) + f"M{_LEFT + column} {place(bottom)}"
            path += f"V{place(top)}h1"
            last = column
        yield lane_color(lane, kind, seen), f"{path}V{place(bottom)}z"


def _draw_arrows(drawing: Drawing, lanes: Sequence[Lane], places: Sequence[_Place], end: float) -> None:
    """Draw an arrow from the launch call to the start of the longest GPU operations."""
    ops = [
        (span, index)
        for index, lane in enumerate(lanes)
        if lane.role == "stream"
        for span in lane.spans
        if span.launch_ns is not None and span.launch_ns >= 0 and span.launch_lane is not None
        if 0 <= span.launch_lane < len(lanes)
    ]
    ops.sort(key=lambda op: op[0].start_ns - op[0].end_ns)
    longest: dict[tuple[int | None, int | None], tuple[Span, int]] = {}
    for op in ops:  # the longest of all that one graph launch started
        longest.setdefault((op[0].launch_ns, op[0].launch_lane), op)
    for span, index in list(longest.values())[:_MAX_ARROWS]:
        assert span.launch_ns is not None
        assert span.launch_lane is not None
        launch, begun = places[span.launch_lane], places[index]
        to = (begun.x(span.start_ns), begun.middle - _BOX / 2)
        if _LEFT <= to[0] <= end:
            drawing.arrow((launch.x(span.launch_ns), launch.middle + _BOX / 2), to, "#333333")


def _draw_legend(drawing: Drawing, lanes: Sequence[Lane]) -> None:
    """Write the name of each color below the picture."""
    present = {
        s.kind if s.kind in KIND_NAMES else "other" for lane in lanes if lane.role != "phases" for s in lane.spans
    }
    named = {name: KIND_COLORS[kind] for kind, name in KIND_NAMES.items() if kind in present}
    keys = [Key(name, color) for name, color in named.items()]
    if any(s.backlog_ns for lane in lanes for s in lane.spans):
        lines = drawing.hatched("#ffffff", KIND_COLORS[Paint.SYNC])
        keys.append(Key("waiting for earlier GPU work", lines))
    drawing.legend(7, drawing.height - 13, keys)

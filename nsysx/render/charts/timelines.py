"""One window as lanes: CPU threads above, GPU streams below, and the work queued for each device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nsysx import units
from nsysx.catalogue import Paint
from nsysx.pictures import NAMED_ROLES, Counters, Lane, Queue, Span, Timeline
from nsysx.render.charts.canvas import (
    NAME,
    NARROW,
    SMALLEST,
    Box,
    LegendEntry,
    Room,
    boxes,
    draw,
    legend,
    name_axes,
    outlines,
    segments,
    time_scale,
    width_of,
    write,
)
from nsysx.render.charts.colors import INK, KIND_COLORS, KIND_NAMES, NEUTRAL, ink_on, phase_color, shade
from nsysx.render.render_bounds import (
    TIMELINE_ABOVE,
    TIMELINE_ARROWS,
    TIMELINE_BELOW,
    TIMELINE_BOX,
    TIMELINE_DEEP,
    TIMELINE_LEFT,
    TIMELINE_RIGHT,
    TIMELINE_ROW,
)
from nsysx.render.safe_text import clean, file_name, scrub, shorten, shorten_kernel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


class _Place(NamedTuple):
    """Where a lane is drawn: the height of its middle, how long a pixel is (ns), and the ns in the unit of the axis."""

    middle: float
    pixel_ns: float
    divisor: float

    def box(self, start_ns: float, long_ns: float) -> Box:
        """Return a box of the lane."""
        return start_ns / self.divisor, self.middle - TIMELINE_BOX / 2, long_ns / self.divisor, TIMELINE_BOX


def timeline(
    picture: Timeline, *, redact: bool = True, width: int = 1120, span_ns: int | None = None, ax: Axes | None = None
) -> Figure:
    """Return one window as lanes: CPU threads above (waits hatched), GPU streams below, arrows from launch to start.

    Below them is the work queued for each device, and its counters where they were sampled. ``span_ns`` is the length of the
    time axis, for pictures to be compared; it is at least the window.
    """
    lanes = picture.lanes
    strips: tuple[Queue | Counters, ...] = (*picture.queues, *picture.counters)
    bottom, high = TIMELINE_ROW * len(lanes), TIMELINE_ROW * len(lanes) + TIMELINE_DEEP * len(strips)
    window = max(1, picture.end_ns - picture.start_ns, span_ns or 0)
    divisor, unit = time_scale(window)

    def on(axes: Axes) -> None:
        axes.set_xlim(0, window / divisor)
        axes.set_ylim(max(high, 1), 0)
        pixel = window / width_of(axes)
        places = [_Place(TIMELINE_ROW * (index + 0.5), pixel, divisor) for index in range(len(lanes))]
        seen: dict[str, str] = {}
        shaded = [
            (0.0, float(TIMELINE_ROW * i), window / divisor, float(TIMELINE_ROW)) for i in range(0, len(lanes), 2)
        ]
        boxes(axes, shaded, "#f6f6f6", layer=0.5)
        for lane, where, name in zip(lanes, places, lane_names(lanes, redact), strict=True):
            _draw_lane(axes, lane, where, seen, redact)
            write(axes, 0, where.middle, name, size=NAME, ha="right", offset=(-8, 0))
        _draw_arrows(axes, lanes, places, window)
        for position, strip in enumerate(strips):
            floor = bottom + TIMELINE_DEEP * (position + 1)
            if isinstance(strip, Queue):
                _draw_queue(axes, strip, floor, divisor)
            else:
                _draw_counters(axes, strip, floor, divisor)
        for instant, name in picture.marks:
            x = instant / divisor
            segments(axes, [[(x, 0), (x, bottom)]], INK, 1.2, linestyle=(0, (4, 3)), layer=5)
            write(axes, x, 0, clean(name, 60), va="bottom", offset=(0, 2.4))
        name_axes(axes, f"{unit} from the start of the window")
        legend(axes, _keys(lanes), rise=-45, shift=7 - TIMELINE_LEFT)

    above = TIMELINE_ABOVE + 14 * bool(picture.marks)
    return draw(
        Room(
            width,
            above + high + TIMELINE_BELOW,
            left=TIMELINE_LEFT,
            right=TIMELINE_RIGHT,
            above=above,
            below=TIMELINE_BELOW,
            paper="#ffffff",
        ),
        on,
        ax,
    )


def lane_names(lanes: Sequence[Lane], redact: bool) -> list[str]:
    """Return the names of the lanes; where a thread has several, each says what it shows."""
    called = [clean(lane.label, 60) for lane in lanes]
    which = {"phases": ": phases", "lines": ": lines", "api": ": CUDA calls"}
    names = [
        name + (which.get(lane.role, "") if called.count(name) > 1 else "")
        for name, lane in zip(called, lanes, strict=True)
    ]
    return [shorten(scrub(name) if redact else name, 28) for name in names]


#: Height of what a strip shows (CSS pixels).
_STRIP = TIMELINE_DEEP - 15


def _strip_axis(axes: Axes, floor: float, most: str, name: str) -> None:
    """Draw the axis of a strip to its left, from nothing to the most, and its name."""
    marks = [[(0, floor), (0, floor - _STRIP)]]
    segments(axes, marks, NEUTRAL, 1.07)
    for y, text in ((floor, "0"), (floor - _STRIP, most)):
        write(axes, 0, y, text, size=SMALLEST, color=NEUTRAL, ha="right", offset=(-6, 0))
    write(axes, 0, floor - _STRIP / 2, name, size=NAME, ha="right", offset=(-52, 0))


def _draw_queue(axes: Axes, queue: Queue, floor: float, divisor: float) -> None:
    """Draw how much GPU work is launched and has not yet run, with its peak as text."""
    most = max(max(queue.queued_ns), 1)
    x = [instant / divisor for instant in queue.at_ns]
    points = [(instant, floor - _STRIP * ns / most) for instant, ns in zip(x, queue.queued_ns, strict=True)]
    around = [(points[0][0], floor), *points, (points[-1][0], floor), (points[0][0], floor)]
    outlines(axes, [around], KIND_COLORS[Paint.COMM], alpha=0.55)
    segments(axes, [points], KIND_COLORS[Paint.LAUNCH], 1.2)
    _strip_axis(axes, floor, units.duration(most), f"GPU {queue.device}: work queued")


#: Colors of the counters, in their order.
_COUNTER_COLORS = (NEUTRAL, KIND_COLORS[Paint.COMPUTE], KIND_COLORS[Paint.SYNC])


def _draw_counters(axes: Axes, counters: Counters, floor: float, divisor: float) -> None:
    """Draw the shares of a device's counters, each as a line, with its name in the same color."""
    for position, (name, shares) in enumerate(counters.shares.items()):
        color = _COUNTER_COLORS[position % len(_COUNTER_COLORS)]
        pieces: list[list[tuple[float, float]]] = [[]]
        for instant, share in zip(counters.at_ns, shares, strict=True):
            if share is not None:
                pieces[-1].append((instant / divisor, floor - _STRIP * share))
            elif pieces[-1]:
                pieces.append([])
        segments(axes, [piece for piece in pieces if piece], color, 1.2)
        right = 1 - 0.1 * (len(counters.shares) - position)
        top: dict[str, Any] = {"size": SMALLEST, "color": color, "va": "bottom", "offset": (0, 2)}
        write(axes, right, floor - _STRIP, clean(name, 20), beside=True, **top)
    _strip_axis(axes, floor, "100 %", shorten(clean(counters.label, 60), 24))


def lane_color(lane: Lane, span_kind: str, seen: dict[str, str]) -> str:
    """Return the color of a kind on a lane, or of what the program names."""
    if lane.role in NAMED_ROLES:
        return phase_color(span_kind, seen)
    return KIND_COLORS.get(span_kind, KIND_COLORS[Paint.OTHER])


def _draw_lane(axes: Axes, lane: Lane, where: _Place, seen: dict[str, str], redact: bool) -> None:
    """Draw one lane: wide boxes with their names, the rest as columns as high as the share of time that they fill."""
    wide, filled = _split(lane.spans, where.pixel_ns)
    alike: dict[str, list[Box]] = {}
    waits: list[Box] = []
    for span in wide:
        color = lane_color(lane, span.kind or span.label, seen)
        length = span.end_ns - span.start_ns
        alike.setdefault(color, []).append(where.box(span.start_ns, length))
        if span.backlog_ns > 2 * where.pixel_ns:
            waits.append(where.box(span.start_ns, min(span.backlog_ns, length)))
        _name_box(axes, lane, span, where, color, redact)
    for color, places in alike.items():
        boxes(axes, places, color, edge=shade(color), line=0.33)
    boxes(axes, waits, "none", edge="#ffffff", hatch="////", layer=2)
    for color, columns in _columns(lane, filled, where, seen):
        outlines(axes, columns, color, layer=3)


def box_name(lane: Lane, span: Span, redact: bool) -> str:
    """Return the name of a box as one line of harmless text; of a line of the program its file, without the folders above."""
    if lane.role == "lines":
        return code_place(span.label, redact)
    return shown_name(span.label, redact)


def shown_name(name: str, redact: bool) -> str:
    """Return a name of the program as one line of harmless text, without the home folder of a path."""
    text = clean(name, 200)
    return scrub(text) if redact else text


def code_place(line: str, redact: bool) -> str:
    """Return "path:line" for people, "" if it is."""
    path, colon, number = line.rpartition(":")
    return clean(file_name(path, redact) + colon + number, 200)


def _name_box(axes: Axes, lane: Lane, span: Span, where: _Place, color: str, redact: bool) -> None:
    """Write the name of a box onto it where there is room."""
    length = span.end_ns - span.start_ns
    room = int((length / where.pixel_ns - 10) / 5.8)
    if room < 1:
        return
    name = box_name(lane, span, redact)
    if room < min(len(name), 12):
        return
    text = shorten_kernel(name, min(60, room)) if lane.role == "stream" else shorten(name, min(60, room))
    halo = color if span.backlog_ns > 2 * where.pixel_ns else ""
    middle = (span.start_ns + length / 2) / where.divisor
    write(axes, middle, where.middle, text, size=NARROW, color=ink_on(color), ha="center", halo=halo)


#: The outline of neighboring columns.
_Outline = list[tuple[float, float]]


def _columns(
    lane: Lane, filled: dict[int, dict[str, float]], where: _Place, seen: dict[str, str]
) -> Iterator[tuple[str, list[_Outline]]]:
    """Yield color and outlines for the columns of a lane, each a pixel wide, every kind in front of those that stand on it."""
    bottom = where.middle + TIMELINE_BOX / 2
    tops: dict[str, list[tuple[int, float]]] = {}  # of each kind: its columns, and where it ends in them
    for column, kinds in sorted(filled.items()):
        top, scale = bottom, 1 / max(1.0, sum(kinds.values()))
        for kind in sorted(kinds):
            top -= max(0.05, kinds[kind] * scale) * TIMELINE_BOX  # even the shortest box shows as a line
            tops.setdefault(kind, []).append((column, top))
    pixel = where.pixel_ns / where.divisor
    for kind in sorted(tops, reverse=True):
        shapes: list[_Outline] = []
        before = None
        for column, top in tops[kind]:
            if column - 1 != before:
                shapes.append([(column * pixel, bottom)])
            shapes[-1] += [(column * pixel, top), ((column + 1) * pixel, top)]
            before = column
        yield lane_color(lane, kind, seen), [[*s, (s[-1][0], bottom), s[0]] for s in shapes]


def _draw_arrows(axes: Axes, lanes: Sequence[Lane], places: Sequence[_Place], window: int) -> None:
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
    style = {
        "arrowstyle": "-|>",
        "color": "#333333",
        "linewidth": 0.93,
        "mutation_scale": 8,
        "shrinkA": 0,
        "shrinkB": 0,
    }
    for span, index in list(longest.values())[:TIMELINE_ARROWS]:
        assert span.launch_ns is not None
        assert span.launch_lane is not None
        launch, begun = places[span.launch_lane], places[index]
        if 0 <= span.start_ns <= window:
            start = (span.launch_ns / launch.divisor, launch.middle + TIMELINE_BOX / 2)
            end = (span.start_ns / begun.divisor, begun.middle - TIMELINE_BOX / 2)
            axes.annotate("", end, start, arrowprops=style, annotation_clip=False, zorder=4)


def _keys(lanes: Sequence[Lane]) -> list[LegendEntry]:
    """Return what each color stands for."""
    present = {
        s.kind if s.kind in KIND_NAMES else "other"
        for lane in lanes
        if lane.role not in NAMED_ROLES
        for s in lane.spans
    }
    keys = [
        LegendEntry(name, color)
        for name, color in {n: KIND_COLORS[k] for k, n in KIND_NAMES.items() if k in present}.items()
    ]
    if any(s.backlog_ns for lane in lanes for s in lane.spans):
        keys.append(LegendEntry("waiting for earlier GPU work", KIND_COLORS[Paint.SYNC], "#ffffff", "////"))
    return keys

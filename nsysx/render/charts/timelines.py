"""One window as lanes: CPU threads above, GPU streams below, and the work queued for each device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nsysx import units
from nsysx.catalogue import Paint
from nsysx.pictures import Counters, Lane, Queue, Span, Timeline
from nsysx.render.charts.canvas import Picture, new_figure, png, settings, time_scale
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


def timeline(picture: Timeline, *, redact: bool = True, width: int = 1120, span_ns: int | None = None) -> Picture:
    """Return one window as lanes: CPU threads above (waits hatched), GPU streams below, arrows from launch to start.

    Below them is the work queued for each device, and its counters where they were sampled. ``span_ns`` is the length of the
    time axis, for pictures to be compared; it is at least the window.
    """
    with settings():
        row, deep = 30, 54
        lanes = picture.lanes
        strips: tuple[Queue | Counters, ...] = (*picture.queues, *picture.counters)
        below = deep * len(strips)
        height = row * len(lanes) + below + 84 + 14 * bool(picture.marks)
        left_px = 176
        figure = new_figure(width, height)
        left, wide = left_px / width, 1 - (left_px + 12) / width
        window = max(1, picture.end_ns - picture.start_ns, span_ns or 0)
        divisor, unit = time_scale(window)
        pixel = window / (width - left_px - 12)
        axes = figure.add_axes((left, (68 + below) / height, wide, row * len(lanes) / height))
        seen: dict[str, str] = {}
        for index, lane in enumerate(lanes):
            y = len(lanes) - 1 - index
            if index % 2 == 0:
                axes.axhspan(y - 0.5, y + 0.5, color="#f6f6f6", linewidth=0)
            _draw_lane(axes, lane, y, divisor, pixel, seen, redact)
            text = clean(lane.label, 60)
            if sum(other.label == lane.label for other in lanes) > 1:
                text += {"phases": ": phases", "api": ": CUDA calls"}.get(lane.role, "")
            text = shorten(scrub(text) if redact else text, 28)
            _lane_name(axes, -8 * pixel / divisor, y, text)
        _draw_arrows(axes, lanes, divisor)
        axes.set_xlim(0, window / divisor)
        axes.set_ylim(-0.5, len(lanes) - 0.5)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        last = axes
        for position, strip in enumerate(strips):
            axes.spines["bottom"].set_visible(False)
            axes.set_xticks([])
            bottom = 68 + below - deep * (position + 1)
            last = figure.add_axes((left, bottom / height, wide, (deep - 10) / height))
            if isinstance(strip, Queue):
                _draw_queue(last, strip, divisor, window, pixel)
            else:
                _draw_counters(last, strip, divisor, window, pixel)
            if position + 1 < len(strips):
                last.set_xticks([])
        for instant, name in picture.marks:
            axes.axvline(instant / divisor, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=6)
            axes.text(
                instant / divisor, len(lanes) - 0.42, clean(name, 60), ha="left", va="bottom", fontsize=8, color=INK
            )
        last.set_xlabel(f"{unit} from the start of the window", fontsize=8.5, color=NEUTRAL)
        last.tick_params(labelsize=8)
        present = {
            s.kind if s.kind in KIND_NAMES else "other" for lane in lanes if lane.role != "phases" for s in lane.spans
        }
        kinds = {name: KIND_COLORS[kind] for kind, name in KIND_NAMES.items() if kind in present}
        _draw_legend(figure, kinds, any(s.backlog_ns for lane in lanes for s in lane.spans), height)
        return png(figure, width, height)


def _lane_name(axes: Any, x: float, y: float, text: str) -> None:
    """Write the name of a lane to its left."""
    axes.text(x, y, text, ha="right", va="center", fontsize=8.5, color=INK)


def _draw_queue(axes: Any, queue: Queue, divisor: float, window: int, pixel: float) -> None:
    """Draw how much GPU work is launched and has not yet run, with its peak as text."""
    x = [instant / divisor for instant in queue.at_ns]
    most = max(max(queue.queued_ns), 1)
    axes.fill_between(
        x, [ns / most for ns in queue.queued_ns], 0, color=KIND_COLORS[Paint.COMM], alpha=0.55, linewidth=0
    )
    axes.plot(x, [ns / most for ns in queue.queued_ns], color=KIND_COLORS[Paint.LAUNCH], linewidth=0.9)
    axes.set_xlim(0, window / divisor)
    axes.set_ylim(0, 1.12)
    axes.set_yticks([0, 1], ["0", units.duration(most)], fontsize=7)
    axes.tick_params(axis="y", length=2, pad=2, labelcolor=NEUTRAL)
    _lane_name(axes, -52 * pixel / divisor, 0.5, f"GPU {queue.device}: work queued")


#: Colors of the counters, in their order.
_COUNTER_COLORS = (NEUTRAL, KIND_COLORS[Paint.COMPUTE], KIND_COLORS[Paint.SYNC])


def _draw_counters(axes: Any, counters: Counters, divisor: float, window: int, pixel: float) -> None:
    """Draw the shares of a device's counters, each as a line, with its name in the same color."""
    x = [instant / divisor for instant in counters.at_ns]
    for position, (name, shares) in enumerate(counters.shares.items()):
        color = _COUNTER_COLORS[position % len(_COUNTER_COLORS)]
        axes.plot(x, [float("nan") if share is None else share for share in shares], color=color, linewidth=0.9)
        height = 1 - 0.1 * (len(counters.shares) - position)
        axes.text(
            height, 1.0, clean(name, 20), transform=axes.transAxes, fontsize=7, color=color, ha="left", va="bottom"
        )
    axes.set_xlim(0, window / divisor)
    axes.set_ylim(0, 1.05)
    axes.set_yticks([0, 1], ["0", "100 %"], fontsize=7)
    axes.tick_params(axis="y", length=2, pad=2, labelcolor=NEUTRAL)
    _lane_name(axes, -52 * pixel / divisor, 0.5, shorten(clean(counters.label, 60), 24))


def _lane_color(lane: Lane, span_kind: str, seen: dict[str, str]) -> str:
    """Return the color of a kind on a lane."""
    if lane.role == "phases":
        return phase_color(span_kind, seen)
    return KIND_COLORS.get(span_kind, KIND_COLORS[Paint.OTHER])


def _draw_lane(
    axes: Any, lane: Lane, y: float, divisor: float, pixel: float, seen: dict[str, str], redact: bool
) -> None:
    """Draw one lane: wide boxes with their names, the rest as columns as high as the share of time that they fill."""
    wide, filled = _split(lane.spans, pixel)
    low, height = y - 0.36, 0.72
    boxes: dict[str, list[tuple[float, float]]] = {}
    waits: list[tuple[float, float]] = []
    for span in wide:
        color = _lane_color(lane, span.kind or span.label, seen)
        length = span.end_ns - span.start_ns
        boxes.setdefault(color, []).append((span.start_ns / divisor, length / divisor))
        waiting = span.backlog_ns > 2 * pixel
        if waiting:
            waits.append((span.start_ns / divisor, min(span.backlog_ns, length) / divisor))
        room = int((length / pixel - 10) / 5.8)
        name = clean(span.label, 200)
        name = scrub(name) if redact else name
        if room >= min(len(name), 12):
            text = shorten_kernel(name, min(60, room)) if lane.role == "stream" else shorten(name, min(60, room))
            behind = {"facecolor": color, "edgecolor": "none", "pad": 0.8} if waiting else None
            middle = (span.start_ns + length / 2) / divisor
            axes.text(
                middle,
                y,
                text,
                ha="center",
                va="center",
                fontsize=7.5,
                color=ink_on(color),
                clip_on=True,
                zorder=4,
                bbox=behind,
            )
    for color, places in boxes.items():
        axes.broken_barh(places, (low, height), facecolors=color, edgecolors=shade(color), linewidth=0.25, zorder=2)
    if waits:
        axes.broken_barh(
            waits, (low, height), facecolors="none", edgecolors="#ffffff", hatch="////", linewidth=0, zorder=3
        )
    columns: dict[str, list[list[tuple[float, float]]]] = {}
    for column, kinds in filled.items():
        left, right, base = column * pixel / divisor, (column + 1) * pixel / divisor, low
        scale = 1 / max(1.0, sum(kinds.values()))
        for kind in sorted(kinds):
            top = base + max(0.05, kinds[kind] * scale) * height  # even the shortest box shows as a line
            corners = [(left, base), (right, base), (right, top), (left, top)]
            columns.setdefault(_lane_color(lane, kind, seen), []).append(corners)
            base = top
    if columns:
        from matplotlib.collections import PolyCollection

        for color, shapes in columns.items():
            axes.add_collection(PolyCollection(shapes, facecolors=color, linewidths=0, zorder=2), autolim=False)


def _draw_arrows(axes: Any, lanes: Sequence[Lane], divisor: float) -> None:
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
        top, bottom = len(lanes) - 1 - span.launch_lane - 0.36, len(lanes) - 1 - index + 0.36
        axes.annotate(
            "",
            xy=(span.start_ns / divisor, bottom),
            xytext=(span.launch_ns / divisor, top),
            annotation_clip=True,
            zorder=5,
            arrowprops={
                "arrowstyle": "-|>",
                "color": "#333333",
                "linewidth": 0.7,
                "shrinkA": 0,
                "shrinkB": 0,
                "mutation_scale": 7,
            },
        )


def _draw_legend(figure: Any, kinds: dict[str, str], waits: bool, height: int) -> None:
    """Write the name of each color below the picture."""
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=color, label=name) for name, color in kinds.items()]
    if waits:
        handles.append(
            Patch(
                facecolor=KIND_COLORS[Paint.SYNC],
                edgecolor="white",
                hatch="////",
                label="waiting for earlier GPU work",
            )
        )
    if handles:
        figure.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(0.006, 2 / height),
            ncols=len(handles),
            fontsize=8,
            frameon=False,
            handlelength=1.2,
            columnspacing=1.3,
            borderpad=0,
            handletextpad=0.5,
        )

"""Pictures of a report: bars as SVG whose text stays text, dense timelines as PNG at twice the pixels.

matplotlib is imported only when a picture is asked for, is used without pyplot, and ignores the user's own settings.
One colour means one kind of work on every picture (Okabe and Ito's palette, safe for colour-blind readers), idle time is
hatched, and every colour has its name beside it.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nsysx import units
from nsysx.model import Lane, Queue, Row, Span, Strip, Timeline
from nsysx.render.ledgers import Ledger, StepBar
from nsysx.render.safe_text import clean, scrub, shorten, shorten_kernel

KIND_COLOURS = {
    "compute": "#009E73",
    "comm": "#56B4E9",
    "copy": "#E69F00",
    "memset": "#F0E442",
    "launch": "#0072B2",
    "graph_launch": "#0072B2",
    "sync": "#D55E00",
    "alloc": "#CC79A7",
    "free": "#CC79A7",
    "host_alloc": "#CC79A7",
    "load": "#4D4D4D",
    "event": "#999999",
    "other": "#999999",
    "data": "#B58900",
    "profiler": "#BFBFBF",
    "dependency": "#BFBFBF",
    "gap": "#009E73",
    "outside": "#D9D9D9",
    "idle": "#D9D9D9",
}
KIND_NAMES = {
    "compute": "compute",
    "comm": "communication",
    "copy": "copy",
    "memset": "memset",
    "launch": "launch",
    "graph_launch": "graph launch",
    "sync": "sync",
    "alloc": "alloc and free",
    "free": "alloc and free",
    "host_alloc": "alloc and free",
    "load": "loading code",
    "event": "other CUDA call",
    "other": "other CUDA call",
}
#: Phases are pale, so that they are never taken for a kind of work; their names are written on them.
PHASE_COLOURS = {
    "data": "#E8D9A0",
    "h2d": "#F6D9A8",
    "forward": "#BBD7EE",
    "loss": "#D5CBE8",
    "backward": "#F3C6B4",
    "clip": "#E0E0E0",
    "optimizer": "#BFE3D3",
    "zero_grad": "#EDEDED",
    "evaluation": "#F2CFE2",
}
_PALE = ("#CFE2CF", "#E6D3C5", "#CDD9E5", "#E9E3C8", "#DCCFE0")
_INK = "#1b1b1b"
_NEUTRAL = "#6b6b6b"

_MAX_STEPS = 160
_MAX_ARROWS = 8
_SVG_STYLE = (
    "<style>text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',Arial,sans-serif!important}"
    "@media (prefers-color-scheme:dark){text[style*='#1b1b1b']{fill:#e8e8e8!important}"
    "text[style*='#6b6b6b']{fill:#a9a9a9!important}[style*='stroke: #1b1b1b']{stroke:#f2f2f2!important}}</style>"
)


@dataclass(frozen=True, slots=True)
class Picture:
    """An image file in memory, with the size in CSS pixels at which it is meant to be seen."""

    mime: str
    data: bytes
    width: int
    height: int


@contextmanager
def _settings() -> Iterator[None]:
    """Run with matplotlib's defaults and ours, whatever the user's matplotlibrc says."""
    import matplotlib as mpl

    ours: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "nsysx",
        "font.size": 9,
        "font.family": "sans-serif",
        "text.parse_math": False,
        "hatch.linewidth": 0.6,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": _NEUTRAL,
        "xtick.color": _NEUTRAL,
        "ytick.color": _NEUTRAL,
        "xtick.labelcolor": _NEUTRAL,
    }
    noise = logging.getLogger("matplotlib")
    level = noise.level
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(ours)
        warnings.simplefilter("ignore")  # glyphs that the font lacks: the name is in the table too
        noise.setLevel(logging.ERROR)
        try:
            yield
        finally:
            noise.setLevel(level)


def _figure(width: int, height: int) -> Any:
    """Return an empty transparent figure of ``width`` x ``height`` CSS pixels."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width / 96, height / 96), dpi=96, facecolor="none")


def _svg(figure: Any, width: int, height: int) -> Picture:
    """Return ``figure`` as SVG: the same bytes for the same picture."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", facecolor="none", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    head, _, body = text.partition("<defs>")
    return Picture("image/svg+xml", f"{head}{_SVG_STYLE}<defs>{body}".encode(), width, height)


def _png(figure: Any, width: int, height: int) -> Picture:
    """Return ``figure`` as PNG with two pixels for each CSS pixel."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=192, facecolor="white", metadata={"Software": None})
    return Picture("image/png", buffer.getvalue(), width, height)


def _luminance(colour: str) -> float:
    """Return the relative luminance of ``#rrggbb`` as WCAG defines it."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _ink_on(colour: str) -> str:
    """Return black or white, whichever reads better on ``colour``."""
    light = _luminance(colour)
    return "#ffffff" if 1.05 / (light + 0.05) > (light + 0.05) / 0.05 else "#000000"


def _mix(colour: str, share: float) -> str:
    """Return ``colour`` mixed with white; ``share`` of it stays."""
    return "#" + "".join(f"{round(255 - (255 - int(colour[i : i + 2], 16)) * share):02x}" for i in (1, 3, 5))


def _shade(colour: str) -> str:
    """Return ``colour`` a little darker: borders that are not mistaken for gaps."""
    return "#" + "".join(f"{round(int(colour[i : i + 2], 16) * 0.8):02x}" for i in (1, 3, 5))


def _scale(longest_ns: float) -> tuple[float, str]:
    """Return the divisor and unit in which ``longest_ns`` reads well on an axis."""
    for divisor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if longest_ns >= 2 * divisor:
            return divisor, unit
    return 1.0, "ns"


def ledger(ledgers: Sequence[Ledger], per_step: bool = True, width: int = 1120) -> Picture:
    """Return the ledgers as bars on one time scale: what ran in plain colour, idle time hatched by its cause."""
    with _settings():
        row = 46
        height = row * len(ledgers) + 48
        figure = _figure(width, height)
        axes = figure.add_axes((0.008, 44 / height, 0.984, 1 - 48 / height))
        longest = max((entry.window_ns for entry in ledgers), default=1) or 1
        divisor, unit = _scale(longest)
        pixel = longest / (width * 0.984)
        for position, entry in enumerate(ledgers):
            y = len(ledgers) - 1 - position
            left = 0.0
            text = f"{entry.label}: {units.duration(entry.window_ns)}"
            axes.text(0, y + 0.30, text, ha="left", va="bottom", fontsize=9, color=_INK)
            for part in entry.parts:
                if part.ns <= 0:
                    continue
                base = KIND_COLOURS.get(part.kind, KIND_COLOURS["other"])
                colour = _mix(base, 0.38) if part.idle else base
                axes.barh(
                    y,
                    part.ns / divisor,
                    0.5,
                    left=left / divisor,
                    color=colour,
                    linewidth=0.6,
                    edgecolor=_mix(base, 0.9) if part.idle else "white",
                    hatch="////" if part.idle else None,
                )
                _label_part(axes, entry, part, left, y, divisor, pixel, colour)
                left += part.ns
        axes.set_xlim(0, longest / divisor)
        axes.set_ylim(-0.35, len(ledgers) - 0.3)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"time per step, {unit}" if per_step else f"time, {unit}", color=_NEUTRAL, fontsize=8.5)
        axes.tick_params(labelsize=8)
        return _svg(figure, width, height)


def _label_part(
    axes: Any, entry: Ledger, part: Any, left: float, y: float, divisor: float, pixel: float, colour: str
) -> None:
    """Write the longest label that fits onto one part of a bar."""
    name = f"idle: {part.label}" if part.idle else part.label
    share = units.share(part.ns, entry.window_ns)
    for text in (f"{name}: {units.duration(part.ns)}, {share}", f"{name}: {share}", name, share):
        if len(text) * 6.3 + 8 <= part.ns / pixel:
            axes.text(
                (left + part.ns / 2) / divisor,
                y - 0.01,
                text,
                ha="center",
                va="center_baseline",
                fontsize=8.5,
                color=_ink_on(colour),
                bbox={"facecolor": colour, "edgecolor": "none", "pad": 1.2} if part.idle else None,
            )
            return


def _phase_colour(name: str, seen: dict[str, str]) -> str:
    """Return the colour of a phase; phases of the user's own get one in the order in which they come."""
    if name in PHASE_COLOURS:
        return PHASE_COLOURS[name]
    return seen.setdefault(name, _PALE[len(seen) % len(_PALE)])


def steps(bars: Sequence[StepBar], on_gpu: bool, width: int = 1120, height: int = 230) -> Picture:
    """Return the steps in order, stacked by kind of GPU work or by phase, those that are not steady paler and hatched.

    Many steps are shown as the mean of neighbours; with GPU parts a tick marks the length of the CPU step.
    """
    group = -(-len(bars) // _MAX_STEPS)
    groups = [bars[i : i + group] for i in range(0, len(bars), group)]
    names = [n for n in dict.fromkeys(name for bar in bars for name in bar.parts) if any(b.parts.get(n) for b in bars)]
    with _settings():
        figure = _figure(width, height)
        axes = figure.add_axes((0.045, 42 / height, 0.951, 1 - 74 / height))
        longest = max(max(bar.length_ns, bar.cpu_ns or 0) for bar in bars)
        usual = [max(bar.length_ns, bar.cpu_ns or 0) for bar in bars if bar.steady]
        # One warm-up step of seconds would press all others flat: cut the axis and write the value on the bar.
        limit = min(longest, 2.2 * max(usual)) if usual else longest
        divisor, unit = _scale(limit)
        seen: dict[str, str] = {}
        x = [part[0].index + (len(part) - 1) / 2 for part in groups]
        wide = 0.84 * group

        def mean(part: Sequence[StepBar], name: str) -> float:
            return sum(bar.parts.get(name, 0.0) for bar in part) / len(part) / divisor

        bottom = [0.0] * len(groups)
        for name in names:
            heights = [mean(part, name) for part in groups]
            idle = on_gpu and name == "idle"
            colour = _phase_colour(name, seen) if not on_gpu else "#ececec" if idle else KIND_COLOURS[name]
            text = "idle" if idle else KIND_NAMES.get(name, shorten(clean(name, 60), 24))
            axes.bar(x, heights, wide, bottom=bottom, color=colour, label=text, linewidth=0)
            bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
        length = [sum(bar.length_ns for bar in part) / len(part) / divisor for part in groups]
        if any(total - low > 0.001 * total for total, low in zip(length, bottom, strict=True)):
            rest = [max(0.0, total - low) for total, low in zip(length, bottom, strict=True)]
            axes.bar(
                x, rest, wide, bottom=bottom, color="#c9c9c9", label="outside phases" if names else "step", linewidth=0
            )
        _draw_unsteady(axes, x, wide, groups, length, limit / divisor, divisor)
        if on_gpu:
            marks = [
                (a, sum(b.cpu_ns or 0 for b in part) / len(part) / divisor) for a, part in zip(x, groups, strict=True)
            ]
            axes.hlines(
                [m for _, m in marks],
                [a - wide / 2 for a, _ in marks],
                [a + wide / 2 for a, _ in marks],
                color=_INK,
                linewidth=1.2,
                label="CPU step",
            )
        axes.set_ylim(0, limit / divisor * 1.04)
        axes.set_xlim(x[0] - wide * 0.7, max(x[-1], x[0] + 9) + wide * 0.7)  # two steps are not two walls
        axes.set_xlabel("step" if group == 1 else f"step (mean of {group} neighbours)", fontsize=8.5, color=_NEUTRAL)
        axes.set_ylabel(unit, fontsize=8.5, color=_NEUTRAL)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.tick_params(labelsize=8, labelcolor=_NEUTRAL)
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1.1),
            ncols=min(10, len(names) + 3),
            fontsize=8,
            frameon=False,
            labelcolor=_INK,
            handlelength=1.1,
            columnspacing=1.2,
            borderpad=0,
        )
        return _svg(figure, width, height)


def _draw_unsteady(
    axes: Any,
    x: Sequence[float],
    wide: float,
    groups: Sequence[Sequence[StepBar]],
    length: Sequence[float],
    top: float,
    divisor: float,
) -> None:
    """Hatch the steps that no average counts, and write the length of those that leave the picture."""
    odd = [(a, h) for a, part, h in zip(x, groups, length, strict=True) if not any(bar.steady for bar in part)]
    if odd and len(odd) < len(groups):
        axes.bar(
            [a for a, _ in odd],
            [h for _, h in odd],
            wide,
            color="#ffffff55",
            edgecolor="#777777",
            hatch="///",
            linewidth=0,
            label="not steady",
        )
    for a, h in zip(x, length, strict=True):
        if h > top * 1.04:
            axes.text(a, top * 1.05, units.duration(h * divisor), ha="center", va="bottom", fontsize=8, color=_INK)


def _split(spans: Sequence[Span], pixel_ns: float) -> tuple[list[Span], dict[int, dict[str, float]]]:
    """Return the boxes that are wide enough to draw, and for all others how much of each pixel every kind fills, 0 to 1.

    A box may never look longer than it is: a GPU that is busy for a tenth of each pixel must not look busy.
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

    Under them stands what is queued for each device. ``span_ns`` is the length of the time axis, for pictures that are
    compared; at least the window.
    """
    with _settings():
        row, deep = 30, 54
        lanes = picture.lanes
        below = deep * len(picture.queues)
        height = row * len(lanes) + below + 84 + 14 * bool(picture.marks)
        left_px = 176
        figure = _figure(width, height)
        left, wide = left_px / width, 1 - (left_px + 12) / width
        window = max(1, picture.end_ns - picture.start_ns, span_ns or 0)
        divisor, unit = _scale(window)
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
        for position, queue in enumerate(picture.queues):
            axes.spines["bottom"].set_visible(False)
            axes.set_xticks([])
            bottom = 68 + below - deep * (position + 1)
            last = figure.add_axes((left, bottom / height, wide, (deep - 10) / height))
            _draw_queue(last, queue, divisor, window, pixel)
        for at, name in picture.marks:
            axes.axvline(at / divisor, color=_INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=6)
            axes.text(at / divisor, len(lanes) - 0.42, clean(name, 60), ha="left", va="bottom", fontsize=8, color=_INK)
        last.set_xlabel(f"{unit} from the start of the window", fontsize=8.5, color=_NEUTRAL)
        last.tick_params(labelsize=8)
        present = {
            s.kind if s.kind in KIND_NAMES else "other" for lane in lanes if lane.role != "phases" for s in lane.spans
        }
        kinds = {name: KIND_COLOURS[kind] for kind, name in KIND_NAMES.items() if kind in present}
        _draw_legend(figure, kinds, any(s.backlog_ns for lane in lanes for s in lane.spans), height)
        return _png(figure, width, height)


def _lane_name(axes: Any, x: float, y: float, text: str) -> None:
    """Write the name of a lane to its left."""
    axes.text(x, y, text, ha="right", va="center", fontsize=8.5, color=_INK)


def _draw_queue(axes: Any, queue: Queue, divisor: float, window: int, pixel: float) -> None:
    """Draw how much GPU time is launched and not yet run, with its peak as text."""
    x = [at / divisor for at in queue.at_ns]
    most = max(max(queue.queued_ns), 1)
    axes.fill_between(x, [ns / most for ns in queue.queued_ns], 0, color=KIND_COLOURS["comm"], alpha=0.55, linewidth=0)
    axes.plot(x, [ns / most for ns in queue.queued_ns], color=KIND_COLOURS["launch"], linewidth=0.9)
    axes.set_xlim(0, window / divisor)
    axes.set_ylim(0, 1.12)
    axes.set_yticks([0, 1], ["0", units.duration(most)], fontsize=7)
    axes.tick_params(axis="y", length=2, pad=2, labelcolor=_NEUTRAL)
    _lane_name(axes, -52 * pixel / divisor, 0.5, shorten(clean(queue.label, 60), 24))


def strips(entries: Sequence[Strip], verdicts: Sequence[str], width: int = 1120) -> Picture:
    """Return the times of each kernel as dots in order of time from top to bottom, over their median; the first ringed.

    ``verdicts`` stand beside them. A dot outside the axis is drawn at its edge as an arrow head.
    """
    medians = [sorted(e.durations_ns)[len(e.durations_ns) // 2] or 1 for e in entries]
    ratios = [ns / median for e, median in zip(entries, medians, strict=True) for ns in e.durations_ns]
    out = {limit: sum(not 1 / limit <= r <= limit for r in ratios) for limit in (1.5, 2.0, 4.0, 8.0)}
    high = next((limit for limit, count in out.items() if count <= 0.02 * len(ratios)), 8.0)
    low = 1 / high
    with _settings():
        row = 34
        height = row * len(entries) + 64
        figure = _figure(width, height)
        left_px, right_px = 400, 190
        axes = figure.add_axes(
            (left_px / width, 40 / height, 1 - (left_px + right_px) / width, row * len(entries) / height)
        )
        axes.axvline(1, color=_NEUTRAL, linewidth=0.8)
        for index, (entry, verdict) in enumerate(zip(entries, verdicts, strict=True)):
            y = len(entries) - 1 - index
            if index % 2 == 0:
                axes.axhspan(y - 0.5, y + 0.5, color="#7f7f7f", alpha=0.08, linewidth=0)
            median = medians[index]
            step = 0.7 / max(1, len(entry.durations_ns) - 1)
            places = [(ns / median, y + 0.35 - i * step) for i, ns in enumerate(entry.durations_ns)]
            inside = [(x, at) for x, at in places if low <= x <= high]
            if inside:
                axes.scatter(
                    [x for x, _ in inside],
                    [at for _, at in inside],
                    s=7,
                    color=KIND_COLOURS["compute"],
                    alpha=0.6,
                    linewidths=0,
                    rasterized=True,
                )
            for edge, marker, beyond in (
                (low, "<", [at for x, at in places if x < low]),
                (high, ">", [at for x, at in places if x > high]),
            ):
                if beyond:
                    axes.scatter(
                        [edge] * len(beyond),
                        beyond,
                        s=16,
                        marker=marker,
                        color=KIND_COLOURS["sync"],
                        clip_on=False,
                        linewidths=0,
                        rasterized=True,
                    )
            first = min(max(places[0][0], low), high)
            axes.scatter(
                [first], [places[0][1]], s=34, facecolors="none", edgecolors=_INK, linewidths=0.9, clip_on=False
            )
            name = shorten_kernel(clean(entry.name, 200), 56)
            axes.annotate(
                name,
                (0, y),
                (-10, 4),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=8,
                color=_INK,
            )
            said = f"{units.count(entry.count)} runs, median {units.duration(median)}"
            axes.annotate(
                said,
                (0, y),
                (-10, -7),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=7.5,
                color=_NEUTRAL,
            )
            axes.annotate(
                clean(verdict, 40),
                (1, y),
                (12, 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="left",
                va="center",
                fontsize=8.5,
                color=_INK,
            )
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        middle = high**0.5
        axes.set_xticks(
            [low, 1 / middle, 1, middle, high],
            [f"x {low:.2g}", f"x {1 / middle:.2g}", "median", f"x {middle:.2g}", f"x {high:.2g}"],
        )
        axes.minorticks_off()
        axes.set_ylim(-0.5, len(entries) - 0.5)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("time of one execution over the kernel's median", fontsize=8.5, color=_NEUTRAL)
        axes.tick_params(labelsize=8)
        return _svg(figure, width, height)


#: Kinds of memory, in colours that no kind of work has on the same picture.
_MEMORY_COLOURS = {"device": "#0072B2", "pinned": "#D55E00", "managed": "#CC79A7"}


def memory(lines: Mapping[str, Sequence[tuple[float, float]]], width: int = 1120, height: int = 230) -> Picture:
    """Return bytes over time (ns) as one stepped line for each kind of memory, its peak written beside it."""
    with _settings():
        figure = _figure(width, height)
        axes = figure.add_axes((0.075, 42 / height, 0.921, 1 - 74 / height))
        last = max((at for points in lines.values() for at, _ in points), default=1)
        most = max((size for points in lines.values() for _, size in points), default=1) or 1
        time, unit = _scale(last)
        divisor, name = next(
            ((d, n) for d, n in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")) if most >= 2 * d), (1, "bytes")
        )
        for position, (label, points) in enumerate(lines.items()):
            kind = label.rpartition(" ")[2]
            colour = _MEMORY_COLOURS.get(kind, KIND_COLOURS["other"])
            x = [at / time for at, _ in points] + [last / time]
            y = [size / divisor for _, size in points] + [points[-1][1] / divisor]
            dashes: Any = "solid" if position == 0 else (0, (5, 2))
            peak = units.size(max(size for _, size in points))
            axes.plot(
                x,
                y,
                drawstyle="steps-post",
                color=colour,
                linewidth=1.4,
                linestyle=dashes,
                label=f"{clean(label, 40)}, peak {peak}",
            )
            if position == 0:
                axes.fill_between(x, y, 0, step="post", color=colour, alpha=0.15, linewidth=0)
        axes.set_ylim(0, most / divisor * 1.06)
        begun = min((at for points in lines.values() for at, size in points if size > most / 50), default=0)
        axes.set_xlim(max(0, begun - 0.03 * (last - begun)) / time, last / time)
        axes.set_xlabel(f"{unit} from the start of the capture", fontsize=8.5, color=_NEUTRAL)
        axes.set_ylabel(name, fontsize=8.5, color=_NEUTRAL)
        axes.tick_params(labelsize=8, labelcolor=_NEUTRAL)
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1.02),
            ncols=4,
            fontsize=8,
            frameon=False,
            labelcolor=_INK,
            borderpad=0,
        )
        return _svg(figure, width, height)


#: The parts of a rank's step, in the order of drawing: label, colour, hatch.
RANK_PARTS = (
    ("compute", KIND_COLOURS["compute"], ""),
    ("exposed transfer", KIND_COLOURS["comm"], ""),
    ("waiting for another rank", KIND_COLOURS["comm"], "////"),
    ("communication on no other rank", "#9fd3ef", ""),
    ("copy", KIND_COLOURS["copy"], ""),
    ("memset", KIND_COLOURS["memset"], ""),
    ("idle", "#ececec", ""),
)
_RANK_BARS = 32


def ranks(rows: Sequence[Row], width: int = 1120) -> Picture:
    """Return the ranks beside each other: a bar of their step each, or above 32 ranks a heat map of its parts.

    A row has ``rank``, ``straggler`` and the ns per step of each label of RANK_PARTS.
    """
    with _settings():
        most = max((sum(r[name] for name, _, _ in RANK_PARTS) for r in rows), default=1) or 1
        divisor, unit = _scale(most)
        if len(rows) > _RANK_BARS:
            return _rank_map(rows, divisor, unit, width)
        row = 24
        height = row * len(rows) + 76
        figure = _figure(width, height)
        axes = figure.add_axes((0.1, 40 / height, 0.89, row * len(rows) / height))
        y = [len(rows) - 1 - i for i in range(len(rows))]
        left = [0.0] * len(rows)
        for name, colour, hatch in RANK_PARTS:
            values = [r[name] / divisor for r in rows]
            if not any(values):
                continue
            axes.barh(
                y,
                values,
                0.72,
                left=left,
                color=_mix(colour, 0.38) if hatch else colour,
                edgecolor=colour if hatch else "white",
                hatch=hatch or None,
                linewidth=0.5,
                label=name,
            )
            left = [a + b for a, b in zip(left, values, strict=True)]
        for at, r in zip(y, rows, strict=True):
            text = f"rank {clean(r['rank'], 12)}" + (" (last)" if r.get("straggler") else "")
            axes.annotate(
                text,
                (0, at),
                (-6, 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=8.5,
                color=_INK,
            )
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_ylim(-0.5, len(rows) - 0.5)
        axes.set_xlim(0, most / divisor)
        axes.set_xlabel(f"mean steady step on the GPU, {unit}", fontsize=8.5, color=_NEUTRAL)
        axes.tick_params(labelsize=8)
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1.0),
            ncols=7,
            fontsize=8,
            frameon=False,
            labelcolor=_INK,
            handlelength=1.1,
            columnspacing=1.2,
            borderpad=0.2,
        )
        return _svg(figure, width, height)


def _rank_map(rows: Sequence[Row], divisor: float, unit: str, width: int) -> Picture:
    """Return many ranks as a heat map: a column for each rank, a line for each part of its step.

    A part that is nowhere a hundredth of the longest step has no line; the straggler has an arrow above its column.
    """
    longest = max(sum(r[name] for name, _, _ in RANK_PARTS) for r in rows)
    parts = [name for name, _, _ in RANK_PARTS if max(r[name] for r in rows) > 0.01 * longest] or ["compute"]
    height = 26 * len(parts) + 82
    figure = _figure(width, height)
    axes = figure.add_axes((0.19, 44 / height, 0.71, 26 * len(parts) / height))
    values = [[r[name] / divisor for r in rows] for name in parts]
    image = axes.imshow(values, aspect="auto", cmap="cividis", interpolation="nearest", vmin=0)
    axes.set_yticks(range(len(parts)), parts, fontsize=8.5)
    axes.tick_params(labelsize=8)
    axes.set_xlabel("rank", fontsize=8.5)
    numbers = [clean(r["rank"], 12) for r in rows]
    every = range(0, len(rows), -(-len(rows) // 16))
    axes.set_xticks(every, [numbers[i] for i in every])
    for at, r in enumerate(rows):
        if r.get("straggler"):
            axes.annotate(
                f"rank {numbers[at]}",
                (at, -0.5),
                (0, 14),
                textcoords="offset points",
                ha="center",
                fontsize=8.5,
                color=_INK,
                arrowprops={"arrowstyle": "-|>", "color": _INK, "shrinkA": 0, "shrinkB": 0},
                annotation_clip=False,
            )
    bar = figure.colorbar(image, cax=figure.add_axes((0.915, 44 / height, 0.012, 26 * len(parts) / height)))
    bar.ax.tick_params(labelsize=8)
    bar.set_label(f"{unit} per step", fontsize=8)
    return _png(figure, width, height)


def _lane_colour(lane: Lane, span_kind: str, seen: dict[str, str]) -> str:
    """Return the colour of a kind on a lane."""
    if lane.role == "phases":
        return _phase_colour(span_kind, seen)
    return KIND_COLOURS.get(span_kind, KIND_COLOURS["other"])


def _draw_lane(
    axes: Any, lane: Lane, y: float, divisor: float, pixel: float, seen: dict[str, str], redact: bool
) -> None:
    """Draw one lane: wide boxes with their names, and the rest as columns as high as the time that they fill."""
    wide, filled = _split(lane.spans, pixel)
    low, height = y - 0.36, 0.72
    boxes: dict[str, list[tuple[float, float]]] = {}
    waits: list[tuple[float, float]] = []
    for span in wide:
        colour = _lane_colour(lane, span.kind or span.label, seen)
        length = span.end_ns - span.start_ns
        boxes.setdefault(colour, []).append((span.start_ns / divisor, length / divisor))
        waiting = span.backlog_ns > 2 * pixel
        if waiting:
            waits.append((span.start_ns / divisor, min(span.backlog_ns, length) / divisor))
        room = int((length / pixel - 10) / 5.8)
        name = clean(span.label, 200)
        name = scrub(name) if redact else name
        if room >= min(len(name), 12):
            text = shorten_kernel(name, min(60, room)) if lane.role == "stream" else shorten(name, min(60, room))
            behind = {"facecolor": colour, "edgecolor": "none", "pad": 0.8} if waiting else None
            middle = (span.start_ns + length / 2) / divisor
            axes.text(
                middle,
                y,
                text,
                ha="center",
                va="center",
                fontsize=7.5,
                color=_ink_on(colour),
                clip_on=True,
                zorder=4,
                bbox=behind,
            )
    for colour, places in boxes.items():
        axes.broken_barh(places, (low, height), facecolors=colour, edgecolors=_shade(colour), linewidth=0.25, zorder=2)
    if waits:
        axes.broken_barh(
            waits, (low, height), facecolors="none", edgecolors="#ffffff", hatch="////", linewidth=0, zorder=3
        )
    columns: dict[str, list[list[tuple[float, float]]]] = {}
    for column, kinds in filled.items():
        left, right, base = column * pixel / divisor, (column + 1) * pixel / divisor, low
        scale = 1 / max(1.0, sum(kinds.values()))
        for kind in sorted(kinds):
            top = base + max(0.05, kinds[kind] * scale) * height  # the least thing that happened still shows as a line
            corners = [(left, base), (right, base), (right, top), (left, top)]
            columns.setdefault(_lane_colour(lane, kind, seen), []).append(corners)
            base = top
    if columns:
        from matplotlib.collections import PolyCollection

        for colour, shapes in columns.items():
            axes.add_collection(PolyCollection(shapes, facecolors=colour, linewidths=0, zorder=2), autolim=False)


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
    for op in ops:  # of all that one graph launch started, the longest
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
    """Write the name of each colour under the picture."""
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=name) for name, colour in kinds.items()]
    if waits:
        handles.append(
            Patch(facecolor=KIND_COLOURS["sync"], edgecolor="white", hatch="////", label="waiting for earlier GPU work")
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

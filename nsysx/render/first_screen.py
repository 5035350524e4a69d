"""The first screen of the page: the answer, its pictures drawn as boxes that need no script, fit any width and print well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsysx import units
from nsysx.advice import Bar, Part
from nsysx.answer import bars
from nsysx.model import Summary
from nsysx.pictures import Span, Timeline
from nsysx.render import answer as answers
from nsysx.render.answer import Worded, part_words
from nsysx.render.answer_text import also_worth
from nsysx.render.safe_text import clean, shorten_kernel

#: In CSS pixels: the widest bar on a 1280-pixel screen without and with labels on its left, the width of a letter, and a margin.
_WIDE, _WIDE_LABELLED, _LETTER, _MARGIN = 1120, 940, 6.6, 18
#: A gap at least this wide is labelled with its length (share of the window).
_LABELLED_GAP = 0.07
#: Less idle time than this is not worth an enlarged picture (share of the step).
_WORTH_A_LOOK = 0.2
#: Single kernels cannot be made out in a window longer than this.
_ZOOM_NS = 5_000_000


@dataclass(frozen=True, slots=True)
class Box:
    """One part of a drawn bar or lane: left and width in percent."""

    left: float
    width: float
    kind: str
    idle: bool
    text: str
    title: str


@dataclass(frozen=True, slots=True)
class Drawn:
    """A bar as boxes, and a legend: each part, its words, and whether they already fit inside the bar."""

    label: str
    value: str
    width: float
    boxes: tuple[Box, ...]
    legend: tuple[tuple[Part, str, bool], ...]


@dataclass(frozen=True, slots=True)
class LaneBoxes:
    """One lane of the enlarged window."""

    label: str
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Zoom:
    """A few kernels in a row, with the gaps between them."""

    length: str
    lanes: tuple[LaneBoxes, ...]


@dataclass(frozen=True, slots=True)
class Screen:
    """Everything on the first screen."""

    answer: Worded
    now: str
    then: str
    share: float | None
    bars: tuple[Drawn, ...]
    zoom: Zoom | None
    also: tuple[tuple[str, str, str], ...]


def _drawn(bar: Bar, longest: float, several: bool) -> Drawn:
    boxes, legend, left = [], [], 0.0
    scale = bar.total_ns / longest
    room = (_WIDE_LABELLED if several else _WIDE) * scale / 100  # pixels for a percent of the bar
    for part in bar.parts:
        width = 100 * part.ns / bar.total_ns if bar.total_ns else 0.0
        words = part_words(part, bar.total_ns)
        # A bar of one part is named and measured by its label.
        inside = len(bar.parts) > 1 and len(words) * _LETTER + _MARGIN <= width * room
        boxes.append(Box(left, width, part.kind, part.idle, words if inside else "", words))
        if part.label:
            legend.append((part, words, inside))
        left += width
    return Drawn(bar.label, units.duration(bar.total_ns), 100 * scale, tuple(boxes), tuple(legend))


def _gaps(spans: Sequence[Span], length: int) -> list[Box]:
    """Return the gaps between spans that have room for a label, each with its length."""
    gaps, at = [], 0
    for span in sorted(spans, key=lambda s: s.start_ns):
        gap = span.start_ns - at
        if at and gap >= _LABELLED_GAP * length:
            words = f"idle {units.duration(gap)}"
            gaps.append(Box(100 * at / length, 100 * gap / length, "gaplabel", True, words, words))
        at = max(at, span.end_ns)
    return gaps


def _boxes(spans: Sequence[Span], length: int) -> list[Box]:
    boxes = []
    for span in spans:
        name = shorten_kernel(clean(span.label, 200), 60)
        title = f"{name}: {units.duration(span.end_ns - span.start_ns)}"
        width = max(0.15, 100 * (span.end_ns - span.start_ns) / length)
        boxes.append(Box(100 * span.start_ns / length, width, span.kind, False, "", title))
    return boxes


def _zoom(summary: Summary, screen_idle: float) -> Zoom | None:
    """Return the enlarged window where idle time is the answer."""
    window: Timeline | None = summary.zoom
    if window is None or screen_idle < _WORTH_A_LOOK:
        return None
    length = window.end_ns - window.start_ns
    calls = [s for lane in window.lanes if lane.role == "api" for s in lane.spans]
    work = [s for lane in window.lanes if lane.role == "stream" for s in lane.spans]
    if not work or not calls or not 0 < length <= _ZOOM_NS:
        return None
    return Zoom(
        units.duration(length),
        (
            LaneBoxes("CUDA calls", tuple(_boxes(calls, length))),
            LaneBoxes("GPU", (*_boxes(work, length), *_gaps(work, length))),
        ),
    )


def build(summary: Summary, *, redact: bool = True) -> Screen:
    """Return the first screen of a Summary."""
    said = answers.build(summary, redact=redact)
    longest = max((b.total_ns for b in said.bars), default=1) or 1
    step = bars.step_bar(summary)
    idle = sum(p.ns for p in step.parts if p.idle) / step.total_ns if step and step.total_ns else 0.0
    share = said.then_ns / said.now_ns if said.then_ns is not None and said.now_ns else None
    return Screen(
        answer=said,
        now=units.duration(said.now_ns) if said.now_ns is not None else "",
        then=units.duration(said.then_ns) if said.then_ns is not None else "",
        share=share,
        bars=tuple(_drawn(b, longest, len(said.bars) > 1) for b in said.bars),
        zoom=_zoom(summary, idle) if not summary.steps.whole else None,
        also=tuple((a.code, a.text, also_worth(a)) for a in said.also),
    )

"""What every picture is drawn on: SVG in CSS pixels, written directly. Text stays text, and a picture turns dark with the page.

A drawing library would take longer to import than a report of thousands of kernels takes to analyze.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from nsysx.render.charts.colors import INK, NEUTRAL

_FONT = "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',Arial,sans-serif}"
_DARK = (
    "@media (prefers-color-scheme:dark){[fill='#1b1b1b']{fill:#e8e8e8}[fill='#6b6b6b']{fill:#a9a9a9}"
    "[stroke='#1b1b1b']{stroke:#f2f2f2}[stroke='#6b6b6b']{stroke:#a9a9a9}[fill='#ececec']{fill:#33383f}"
    "[fill='#fdfdfd']{fill:#15171a}[stroke='#fdfdfd']{stroke:#15171a}}"
)
#: Sizes of text (CSS pixels): a heading of a bar, names beside it, numbers, names on narrow boxes, and the smallest.
HEADING, NAME, NUMBER, NARROW, SMALLEST = 12.0, 11.33, 10.67, 10.0, 9.33
#: The width of letters over the size of their text, about, and of all others; a reader's own font is not known.
_LETTERS = dict.fromkeys(" ,.:;'|!()[]fijlrt", 0.36) | dict.fromkeys("mwMW", 0.92)
_LETTER = 0.61
#: How far the baseline is below the place of a text (em), where that is the text's middle, top or bottom.
_BASELINE = {"middle": 0.36, "top": 0.78, "bottom": -0.22}
#: Length of a tick, and of the room between it and its number.
_TICK, _PAD = 4.67, 4.67


@dataclass(frozen=True, slots=True)
class Picture:
    """An image file in memory, with the size in CSS pixels at which it is meant to be seen."""

    mime: str
    data: bytes
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture on the page, with its text alternative and its caption."""

    picture: Picture
    alt: str
    caption: str

    @property
    def uri(self) -> str:
        """Return the picture as a data: address."""
        return f"data:{self.picture.mime};base64,{base64.b64encode(self.picture.data).decode()}"


class Scale(NamedTuple):
    """Numbers from ``low`` to ``high`` along an axis, drawn between the places ``start`` and ``end`` (CSS pixels)."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, number: float) -> float:
        """Return the place of a number."""
        return self.start + (number - self.low) / ((self.high - self.low) or 1) * (self.end - self.start)

    def length(self, number: float) -> float:
        """Return how long a number is drawn."""
        return self(self.low + number) - self.start


class Key(NamedTuple):
    """An entry of a legend: what its box is filled with and edged in; a ``line`` of that width (CSS pixels) has no box."""

    label: str
    paint: str
    edge: str = ""
    line: float = 0.0
    dash: str = ""


class Tick(NamedTuple):
    """A number on an axis, as it is written."""

    at: float
    text: str


def ticks(scale: Scale, room: float, *, most: int = 9, whole: bool = False) -> list[Tick]:
    """Return round numbers along an axis, ``room`` pixels apart at least; with ``whole`` none lies between two whole numbers."""
    count = min(most, max(1, int(abs(scale.end - scale.start) / room)))
    least = (scale.high - scale.low) / count or 1.0
    power = 10.0 ** math.floor(math.log10(least))
    if whole and power < 1:
        least = power = 1.0
    step = next(
        s * power for s in (1, 2, 2.5, 5, 10) if s * power >= least * (1 - 1e-9) and (not whole or s * power % 1 == 0)
    )
    digits = next(d for d in range(16) if abs(round(step, d) - step) < 1e-6 * step)
    first, last = math.ceil(scale.low / step - 1e-9), math.floor(scale.high / step + 1e-9)
    return [Tick(i * step, f"{i * step:.{digits}f}") for i in range(first, last + 1)]


def place(value: float) -> str:
    """Return a place or a length as the file has it, to a hundredth of a pixel."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def rectangle(x: float, y: float, wide: float, high: float) -> str:
    """Return a rectangle as the data of a path, from its left edge and one of its others."""
    return f"M{place(x)} {place(y)}h{place(wide)}v{place(high)}h{place(-wide)}z"


def polygon(points: Sequence[tuple[float, float]], *, closed: bool = False) -> str:
    """Return connected points as the data of a path."""
    return "M" + "L".join(f"{place(x)} {place(y)}" for x, y in points) + "z" * closed


#: Microseconds in a text: "us" stands for them everywhere but on the page.
_MICRO = re.compile(r"(?<![A-Za-z])us(?![A-Za-z])")


class Drawing:
    """A picture while it is drawn. Places count from the upper left corner, all lengths are CSS pixels.

    One with ``paper`` of its own color stays as it is on a dark page, which turns it over as a whole.
    """

    def __init__(self, width: int, height: int, paper: str = "") -> None:
        self.width, self.height = width, height
        self._style = _FONT if paper else _FONT + _DARK
        self._patterns: dict[tuple[str, str, float], str] = {}
        self._clips = 0
        self._parts = [f'<rect width="{width}" height="{height}" fill="{paper}"/>'] if paper else []

    def shape(
        self, path: str, fill: str = "none", *, edge: str = "", line: float = 0.0, dash: str = "", opacity: float = 1.0
    ) -> None:
        """Draw the data of a path, filled with a color or a pattern, and edged by a ``line`` of that width."""
        drawn = f' stroke="{edge}" stroke-width="{place(line)}"' if edge and line else ""
        drawn += f' stroke-dasharray="{dash}"' if dash else ""
        drawn += f' opacity="{opacity}"' if opacity < 1 else ""
        self._parts.append(f'<path d="{path}" fill="{fill}"{drawn}/>')

    def dots(self, points: Sequence[tuple[float, float]], size: float, color: str, opacity: float) -> None:
        """Draw a dot of a diameter at each point; where several lie together, the color is deeper."""
        layers = 6  # neighbors are on different ones: within a path, nothing is drawn over anything
        for layer in range(min(layers, len(points))):
            path = "".join(f"M{place(x)} {place(y)}h0" for x, y in points[layer::layers])
            self._parts.append(
                f'<path d="{path}" stroke="{color}" stroke-width="{place(size)}" stroke-linecap="round" opacity="{opacity}"/>'
            )

    def hatched(self, ink: str, paper: str = "none", period: float = 8.0) -> str:
        """Return what to fill a shape with that has slanted lines, ``period`` apart along a row."""
        return f"url(#{self._patterns.setdefault((ink, paper, period), f'h{len(self._patterns)}')})"

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = NUMBER,
        color: str = INK,
        anchor: str = "start",
        rise: str = "middle",
        halo: str = "",
        upward: bool = False,
    ) -> None:
        """Write a text whose ``anchor`` (start, middle, end) and ``rise`` (middle, top, bottom) is there; ``halo`` hides what is behind."""
        more = f' text-anchor="{anchor}"' if anchor != "start" else ""
        more += f' stroke="{halo}" stroke-width="5" stroke-linejoin="round" paint-order="stroke"' if halo else ""
        more += f' transform="rotate(-90 {place(x)} {place(y)})"' if upward else ""
        written = escape(_MICRO.sub("µs", words))
        where = f'x="{place(x)}" y="{place(y)}" dy="{_BASELINE[rise]}em"'
        self._parts.append(f'<text {where} font-size="{place(size)}" fill="{color}"{more}>{written}</text>')

    def arrow(self, start: tuple[float, float], end: tuple[float, float], color: str) -> None:
        """Draw a thin arrow."""
        (x, y), (to_x, to_y) = start, end
        length = math.hypot(to_x - x, to_y - y) or 1.0
        along, wide = ((to_x - x) / length, (to_y - y) / length), 1.9
        back = (to_x - 3.8 * along[0], to_y - 3.8 * along[1])
        sides = [(back[0] + s * along[1] * wide, back[1] - s * along[0] * wide) for s in (1, -1)]
        self.shape(polygon([start, back]), edge=color, line=0.93)
        self.shape(polygon([end, *sides], closed=True), color, edge=color, line=0.5)

    @contextmanager
    def clipped(self, x: float, y: float, wide: float, high: float) -> Iterator[None]:
        """Hide what is drawn outside of a rectangle."""
        self._clips += 1
        name = f"c{self._clips}"
        self._parts.append(f'<clipPath id="{name}"><path d="{rectangle(x, y, wide, high)}"/></clipPath>')
        self._parts.append(f'<g clip-path="url(#{name})">')
        yield
        self._parts.append("</g>")

    def axis_below(
        self, scale: Scale, y: float, name: str, marks: Sequence[Tick] | None = None, *, whole: bool = False
    ) -> None:
        """Draw the line at ``y`` below what was drawn, with its numbers and its name."""
        marks = ticks(scale, 3 * NUMBER, whole=whole) if marks is None else marks
        path = f"M{place(scale.start)} {place(y)}H{place(scale.end)}"
        path += "".join(f"M{place(scale(mark.at))} {place(y)}v{_TICK}" for mark in marks)
        self.shape(path, edge=NEUTRAL, line=1.07)
        for mark in marks:
            self.text(scale(mark.at), y + _TICK + _PAD, mark.text, color=NEUTRAL, anchor="middle", rise="top")
        if name:
            middle = (scale.start + scale.end) / 2
            self.text(middle, y + 25, name, size=NAME, color=NEUTRAL, anchor="middle", rise="top")

    def axis_left(
        self, scale: Scale, x: float, name: str = "", marks: Sequence[Tick] | None = None, *, size: float = NUMBER
    ) -> None:
        """Draw the line at ``x`` to the left of what was drawn, with its numbers and its name."""
        marks = ticks(scale, 2 * size) if marks is None else marks
        path = f"M{place(x)} {place(scale.start)}V{place(scale.end)}"
        path += "".join(f"M{place(x)} {place(scale(mark.at))}h-{_TICK}" for mark in marks)
        self.shape(path, edge=NEUTRAL, line=1.07)
        for mark in marks:
            self.text(x - _TICK - _PAD, scale(mark.at), mark.text, size=size, color=NEUTRAL, anchor="end")
        if name:
            left = x - _TICK - _PAD - width_of(max((m.text for m in marks), key=len, default=""), size)
            middle = (scale.start + scale.end) / 2
            self.text(left - 10, middle, name, size=NAME, color=NEUTRAL, anchor="middle", upward=True)

    def legend(self, x: float, y: float, keys: Sequence[Key]) -> None:
        """Write what each color stands for from ``x`` on; ``y`` is the middle of the first line, a next one stands below it."""
        left = x
        for key in keys:
            box = 20.0 if key.line else 12.0
            wide = box + 7 + width_of(key.label, NUMBER)
            if left > x and left + wide > self.width:
                left, y = x, y + 14
            if key.line:
                self.shape(f"M{place(left)} {place(y)}h{box}", edge=key.paint, line=key.line, dash=key.dash)
            else:
                self.shape(rectangle(left, y - 3.7, box, 7.4), key.paint, edge=key.edge, line=0.8)
            self.text(left + box + 7, y, key.label)
            left += wide + 13

    def picture(self) -> Picture:
        """Return the file; the same picture gives the same bytes."""
        patterns = "".join(_pattern(name, *lines) for lines, name in self._patterns.items())
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        style = f"<style>{self._style}</style><defs>{patterns}</defs>"
        text = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}{"".join(self._parts)}</svg>'
        return Picture("image/svg+xml", text.encode(), self.width, self.height)


def _pattern(name: str, ink: str, paper: str, period: float) -> str:
    """Return slanted lines from the lower left to the upper right."""
    p = place(period)
    behind = "" if paper == "none" else f'<rect width="{p}" height="{p}" fill="{paper}"/>'
    lines = f"M-1 1l2-2M-1 {place(period + 1)}l{place(period + 2)}-{place(period + 2)}M{place(period - 1)} {place(period + 1)}l2-2"
    return (
        f'<pattern id="{name}" patternUnits="userSpaceOnUse" width="{p}" height="{p}">{behind}'
        f'<path d="{lines}" stroke="{ink}" stroke-width="0.8"/></pattern>'
    )


def width_of(text: str, size: float) -> float:
    """Return about how wide a text is."""
    return size * sum(_LETTERS.get(letter, _LETTER) for letter in text)


def time_scale(longest_ns: float) -> tuple[float, str]:
    """Return the divisor and unit in which ``longest_ns`` reads well on an axis."""
    for divisor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if longest_ns >= 2 * divisor:
            return divisor, unit
    return 1.0, "ns"

"""What a picture shows, read from its file: each shape with its color and its outlines."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass

from matplotlib.figure import Figure

from nsysx.render.charts.canvas import svg
from nsysx.render.charts.colors import KIND_COLORS

_SVG = "{http://www.w3.org/2000/svg}"
#: The colors of kinds by how matplotlib writes them.
_NAMED = {color.lower(): color for color in KIND_COLORS.values()}
_COMMAND = re.compile(r"([A-Za-z])([^A-Za-z]*)")


@dataclass(frozen=True)
class Shape:
    """A path of the picture: fill and edge as written, the width of the edge, and the outlines it is made of (CSS pixels)."""

    fill: str
    edge: str
    line: float
    outlines: tuple[tuple[tuple[float, float], ...], ...]

    @property
    def area(self) -> float:
        """What the outlines enclose, each alone, in square pixels."""
        return sum(
            abs(sum(a[0] * b[1] - b[0] * a[1] for a, b in zip(o, (*o[1:], o[0]), strict=True))) / 2
            for o in self.outlines
        )

    @property
    def span(self) -> tuple[float, float]:
        """The leftmost and the rightmost place."""
        places = [x for outline in self.outlines for x, _ in outline]
        return min(places), max(places)

    def covers(self, x: float, y: float) -> bool:
        """Whether a place is in the box around one of the outlines."""
        return any(
            min(px for px, _ in o) <= x <= max(px for px, _ in o)
            and min(py for _, py in o) <= y <= max(py for _, py in o)
            for o in self.outlines
        )


def _outlines(path: str) -> Iterator[tuple[tuple[float, float], ...]]:
    points: list[tuple[float, float]] = []
    for command, rest in _COMMAND.findall(path):
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", rest)]
        x, y = points[-1] if points else (0.0, 0.0)
        if command == "M":
            if points:
                yield tuple(points)
            points = [(numbers[0], numbers[1])]
        elif command in "Hh":
            points.append((numbers[0] + x * (command == "h"), y))
        elif command in "Vv":
            points.append((x, numbers[0] + y * (command == "v")))
        elif command == "L":
            points.append((numbers[0], numbers[1]))
        elif command in "CQ":
            points.append((numbers[-2], numbers[-1]))
        else:
            assert command == "z", command
    if points:
        yield tuple(points)


def _style(node: ET.Element) -> dict[str, str]:
    """Return how a node is painted, by its ``style``."""
    pairs = (entry.partition(":") for entry in (node.get("style") or "").split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def shapes(picture: Figure) -> list[Shape]:
    """Return the paths of a picture in the order in which they are drawn, without those of its patterns, clips and marks."""
    root = ET.fromstring(svg(picture))
    hidden = {
        p for tag in ("defs", "clipPath") for group in root.iter(f"{_SVG}{tag}") for p in group.iter(f"{_SVG}path")
    }
    drawn = [(node, _style(node)) for node in root.iter(f"{_SVG}path") if node not in hidden]
    return [
        Shape(
            _NAMED.get(fill := style.get("fill", "#000000"), fill),
            style.get("stroke", ""),
            float(style.get("stroke-width", 1 if "stroke" in style else 0)),
            tuple(_outlines(node.get("d") or "")),
        )
        for node, style in drawn
    ]


def size(picture: Figure) -> int:
    """Return how many bytes a picture's file has."""
    return len(svg(picture))


def texts(picture: Figure) -> list[str]:
    """Return what is written on a picture."""
    return ["".join(node.itertext()) for node in ET.fromstring(svg(picture)).iter(f"{_SVG}text")]

"""What pictures are drawn with: a figure of matplotlib's, boxes, lines and texts on its axes, names and a legend beside them."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from nsysx.render.charts.colors import INK
from nsysx.render.charts.style import HEADING as HEADING
from nsysx.render.charts.style import NAME as NAME
from nsysx.render.charts.style import NARROW as NARROW
from nsysx.render.charts.style import NUMBER as NUMBER
from nsysx.render.charts.style import POINTS, settings
from nsysx.render.charts.style import SMALLEST as SMALLEST
from nsysx.render.charts.svg import saved
from nsysx.render.charts.svg import svg as svg
from nsysx.render.render_bounds import THICK_LINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Image(NamedTuple):
    """A picture as SVG, and the size at which it is meant to be seen (CSS pixels)."""

    svg: bytes
    width: int
    height: int

    @property
    def uri(self) -> str:
        """The picture as a data: address."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg).decode()}"


@dataclass(frozen=True)
class Chart:
    """A picture with its text alternative and its caption; ``name`` is that of its files.

    ``drawing`` makes its figure: a function of a module with the records that it draws, by ``functools.partial``, can be sent to a
    process that draws (`DrawingProcess`), and a lambda is called here. ``ahead`` returns what such a process has drawn, if it has.
    ``boxes_json`` are the boxes of a flame graph for the page's script: level, start and end (ns), share that is its own, name.
    """

    name: str
    drawing: Callable[[], Figure]
    alt: str
    caption: str
    boxes_json: str = ""
    ahead: Callable[[], Image | None] = lambda: None

    @cached_property
    def figure(self) -> Figure:
        """The picture as a figure of matplotlib."""
        return self.drawing()

    @cached_property
    def image(self) -> Image:
        """The picture as the page shows it."""
        return self.ahead() or Image(
            svg(self.figure), round(self.figure.get_figwidth() * POINTS), round(self.figure.get_figheight() * POINTS)
        )

    def file(self, kind: Literal["svg", "png", "pdf"]) -> bytes:
        """Return the picture as a file of its own."""
        return svg(self.figure, self.alt) if kind == "svg" else saved(self.figure, kind)


class Room(NamedTuple):
    """The size of a figure, and the room around its axes (CSS pixels)."""

    width: float
    height: float
    left: float = 9.0
    right: float = 9.0
    above: float = 4.0
    below: float = 44.0
    paper: str = ""


def draw(room: Room, on: Callable[[Axes], None], ax: Axes | None = None) -> Figure:
    """Draw on ``ax``, or on a new figure, and return the figure. A figure without ``paper`` is transparent and dark on a dark page."""
    with settings():
        if ax is None:
            ax = new_axes(room)
        on(ax)
        return cast("Figure", ax.get_figure())


def new_axes(room: Room) -> Axes:
    """Return the axes of a new figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(room.width / POINTS, room.height / POINTS), dpi=POINTS, facecolor=room.paper or "none")
    figure.patch.set_visible(bool(room.paper))
    wide, high = room.width - room.left - room.right, room.height - room.above - room.below
    axes = figure.add_axes((room.left / room.width, room.below / room.height, wide / room.width, high / room.height))
    axes.patch.set_visible(False)
    return axes


def width_of(axes: Axes) -> float:
    """Return how wide axes are (CSS pixels)."""
    figure: Any = axes.figure
    return float(axes.bbox.width) * POINTS / float(figure.dpi)


#: A box: its left edge, its lower edge, how wide and how high it is, in units of the data.
Box = tuple[float, float, float, float]


def boxes(
    axes: Axes,
    places: Sequence[Box],
    color: str,
    *,
    edge: str = "none",
    line: float = 0.0,
    hatch: str = "",
    alpha: float | None = None,
    clip: bool = False,
    layer: float = 1.0,
) -> None:
    """Draw boxes of one color as one shape: a file with thousands of them stays small."""
    corners = [
        [(x, y), (x + wide, y), (x + wide, y + high), (x, y + high), (x, y)]
        for x, y, wide, high in places
        if wide and high
    ]
    outlines(axes, corners, color, edge=edge, line=line, hatch=hatch, alpha=alpha, clip=clip, layer=layer)


def outlines(axes: Axes, shapes: Sequence[Sequence[tuple[float, float]]], color: str, **look: Any) -> None:
    """Draw closed outlines of one color as one shape; each ends where it begins."""
    if not shapes:
        return
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    codes = [code for shape in shapes for code in (Path.MOVETO, *[Path.LINETO] * (len(shape) - 2), Path.CLOSEPOLY)]
    patch = PathPatch(
        Path([corner for shape in shapes for corner in shape], codes),
        facecolor=color,
        edgecolor=look.get("edge", "none"),
        linewidth=look.get("line", 0.0),
        hatch=look.get("hatch") or None,
        alpha=look.get("alpha"),
        clip_on=look.get("clip", False),
        zorder=look.get("layer", 1.0),
    )
    if look.get("clip"):
        axes.add_patch(patch)
    else:  # of the figure's size as it is: nothing lies outside, and a path for the clip would be written for each
        axes.add_artist(patch)
        patch.set_clip_path(None)


def segments(
    axes: Axes,
    lines: Sequence[Sequence[tuple[float, float]]],
    color: str,
    width: float,
    *,
    dots: bool = False,
    **look: Any,
) -> None:
    """Draw open lines of one color as one shape. ``dots``: they are as short as a dot, and none may be left out."""
    if not lines:
        return
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    codes = [code for line in lines for code in (Path.MOVETO, *[Path.LINETO] * (len(line) - 1))]
    path = Path([point for line in lines for point in line], codes)
    clip = bool(look.pop("clip", False))
    layer = look.pop("layer", 2.0)
    path.should_simplify = path.should_simplify and not dots
    look = {"capstyle": "round" if dots else "butt", "snap": False if dots else None, **look}
    patch = PathPatch(path, facecolor="none", edgecolor=color, linewidth=width, zorder=layer, clip_on=clip, **look)
    axes.add_artist(patch)
    if not clip:
        patch.set_clip_path(None)


#: Microseconds in a text: "us" stands for them everywhere but in pictures and on the page.
_MICRO = re.compile(r"(?<![A-Za-z])us(?![A-Za-z])")


def typeset(words: str) -> str:
    """Return a text with microseconds as the world writes them."""
    return _MICRO.sub("µs", words)


def write(
    axes: Axes,
    x: float,
    y: float,
    words: str,
    *,
    size: float = NUMBER,
    color: str = INK,
    ha: Literal["left", "center", "right"] = "left",
    va: str = "center_baseline",
    offset: tuple[float, float] = (0, 0),
    beside: bool = False,
    halo: str = "",
    upward: bool = False,
) -> None:
    """Write a text at a place of the data, moved by ``offset`` (CSS pixels, upward).

    ``beside``: ``x`` is a share of the axes' width. ``halo`` hides what is behind the text.
    """
    behind = {"facecolor": halo, "edgecolor": "none", "pad": 1.6} if halo else None
    axes.annotate(
        typeset(words),
        (x, y),
        offset,
        xycoords=("axes fraction", "data") if beside else "data",
        textcoords="offset points",
        ha=ha,
        va=va,
        fontsize=size,
        color=color,
        bbox=behind,
        rotation=90 if upward else 0,
        rotation_mode="anchor" if upward else "default",
        annotation_clip=False,
        zorder=6,
    )


def name_axes(axes: Axes, name: str, *, left: str = "", only: bool = True) -> None:
    """Name the axis below and, with ``left``, the one to the left; ``only`` there is no other than the one below."""
    axes.set_xlabel(typeset(name), labelpad=5)
    if left:
        axes.set_ylabel(typeset(left), labelpad=8, rotation_mode="anchor", ha="center")
    if only:
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)


class LegendEntry(NamedTuple):
    """An entry of a legend: what its box is filled with, edged in and hatched by; a ``line`` of that width has no box."""

    label: str
    color: str
    edge: str = "none"
    hatch: str = ""
    line: float = 0.0
    dashed: bool = False


#: The dashes of a line (CSS pixels).
DASHES = (0, (5, 2))


def legend(axes: Axes, keys: Sequence[LegendEntry], *, rise: float, columns: int = 0, shift: float = 0.0) -> None:
    """Write what each color stands for, ``rise`` pixels above the axes, below them where it is negative."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.transforms import ScaledTranslation

    def handle(key: LegendEntry) -> Any:
        if key.line:
            return Line2D([], [], color=key.color, linewidth=key.line, linestyle=DASHES if key.dashed else "-")
        return Patch(facecolor=key.color, edgecolor=key.edge, hatch=2 * key.hatch or None, linewidth=0.8)

    if keys:
        figure: Any = axes.get_figure()
        moved = ScaledTranslation(shift / POINTS, rise / POINTS, figure.dpi_scale_trans)
        axes.legend(
            [handle(key) for key in keys],
            [typeset(key.label) for key in keys],
            loc="lower left" if rise >= 0 else "upper left",
            bbox_to_anchor=(0, 1 if rise >= 0 else 0),
            bbox_transform=axes.transAxes + moved,
            ncols=columns or len(keys),
            handlelength=1.9 if any(key.line and key.line > THICK_LINE for key in keys) else None,
        )


def time_scale(longest_ns: float) -> tuple[float, str]:
    """Return the divisor and unit in which ``longest_ns`` reads well on an axis."""
    for divisor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if longest_ns >= 2 * divisor:
            return divisor, unit
    return 1.0, "ns"

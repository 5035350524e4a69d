"""What every picture is drawn on: matplotlib with our settings, and the file that it writes.

matplotlib is imported only when a picture is asked for, is used without pyplot, and ignores the user's own settings.
"""

from __future__ import annotations

import base64
import io
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nsysx.render.charts.colors import INK, NEUTRAL

_SVG_STYLE = (
    "<style>text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',Arial,sans-serif!important}"
    "@media (prefers-color-scheme:dark){text[style*='#1b1b1b']{fill:#e8e8e8!important}"
    "text[style*='#6b6b6b']{fill:#a9a9a9!important}[style*='stroke: #1b1b1b']{stroke:#f2f2f2!important}"
    "[style*='fill: #ececec'],[fill='#ececec']{fill:#33383f!important}"
    "[style*='fill: #fdfdfd'],[fill='#fdfdfd']{fill:#15171a!important}"
    "[style*='stroke: #fdfdfd']{stroke:#15171a!important}[style*='stroke: #6b6b6b']{stroke:#a9a9a9!important}}</style>"
)


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


@contextmanager
def settings() -> Iterator[None]:
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
        "axes.edgecolor": NEUTRAL,
        "xtick.color": NEUTRAL,
        "ytick.color": NEUTRAL,
        "xtick.labelcolor": NEUTRAL,
    }
    noise = logging.getLogger("matplotlib")
    level = noise.level
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(ours)
        warnings.simplefilter("ignore")  # about glyphs that the font lacks: the name is in the table, too
        noise.setLevel(logging.ERROR)
        try:
            yield
        finally:
            noise.setLevel(level)


def new_figure(width: int, height: int) -> Any:
    """Return an empty transparent figure of ``width`` x ``height`` CSS pixels."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width / 96, height / 96), dpi=96, facecolor="none")


#: Microseconds in a text: "us" stands for them everywhere but on the page.
_MICRO = re.compile(r"(?<![A-Za-z])us(?![A-Za-z])")


def _typeset(figure: Any) -> None:
    """Write microseconds as the world does."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if "us" in text.get_text():
            text.set_text(_MICRO.sub("µs", text.get_text()))


def svg(figure: Any, width: int, height: int) -> Picture:
    """Return ``figure`` as SVG; the same picture gives the same bytes."""
    buffer = io.StringIO()
    _typeset(figure)
    figure.savefig(buffer, format="svg", facecolor="none", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    head, _, body = text.partition("<defs>")
    return Picture("image/svg+xml", f"{head}{_SVG_STYLE}<defs>{body}".encode(), width, height)


def png(figure: Any, width: int, height: int) -> Picture:
    """Return ``figure`` as PNG of 128 colors, at two pixels per CSS pixel."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    _typeset(figure)
    figure.set_dpi(192)
    figure.set_facecolor("white")
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = Image.frombytes("RGBA", canvas.get_width_height(physical=True), bytes(canvas.buffer_rgba()))
    buffer = io.BytesIO()
    # A third of the bytes of one in all colors: boxes and text have few.
    pixels.convert("RGB").quantize(128, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
        buffer, "png", optimize=True
    )
    return Picture("image/png", buffer.getvalue(), width, height)


def time_scale(longest_ns: float) -> tuple[float, str]:
    """Return the divisor and unit in which ``longest_ns`` reads well on an axis."""
    for divisor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if longest_ns >= 2 * divisor:
            return divisor, unit
    return 1.0, "ns"


def side_text(
    axes: Any, text: str, y: float, offset: tuple[float, float], *, size: float = 8, color: str = INK
) -> None:
    """Write a text beside the axes at the height ``y`` of the data: left of them for a negative ``offset``, else right."""
    left = offset[0] < 0
    axes.annotate(
        text,
        (0 if left else 1, y),
        offset,
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right" if left else "left",
        va="center",
        fontsize=size,
        color=color,
    )


def legend_above(axes: Any, y: float, columns: int, **more: Any) -> None:
    """Write the legend in one line above the axes."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, y),
        ncols=columns,
        fontsize=8,
        frameon=False,
        labelcolor=INK,
        **{"borderpad": 0, **more},
    )

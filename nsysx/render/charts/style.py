"""The one style of all pictures, and matplotlib under it: it says nothing and ignores the user's own settings.

matplotlib is imported when the first picture is drawn. Lengths are CSS pixels: a point of matplotlib is one, so that sizes of text and
figures are those of the page.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from nsysx.render.charts.colors import FLAME, FLAME_DARK, INK, NEUTRAL, WAITING, WAITING_DARK

#: Sizes of text: a heading of a bar, names beside it, numbers, names on narrow boxes, and the smallest.
HEADING, NAME, NUMBER, NARROW, SMALLEST = 12.0, 11.33, 10.67, 10.0, 9.33
#: Points of matplotlib in an inch.
POINTS = 72
#: Pixels of a PNG per CSS pixel.
SHARP = 2

#: The style of all pictures.
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "nsysx",  # the same picture is the same bytes
    "pdf.fonttype": 42,
    "font.size": NUMBER,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib; a reader's own font is in the file's style
    "text.parse_math": False,
    "hatch.linewidth": 0.8,
    "axes.facecolor": "none",
    "axes.edgecolor": NEUTRAL,
    "axes.linewidth": 1.07,
    "axes.labelcolor": NEUTRAL,
    "axes.labelsize": NAME,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-9, 12),  # never "1e6" beside an axis: its unit fits the numbers
    **{f"{axis}tick.{name}": NEUTRAL for axis in "xy" for name in ("color", "labelcolor")},
    **{f"{axis}tick.labelsize": NUMBER for axis in "xy"},
    **{f"{axis}tick.major.{name}": 4.67 for axis in "xy" for name in ("size", "pad")},
    "legend.frameon": False,
    "legend.fontsize": NUMBER,
    "legend.labelcolor": INK,
    "legend.borderpad": 0,
    "legend.borderaxespad": 0,
    "legend.handlelength": 1.15,
    "legend.handleheight": 0.7,
    "legend.handletextpad": 0.65,
    "legend.columnspacing": 1.2,
}
FONT = "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',Arial,sans-serif}"
#: Our tones of ink and paper on a dark page: matplotlib writes them in ``style``, and those of a hatched paper as an attribute.
_DARK_TONES = {
    ("fill", "#1b1b1b"): "#e8e8e8",
    ("fill", "#6b6b6b"): "#a9a9a9",
    ("stroke", "#1b1b1b"): "#f2f2f2",
    ("stroke", "#6b6b6b"): "#a9a9a9",
    ("fill", "#ececec"): "#33383f",
    ("fill", "#fdfdfd"): "#15171a",
    ("stroke", "#fdfdfd"): "#15171a",
    **{("fill", tone): dark for tone, dark in zip((*FLAME, *WAITING), (*FLAME_DARK, *WAITING_DARK), strict=True)},
}
DARK = "@media (prefers-color-scheme:dark){%s}" % "".join(  # noqa: UP031 - braces of CSS
    f"[style*='{what}: {tone}'],[{what}='{tone}']{{{what}:{dark}!important}}"
    for (what, tone), dark in _DARK_TONES.items()
)


@contextmanager
def _silent_matplotlib() -> Iterator[None]:
    """Let matplotlib log nothing: a home that cannot be written is none of the reader's business."""
    noise = logging.getLogger("matplotlib")
    level = noise.level
    noise.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        noise.setLevel(level)


@contextmanager
def settings() -> Iterator[None]:
    """Run with matplotlib's defaults and our style, whatever the user's matplotlibrc says."""
    with _silent_matplotlib(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about glyphs that the font lacks: the name is in the table, too
        import matplotlib as mpl

        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update(cast(Any, _STYLE))
            yield


def import_early() -> None:
    """Import what draws in a thread of its own, while something else is waited for."""
    threading.Thread(target=import_now, name="pictures").start()


def import_now() -> None:
    """Import what draws."""
    with _silent_matplotlib():
        import matplotlib.backends.backend_svg
        import matplotlib.figure  # noqa: F401

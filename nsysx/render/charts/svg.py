"""A figure as a file: SVG whose text stays text, short enough to stand in a page, or PNG and PDF."""

from __future__ import annotations

import io
import re
from html import escape
from typing import TYPE_CHECKING, Any, cast

from nsysx.render.charts.style import DARK, FONT, POINTS, SHARP, settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def saved(figure: Figure, kind: str) -> bytes:
    """Return a figure as PNG or PDF, on white; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    undated = {"png": {"Software": None}, "pdf": {"Creator": None, "Producer": None, "CreationDate": None}}
    with settings():
        figure.savefig(buffer, format=kind, dpi=SHARP * POINTS, facecolor="white", metadata=cast(Any, undated[kind]))
    return buffer.getvalue()


_TAG = re.compile(r"<(?:metadata>.*?</metadata|[^<>]*)>\s*", re.DOTALL)
_SIZE_OF = re.compile(r"font: (?:[a-z]+ )*([\d.]+)px [^;\"]*")
_UPRIGHT = re.compile(r' transform="rotate\(-?0 [^)]*\)"')
_PATH = re.compile(r' d="([^"]*)"')
_NUMBER = re.compile(r"-?\d+\.\d+")


def svg(figure: Figure, title: str = "") -> bytes:
    """Return a figure as SVG; the same figure gives the same bytes. With a ``title`` it is a picture that speaks for itself."""
    buffer = io.StringIO()
    with settings():
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = buffer.getvalue()
    head, _, rest = _shorter(text[text.index("<svg") :]).partition(">")
    style = FONT if figure.patch.get_visible() else FONT + DARK
    role, words = (' role="img"', f"<title>{escape(title)}</title>") if title else ("", "")
    return f"{head}{role}>{words}<style>{style}</style>{rest}".encode()


def _shorter(text: str) -> str:
    """Return a file of matplotlib's without what says nothing: groups that are only named, fonts (the style has them), digits."""
    groups: list[bool] = []  # of those that are open: whether they do something

    def short(match: re.Match[str]) -> str:
        tag = match[0] if match[0].startswith("<text") else match[0].strip()
        if tag.startswith(("<metadata", "<!--")):
            return ""
        if tag.startswith("<g"):
            does = not re.fullmatch(r'<g(?: id="[^"]*")?/?>', tag)
            if not tag.endswith("/>"):
                groups.append(does)
            return tag if does else ""
        if tag == "</g>":
            return tag if groups.pop() else ""
        if tag.startswith("<svg"):
            return tag.replace('pt"', '"')
        if tag.startswith("<text"):
            tag = _UPRIGHT.sub("", _SIZE_OF.sub(r"font-size: \1px", tag))
        tag = _PATH.sub(lambda m: f' d="{_short_path(m[1])}"', tag)
        return _NUMBER.sub(_hundredths, tag)

    return _TAG.sub(short, text)


def _hundredths(number: re.Match[str]) -> str:
    return _place(float(number[0]))


def _place(value: float) -> str:
    """Return a place or a length as the file has it, to a hundredth of a pixel."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _short_path(data: str) -> str:
    """Return the data of a path with one number for a line along an axis."""
    if "C" in data or "Q" in data:
        return _NUMBER.sub(_hundredths, data.replace("\n", ""))
    short, x, y = [], "", ""
    for line in data.splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] == "z":
            short.append("z")
            continue
        to_x, to_y = _place(float(words[1])), _place(float(words[2]))
        if words[0] == "L" and to_x == x:
            short.append(f"V{to_y}" if to_y != y else "")
        elif words[0] == "L" and to_y == y:
            short.append(f"H{to_x}")
        else:
            short.append(f"{words[0]}{to_x} {to_y}")
        x, y = to_x, to_y
    return "".join(short)

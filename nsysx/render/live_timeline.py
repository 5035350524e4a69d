"""The boxes of a timeline as data in the page, which its script draws when a reader zooms in. The still picture stays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from nsysx.pictures import Lane, Timeline
from nsysx.render.charts.colours import KIND_COLOURS, KIND_NAMES, phase_colour
from nsysx.render.safe_text import clean, scrub, shorten, shorten_kernel

#: The page with this data stays below this size (bytes); pictures whose data does not fit are stills only.
MOST_BYTES = 950_000
_LABEL = 80


def _names(lanes: Sequence[Lane], redact: bool) -> list[str]:
    """Return the names of the lanes; where a thread has two, each says what it shows."""
    called = [clean(lane.label, 60) for lane in lanes]
    which = {"phases": ": phases", "api": ": CUDA calls"}
    names = [
        name + (which.get(lane.role, "") if called.count(name) > 1 else "")
        for name, lane in zip(called, lanes, strict=True)
    ]
    return [shorten(scrub(name) if redact else name, 28) for name in names]


def data(picture: Timeline, *, redact: bool = True) -> str:
    """Return the lanes as JSON: ``ns`` of the window, ``text`` and ``colour`` tables, and for each lane ``name`` and ``at``.

    ``at`` is flat, four numbers per box: ns since the end of the box before it, length in ns, and indices of colour and text.
    ``fill`` has, by number of the box, the percentage of it that is filled, for boxes that stand for several neighbours.
    """
    texts: dict[str, int] = {}
    colours: dict[str, int] = {}
    seen: dict[str, str] = {}
    lanes = []
    for lane, name in zip(picture.lanes, _names(picture.lanes, redact), strict=True):
        at: list[int] = []
        fill: dict[int, int] = {}
        before = 0
        for number, span in enumerate(sorted(lane.spans, key=lambda s: s.start_ns)):
            long = span.end_ns - span.start_ns
            text = clean(span.label, 200) or KIND_NAMES.get(span.kind, "")
            text = shorten_kernel(scrub(text) if redact else text, _LABEL)
            kind = span.kind or span.label
            colour = (
                phase_colour(kind, seen) if lane.role == "phases" else KIND_COLOURS.get(kind, KIND_COLOURS["other"])
            )
            at += [
                span.start_ns - before,
                long,
                colours.setdefault(colour, len(colours)),
                texts.setdefault(text, len(texts)),
            ]
            before = span.end_ns
            if span.covered_ns is not None and long:
                fill[number] = min(100, round(100 * span.covered_ns / long))
        lanes.append({"name": name, "at": at, "fill": fill})
    length = max(1, picture.end_ns - picture.start_ns)
    whole = {"ns": length, "text": list(texts), "colour": list(colours), "lanes": lanes}
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":"))


def token(number: int) -> str:
    """Return the placeholder for a picture's data until the size of the page is known. No name can contain it."""
    return f"\x01live{number}\x01"


def fill(page: str, texts: Sequence[str]) -> str:
    """Return the page with the data of as many pictures as fit, in order."""
    size = len(page.encode())
    for number, text in enumerate(texts):
        quoted = escape(text)
        size += len(quoted.encode())
        if size > MOST_BYTES:
            quoted, size = "", MOST_BYTES
        page = page.replace(token(number), quoted)
    return page

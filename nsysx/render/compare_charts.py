"""The pictures of a comparison as rows of boxes on a scale of time: both steps, a waterfall, the steps one by one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from nsysx import units
from nsysx.catalogue import DeviceActivity
from nsysx.comparing.difference_answer import Comparison
from nsysx.render.charts.canvas import Chart
from nsysx.render.charts.colors import KIND_COLORS
from nsysx.render.charts.row_bars import BarRow, row_bars
from nsysx.render.compare_view import shown_parts, signed
from nsysx.render.first_screen import BarBox
from nsysx.render.render_bounds import CAPTURE_STEP, MOST_CAPTURE_STEPS, MOST_CAPTURES, WATERFALL_ROWS
from nsysx.render.safe_text import clean, shorten

#: The colors of the boxes by their kind.
COLORS = {a.value: KIND_COLORS[a] for a in DeviceActivity} | {
    "slower": "#D55E00", "faster": "#009E73", "before": "#0072B2", "after": "#E69F00",
}  # fmt: skip


#: The widths of a picture: on a desk and on a phone (CSS pixels).
_WIDTHS = (1120, 358)


@dataclass(frozen=True, slots=True)
class Scaled:
    """The rows of a picture, the ends of their scale (ns), and what is on it in words."""

    rows: tuple[BarRow, ...]
    low_ns: float
    high_ns: float
    words: str

    def charts(self, name: str, keys: tuple[tuple[str, str], ...] = ()) -> tuple[Chart, ...]:
        """Return the picture, wide and narrow; ``keys`` are kinds and what their colors stand for."""
        alt = "; ".join(f"{r.label} {r.value}{f' ({r.share})' if r.share else ''}" for r in self.rows)
        ends = (self.low_ns, self.high_ns, self.words)
        drawn = [partial(row_bars, self.rows, *ends, colors=COLORS, keys=keys, width=width) for width in _WIDTHS]
        return tuple(Chart(name, drawing, f"{self.words}: {alt}.", "") for drawing in drawn)


def _box(kind: str, start: float, end: float, low: float, high: float, title: str) -> BarBox:
    """Return the box from ``start`` to ``end`` on a scale from ``low`` to ``high`` (ns)."""
    scale = 100 / max(high - low, 1)
    return BarBox(
        scale * (min(start, end) - low), scale * abs(end - start), kind=kind, idle=False, text="", title=title
    )


def bars(answer: Comparison) -> Scaled:
    """Return both steps on one time scale, by the parts of the ledger."""
    rows = {r.name: r for r in answer.tables["ledger"]}
    longest = max(answer.before_ns, answer.after_ns, 1)
    drawn = []
    for label, whole in (("before", answer.before_ns), ("after", answer.after_ns)):
        boxes, left = [], 0.0
        for kind in DeviceActivity:
            ns = getattr(rows[kind], f"{label}_ns") if kind in rows else 0.0
            if ns > 0:
                title = f"{label}: {kind.label} {units.duration(ns)}"
                boxes.append(_box(kind.value, left, left + ns, 0, longest, title))
                left += ns
        drawn.append(BarRow(label, units.duration(whole), "", tuple(boxes)))
    return Scaled(tuple(drawn), 0, longest, "the step" if not answer.whole else "the capture")


def legend(answer: Comparison) -> tuple[tuple[str, str], ...]:
    """Return the kind and the label of each part of the bars."""
    names = {r.name for r in answer.tables["ledger"] if r.before_ns or r.after_ns}
    return tuple((kind.value, kind.label) for kind in DeviceActivity if kind in names)


def waterfall(answer: Comparison) -> Scaled:
    """Return how the step before becomes the step after, part by part."""
    single, others, others_ns = shown_parts(answer, WATERFALL_ROWS)
    parts = [(shorten(clean(p.words, 200), 40), p.difference_ns) for p in single]
    if others:
        parts.append((others, others_ns))
    levels = list(accumulate((ns for _, ns in parts), initial=answer.before_ns))
    low, high = min(levels), max(levels)
    # Zero is kept where the change is a good part of the step; a small change would vanish on that scale.
    base = 0 if high - low > 0.2 * high else max(0, low - (high - low))

    def whole(label: str, ns: int) -> BarRow:
        time = units.duration(ns)
        return BarRow(label, time, "", (_box(label, base, ns, base, high, f"{label} {time}"),))

    rows = [whole("before", answer.before_ns)]
    for (label, ns), start in zip(parts, levels, strict=False):
        box = _box("slower" if ns > 0 else "faster", start, start + ns, base, high, f"{label} {signed(ns)}")
        rows.append(BarRow(label, signed(ns), units.share(abs(ns), answer.before_ns), (box,)))
    rows.append(whole("after", answer.after_ns))
    return Scaled(tuple(rows), base, high, "from the step before to the step after")


def steps(answer: Comparison) -> Scaled:
    """Return every step at its length, a row for each capture."""
    captures = [(side, i, c) for side, of_side in answer.steps.items() for i, c in enumerate(of_side, 1)][
        :MOST_CAPTURES
    ]
    lengths = [ns for *_, c in captures for ns in c]
    shortest, longest = min(lengths), max(lengths)
    high = shortest + max(longest - shortest, 0.02 * longest, 1.0)
    rows = []
    for side, number, of_capture in captures:
        shown = of_capture[:: max(1, len(of_capture) // MOST_CAPTURE_STEPS)]
        places = ((_box(side, ns, ns, shortest, high, units.duration(ns)).left, ns) for ns in shown)
        boxes = tuple(
            BarBox(
                left * (1 - CAPTURE_STEP / 100), CAPTURE_STEP, kind=side, idle=False, text="", title=units.duration(ns)
            )
            for left, ns in places
        )
        rows.append(BarRow(f"{side} {number}", f"{len(of_capture)} steps", "", boxes))
    return Scaled(tuple(rows), shortest, high, "length of a step")

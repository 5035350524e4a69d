"""The pictures of a comparison as inline SVG: both steps on one scale, a waterfall, the steps one by one. All text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from nsysx import units
from nsysx.catalogue import Activity
from nsysx.comparing.comparison import Comparison
from nsysx.comparing.differences import Difference
from nsysx.render.charts.colours import KIND_COLOURS
from nsysx.render.compare_view import signed
from nsysx.render.safe_text import clean, shorten

_WIDTH, _LEFT, _RIGHT = 900, 225, 110
_BAR = 26
_SLOWER, _FASTER = "#D55E00", "#009E73"
#: Bars of the waterfall; the rest is one more.
_FALLS = 8
#: Most dots per side; more are thinned evenly.
_DOTS = 400


def _svg(height: int, label: str, body: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label)}" class="chart">'
        + "".join(body)
        + "</svg>"
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 13) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="currentColor">{escape(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, colour: str, title: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.6):.1f}" height="{height}" fill="{colour}" '
        f'stroke="#7f7f7f" stroke-width="0.4"><title>{escape(title)}</title></rect>'
    )


def bars(answer: Comparison) -> str:
    """Return both steps as one bar each on one time scale, by the parts of the ledger."""
    rows = {r.name: r for r in answer.tables["ledger"]}
    longest = max(answer.before_ns, answer.after_ns, 1)
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    body, said = [], []
    for n, (label, whole, get) in enumerate(
        (("before", answer.before_ns, _before), ("after", answer.after_ns, _after))
    ):
        y, x = 8 + n * (_BAR + 14), float(_LEFT)
        body.append(_text(_LEFT - 10, y + 18, label, anchor="end"))
        for name in Activity:
            ns = get(rows[name]) if name in rows else 0.0
            if ns > 0:
                words = f"{name.label} {units.duration(ns)}"
                body.append(_rect(x, y, ns * scale, _BAR, KIND_COLOURS[name], f"{label}: {words}"))
                x += ns * scale
                said.append(f"{label} {words}")
        body.append(_text(_LEFT + whole * scale + 8, y + 18, units.duration(whole)))
    x = float(_LEFT)
    for name in Activity:
        if name in rows:
            body += [
                _rect(x, 96, 12, 12, KIND_COLOURS[name], name),
                _text(x + 17, 106, name.label, size=12),
            ]
            x += 125
    return _svg(116, "Both steps on one scale: " + ", ".join(said), body)


def _before(row: Difference) -> float:
    return row.before_ns


def _after(row: Difference) -> float:
    return row.after_ns


def waterfall(answer: Comparison) -> str:
    """Return how the step before becomes the step after, part by part; the bars join without a gap."""
    parts = [(shorten(clean(p.words, 200), 26), p.difference_ns) for p in answer.parts[:_FALLS]]
    if rest := answer.parts[_FALLS:]:
        parts.append((f"{len(rest)} smaller parts", sum(p.difference_ns for p in rest)))
    levels = [answer.before_ns]
    for _, ns in parts:
        levels.append(levels[-1] + ns)
    low, high = min(levels), max(levels)
    # Zero is kept where the change is a good part of the step; a small change would vanish on that scale.
    base = 0 if high - low > 0.2 * high else max(0, low - (high - low))
    scale = (_WIDTH - _LEFT - _RIGHT) / max(high - base, 1)
    row = 24
    body = []

    def x(ns: float) -> float:
        return _LEFT + (ns - base) * scale

    def whole(y: int, label: str, ns: int) -> None:
        body.append(_text(_LEFT - 10, y + 14, label, anchor="end"))
        body.append(_rect(_LEFT, y, x(ns) - _LEFT, 18, "#0072B2", f"{label} {units.duration(ns)}"))
        body.append(_text(x(ns) + 6, y + 14, units.duration(ns)))

    whole(4, "before", answer.before_ns)
    y = 4 + row
    for (label, ns), start in zip(parts, levels, strict=False):
        left, right = sorted((x(start), x(start + ns)))
        body.append(_text(_LEFT - 10, y + 14, label, anchor="end"))
        body.append(_rect(left, y, right - left, 18, _SLOWER if ns > 0 else _FASTER, f"{label} {signed(ns)}"))
        body.append(_text(right + 6, y + 14, signed(ns)))
        y += row
    whole(y, "after", answer.after_ns)
    if base:
        body.append(_text(_LEFT, y + row + 12, f"the scale begins at {units.duration(base)}", size=11))
    words = ", ".join(f"{label} {signed(ns)}" for label, ns in parts)
    return _svg(y + row + (18 if base else 0), f"From {units.duration(answer.before_ns)} by {words}", body)


def steps(answer: Comparison) -> str:
    """Return every step as a dot, captures of a side below each other."""
    rows = [(side, f"{side} {i + 1}", c) for side, captures in answer.steps.items() for i, c in enumerate(captures)][
        :24
    ]
    values = [float(ns) for *_, c in rows for ns in c]
    low, high = min(values), max(values)
    span = max(high - low, 0.02 * high, 1.0)
    low -= span * 0.05
    scale = (_WIDTH - _LEFT - _RIGHT) / (span * 1.1)
    body, y = [], 6
    for side, label, lengths in rows:
        thin = lengths[:: max(1, len(lengths) // _DOTS)]
        body.append(_text(_LEFT - 10, y + 14, label, anchor="end"))
        colour = "#0072B2" if side == "before" else "#E69F00"
        body += [
            f'<circle cx="{_LEFT + (ns - low) * scale:.1f}" cy="{y + 5 + 9 * (i % 3) / 2:.1f}" r="3" fill="{colour}" '
            f'fill-opacity="0.6"><title>{units.duration(ns)}</title></circle>'
            for i, ns in enumerate(thin)
        ]
        y += 24
    for share in (0.0, 0.5, 1.0):
        at = low + span * 1.1 * share
        anchor = "start" if not share else "middle" if share < 1 else "end"
        body.append(_text(_LEFT + (at - low) * scale, y + 14, units.duration(at), anchor=anchor, size=11))
    label = f"{len(values)} steps, from {units.duration(min(values))} to {units.duration(max(values))}"
    return _svg(y + 20, label, body)

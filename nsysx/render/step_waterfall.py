"""The verdict's step as a waterfall: each part begins where the one before it ends, and the last row is the whole."""

from __future__ import annotations

from dataclasses import dataclass

from nsysx import units
from nsysx.answer import bars, subject
from nsysx.model import Summary
from nsysx.render.first_screen import BarBox


@dataclass(frozen=True, slots=True)
class Fall:
    """One row: a part of the step at its place (percent of the step), with its time and share as text."""

    label: str
    value: str
    share: str
    box: BarBox


def build(summary: Summary) -> tuple[Fall, ...]:
    """Return the parts of the step (what the GPU does, then what it waits for, each largest first) and the whole."""
    verdict = summary.verdict
    if subject.ledger_row(summary) is None or not verdict.step_ns or subject.rank_waited_for(summary) is not None:
        return ()  # where ranks are compared, the first screen shows the step as recorded
    whole = verdict.step_ns
    falls, left = [], 0.0
    for part in sorted(bars.step_parts(summary), key=lambda p: (p.idle, -p.ns)):
        falls.append(_fall(part.label, part.kind, part.idle, part.ns, left, whole))
        left += 100 * part.ns / whole
    name = "the step" if summary.step.shown_ns is not None else bars.whole_words(summary)
    return (*falls, _fall(name, "other", False, whole, 0.0, whole))


def _fall(label: str, kind: str, idle: bool, ns: float, left: float, whole: float) -> Fall:
    time, share = units.duration(ns), units.share(ns, whole)
    return Fall(
        label,
        time,
        share,
        BarBox(left, 100 * ns / whole, kind=kind, idle=idle, text="", title=f"{label}: {time}, {share}"),
    )

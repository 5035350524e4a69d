"""What the advised change is worth of the loop, where it is one of what runs between steps: no step holds that."""

from __future__ import annotations

from typing import NamedTuple

from nsysx.model import Summary


class LoopWorth(NamedTuple):
    """The measured loop per step, with what runs between steps, and the least that it is after the change (ns)."""

    now_ns: int
    then_ns: int


def of_advised(summary: Summary) -> LoopWorth | None:
    """Return what the first advice is worth of the loop, None where it is for the step, or the loop was not measured."""
    index = summary.answer.do[-1].finding if summary.answer is not None and summary.answer.do else None
    rows = () if index is None else (summary.findings or ())[index].evidence
    of_loop = next((row for row in rows if row.get("loop_then_ns") is not None), None)
    return None if of_loop is None else LoopWorth(of_loop["loop_ns"], of_loop["loop_then_ns"])

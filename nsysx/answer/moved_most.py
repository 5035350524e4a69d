"""Work that multiplies nothing and is a large part of a step: where no change is known, it is what to look at first."""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple

from nsysx import units
from nsysx.analyses import roofline
from nsysx.analyses.roofline import RooflineRow
from nsysx.answer.answer_bounds import MOSTLY_IDLE_SHARE, MOVED_MOST_SHARE
from nsysx.catalogue import StepLimit, StepPart
from nsysx.model import Summary


class MovedMost(NamedTuple):
    """An operator, or all operators of a line, that multiply nothing: its name, its share of the GPU's time, and of the memory's speed."""

    name: str
    share: float
    reached: float

    @property
    def words(self) -> str:
        """What it takes, and that less of it is needed where that helps."""
        reached = f"at {units.share(self.reached, 1)} of the memory's bandwidth"
        return f"it takes {units.share(self.share, 1)} of the GPU time and multiplies nothing, {reached}. Less of it, or none, would help"


def moved_most(summary: Summary) -> MovedMost | None:
    """Return the operator, else the line, whose work without a product is much of the step; None where none is, or copies limit it."""
    rows, parts = summary.typed_rows(roofline.ROWS), summary.verdict.parts
    busy_ns = sum(ns for part, ns in parts.items() if not StepPart.named(part).idle)
    busy = busy_ns / max(sum(parts.values()), 1)
    if summary.verdict.code == StepLimit.COPY or busy < 1 - MOSTLY_IDLE_SHARE:
        return None
    step = next((r for r in rows if r["by"] == roofline.STEP), None)
    if step is None or not step["gpu_ns"]:
        return None
    for by in (roofline.OPERATOR, roofline.LINE):
        most = max((r for r in rows if r["by"] == by and r["name"]), key=lambda r: r["gpu_ns"], default=None)
        if most is not None and _moves(most) and busy * most["gpu_ns"] >= MOVED_MOST_SHARE * step["gpu_ns"]:
            name = str(most["name"]) if by == roofline.OPERATOR else f"what {PurePath(str(most['name'])).name} calls"
            return MovedMost(name, most["gpu_ns"] / step["gpu_ns"], most["limit_share"] or 0.0)
    return None


def _moves(row: RooflineRow) -> bool:
    """Return whether all of a row's work moves memory, as its sizes say."""
    return row["flops"] == 0 and row["roof"] == "memory" and row["limit_share"] is not None and not row["unknown_ns"]

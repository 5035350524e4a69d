"""What the probe noted of pauses of Python, for the rules that look for long steps and gaps."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from nsysx.findings._case import Case, Fix
from nsysx.frames.intervals import I64, coverage


class Kind(NamedTuple):
    """A kind of pause: as ``Ranges.pauses`` has it, for a title, and what to change."""

    key: str
    name: str
    fix: Fix


KINDS = (
    Kind(
        "gc",
        "garbage collection",
        Fix(
            "gc.freeze() after warm-up and gc.disable(), then gc.collect() between epochs; or gc.set_threshold with larger numbers",
            "gc.collect(); gc.freeze(); gc.disable()  # after warm-up\ngc.collect()  # between epochs",
            "Memory grows by the garbage in reference cycles that steps leave until the next collection.",
        ),
    ),
    Kind(
        "compile",
        "recompilation by torch.compile",
        Fix(
            "Give the compiled function inputs of one kind: pad or bucket shapes, torch._dynamo.mark_dynamic for sizes that change, "
            "tensors instead of numbers that change"
        ),
    ),
)


def of(case: Case, kind: Kind) -> pl.DataFrame:
    """Return the pauses of one kind of the shown process: columns of ``Ranges.pauses``."""
    rows = case.profile.ranges.pauses
    return rows.filter((pl.col("kind") == kind.key) & (pl.col("process") == case.process))


def time_in(pauses: pl.DataFrame, start: I64, end: I64) -> I64:
    """Return how much of each [start, end) lies in pauses (ns)."""
    function = coverage([(pauses["start_ns"].to_numpy(), pauses["end_ns"].to_numpy())])
    return function.within(function.labels > 0, start, end)


def told(kind: Kind, pauses: pl.DataFrame) -> str:
    """Return what there is to say about some pauses: how many, of which generation, why."""
    many = f"{pauses.height} {kind.name}{'s' * (pauses.height != 1)}"
    if kind.key == "gc":
        full = pauses.filter(pl.col("generation") == 2).height
        return f"{many} ({full} of them full)"
    reasons = pauses["reason"].drop_nulls()
    return f"{many} ({reasons[0]})" if len(reasons) else many

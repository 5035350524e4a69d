"""Whether the steps on both sides of one were recorded with their operators: what it takes from the one before, and gives to the next."""

from __future__ import annotations

import polars as pl

from nsysx.events.event_bounds import RECORDED_BESIDE_SHARE


def recorded_beside(ranges: pl.DataFrame, ops: pl.DataFrame, step: tuple[int, int], count: int) -> tuple[bool, bool]:
    """Return whether the steps right before and right behind one that has so many operators were recorded with theirs.

    Another window of the capture may hold operators of steps that are far from it.
    """
    steps = ranges.filter((pl.col("kind") == "step") & pl.col("own")).sort("start_ns")["start_ns", "end_ns"]
    before, behind = steps.filter(pl.col("start_ns") < step[0])[-1:], steps.filter(pl.col("start_ns") >= step[1])[:1]
    held = [
        ops.filter((ops["start_ns"] >= start) & (ops["end_ns"] <= end)).height
        for start, end in ((before["start_ns"].max(), step[0]), (step[1], behind["end_ns"].max()))
        if start is not None and end is not None
    ]
    return before.height > 0 and held[0] >= RECORDED_BESIDE_SHARE * count, behind.height > 0 and held[
        -1
    ] >= RECORDED_BESIDE_SHARE * count

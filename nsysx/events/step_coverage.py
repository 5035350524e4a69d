"""How the recorded time of a capture divides into its steps and what lies before, between and behind them."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from nsysx.events.attribute import Attributed
from nsysx.events.coverage import Coverage, coverage
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.step_sources import whole_capture
from nsysx.events.tiles import Run
from nsysx.reading.trace import Sampled


def steps_of_coverage(
    cpu: pl.DataFrame, stretches: Sequence[Run], once: Flags, warm_from: int, sampled: Sampled | None
) -> pl.DataFrame:
    """Return the steps as coverage counts them, steady wherever they lie.

    Of a long capture they are what those between its parts are: steady after the warm-up but for the last, and none of them cut.
    """
    if sampled is None:
        return _steady_wherever(cpu, stretches, once)
    last = pl.col("index") == pl.col("index").max()
    return cpu.with_columns(((pl.col("index") >= warm_from) & ~last).alias("steady"), last.alias("cut"))


def _steady_wherever(cpu: pl.DataFrame, stretches: Sequence[Run], once: Flags) -> pl.DataFrame:
    """Return the steps with ``steady`` where they are steady wherever they lie, whether or not it is seen where they end."""
    if len(stretches) == 1:
        return cpu
    inside = pl.col("index").is_between(stretches[0][0], stretches[-1][1])
    return cpu.with_columns((inside & ~pl.Series(once)).alias("steady"))


def step_coverage(
    cpu: pl.DataFrame,
    tiles: pl.DataFrame,
    between: pl.DataFrame,
    once: Flags,
    attributed: Attributed,
    ends: Sequence[int],
    source: str,
) -> Coverage | None:
    """Return how the recorded time of the shown process divides, whose steps ``cpu`` holds; None without steps.

    It divides on the device that works most in the steps: the host runs ahead, and an evaluation that waits for the steps before
    it would count for them. Without GPU work it divides on the CPU.
    """
    all_of_it = whole_capture(attributed).filter(pl.col("process").is_in(cpu["process"].unique().to_list()))
    spans = all_of_it["start_ns", "end_ns"].rows()
    if not spans or not cpu.height or source == "capture":
        return None
    length = tiles.group_by("device").agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns"))
    shown = length.filter(pl.col("ns") > 0).sort("ns", "device", descending=[True, False])["device"].to_list()[:1]
    if not shown:
        return coverage(cpu, between, once, spans[0], ends)
    on_device = pl.col("device") == shown[0]
    of_device = tiles.filter(on_device)["index", "start_ns", "end_ns"]
    steps = cpu.drop("start_ns", "end_ns").join(of_device, on="index", how="left", maintain_order="left")
    return coverage(steps, between.filter(on_device), once, spans[0], ends)

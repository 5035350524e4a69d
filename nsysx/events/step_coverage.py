"""How the recorded time of a capture divides into its steps and what lies before, between and behind them."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from nsysx.events.attribute import Attributed
from nsysx.events.coverage import Coverage, coverage
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.tiles import Run
from nsysx.frames import lookup
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
    if not cpu.height or source == "capture":
        return None
    span = _span(int(cpu["process"][0]), attributed)
    of_device = lookup.parted(tiles, "device")
    length = {device: int((part["end_ns"] - part["start_ns"]).sum()) for (device,), part in of_device.items()}
    shown = max(length, key=lambda device: (length[device], -device), default=0)
    if span is None or length.get(shown, 0) <= 0:
        return None if span is None else coverage(cpu, between, once, span, ends)
    shown_tiles = of_device[shown,]["index", "start_ns", "end_ns"]
    steps = cpu.drop("start_ns", "end_ns").join(shown_tiles, on="index", how="left", maintain_order="left")
    return coverage(steps, lookup.having(between, device=shown), once, span, ends)


def _span(process: int, attributed: Attributed) -> tuple[int, int] | None:
    """Return when the first call or GPU op of a process begins and the last one ends (ns), None without any."""
    every = (f["process", "start_ns", "end_ns"] for f in (attributed.api_calls, attributed.gpu_ops))
    frames = [rows for f in every if (rows := lookup.having(f, process=process)).height]
    if not frames:
        return None
    return min(int(f["start_ns"].to_numpy().min()) for f in frames), max(
        int(f["end_ns"].to_numpy().max()) for f in frames
    )

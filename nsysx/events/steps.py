"""Training steps: where they come from, which of them are steady, and how they tile the timeline of each device.

Sources, the first that gives steps wins: ``--step-range``, nsysx's own ranges, a user's ranges or marks named like steps,
optimizer ranges, the repeated kernel sequence, the whole capture as one step.

CPU step = its range on the thread that drives it. GPU step i runs from the first GPU op launched in step i to the first
launched in step i + 1, so that GPU steps tile the device timeline without a gap or an overlap.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from nsysx.errors import EXIT_EMPTY, EXIT_USAGE, NsysxError
from nsysx.events.attribute import Attributed
from nsysx.events.nvtx_ranges import Ranges
from nsysx.events.steady import steady_steps, told, worked
from nsysx.events.step_sources import find_steps, whole_capture
from nsysx.events.tiles import gpu_tiles
from nsysx.model import Row


@dataclass(frozen=True)
class StepTable:
    """``cpu``: process, index, number, thread, start_ns, end_ns, warmup, steady, cut (its end is not seen).

    ``gpu``: process, device, index, start_ns, end_ns. ``windows``: the steady part per (process, device) on the device
    timeline; ``cpu_windows`` the same per process on the CPU. ``process`` is the one whose steps are shown.
    """

    source: str
    rule: str
    cpu: pl.DataFrame
    gpu: pl.DataFrame
    windows: pl.DataFrame
    cpu_windows: pl.DataFrame
    process: int
    steady: tuple[int, int] | None
    whole: bool


def parse_window(text: str) -> tuple[int, int] | None:
    """Return ``A:B`` as (A, B), B exclusive; None for ``all``. Errors: NsysxError, exit code 2."""
    if text == "all":
        return None
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if not match or int(match[1]) >= int(match[2]):
        what = f"--steps {text}: not a window of steps"
        raise NsysxError(what, slug="steps-syntax", hint="Write A:B with A < B, or all", exit_code=EXIT_USAGE)
    return int(match[1]), int(match[2])


def find(
    ranges: Ranges,
    attributed: Attributed,
    *,
    steps: str | None = None,
    step_range: str | None = None,
    probes: Sequence[Row] = (),
    whole_in: tuple[int, int] | None = None,
) -> StepTable:
    """Return the steps of a report, the steady ones, and the windows that averages are taken over.

    ``steps`` is A:B (those steps count as steady) or "all" (the window is the whole capture). ``probes`` is what the probe
    of each process wrote about itself. ``whole_in``: steps that do not lie in this time are none. Errors: NsysxError with
    exit code 2 for a malformed window, 4 for one that holds no step.
    """
    source, rule, found = find_steps(ranges, attributed, step_range)
    if source == "nsysx":
        found = worked(found, probes)
    else:
        probes = ()
    if whole_in is not None and source != "capture":
        found = found.filter((pl.col("start_ns") >= whole_in[0]) & (pl.col("end_ns") <= whole_in[1]))
        if not found.height:
            what = "--time-range: no whole step lies in it"
            raise NsysxError(what, slug="time-range-empty", hint="Widen it, or add --steps all", exit_code=EXIT_EMPTY)
    cpu = found.sort("process", "start_ns").with_columns(
        pl.int_range(pl.len(), dtype=pl.Int64).over("process").alias("index"),
        (pl.int_range(pl.len()).over("process") == pl.len().over("process") - 1).alias("cut"),
    )
    ops = attributed.gpu_ops
    gpu = gpu_tiles(cpu, ops)
    busiest = ops.group_by("process").agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("d"))
    ranked = (
        cpu.group_by("process")
        .len()
        .join(busiest, on="process", how="left")
        .sort("d", "len", "process", nulls_last=True, descending=[True, True, False])
    )
    process = int(ranked["process"][0]) if ranked.height else 0
    mine = cpu.filter(pl.col("process") == process)
    window = parse_window(steps) if steps else None
    whole = steps == "all" or source == "capture"
    steady: tuple[int, int] | None = None
    if window:
        steady = (window[0], min(window[1], mine.height) - 1)
        if steady[0] > steady[1]:
            what = f"--steps {steps}: the report holds steps 0 to {mine.height - 1}"
            raise NsysxError(what, slug="steps-empty", exit_code=EXIT_EMPTY)
    elif mine.height and source != "capture":
        steady = steady_steps(mine, gpu.filter(pl.col("process") == process), attributed, told(probes, process))
    elif mine.height:
        steady = (0, mine.height - 1)
    first, last = steady or (0, -1)
    in_steady = (pl.col("index") >= first) & (pl.col("index") <= last)
    cpu = cpu.with_columns(in_steady.alias("steady"), (pl.col("index") < first).alias("warmup"))
    span = [pl.col("start_ns").min(), pl.col("end_ns").max()]
    if whole:
        windows = ops.group_by("process", "device").agg(span)
        cpu_windows = whole_capture(attributed).select("process", "start_ns", "end_ns")
    else:
        windows = (
            gpu.filter(in_steady).group_by("process", "device").agg(span).filter(pl.col("end_ns") > pl.col("start_ns"))
        )
        cpu_windows = cpu.filter("steady").group_by("process").agg(span)
    return StepTable(
        source, rule, cpu, gpu, windows.sort("process", "device"), cpu_windows.sort("process"), process, steady, whole
    )

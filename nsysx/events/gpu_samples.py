"""Samples of the GPU's counters given to the GPU op that ran alone while they were taken.

A counter is of the whole device over one interval of the sampler. Whether a sample's time is the begin or the end of that
interval, and how well the clocks of the sampler and of the trace agree, the report does not say: a sample counts for an op
only where the op runs alone from one interval before it to one interval after it, over all processes of the report.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.events.event_bounds import FEWEST_GPU_SAMPLES, MEMORY_BOUND_SHARE
from nsysx.frames import derived, frame_columns
from nsysx.frames.intervals import I64
from nsysx.reading.trace import Trace


def _gpus(trace: Trace) -> dict[int, list[tuple[int, int]]]:
    """Return gpu -> the (process, device) under which it is used."""
    places: dict[int, list[tuple[int, int]]] = {}
    for device, limits in trace.limits.items():
        if limits.gpu is not None:
            places.setdefault(limits.gpu & 0xFF, []).append(device)
    return places


def interval_ns(times: I64) -> int:
    """Return the interval of sorted samples: the median of their distances; 0 for fewer than two."""
    return int(np.median(np.diff(times))) if len(times) > 1 else 0


def _alone_at(start: I64, end: I64, times: I64, margin: int) -> I64:
    """Return the row of the interval that is alone from ``margin`` before each instant to ``margin`` after it, -1 for none."""
    if not len(start) or not len(times):
        return np.full(len(times), -1, np.int64)
    row = np.arange(len(start))
    borders = np.concatenate([start, end])
    order = np.argsort(borders, kind="stable")
    borders = borders[order]
    count = np.cumsum(np.concatenate([np.ones(len(start), np.int64), -np.ones(len(end), np.int64)])[order])
    # The sum of the rows that run is the row itself where one runs.
    which = np.cumsum(np.concatenate([row, -row])[order])
    piece = np.searchsorted(borders, times - margin, side="right") - 1
    until = np.searchsorted(borders, times + margin, side="left") - 1
    good = (piece >= 0) & (piece == until) & (count[piece] == 1)
    return np.where(good, which[piece], -1)


def of_ops(trace: Trace, ops: pl.DataFrame) -> pl.DataFrame:
    """Return op, sm_active, tensor_active, dram_read, dram_write, dram, clock_hz: one row per sample that belongs to an op.

    ``ops`` are all GPU ops of the report. ``dram`` is read and write together, null where one of them is not sampled.
    """
    parts = []
    samples = trace.gpu_metrics
    for gpu, places in _gpus(trace).items() if samples is not None else ():
        assert samples is not None
        of_gpu = samples.filter(pl.col("gpu") == gpu)
        # Rows of a pair are compared as a pair: a process may use several devices.
        on_gpu = ops.filter(
            pl.any_horizontal((pl.col("process") == p) & (pl.col("device") == d) for p, d in places)
        ).select("op", "start_ns", "end_ns")
        times = of_gpu["time_ns"].to_numpy()
        row = _alone_at(on_gpu["start_ns"].to_numpy(), on_gpu["end_ns"].to_numpy(), times, interval_ns(times))
        belongs = np.flatnonzero(row >= 0)
        parts.append(of_gpu[belongs].with_columns(on_gpu["op"].gather(row[belongs])).select(*_SCHEMA))
    return pl.concat([pl.DataFrame(schema=_SCHEMA), *parts]).with_columns(
        dram=pl.col("dram_read") + pl.col("dram_write")
    )


_SCHEMA = frame_columns.schema(c for c in derived.OP_COUNTERS if c.name != "dram")  # which is added


def memory_bound(trace: Trace, ops: pl.DataFrame, chosen: pl.DataFrame) -> tuple[frozenset[int], float]:
    """Return which of the chosen ops are at the memory bandwidth, and what part of their time the bytes take at least.

    Told by kernel and launch shape, from ``FEWEST_GPU_SAMPLES`` samples on; (no ops, 0.0) where nothing was sampled. ``ops`` are all GPU
    ops of the report.
    """
    if trace.gpu_metrics is None:
        return frozenset(), 0.0
    shape = ["name", "grid", "block"]
    sampled = of_ops(trace, ops).join(chosen.select("op", *shape), on="op", how="inner")
    means = sampled.group_by(shape).agg(pl.len().alias("samples"), pl.col("dram").cast(pl.Float64).mean())
    means = means.filter((pl.col("samples") >= FEWEST_GPU_SAMPLES) & (pl.col("dram") >= MEMORY_BOUND_SHARE))
    if not means.height:
        return frozenset(), 0.0
    bound = chosen.join(means, on=shape, how="semi", nulls_equal=True)
    return frozenset(bound["op"].to_list()), float(means["dram"].to_numpy().min())


def in_window(trace: Trace, process: int, device: int, start: int, end: int) -> pl.DataFrame | None:
    """Return the samples of a device in [start, end); None where its counters were not sampled."""
    limits, samples = trace.limits.get((process, device)), trace.gpu_metrics
    if samples is None or limits is None or limits.gpu is None:
        return None
    of_gpu = samples.filter(pl.col("gpu") == limits.gpu & 0xFF)
    if not of_gpu.height:
        return None
    inside = of_gpu.filter((pl.col("time_ns") >= start) & (pl.col("time_ns") < end))
    return inside.with_columns(dram=pl.col("dram_read") + pl.col("dram_write"))

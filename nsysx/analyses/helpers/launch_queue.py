"""How full the launch queue was: a launch that blocks because the GPU is behind is not a slow launch."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.analyses.helpers.analysis_bounds import BLOCKED_LAUNCH_TIMES, FULL_QUEUE_OPS
from nsysx.catalogue import Call
from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64, union
from nsysx.frames.lookup import totals
from nsysx.reading import schema
from nsysx.reading.load import Trace


def _borders(profile: Profile) -> dict[int, tuple[I64, I64]]:
    """Return process -> (when its GPU ops were launched, when they ended), each sorted."""
    launched = profile.attributed.gpu_ops["process", "call_start_ns", "end_ns"]
    if (window := profile.trace.window) is not None:
        # Ops without a call were launched before the part that was read.
        launched = launched.with_columns(pl.col("call_start_ns").fill_null(window[0]))
    launched = launched.drop_nulls("call_start_ns")
    process, begun, ended = (c.to_numpy() for c in launched.get_columns())
    # Clock conversion may end an op before its call; it still was not pending before its call, nor at its begin.
    ended = np.maximum(ended, begun + 1)
    borders = {}
    for key in launched["process"].drop_nulls().unique().to_list():
        of_process = process == key
        # Nearly sorted already: a stable sort only merges runs.
        borders[int(key)] = (np.sort(begun[of_process], kind="stable"), np.sort(ended[of_process], kind="stable"))
    return borders


def pending(profile: Profile, process: I64, time: I64) -> I64:
    """Return how many GPU ops of the process were launched before each instant and had not ended then."""
    count = np.zeros(len(time), np.int64)
    for key, (begun, ended) in profile.once(_borders).items():
        of_process = np.flatnonzero(process == key)
        t = time[of_process]
        count[of_process] = np.searchsorted(begun, t, side="left") - np.searchsorted(ended, t, side="right")
    return np.maximum(count, 0)


def overhead_inside(trace: Trace, calls: pl.DataFrame, types: tuple[int, ...]) -> I64:
    """Return, per call, the union of its CUPTI overhead rows of these types (ns, rows are clipped to the call)."""
    key = ["process", "correlation_id"]
    rows = trace.cupti_overhead.filter(pl.col("overhead_type").is_in(types) & (pl.col("correlation_id") != 0))
    ns = np.zeros(calls.height, np.int64)
    if not rows.height:
        return ns
    ids = calls["correlation_id"].fill_null(0).to_numpy()
    named = np.flatnonzero(np.isin(ids, rows["correlation_id"].to_numpy()))
    # For several calls under one id, the outer one stands for the launch.
    following = (
        calls.select(*key, pl.col("start_ns").alias("a"), pl.col("end_ns").alias("b"))[named]
        .with_columns(pl.Series("row", named, dtype=pl.Int64))
        .sort("a", "b", descending=[False, True])
        .unique(key, keep="first", maintain_order=True)
        .with_columns((pl.col("b") - pl.col("a") + 1).cum_sum().alias("next"))
    )
    joined = rows.select(*key, "start_ns", "end_ns").join(following, on=key, how="inner")
    # One union for all calls: on a line where they follow each other, with a gap in between.
    shift = pl.col("next") - 1 - pl.col("b")
    start, end = union(
        joined.select(pl.max_horizontal("start_ns", "a") + shift).to_series().to_numpy(),
        joined.select(pl.min_horizontal("end_ns", "b") + shift).to_series().to_numpy(),
    )
    next_call = np.searchsorted(following["next"].to_numpy(), start, side="right")
    return totals(following["row"].to_numpy()[next_call], end - start, calls.height)


def queue_full(profile: Profile, calls: pl.DataFrame) -> I64:
    """Return, per launch call, how long it blocked because the launch queue was full (ns); 0 for other calls.

    Measured where the report has overhead rows of that kind. Else by rule: at least FULL_QUEUE_OPS ops pending and
    BLOCKED_LAUNCH_TIMES times the median launch; then all above the median is blocking.
    """
    kind = calls["kind"]
    launch = ((kind == Call.LAUNCH) | (kind == Call.GRAPH_LAUNCH)).to_numpy()
    if profile.recorded("cupti_overhead") or not launch.any():
        return np.where(launch, overhead_inside(profile.trace, calls, (schema.OVERHEAD_QUEUE_FULL,)), 0)
    ns = calls["self_ns"].to_numpy()
    median = int(np.median(ns[launch]))
    rows = np.flatnonzero(launch & (ns > BLOCKED_LAUNCH_TIMES * max(median, 1)))
    process, start = (calls[c].to_numpy()[rows] for c in ("process", "start_ns"))
    waited = np.zeros(calls.height, np.int64)
    waited[rows] = np.where(pending(profile, process, start) >= FULL_QUEUE_OPS, ns[rows] - median, 0)
    return waited

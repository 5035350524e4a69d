"""How full the launch queue was: a launch that blocks because the GPU is behind is no slow launch."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx import schema
from nsysx.columns import matching
from nsysx.facts import Facts
from nsysx.intervals import I64, union
from nsysx.load import Trace

#: A channel takes about 1024 pending commands; a launch blocks when it is full. A little less, for what is not recorded.
FULL_QUEUE = 900
#: Without overhead rows, a launch blocked when the queue was full and it took this many times the median launch.
BLOCKED_FACTOR = 5


def _borders(facts: Facts) -> dict[int, tuple[I64, I64]]:
    """Return process -> (when its GPU ops were launched, when they ended), each sorted."""
    launched = facts.attributed.gpu_ops.filter(pl.col("call_start_ns").is_not_null())
    found = {}
    for (of,), part in launched.group_by("process"):
        begun, ended = part["call_start_ns"].to_numpy(), part["end_ns"].to_numpy()
        # Clock conversion may end an op before its call; it still was not pending earlier than its call.
        # Nearly sorted already: a stable sort only merges runs.
        found[int(of)] = (np.sort(begun, kind="stable"), np.sort(np.maximum(ended, begun), kind="stable"))
    return found


def pending(facts: Facts, process: I64, time: I64) -> I64:
    """Return how many GPU ops of the process were launched before each instant and had not ended then."""
    found = np.zeros(len(time), np.int64)
    for of, (begun, ended) in facts.once("queue_borders", _borders).items():
        mine = np.flatnonzero(process == of)
        t = time[mine]
        found[mine] = np.searchsorted(begun, t, side="left") - np.searchsorted(ended, t, side="right")
    return np.maximum(found, 0)


def overhead_inside(trace: Trace, calls: pl.DataFrame, types: tuple[int, ...]) -> I64:
    """Return, per call, the union of its CUPTI overhead rows of these types (ns, rows are clipped to the call)."""
    rows = trace.cupti_overhead.filter(pl.col("overhead_type").is_in(types) & (pl.col("correlation_id") != 0))
    found = np.zeros(calls.height, np.int64)
    if not rows.height:
        return found
    place = calls.select("process", "correlation_id", "start_ns", "end_ns").with_row_index("row")
    # Of several calls under one id, the outer one stands for the launch.
    place = place.sort("start_ns", "end_ns", descending=[False, True]).unique(
        ["process", "correlation_id"], keep="first", maintain_order=True
    )
    joined = rows.join(place, on=["process", "correlation_id"], how="inner", suffix="_call")
    joined = joined.with_columns(
        pl.max_horizontal("start_ns", "start_ns_call").alias("start_ns"),
        pl.min_horizontal("end_ns", "end_ns_call").alias("end_ns"),
    )
    for (row,), part in joined.group_by("row"):
        start, end = union(part["start_ns"].to_numpy(), part["end_ns"].to_numpy())
        found[int(row)] = int((end - start).sum())
    return found


def queue_full(facts: Facts, calls: pl.DataFrame) -> I64:
    """Return, per launch call, how long it blocked because the launch queue was full (ns); 0 for other calls.

    Measured where the report has overhead rows of that kind. Else by rule: at least FULL_QUEUE ops pending and
    BLOCKED_FACTOR times the median launch; then all above the median is blocking.
    """
    launch = matching(calls["kind"], "^(graph_)?launch$")
    if facts.recorded("cupti_overhead") or not launch.any():
        return np.where(launch, overhead_inside(facts.trace, calls, (schema.OVERHEAD_QUEUE_FULL,)), 0)
    ns = calls["self_ns"].to_numpy()
    median = int(np.median(ns[launch]))
    rows = np.flatnonzero(launch & (ns > BLOCKED_FACTOR * max(median, 1)))
    process, start = (calls[c].to_numpy()[rows] for c in ("process", "start_ns"))
    found = np.zeros(calls.height, np.int64)
    found[rows] = np.where(pending(facts, process, start) >= FULL_QUEUE, ns[rows] - median, 0)
    return found

"""How full the launch queue was: a launch that blocks because the GPU is behind is no slow launch."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx import schema
from nsysx.attribute import Attributed
from nsysx.intervals import I64, union
from nsysx.load import Trace

#: A channel takes about 1024 pending commands; a launch blocks when it is full. A little less, for what is not recorded.
FULL_QUEUE = 900
#: Without overhead rows, a launch blocked when the queue was full and it took this many times the median launch.
BLOCKED_FACTOR = 5


def pending(calls: pl.DataFrame, ops: pl.DataFrame) -> I64:
    """Return, per call, how many GPU ops of its process were launched before it starts and had not ended then."""
    found = np.zeros(calls.height, np.int64)
    process, start = calls["process"].to_numpy(), calls["start_ns"].to_numpy()
    launched = ops.select("process", "call_start_ns", "end_ns").filter(pl.col("call_start_ns").is_not_null())
    for (of,), part in launched.group_by("process", maintain_order=True):
        mine = np.flatnonzero(process == of)
        begun = np.sort(part["call_start_ns"].to_numpy(), kind="stable")  # in order but for the threads: runs to merge
        # Clock conversion may end an op before its call; it still was not pending earlier than its call.
        ended = np.sort(np.maximum(part["end_ns"].to_numpy(), part["call_start_ns"].to_numpy()), kind="stable")
        t = start[mine]
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


def queue_full(trace: Trace, attributed: Attributed, calls: pl.DataFrame) -> I64:
    """Return, per launch call, how long it blocked because the launch queue was full (ns); 0 for other calls.

    Measured where the report has overhead rows of that kind. Else by rule: at least FULL_QUEUE ops pending and
    BLOCKED_FACTOR times the median launch; then all above the median is blocking.
    """
    kind = calls["kind"].cast(pl.String)
    launch = kind.is_in(["launch", "graph_launch"]).to_numpy()
    measured = np.where(launch, overhead_inside(trace, calls, (schema.OVERHEAD_QUEUE_FULL,)), 0)
    if "cupti_overhead" in trace.recorded or not launch.any():
        return measured
    ns = calls["self_ns"].to_numpy()
    median = int(np.median(ns[launch]))
    blocked = launch & (ns > BLOCKED_FACTOR * max(median, 1))
    if not blocked.any():
        return measured
    deep = np.zeros(calls.height, np.bool_)
    rows = np.flatnonzero(blocked)
    deep[rows] = pending(calls[rows.tolist()], attributed.gpu_ops) >= FULL_QUEUE
    return np.where(deep, ns - median, 0)

"""Stopwatch: what each way of timing an operation on the host reads, side by side with what the device did.

A clock around an operation reads a different time with a synchronize before it, after it, both, or none. Here an operation is
one kernel with its launch call, and the clock starts where the thread's previous GPU call (launch, copy, memset, synchronize)
returned. ``measured`` readings come from executions that had just these synchronize calls around them; ``composed`` ones are
sums of medians, for ways that the program did not take (sync_return of other kernels, where none follows this one):

    both    host + api + latency + kernel + sync_return        a cold queue: the time of one call, alone
    before  host + api                                         how long the CPU takes to hand the work over
    after   host + api + queue + kernel + sync_return          the work of others in the queue is read too
    none    host + api                                         the same, beside a busy device

A time from cuda.Event lies between the kernel alone (work is queued before the first record) and both - sync_return (an
idle device). ``torch.utils.benchmark`` repeats the operation and reads the slower of host + api and kernel.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from nsysx.columns import matching
from nsysx.facts import Facts, NotRecorded
from nsysx.intervals import I64
from nsysx.model import Column
from nsysx.queueing import pending

KEY = "stopwatch"
TITLE = "Stopwatch: four ways of timing"
_WAYS = ("both", "before", "after", "none")
COLUMNS = (
    Column("name", "String", "", "kernel"),
    Column("custom", "Boolean", "", "neither PyTorch's own nor from a CUDA library, as far as its name tells"),
    Column("module", "String", "", "module that launches it most often"),
    Column("calls", "Int64", "", "launches, one kernel each"),
    Column(
        "host_ns",
        "Float64",
        "ns",
        "from the thread's previous GPU call to the launch call: Python and framework, median",
    ),
    Column("api_ns", "Float64", "ns", "launch call, median"),
    Column(
        "latency_ns",
        "Float64",
        "ns",
        "from the launch call to the kernel on an idle device, median; null when never idle",
    ),
    Column(
        "queue_ns",
        "Float64",
        "ns",
        "from the launch call to the kernel behind other work, median; null when never behind",
    ),
    Column("kernel_ns", "Float64", "ns", "kernel, median"),
    Column(
        "sync_return_ns",
        "Float64",
        "ns",
        "from the end of the work to the return of the synchronize, median; null without any",
    ),
    *(
        column
        for way, words in zip(_WAYS, ("before and after", "only before", "only after", "nowhere"), strict=True)
        for column in (
            Column(f"{way}_ns", "Float64", "ns", f"a clock with synchronize {words}; null when it cannot be told"),
            Column(f"{way}_from", "String", "", "measured or composed; null likewise"),
        )
    ),
    Column("event_idle_ns", "Float64", "ns", "cuda.Event around it on an idle device; null when it cannot be told"),
    Column("event_queued_ns", "Float64", "ns", "cuda.Event around it behind other work: the kernel"),
    Column("benchmark_ns", "Float64", "ns", "torch.utils.benchmark: the slower of host + api and kernel"),
)
_ROWS = 30
#: Fewer executions of a kind are no measurement.
_LEAST = 3
_LIBRARY = r"at::|at_cuda|c10::|cub::|thrust|cublas|cudnn|cutlass|xmma|nvjet|nccl|cufft|cusparse|cusolver|splitKreduce|gemm|^void native::"


def _median(values: I64) -> float | None:
    return float(np.median(values)) if len(values) >= _LEAST else None


def _sum(*parts: float | None) -> float | None:
    known = [p for p in parts if p is not None]
    return sum(known) if len(known) == len(parts) else None


class _Calls:
    """The GPU calls of all threads, in order, with what stands before and after each on its thread."""

    def __init__(self, facts: Facts) -> None:
        calls = facts.attributed.api_calls  # sorted by thread and time
        calls = calls.filter(matching(calls["kind"], "^(launch|graph_launch|copy|memset|sync)$"))
        self.call = calls["call"].to_numpy()
        self.start, self.end, self.thread = (calls[c].to_numpy() for c in ("start_ns", "end_ns", "thread"))
        # cudaStreamWaitEvent only tells the device to wait, and is no synchronize of the host; its kind is event.
        self.sync = matching(calls["kind"], "^sync$")
        self.row = np.full(facts.attributed.api_calls.height, -1, np.int64)
        self.row[self.call] = np.arange(len(self.call))
        self.idle_after = np.zeros(len(self.call), np.bool_)
        process = calls["process"].to_numpy()
        self.idle_after[self.sync] = pending(facts, process[self.sync], self.end[self.sync]) == 0

    def neighbour(self, row: I64, step: int) -> I64:
        """Return the row ``step`` further on the same thread, -1 where there is none."""
        other = row + step
        inside = (other >= 0) & (other < len(self.call))
        same = inside & (self.thread[np.clip(other, 0, len(self.call) - 1)] == self.thread[row])
        return np.where(same, other, -1)


def _sync_return(launches: pl.DataFrame, calls: _Calls) -> float | None:
    """Return how long after the end of the work a synchronize returns, over all kernels."""
    row = calls.row[launches["call"].to_numpy()]
    end = launches["end_ns"].to_numpy()
    following = calls.neighbour(row, 1)
    returned, began = calls.end[np.maximum(following, 0)], calls.start[np.maximum(following, 0)]
    waited = (following >= 0) & calls.sync[np.maximum(following, 0)] & (returned >= end) & (began < end)
    return _median((returned - end)[waited])


def _line(launches: pl.DataFrame, calls: _Calls, pending_at: I64, usual_return: float | None) -> dict[str, object]:
    """Return the row of one kernel. ``usual_return`` stands in where no synchronize follows this one."""
    row = calls.row[launches["call"].to_numpy()]
    begin, end = launches["start_ns"].to_numpy(), launches["end_ns"].to_numpy()
    api_start, api_end = launches["call_start_ns"].to_numpy(), launches["call_end_ns"].to_numpy()
    previous, following = calls.neighbour(row, -1), calls.neighbour(row, 1)
    known = previous >= 0
    clock = np.where(known, calls.end[np.maximum(previous, 0)], api_start)
    before = known & calls.sync[np.maximum(previous, 0)] & calls.idle_after[np.maximum(previous, 0)]
    returned = calls.end[np.maximum(following, 0)]
    after = (following >= 0) & calls.sync[np.maximum(following, 0)] & (returned >= end)
    waited = after & (calls.start[np.maximum(following, 0)] < end)
    alone = pending_at == 0
    host, api = _median((api_start - clock)[known]), _median(api_end - api_start)
    latency = _median(np.maximum(begin - api_end, 0)[alone])
    queue = _median(np.maximum(begin - api_end, 0)[~alone])
    kernel = _median(end - begin)
    sync_return = _median((returned - end)[waited])
    back = usual_return if sync_return is None else sync_return
    measured = {
        "both": _median((returned - clock)[before & after]),
        "before": _median((api_end - clock)[before]),
        "after": _median((returned - clock)[known & ~before & after]),
        "none": _median((api_end - clock)[known & ~before]),
    }
    composed = {
        "both": _sum(host, api, latency, kernel, back),
        "before": _sum(host, api),
        "after": _sum(host, api, queue, kernel, back),
        "none": _sum(host, api),
    }
    found: dict[str, object] = {
        "host_ns": host,
        "api_ns": api,
        "latency_ns": latency,
        "queue_ns": queue,
        "kernel_ns": kernel,
        "sync_return_ns": sync_return,
    }
    for way in _WAYS:
        value = measured[way] if measured[way] is not None else composed[way]
        found[f"{way}_ns"] = value
        found[f"{way}_from"] = None if value is None else "composed" if measured[way] is None else "measured"
    handed = _sum(host, api)
    found["event_idle_ns"] = _sum(host, api, latency, kernel)
    found["event_queued_ns"] = kernel
    found["benchmark_ns"] = max(handed, kernel) if handed is not None and kernel is not None else None
    return found


def table(facts: Facts) -> pl.DataFrame:
    """Return one row per kernel: custom ones first, then by kernel time; kernels with fewer than three launches are left out."""
    if not facts.recorded("runtime", "kernel"):
        raise NotRecorded("kernels and the calls that launch them were not both recorded", "-t cuda")
    launches = facts.ops.filter(matching(facts.ops["op_kind"], "^kernel$") & facts.ops["call"].is_not_null().to_numpy())
    alone = facts.attributed.api_calls["gpu_ops"].to_numpy()[launches["call"].to_numpy()] == 1
    launches = launches.filter(alone).sort("call_start_ns", "call")
    times = [launches[c].to_numpy() for c in ("process", "call_start_ns")]
    launches = launches.with_columns(pl.Series("_pending", pending(facts, *times)))
    calls = _Calls(facts)
    # A kernel that something else than a launch put on the GPU has no neighbours to look at.
    launches = launches.filter(pl.Series(calls.row[launches["call"].to_numpy()] >= 0))
    order = (
        launches.group_by("name")
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            (pl.col("end_ns") - pl.col("start_ns")).sum().alias("_total"),
            pl.col("module").drop_nulls().mode().cast(pl.String).sort().first(),
        )
        .with_columns(pl.col("name").cast(pl.String))
        .with_columns((~pl.col("name").str.contains(_LIBRARY)).alias("custom"))
        .filter(pl.col("calls") >= _LEAST)
        .sort("custom", "_total", "name", descending=[True, True, False])
        .head(_ROWS)
    )
    usual_return = _sync_return(launches, calls)
    shown = launches.filter(matching(launches["name"], "^(" + "|".join(map(re.escape, order["name"])) + ")$"))
    by_name = {str(name): part for (name,), part in shown.group_by("name", maintain_order=True)}
    rows = []
    for name, count, module, custom in order.select("name", "calls", "module", "custom").iter_rows():
        part = by_name[name]
        rows.append(
            {
                "name": name,
                "custom": custom,
                "module": module,
                "calls": count,
                **_line(part, calls, part["_pending"].to_numpy(), usual_return),
            }
        )
    types = {"String": pl.String, "Int64": pl.Int64, "Float64": pl.Float64, "Boolean": pl.Boolean}
    return pl.DataFrame(rows, schema={c.name: types[c.dtype] for c in COLUMNS})

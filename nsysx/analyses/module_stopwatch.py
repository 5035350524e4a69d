"""Stopwatch for modules: what each way of timing a module on the host reads, when it launches several kernels.

The clock starts and stops at the ends of the module's range. ``measured`` and ``composed`` are as in the stopwatch for
kernels. Composed readings run the recorded launches again on one queue: each kernel starts when its launch call has returned,
plus the latency of an idle device, or when the kernel before it is done.

    both    the slower of range and work, on an idle device, + sync_return
    before  the range: how long the CPU takes to hand the work over, what it blocked on a full queue left out
    after   as both, behind the work of others that was queued when the range began (median)
    none    the range
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.columns import matching
from nsysx.facts import Facts, NotRecorded
from nsysx.intervals import I64
from nsysx.model import Column
from nsysx.queueing import pending, queue_full
from nsysx.stopwatches import LEAST, WAYS, GpuCalls, median, readings, total

KEY = "module_stopwatch"
TITLE = "Stopwatch: modules"
COLUMNS = (
    Column("name", "String", "", "module, forward only"),
    Column("calls", "Int64", "", "executions that launched GPU work and did not wait inside"),
    Column("kernels_each", "Float64", "", "kernels and other GPU work per execution, median"),
    Column("range_ns", "Float64", "ns", "time on the CPU, launches included, median"),
    Column("api_ns", "Float64", "ns", "of it in the launch calls, median"),
    Column("work_ns", "Float64", "ns", "GPU time of its work, summed, median"),
    Column("alone_ns", "Float64", "ns", "from the begin of the range to the end of its work on an idle device, median"),
    *(
        column
        for way, words in zip(WAYS, ("before and after", "only before", "only after", "nowhere"), strict=True)
        for column in (
            Column(f"{way}_ns", "Float64", "ns", f"a clock with synchronize {words}; null when it cannot be told"),
            Column(f"{way}_from", "String", "", "measured or composed; null likewise"),
        )
    ),
    Column("event_idle_ns", "Float64", "ns", "cuda.Event around it on an idle device"),
    Column("event_queued_ns", "Float64", "ns", "cuda.Event around it behind other work: its GPU time"),
    Column("benchmark_ns", "Float64", "ns", "torch.utils.benchmark: the slower of range and GPU time"),
)
_ROWS = 20
#: Whole models are not timed this way.
_MOST_KERNELS = 64
#: Executions that are run again, of each module.
_SAMPLE = 200


class _Work:
    """GPU work in order of its launch on each thread, with sums over any stretch of it."""

    def __init__(self, facts: Facts) -> None:
        ops = facts.attributed.gpu_ops
        ops = ops.filter(ops["call"].is_not_null()).sort("thread", "call_start_ns", "call", "start_ns", "op")
        self.thread, self.called, self.returned = (
            ops[c].to_numpy() for c in ("thread", "call_start_ns", "call_end_ns")
        )
        self.end = ops["end_ns"].to_numpy()
        duration = self.end - ops["start_ns"].to_numpy()
        self.sum = np.concatenate([[0], np.cumsum(duration)])
        first = np.concatenate([[True], ops["call"].to_numpy()[1:] != ops["call"].to_numpy()[:-1]])[: len(duration)]
        self.api = np.concatenate([[0], np.cumsum(np.where(first, self.returned - self.called, 0))])
        # What a launch blocked on a full queue belongs to the busy device, not to the module.
        full = queue_full(facts, facts.attributed.api_calls)[ops["call"].to_numpy()]
        self.full = np.concatenate([[0], np.cumsum(np.where(first, full, 0))])
        alone = pending(facts, ops["process"].to_numpy(), self.called) == 0
        found = median(np.maximum(ops["start_ns"].to_numpy() - self.returned, 0)[alone & first])
        self.latency = int(found or 0)
        self.backlog: dict[int, tuple[I64, I64]] = {}
        for (process,), part in ops.sort("call_start_ns").group_by("process", maintain_order=True):
            self.backlog[int(process)] = (
                part["call_start_ns"].to_numpy(),
                np.maximum.accumulate(part["end_ns"].to_numpy()),
            )

    def inside(self, thread: int, start: I64, end: I64) -> tuple[I64, I64]:
        """Return the stretch [first, last) of work launched on the thread in each range."""
        a, b = (int(i) for i in np.searchsorted(self.thread, [thread, thread + 1]))
        called = self.called[a:b]
        return np.searchsorted(called, start, side="left") + a, np.searchsorted(called, end, side="left") + a

    def alone(self, first: int, last: int, start: int) -> int:
        """Return when the stretch is done on an idle device, ns after ``start``."""
        after = self.sum[last] - self.sum[first:last]
        blocked = self.full[first + 1 : last + 1] - self.full[first]
        return int((self.returned[first:last] - start - blocked + self.latency + after).max())

    def queued(self, process: int, time: I64) -> I64:
        """Return how much longer the work that was launched before each instant ran after it."""
        called, reach = self.backlog[process]
        i = np.searchsorted(called, time, side="left") - 1
        return np.where(i >= 0, np.maximum(reach[np.maximum(i, 0)] - time, 0), 0)


def _executions(facts: Facts, work: _Work, calls: GpuCalls) -> pl.DataFrame:
    """Return name, process, thread, start_ns, end_ns, first, last, previous, following of forward ranges with GPU work."""
    ranges = facts.ranges.ranges.filter(
        pl.col("kind").is_in(["module", "range"]) & ~pl.col("recompute") & ~pl.col("crossing")
    )
    synced = np.concatenate([[0], np.cumsum(calls.sync)])
    parts = []
    for (thread,), part in ranges.group_by("thread"):
        start, end = part["start_ns"].to_numpy(), part["end_ns"].to_numpy()
        first, last = work.inside(int(thread), start, end)
        previous, final = calls.at(int(thread), start), calls.at(int(thread), end)
        following = np.where(final >= 0, calls.neighbour(np.maximum(final, 0), 1), -1) if len(calls.call) else final
        waits = synced[final + 1] - synced[previous + 1]
        parts.append(
            part.select("process", "thread", "start_ns", "end_ns", _path())
            .with_columns(
                pl.Series("first", first),
                pl.Series("last", last),
                pl.Series("previous", previous),
                pl.Series("following", following),
            )
            .filter(pl.Series((last > first) & (waits == 0)))
        )
    return pl.concat(parts) if parts else pl.DataFrame()


def _path() -> pl.Expr:
    name = pl.col("name").cast(pl.String)
    return pl.when(name == "").then(pl.format("({})", "cls")).otherwise(name).alias("name")


def _line(part: pl.DataFrame, work: _Work, calls: GpuCalls, back: float | None) -> dict[str, object]:
    """Return the row of one module."""
    start, end, first, last = (part[c].to_numpy() for c in ("start_ns", "end_ns", "first", "last"))
    done = np.array([work.end[a:b].max() for a, b in zip(first, last, strict=True)], np.int64)
    before, after, returned = calls.synced(part["previous"].to_numpy(), part["following"].to_numpy(), done)
    length, busy = end - start, work.sum[last] - work.sum[first]
    alone = np.array([work.alone(int(a), int(b), int(s)) for a, b, s in zip(first, last, start, strict=True)], np.int64)
    queued = np.array(
        [work.queued(int(p), np.array([s]))[0] for p, s in zip(part["process"], start, strict=True)], np.int64
    )
    own = length - (work.full[last] - work.full[first])
    handed, gpu = median(own), median(busy)
    measured = {
        "both": median((returned - start)[before & after]),
        "before": median(length[before]),
        "after": median((returned - start)[~before & after]),
        "none": median(length[~before]),
    }
    behind = np.maximum(alone, queued + busy)
    composed = {
        "both": total(median(np.maximum(alone, own)), back),
        "before": handed,
        "after": total(median(np.maximum(behind, length)[~before]), back),
        "none": handed,
    }
    return {
        "calls": len(start),
        "kernels_each": median(last - first),
        "range_ns": median(length),
        "api_ns": median(work.api[last] - work.api[first]),
        "work_ns": gpu,
        "alone_ns": median(alone),
        **readings(measured, composed),
        "event_idle_ns": median(alone),
        "event_queued_ns": gpu,
        "benchmark_ns": max(handed, gpu) if handed is not None and gpu is not None else None,
    }


def table(facts: Facts) -> pl.DataFrame:
    """Return one row per module or named range of at most 64 kernels, most GPU time first."""
    if not facts.recorded("runtime", "kernel"):
        raise NotRecorded("kernels and the calls that launch them were not both recorded", "-t cuda")
    if not facts.recorded("nvtx") or not facts.ranges.ranges.height:
        raise NotRecorded("no NVTX range was recorded: run under `nsysx run`, or name ranges of your own", "-t nvtx")
    calls, work = GpuCalls(facts), _Work(facts)
    found = _executions(facts, work, calls)
    types = {"String": pl.String, "Int64": pl.Int64, "Float64": pl.Float64}
    empty = pl.DataFrame(schema={c.name: types[c.dtype] for c in COLUMNS})
    if not found.height:
        return empty
    found = found.with_columns(
        pl.Series("busy", work.sum[found["last"].to_numpy()] - work.sum[found["first"].to_numpy()])
    )
    each = (pl.col("last") - pl.col("first")).median()
    chosen = (
        found.group_by("name")
        .agg(pl.col("busy").sum(), pl.len(), each.alias("each"))
        .filter((pl.col("len") >= LEAST) & (pl.col("each") <= _MOST_KERNELS))
        .sort("busy", "name", descending=[True, False])
        .head(_ROWS)
    )
    syncs = facts.ledgers.waits.filter(pl.col("backlog_ns") > 0)
    of_sync = facts.attributed.api_calls.filter(matching(facts.attributed.api_calls["kind"], "^sync$")).select("call")
    back = median(syncs.join(of_sync, on="call", how="semi")["host_ns"].to_numpy())
    rows = []
    for name, count in chosen.select("name", "len").iter_rows():
        part = found.filter(pl.col("name") == name).sort("start_ns")
        if part.height > _SAMPLE:
            part = part[np.linspace(0, part.height - 1, _SAMPLE).astype(np.int64).tolist()]
        rows.append({"name": name, **_line(part, work, calls, back), "calls": count})
    return pl.DataFrame(rows, schema=empty.schema) if rows else empty

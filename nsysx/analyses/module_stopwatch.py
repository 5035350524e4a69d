"""Stopwatch for modules: what each way of timing a module on the host reads when it launches several kernels.

The clock starts and stops at the ends of the module's range. ``measured`` and ``composed`` are as in the stopwatch for
kernels. Composed readings replay the recorded launches on one queue: each kernel starts when its launch call has returned,
plus the latency of an idle device, or when the kernel before it is done.

    both    the slower of range and work, on an idle device, + sync_return
    before  the range: how long the CPU takes to hand the work over, without blocking on a full queue
    after   as both, behind other work that was queued when the range began (median)
    none    the same as before
"""

from __future__ import annotations

from typing import Annotated, TypedDict

import numpy as np
import polars as pl

from nsysx.analyses.helpers import host_stopwatch
from nsysx.analyses.helpers.analysis_bounds import (
    FEWEST_EXECUTIONS,
    MOST_REPLAYED_EXECUTIONS,
    MOST_TIMED_KERNELS,
    MOST_TIMED_MODULES,
)
from nsysx.analyses.helpers.host_stopwatch import GpuCalls, backlog, gpu_calls, median, readings, total
from nsysx.analyses.helpers.launch_queue import queue_full
from nsysx.catalogue import Call
from nsysx.events.layers import PATHLESS
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import frame_columns, lookup
from nsysx.frames.intervals import I64
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "module_stopwatch"
TITLE = "Stopwatch: modules"


class ModuleReadingRow(TypedDict):
    """One module or named range of few kernels."""

    name: Annotated[str, Of("module, forward only")]
    calls: Annotated[int, Of("executions that launched GPU work and did not wait inside")]
    kernels_each: Annotated[float, Of("kernels and other GPU work per execution, median", label="kernels in each")]
    range_ns: Annotated[float, Of("time on the CPU, launches included, median", "ns", label="CPU range")]
    api_ns: Annotated[float, Of("part of it in the launch calls, median", "ns")]
    work_ns: Annotated[float, Of("GPU time of its work, summed per execution, median", "ns", label="GPU work")]
    alone_ns: Annotated[
        float,
        Of(
            "from the start of the range to the end of its work on an idle device, median", "ns", label="on an idle GPU"
        ),
    ]
    both_ns: host_stopwatch.BothNs
    both_from: host_stopwatch.HowRead
    before_ns: host_stopwatch.BeforeNs
    before_from: host_stopwatch.HowRead
    after_ns: host_stopwatch.AfterNs
    after_from: host_stopwatch.HowRead
    none_ns: host_stopwatch.NoneNs
    none_from: host_stopwatch.HowRead
    event_idle_ns: Annotated[float, Of("cuda.Event around it on an idle device", "ns", label="cuda.Event, idle GPU")]
    event_queued_ns: Annotated[
        float, Of("cuda.Event around it behind other work: its GPU time", "ns", label="cuda.Event, queued")
    ]
    benchmark_ns: Annotated[
        float, Of("torch.utils.benchmark: the slower of range and GPU time", "ns", label="torch benchmark")
    ]


COLUMNS = columns_of(ModuleReadingRow)
ROWS: TableOf[ModuleReadingRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="whole",
    place=210,
    matters=("NSX107", "NSX115"),
    intro=(
        "The same for whole modules, forward only: what four ways of timing read, and the GPU time that is the work."
    ),
    first=(*names("name work_ns range_ns api_ns alone_ns"), *host_stopwatch.READ, *names("kernels_each calls")),
    hide=host_stopwatch.HIDDEN,
    depth=1,
)


class _LaunchedWork:
    """GPU work in order of its launch on each thread, with sums over any stretch of it."""

    def __init__(self, profile: Profile) -> None:
        ops, calls = profile.attributed.gpu_ops, profile.attributed.api_calls
        # Calls are numbered by thread and time, ops by their start: sorting by call puts work in the order of its launch.
        launched = np.flatnonzero(ops["call"].is_not_null().to_numpy())
        self.call = ops["call"].gather(launched).to_numpy()
        order = np.argsort(self.call, kind="stable")
        rows, self.call = launched[order], self.call[order]
        self._calls = tuple(calls[c].to_numpy() for c in ("thread", "start_ns"))
        start, end = ops["start_ns"].to_numpy()[rows], ops["end_ns"].to_numpy()[rows]
        returned = calls["end_ns"].to_numpy()[self.call]
        first = np.diff(self.call, prepend=-1) > 0
        self.sum = _sums(end - start)
        self.api = _sums(np.where(first, returned - calls["start_ns"].to_numpy()[self.call], 0))
        # Time that a launch blocks on a full queue is due to the busy device, not to the module.
        self.full = _sums(np.where(first, queue_full(profile, calls)[self.call], 0))
        alone = median(np.maximum(start - returned, 0)[backlog(profile).alone[rows] & first])
        #: When the work from this op on would be done on an idle device, less the terms that depend on the stretch.
        self._reach = np.append(returned - self.full[1:] + int(alone or 0) - self.sum[:-1], 0)
        self._end = np.append(end, 0)

    def inside(self, thread: int, start: I64, end: I64) -> tuple[I64, I64]:
        """Return the stretch [first, last) of work launched on the thread in each range."""
        threads, begun = self._calls
        first, last = (int(i) for i in np.searchsorted(threads, [thread, thread + 1]))
        a, b = (int(i) for i in np.searchsorted(self.call, [first, last]))
        called = begun[self.call[a:b]]
        return np.searchsorted(called, start, side="left") + a, np.searchsorted(called, end, side="left") + a

    def end(self, first: I64, last: I64) -> I64:
        """Return when each stretch was done."""
        return _greatest(self._end, first, last)

    def alone(self, first: I64, last: I64, start: I64) -> I64:
        """Return when each stretch is done on an idle device, ns after ``start``."""
        return _greatest(self._reach, first, last) + self.full[first] + self.sum[last] - start


def _sums(values: I64) -> I64:
    return np.concatenate(([0], np.cumsum(values)))


def _greatest(values: I64, first: I64, last: I64) -> I64:
    """Return the greatest value of each stretch [first, last), none of them empty; ``values`` ends with one spare value."""
    greatest: I64 = np.maximum.reduceat(values, np.stack((first, last), axis=1).ravel())[::2]
    return greatest


def _executions(profile: Profile, work: _LaunchedWork, calls: GpuCalls) -> pl.DataFrame:
    """Return row, name, process, start_ns, end_ns, first, last, previous, following, busy of forward ranges with GPU work."""
    ranges = profile.ranges.ranges
    forward = ((ranges["kind"] == "module") | (ranges["kind"] == "range")) & ~ranges["recompute"] & ~ranges["crossing"]
    rows = np.flatnonzero(forward.to_numpy())
    thread, start, end = (ranges[c].to_numpy()[rows] for c in ("thread", "start_ns", "end_ns"))
    first, last, previous, final = np.full((4, len(rows)), -1, np.int32)
    for key in np.unique(thread).tolist():
        on_thread = np.flatnonzero(thread == key)
        first[on_thread], last[on_thread] = work.inside(key, start[on_thread], end[on_thread])
        previous[on_thread], final[on_thread] = calls.at(key, start[on_thread]), calls.at(key, end[on_thread])
    synced = _sums(calls.sync)
    chosen = np.flatnonzero((last > first) & (synced[final + 1] == synced[previous + 1]))
    rows, first, last = rows[chosen], first[chosen], last[chosen]
    name, cls = (ranges[c].gather(rows).cast(pl.Categorical) for c in ("name", "cls"))
    whole = pl.when(name == "").then(lookup.changed(cls, PATHLESS.format)).otherwise(name)
    return pl.DataFrame(
        {
            "row": np.arange(len(chosen)),
            "name": pl.select(whole).to_series(),
            "process": ranges["process"].gather(rows),
            "start_ns": start[chosen],
            "end_ns": end[chosen],
            "first": first,
            "last": last,
            "previous": previous[chosen],
            "following": calls.following(final[chosen]),
            "busy": work.sum[last] - work.sum[first],
        }
    )


def _line(
    profile: Profile, part: list[I64], work: _LaunchedWork, calls: GpuCalls, back: float | None
) -> dict[str, object]:
    """Return the row of one module. ``part``: its columns of ``_executions``, without name and row."""
    process, start, end, first, last, previous, following, busy = part
    before, after, returned = calls.synced(previous, following, work.end(first, last))
    length, alone = end - start, work.alone(first, last, start)
    queued = np.zeros(len(start), np.int64)
    for key in np.unique(process).tolist():
        queued[process == key] = backlog(profile).after(key, start[process == key])
    unqueued = length - (work.full[last] - work.full[first])
    handed, gpu = median(unqueued), median(busy)
    measured = {
        "both": median(returned - start, before & after),
        "before": median(length, before),
        "after": median(returned - start, ~before & after),
        "none": median(length, ~before),
    }
    behind = np.maximum(alone, queued + busy)
    composed = {
        "both": total(median(np.maximum(alone, unqueued)), back),
        "before": handed,
        "after": total(median(np.maximum(behind, length), ~before), back),
        "none": handed,
    }
    return {
        "kernels_each": median(last - first),
        "range_ns": median(length),
        "api_ns": median(work.api[last] - work.api[first]),
        "work_ns": gpu,
        "alone_ns": median(alone),
        **readings(measured, composed, handed=handed, work=gpu, alone=median(alone)),
    }


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per module or named range of at most 64 kernels, most GPU time first."""
    if not profile.recorded("runtime", "kernel"):
        raise NotRecorded("kernels and the calls that launch them were not both recorded", "-t cuda")
    if not profile.recorded("nvtx") or not profile.ranges.ranges.height:
        raise NotRecorded("no NVTX range was recorded: run under `nsysx run`, or name ranges of your own", "-t nvtx")
    calls, work = gpu_calls(profile), _LaunchedWork(profile)
    executions = _executions(profile, work, calls)
    each = (pl.col("last") - pl.col("first")).median()
    chosen = (
        executions.group_by("name")
        .agg(pl.col("busy").sum(), pl.len().cast(pl.Int64).alias("calls"), each.alias("each"), pl.col("row"))
        .filter((pl.col("calls") >= FEWEST_EXECUTIONS) & (pl.col("each") <= MOST_TIMED_KERNELS))
        .with_columns(pl.col("name").cast(pl.String))
        .sort("busy", "name", descending=[True, False])
        .head(MOST_TIMED_MODULES)
    )
    kind = profile.attributed.api_calls["kind"]
    blocked = profile.ledgers.waits.filter(pl.col("backlog_ns") > 0)
    back = median(blocked["host_ns"].filter(kind.gather(blocked["call"]) == Call.SYNC).to_numpy())
    columns_, start = [executions[c].to_numpy() for c in executions.columns[2:]], executions["start_ns"].to_numpy()
    lines = []
    for line, members in zip(chosen["name", "calls"].to_dicts(), chosen["row"], strict=True):
        rows = members.to_numpy()
        rows = rows[np.argsort(start[rows], kind="stable")]
        if len(rows) > MOST_REPLAYED_EXECUTIONS:
            rows = rows[np.linspace(0, len(rows) - 1, MOST_REPLAYED_EXECUTIONS).astype(np.int64)]
        lines.append({**line, **_line(profile, [c[rows] for c in columns_], work, calls, back)})
    return pl.DataFrame(lines, schema=frame_columns.schema(COLUMNS))

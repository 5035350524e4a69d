"""What each API call cost once, apart from what it costs every time: the base of the first-call bill.

``cost`` of a call is its self time without waiting for the GPU and without the profiler's own time. Of it, once and never
again:

- library and module loading, driver start: all of it;
- allocation and creation calls before the first steady step, of functions that no steady step calls: all of it. A cache
  (PyTorch's allocators, stream and event pools) is being filled;
- otherwise the first call per (process, API function, kernel): what it costs above the median of the later calls, or of the
  later calls of that function when its kernel ran once; all of it when the function was called once at all. What a launch
  blocked on a full queue is not counted;
- module and function loading that the report measured inside a call (OVERHEAD rows, as a union), if that is more.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx import columns, schema
from nsysx.facts import Facts, named
from nsysx.intervals import I64, coverage
from nsysx.queueing import overhead_inside, queue_full

#: API functions that load code or start the driver.
LOADS = r"LoadData|LoadFatBinary|LibraryLoad|ModuleLoad|cuLink|^cuInit$|PrimaryCtxRetain|^cuCtxCreate"
_CREATES = r"Create"


def _profiler(facts: Facts, calls: pl.DataFrame) -> I64:
    """Return the profiler's own time inside each call (ns)."""
    found = np.zeros(calls.height, np.int64)
    rows = facts.trace.overhead.drop_nulls("thread")
    if not rows.height:
        return found
    thread, start, end = (calls[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    for (of,), part in rows.group_by("thread"):
        mine = np.flatnonzero(thread == of)
        own = coverage([(part["start_ns"].to_numpy(), part["end_ns"].to_numpy())])
        found[mine] = own.within(own.labels > 0, start[mine], end[mine])
    return found


def _filling(facts: Facts, calls: pl.DataFrame) -> pl.Series:
    """Return which calls fill caches: allocations and creations before the first steady step, of functions unused in it."""
    if facts.steps.source == "capture":
        return pl.Series(np.zeros(calls.height, np.bool_))
    begin = facts.steps.cpu.filter("steady").group_by("process").agg(pl.col("start_ns").min().alias("_begin"))
    used = facts.steady_calls.select("process", "name").unique().with_columns(pl.lit(True).alias("_used"))
    kinds = named(calls["kind"], "^(alloc|host_alloc)$") | named(calls["name"], _CREATES)
    rows = calls.with_columns(kinds.alias("_kind")).with_row_index("row").filter("_kind")
    rows = rows.join(begin, on="process", how="inner").join(used, on=["process", "name"], how="anti")
    found = np.zeros(calls.height, np.bool_)
    found[rows.filter(pl.col("start_ns") < pl.col("_begin"))["row"].to_numpy()] = True
    return pl.Series(found)


def costs(facts: Facts) -> pl.DataFrame:
    """Return the API calls with ``kernel`` (the one it launched, null for none or several) and the split of their self time.

    self_ns = waiting_ns + profiler_ns + one_time_ns + repeated_ns; cost_ns is the last two. ``evidence``: "measured"
    (OVERHEAD rows), "above median", "only call", "in full", null without one-time cost. ``loading_ns``: what the report
    measured of it, null where it has no such rows.
    """
    return facts.once("first_cost", _costs)


def _launched(facts: Facts) -> I64:
    """Return, per call, the code of the name of the one kernel that it launched, -1 for none or several ops."""
    calls, ops = facts.attributed.api_calls, facts.attributed.gpu_ops
    kernels = ops.filter(named(ops["op_kind"], "^kernel$") & pl.col("call").is_not_null())
    found = np.full(calls.height, -1, np.int64)
    found[kernels["call"].to_numpy()] = kernels["name"].to_physical().to_numpy()
    return np.where(calls["gpu_ops"].to_numpy() == 1, found, -1)


def _costs(facts: Facts) -> pl.DataFrame:
    calls = facts.attributed.api_calls
    kernel = _launched(facts)
    waits = facts.ledgers.waits
    active = calls["self_ns"].to_numpy().copy()
    blocking = waits["call"].to_numpy()
    active[blocking] = np.minimum(active[blocking], waits["host_ns"].to_numpy())
    profiler = np.minimum(_profiler(facts, calls), active)
    cost = active - profiler
    free = cost - np.minimum(queue_full(facts.trace, facts.attributed, calls), cost)
    measured = np.minimum(overhead_inside(facts.trace, calls, schema.OVERHEAD_ONE_TIME), cost)
    once = _first_above_later(calls, kernel, free)
    only = once.select("row", "_only")
    rule, alone = np.zeros(calls.height, np.int64), np.zeros(calls.height, np.bool_)
    rule[once["row"].to_numpy()] = once["_above"].to_numpy()
    alone[only.filter("_only")["row"].to_numpy()] = True
    in_full = (named(calls["name"], LOADS) | _filling(facts, calls)).to_numpy()
    one_time = np.where(in_full, cost, np.maximum(rule, measured))
    why = np.select(
        [in_full & (cost > 0), (measured > 0) & (measured >= rule), alone & (rule > 0), rule > 0],
        ["in full", "measured", "only call", "above median"],
        default="",
    )
    codes = pl.DataFrame({"_code": kernel}).join(_names(facts), on="_code", how="left", maintain_order="left")
    recorded = facts.recorded("cupti_overhead")
    return calls.with_columns(
        codes["kernel"],
        pl.Series("waiting_ns", calls["self_ns"].to_numpy() - active),
        pl.Series("profiler_ns", profiler),
        pl.Series("cost_ns", cost),
        pl.Series("one_time_ns", one_time),
        pl.Series("repeated_ns", cost - one_time),
        pl.Series("loading_ns", measured if recorded else [None] * calls.height, dtype=pl.Int64),
        pl.Series("evidence", why).replace("", None),
    )


def _names(facts: Facts) -> pl.DataFrame:
    """Return _code -> kernel (categorical) of every name of a GPU op."""
    names = facts.attributed.gpu_ops["name"].unique().drop_nulls()
    return pl.DataFrame({"_code": names.to_physical().cast(pl.Int64), "kernel": names})


def _first_above_later(calls: pl.DataFrame, kernel: I64, free: I64) -> pl.DataFrame:
    """Return, for the first call of each (process, function, kernel), row, _above (ns) and _only (the only call at all)."""
    frame = calls.select("process", pl.col("name").to_physical().alias("_name"), "start_ns").with_columns(
        pl.Series("_kernel", kernel), pl.Series("_free", free)
    )
    frame = frame.with_row_index("row")
    frame = frame[columns.order(frame, "start_ns", ["row"])]
    group, function = ["process", "_name", "_kernel"], ["process", "_name"]
    firsts = frame.group_by(group, maintain_order=True).agg(
        pl.col("row").first(),
        pl.col("_free").first(),
        pl.col("_free").slice(1).median().alias("_later"),
        pl.len().alias("_n"),
    )
    later = (
        frame.join(firsts.select("row"), on="row", how="anti")
        .group_by(function)
        .agg(pl.col("_free").median().alias("_later_of_function"))
    )
    # Where each call of the function launched another kernel, a call costs at most what the cheapest later one did.
    cheapest = frame.group_by(function, maintain_order=True).agg(
        pl.col("_free").slice(1).min().alias("_cheapest"), pl.len().alias("_calls")
    )
    firsts = firsts.join(later, on=function, how="left").join(cheapest, on=function, how="left")
    base = pl.coalesce("_later", "_later_of_function", "_cheapest", pl.lit(0.0))
    above = (pl.col("_free") - base).round(0).cast(pl.Int64).clip(lower_bound=0)
    return firsts.select("row", above.alias("_above"), (pl.col("_calls") == 1).alias("_only"))

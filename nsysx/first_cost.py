"""What each API call cost once, apart from what it costs every time: the base of the first-call bill.

``cost`` of a call is its self time without waiting for the GPU (a full launch queue included) and without the profiler's own
time. Of it, once and never again:

- library and module loading, driver start: all of it;
- allocation and creation calls before the first steady step, of functions that no steady step calls: all of it. A cache
  (PyTorch's allocators, stream and event pools) is being filled;
- otherwise the first call per (process, API function, kernel): what it costs above the median of the later calls, or of the
  later calls of that function when its kernel ran once; all of it when the function was called once at all;
- module and function loading that the report measured inside a call (OVERHEAD rows, as a union), if that is more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx import columns, schema
from nsysx.columns import matching
from nsysx.facts import Facts
from nsysx.intervals import I64, coverage
from nsysx.queueing import overhead_inside, queue_full

#: API functions that load code or start the driver.
LOADS = r"LoadData|LoadFatBinary|LibraryLoad|ModuleLoad|cuLink|^cuInit$|PrimaryCtxRetain|^cuCtxCreate"
_CREATES = r"Create"
_EVIDENCE = ("in full", "measured", "only call", "above median")


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


def _filling(facts: Facts, calls: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Return which calls fill caches: allocations and creations before the first steady step, of functions unused in it."""
    found = np.zeros(calls.height, np.bool_)
    if facts.steps.source == "capture":
        return found
    begin = facts.steps.cpu.filter("steady").group_by("process").agg(pl.col("start_ns").min().alias("_begin"))
    used = facts.steady_calls.select("process", "name").unique()
    kinds = matching(calls["kind"], "^(alloc|host_alloc)$") | matching(calls["name"], _CREATES)
    rows = calls.select("call", "process", "name", "start_ns").filter(kinds)
    rows = rows.join(begin, on="process", how="inner").join(used, on=["process", "name"], how="anti")
    found[rows.filter(pl.col("start_ns") < pl.col("_begin"))["call"].to_numpy()] = True
    return found


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
    kernels = ops.filter(matching(ops["op_kind"], "^kernel$") & ops["call"].is_not_null().to_numpy())
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
    # A launch that blocks on a full queue waits for the GPU like any other wait.
    active -= np.minimum(queue_full(facts, calls), active)
    profiler = np.minimum(_profiler(facts, calls), active)
    cost = active - profiler
    measured = np.minimum(overhead_inside(facts.trace, calls, schema.OVERHEAD_ONE_TIME), cost)
    once = _first_above_later(calls, kernel, cost)
    first, above = once["row"].to_numpy(), once["above"].to_numpy()
    rule, alone = np.zeros(calls.height, np.int64), np.zeros(calls.height, np.bool_)
    rule[first], alone[first] = above, once["only"].to_numpy()
    in_full = matching(calls["name"], LOADS) | _filling(facts, calls)
    one_time = np.where(in_full, cost, np.maximum(rule, measured))
    why = np.select(
        [one_time == 0, in_full, (measured > 0) & (measured >= rule), alone],
        [-1, 0, 1, 2],
        default=_EVIDENCE.index("above median"),
    )
    loading = pl.Series("loading_ns", measured)
    if not facts.recorded("cupti_overhead"):
        loading = pl.Series("loading_ns", [None], dtype=pl.Int64).new_from_index(0, calls.height)
    return calls.with_columns(
        columns.at(*_names(facts, kernel)).alias("kernel"),
        pl.Series("waiting_ns", calls["self_ns"].to_numpy() - active),
        pl.Series("profiler_ns", profiler),
        pl.Series("cost_ns", cost),
        pl.Series("one_time_ns", one_time),
        pl.Series("repeated_ns", cost - one_time),
        loading,
        columns.named(_EVIDENCE, why).alias("evidence"),
    )


def _names(facts: Facts, kernel: I64) -> tuple[pl.Series, I64]:
    """Return the distinct names of GPU ops, and each code's row among them, -1 for none."""
    names = facts.attributed.gpu_ops["name"].unique().drop_nulls()
    row = np.full(int(names.to_physical().max() or 0) + 2, -1, np.int64)  # type: ignore[arg-type]
    row[names.to_physical().to_numpy()] = np.arange(len(names))
    return names, row[kernel]


def _first_above_later(calls: pl.DataFrame, kernel: I64, cost: I64) -> pl.DataFrame:
    """Return, for the first call of each (process, function, kernel): row, above (ns), only (the only call at all)."""
    order = np.argsort(calls["start_ns"].to_numpy(), kind="stable")
    frame = pl.DataFrame(
        {
            "row": order,
            "process": calls["process"].to_numpy()[order],
            "name": calls["name"].to_physical().to_numpy()[order],
            "kernel": kernel[order],
            "cost": cost[order],
        }
    )
    function = ["process", "name"]
    later = pl.col("cost").slice(1)
    firsts = frame.group_by(*function, "kernel").agg(
        pl.col("row").first(), pl.col("cost").first(), later.median().alias("later"), pl.len().alias("n")
    )
    functions = firsts.group_by(function).agg(
        pl.col("n").sum().alias("calls"), pl.len().alias("kernels"), (pl.col("n") == 1).any().alias("single")
    )
    # A kernel that ran once is compared with the later launches of other kernels.
    others = (
        frame.join(functions.filter(pl.col("single") & (pl.col("calls") > pl.col("kernels"))), on=function, how="semi")
        .join(firsts.select("row"), on="row", how="anti")
        .group_by(function)
        .agg(pl.col("cost").median().alias("later_of_function"))
    )
    # Where each call launched another kernel, a call costs at most what the cheapest of the later ones did.
    cheapest = frame.join(functions.filter(pl.col("calls") == pl.col("kernels")), on=function, how="semi")
    cheapest = cheapest.group_by(function).agg(later.min().alias("cheapest"))
    for more in (functions, others, cheapest):
        firsts = firsts.join(more, on=function, how="left")
    base = pl.coalesce("later", "later_of_function", "cheapest", pl.lit(0.0))
    above = (pl.col("cost") - base).round(0).cast(pl.Int64).clip(lower_bound=0)
    return firsts.select("row", above.alias("above"), (pl.col("calls") == 1).alias("only"))

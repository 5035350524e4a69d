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

from nsysx import schema
from nsysx.facts import Facts
from nsysx.intervals import I64, coverage
from nsysx.queueing import overhead_inside, queue_full

#: API functions that load code or start the driver.
LOADS = r"LoadData|LoadFatBinary|LibraryLoad|ModuleLoad|cuLink|^cuInit$|PrimaryCtxRetain|^cuCtxCreate"
_CREATES = r"Create"


def _profiler(facts: Facts, calls: pl.DataFrame) -> I64:
    """Return the profiler's own time inside each call (ns)."""
    found = np.zeros(calls.height, np.int64)
    thread, start, end = (calls[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    for (of,), part in facts.trace.overhead.drop_nulls("thread").group_by("thread"):
        mine = np.flatnonzero(thread == of)
        own = coverage([(part["start_ns"].to_numpy(), part["end_ns"].to_numpy())])
        found[mine] = own.within(own.labels > 0, start[mine], end[mine])
    return found


def _first_steady(facts: Facts) -> dict[int, int]:
    """Return process -> start of its first steady step; empty when the steps are not known."""
    if facts.steps.source == "capture":
        return {}
    rows = facts.steps.cpu.filter("steady").group_by("process").agg(pl.col("start_ns").min())
    return {int(p): int(s) for p, s in rows.iter_rows()}


def costs(facts: Facts) -> pl.DataFrame:
    """Return the API calls with ``kernel`` (first one launched, null for none) and the split of their self time.

    self_ns = waiting_ns + profiler_ns + one_time_ns + repeated_ns. ``first``: the first call of its group; ``evidence``:
    "measured" (OVERHEAD rows), "above median", "only call", "in full", null without one-time cost. ``loading_ns``: what the
    report measured of it, null where it has no such rows.
    """
    calls = facts.attributed.api_calls
    waits = facts.ledgers.waits.select("call", pl.col("host_ns").alias("_host"))
    kernels = (
        facts.attributed.gpu_ops.filter((pl.col("op_kind").cast(pl.String) == "kernel") & pl.col("call").is_not_null())
        .sort("op")
        .group_by("call")
        .agg(pl.col("name").first().cast(pl.String).alias("kernel"), pl.len().alias("_kernels"))
    )
    calls = calls.join(waits, on="call", how="left", maintain_order="left").join(
        kernels, on="call", how="left", maintain_order="left"
    )
    name = pl.col("name").cast(pl.String)
    calls = calls.with_columns(
        name.alias("api"),
        pl.col("kind").cast(pl.String),
        pl.when(pl.col("_kernels") == 1).then(pl.col("kernel")).alias("kernel"),
    )
    own = calls["self_ns"].to_numpy()
    active = np.minimum(own, calls["_host"].fill_null(np.iinfo(np.int64).max).to_numpy())
    profiler = np.minimum(_profiler(facts, calls), active)
    cost = active - profiler
    full = np.minimum(queue_full(facts.trace, facts.attributed, calls), cost)
    measured = np.minimum(overhead_inside(facts.trace, calls, schema.OVERHEAD_ONE_TIME), cost)
    calls = calls.with_columns(
        pl.Series("cost_ns", cost),
        pl.Series("_full", full),
        pl.Series("_measured", measured),
        pl.Series("profiler_ns", profiler),
        pl.Series("waiting_ns", own - active),
    )
    group = ["process", "api", "kernel"]
    order = pl.col("start_ns").rank("ordinal")
    free = pl.col("cost_ns") - pl.col("_full")
    calls = calls.with_columns(
        (order.over(group) == 1).alias("first"),
        (order.over("process", "api") == 1).alias("_first_of_api"),
        pl.len().over("process", "api").alias("_calls_of_api"),
        free.alias("_free"),
    )
    later = pl.when(~pl.col("first")).then(pl.col("_free"))
    calls = calls.with_columns(
        later.median().over(group).alias("_later"), later.median().over("process", "api").alias("_later_of_api")
    )
    # Where every call of the function launched another kernel, the cheapest call is what a call costs at most.
    cheapest = pl.when(~pl.col("_first_of_api")).then(pl.col("_free")).min().over("process", "api")
    base = pl.coalesce("_later", "_later_of_api", cheapest)
    above = (pl.col("_free") - base).round(0).cast(pl.Int64).clip(lower_bound=0)
    rule = pl.when("first").then(pl.when(pl.col("_calls_of_api") == 1).then(pl.col("_free")).otherwise(above))
    steady = _first_steady(facts)
    begin = pl.col("process").replace_strict(steady, default=None, return_dtype=pl.Int64)
    used = facts.steady_calls.select("process", name.alias("api")).unique().with_columns(pl.lit(True).alias("_used"))
    calls = calls.join(used, on=["process", "api"], how="left", maintain_order="left")
    filling = pl.col("kind").is_in(["alloc", "host_alloc"]) | pl.col("api").str.contains(_CREATES)
    before = filling & pl.col("_used").is_null() & (pl.col("start_ns") < begin).fill_null(False)
    in_full = pl.col("api").str.contains(LOADS) | before
    # OVERHEAD rows lie inside the first call of a kernel: the call shows at least what they say.
    one_time = (
        pl.when(in_full).then(pl.col("cost_ns")).otherwise(pl.max_horizontal(rule.fill_null(0), pl.col("_measured")))
    )
    evidence = (
        pl.when(in_full)
        .then(pl.lit("in full"))
        .when((pl.col("_measured") > 0) & (pl.col("_measured") >= rule.fill_null(0)))
        .then(pl.lit("measured"))
        .when((rule.fill_null(0) > 0) & (pl.col("_calls_of_api") == 1))
        .then(pl.lit("only call"))
        .when(rule.fill_null(0) > 0)
        .then(pl.lit("above median"))
    )
    calls = calls.with_columns(one_time.alias("one_time_ns"), evidence.alias("evidence"))
    return calls.with_columns(
        (pl.col("cost_ns") - pl.col("one_time_ns")).alias("repeated_ns"),
        pl.col("_later").alias("later_median_ns"),
        (pl.col("_measured") if "cupti_overhead" in facts.trace.recorded else pl.lit(None, dtype=pl.Int64)).alias(
            "loading_ns"
        ),
    ).drop(
        "_host",
        "_kernels",
        "_full",
        "_measured",
        "_free",
        "_later",
        "_later_of_api",
        "_calls_of_api",
        "_used",
        "_first_of_api",
    )

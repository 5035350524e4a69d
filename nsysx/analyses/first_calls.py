"""The first-call bill: what was paid once, by kernel, library loading and API function, apart from what every step pays."""

from __future__ import annotations

import polars as pl

from nsysx import first_cost
from nsysx.columns import matching
from nsysx.facts import Facts, NotRecorded
from nsysx.model import Column

KEY = "first_calls"
TITLE = "First-call bill"
COLUMNS = (
    Column("name", "String", "", "kernel, or API function; in parentheses what is neither"),
    Column(
        "what", "String", "", "kernel, library (loading code), api, host (time outside CUDA calls), rest (other rows)"
    ),
    Column("api", "String", "", "API function that was called; null for host and rest"),
    Column("calls", "Int64", "", "calls in the whole capture"),
    Column("first_ns", "Int64", "ns", "first call, without waiting for the GPU and without the profiler's own time"),
    Column("later_median_ns", "Float64", "ns", "median of the later calls, likewise; null when there is none"),
    Column("one_time_ns", "Int64", "ns", "what was paid once; over all rows, the bill"),
    Column(
        "loading_ns", "Int64", "ns", "loading code inside these calls, as the driver noted it; null when not recorded"
    ),
    Column("evidence", "String", "", "measured (loading), above median, only call, in full, or step length for host"),
    Column("module", "String", "", "module of the most expensive such call"),
    Column("phase", "String", "", "phase of the most expensive such call"),
)
#: Rows that are told apart; the others are one row, so that the sum is the whole bill.
_ROWS = 60


def _host(facts: Facts, calls: pl.DataFrame) -> tuple[int, int]:
    """Return (steps, ns): how much longer the warm-up steps were than the steady median, beyond their one-time CUDA calls."""
    steps = facts.steps.cpu.filter(pl.col("process") == facts.steps.process)
    steady = steps.filter("steady")
    if facts.steps.source == "capture" or not steady.height:
        return 0, 0
    length = pl.col("end_ns") - pl.col("start_ns")
    median = int(steady.select(length.median()).item())
    found, count = 0, 0
    paid = calls.filter((pl.col("process") == facts.steps.process) & (pl.col("one_time_ns") > 0))
    for start, end in steps.filter("warmup").select("start_ns", "end_ns").iter_rows():
        inside = int(paid.filter((pl.col("start_ns") >= start) & (pl.col("start_ns") < end))["one_time_ns"].sum())
        more = max(0, end - start - median - inside)
        found, count = found + more, count + (more > 0)
    return count, found


def table(facts: Facts) -> pl.DataFrame:
    """Return the bill, dearest first; ``one_time_ns`` over all rows is all that was paid once (see ``first_cost``)."""
    if not facts.recorded("runtime"):
        raise NotRecorded("no CUDA API call was recorded", "-t cuda")
    calls = first_cost.costs(facts)
    kernel = pl.col("kernel").is_not_null() & pl.Series(matching(calls["kind"], "^launch$"))
    needed = ("name", "kind", "start_ns", "call", "cost_ns", "one_time_ns", "loading_ns", "evidence", "module", "phase")
    rows = (
        calls.select(pl.when(kernel).then(pl.col("kernel")).alias("kernel"), *needed)
        .sort("start_ns", "call")
        .group_by("kernel", "name", "kind", maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            pl.col("cost_ns").first().alias("first_ns"),
            pl.col("cost_ns").slice(1).median().alias("later_median_ns"),
            pl.col("one_time_ns").sum(),
            pl.when(pl.col("loading_ns").is_not_null().any()).then(pl.col("loading_ns").sum()).alias("loading_ns"),
            *(pl.col(c).gather(pl.col("one_time_ns").arg_max()).first() for c in ("evidence", "module", "phase")),
        )
        .filter(pl.col("one_time_ns") > 0)
        .with_columns(pl.col("kernel", "name", "kind", "module", "phase").cast(pl.String))
    )
    library = pl.col("name").str.contains(first_cost.LOADS) | (pl.col("kind") == "load")
    what = (
        pl.when(pl.col("kernel").is_not_null())
        .then(pl.lit("kernel"))
        .when(library)
        .then(pl.lit("library"))
        .otherwise(pl.lit("api"))
    )
    rows = rows.select(
        pl.coalesce("kernel", "name").alias("name"),
        what.alias("what"),
        pl.col("name").alias("api"),
        *(c.name for c in COLUMNS[3:]),
    ).sort("one_time_ns", "name", "api", descending=[True, False, False])
    extra: list[dict[str, object]] = []
    count, ns = _host(facts, calls)
    if ns:
        host = "(longer warm-up steps outside CUDA calls)"
        extra.append({"name": host, "what": "host", "calls": count, "one_time_ns": ns, "evidence": "step length"})
    rest = rows.slice(_ROWS)
    if rest.height:
        sums = {c: int(rest[c].sum()) for c in ("calls", "one_time_ns")}
        extra.append({"name": f"({rest.height} cheaper rows)", "what": "rest", **sums})
    return pl.concat([rows.head(_ROWS), pl.DataFrame(extra, schema=rows.schema)])

"""CUDA API time by function: each call once, its own time apart from nested calls, its waiting apart from its work."""

from __future__ import annotations

import polars as pl

from nsysx.facts import Facts, NotRecorded
from nsysx.model import Column

KEY = "api_calls"
TITLE = "CUDA API calls"
COLUMNS = (
    Column("name", "String", "", "API function"),
    Column("kind", "String", "", "launch, copy, sync, alloc, ..."),
    Column("calls", "Int64", "", "calls"),
    Column("total_ns", "Int64", "ns", "duration on the CPU, summed; wall clock, not CPU time"),
    Column("self_ns", "Int64", "ns", "duration without what nested calls cover"),
    Column("backlog_ns", "Int64", "ns", "waiting for GPU work queued before; null for a call that cannot block"),
    Column("own_op_ns", "Int64", "ns", "its own copy or memset; null likewise"),
    Column("host_ns", "Int64", "ns", "the rest of a blocking call; backlog + own op + host = duration; null likewise"),
    Column("first_ns", "Int64", "ns", "duration of the first call"),
    Column(
        "steady_median_ns", "Float64", "ns", "median duration in the steady steps; null when it is not called there"
    ),
)


def table(facts: Facts) -> pl.DataFrame:
    """Return one row per API function, longest self time first."""
    if not facts.recorded("runtime"):
        raise NotRecorded("no CUDA API call was recorded", "-t cuda")
    ns = pl.col("end_ns") - pl.col("start_ns")
    key = [pl.col("name").cast(pl.String), pl.col("kind").cast(pl.String)]
    split = ("backlog_ns", "own_op_ns", "host_ns")
    calls = facts.calls.join(facts.ledgers.waits, on="call", how="left", maintain_order="left")
    grouped = (
        calls.sort("start_ns")
        .group_by(key, maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            ns.sum().alias("total_ns"),
            pl.col("self_ns").sum(),
            # Where some calls of a function can block and others cannot, the others are all host time.
            *(pl.when(pl.col(c).is_not_null().any()).then(pl.col(c).sum()).alias(c) for c in split[:2]),
            pl.when(pl.col("host_ns").is_not_null().any()).then(pl.coalesce("host_ns", ns).sum()).alias("host_ns"),
            ns.first().alias("first_ns"),
        )
    )
    steady = facts.steady_calls.group_by(key).agg(ns.median().alias("steady_median_ns"))
    return grouped.join(steady, on=["name", "kind"], how="left").sort("self_ns", "name", descending=[True, False])

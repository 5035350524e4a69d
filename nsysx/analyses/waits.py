"""Blocking calls of the steady steps by call site, with what they waited for and the GPU idle that they cause."""

from __future__ import annotations

import polars as pl

from nsysx.facts import Facts, NotRecorded
from nsysx.model import Column

KEY = "waits"
TITLE = "Waits"
COLUMNS = (
    Column("api", "String", "", "API function that blocks"),
    Column("calls", "Int64", "", "calls in the steady steps"),
    Column("total_ns", "Int64", "ns", "duration, summed: backlog + own op + host"),
    Column("backlog_ns", "Int64", "ns", "waiting for GPU work that was queued before the call; null without GPU rows"),
    Column("own_op_ns", "Int64", "ns", "its own copy or memset; null likewise"),
    Column("host_ns", "Int64", "ns", "everything else; null likewise"),
    Column(
        "idle_caused_ns",
        "Int64",
        "ns",
        "device idle time that began while the launching thread was in this call; null likewise",
    ),
    Column("module", "String", "", "innermost module at the call, in parentheses what lies outside modules"),
    Column("phase", "String", "", "phase at the call"),
    Column("file", "String", "", "Python file of the first frame of the user's own code, null when not recorded"),
    Column("line", "Int64", "", "its line, null when not recorded"),
    Column("function", "String", "", "its function, null when not recorded"),
    Column("saving_ns", "Int64", "ns", "what the steps gain if the wait goes, from the replay; null when not computed"),
    Column("moves_to", "String", "", "where the wait moves if it goes, from the replay; null when not computed"),
)


def table(facts: Facts) -> pl.DataFrame:
    """Return one row per call site, longest first."""
    if not facts.recorded("runtime"):
        raise NotRecorded("no CUDA API call was recorded", "-t cuda")
    calls = facts.steady_calls.join(facts.ledgers.waits, on="call", how="inner", maintain_order="left")
    calls = calls.join(facts.lines(), on="call", how="left", maintain_order="left")
    ns = pl.col("end_ns") - pl.col("start_ns")
    # What a call waited for shows only in GPU rows: without any it is not known, and not 0.
    split = [pl.col(c).sum() for c in ("backlog_ns", "own_op_ns", "host_ns", "idle_caused_ns")]
    if not facts.attributed.gpu_ops.height:
        split = [pl.lit(None, dtype=pl.Int64).alias(e.meta.output_name()) for e in split]
    text = [pl.col(c).cast(pl.String) for c in ("module", "phase")]
    grouped = calls.group_by(pl.col("name").cast(pl.String).alias("api"), *text, "file", "line", "function").agg(
        pl.len().cast(pl.Int64).alias("calls"),
        ns.sum().alias("total_ns"),
        *split,
    )
    return grouped.with_columns(
        pl.lit(None, dtype=pl.Int64).alias("saving_ns"), pl.lit(None, dtype=pl.String).alias("moves_to")
    ).sort("total_ns", "api", "module", "phase", "file", "line", descending=[True] + [False] * 5, nulls_last=True)

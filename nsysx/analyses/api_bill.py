"""API time with and without one-time costs: the table behind "70 % of my CPU time is cudaLaunchKernel"."""

from __future__ import annotations

import polars as pl

from nsysx.analyses.helpers import one_time_cost
from nsysx.events.profile import NotRecorded, Profile
from nsysx.model import Column, TableSpec

KEY = "api_bill"
TITLE = "CUDA API time, once and every time"
COLUMNS = (
    Column("name", "String", "", "API function"),
    Column("kind", "String", "", "launch, copy, sync, alloc, ..."),
    Column("calls", "Int64", "", "calls in the whole capture"),
    Column("self_ns", "Int64", "ns", "its own time: waiting + profiler + one_time + repeated"),
    Column("waiting_ns", "Int64", "ns", "waiting for GPU work, its own copy and a full launch queue included"),
    Column("profiler_ns", "Int64", "ns", "the profiler's own time inside the calls"),
    Column(
        "one_time_ns",
        "Int64",
        "ns",
        "one-time cost, see the first-call bill; null without steps to tell it by",
        label="paid once",
    ),
    Column(
        "repeated_ns",
        "Int64",
        "ns",
        "what every further call costs again; null without steps to tell it by",
        label="paid every time",
    ),
    Column("share", "Float64", "", "part of all self time, 0 to 1"),
    Column("repeated_share", "Float64", "", "part of all repeated time, 0 to 1: the table without first calls"),
)
SHOWN = TableSpec(
    covers="whole",
    place=110,
    matters=("NSX103",),
    intro=(
        "All time in CUDA calls, split into waiting for the GPU, the profiler itself, what is paid once, and what is paid "
        "every time. Only the last can be cut from a steady step."
    ),
    first=(
        "name",
        "self_ns",
        "waiting_ns",
        "one_time_ns",
        "repeated_ns",
        "profiler_ns",
        "calls",
        "repeated_share",
        "share",
        "kind",
    ),
    bar="self_ns",
    depth=1,
)


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per API function, longest self time first."""
    if not profile.recorded("runtime"):
        raise NotRecorded("no CUDA API call was recorded", "-t cuda")
    parts = ("calls", "self_ns", "waiting_ns", "profiler_ns", "one_time_ns", "repeated_ns")
    rows = one_time_cost.split(profile).functions.group_by("name", "kind").agg(pl.col(*parts).sum())
    if profile.steps.source == "capture":
        # Only steps tell what comes back every time: in a single forward everything is a first call, or nothing is.
        rows = rows.with_columns(pl.lit(None, dtype=pl.Int64).alias(c) for c in ("one_time_ns", "repeated_ns"))

    def share(column: str) -> pl.Expr:
        whole = rows[column].sum()
        return pl.col(column) / whole if whole else pl.lit(None, dtype=pl.Float64)

    return rows.with_columns(share("self_ns").alias("share"), share("repeated_ns").alias("repeated_share")).sort(
        "self_ns", "name", descending=[True, False]
    )

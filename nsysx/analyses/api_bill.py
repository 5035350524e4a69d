"""API time with and without one-time costs: the table behind "70 % of my CPU time is cudaLaunchKernel"."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx.analyses.helpers import one_time_cost, shared_columns
from nsysx.events.profile import NotRecorded, Profile
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "api_bill"
TITLE = "CUDA API time, once and every time"


class ApiBillRow(TypedDict):
    """One API function, with and without one-time costs."""

    name: Annotated[str, Of("API function")]
    kind: Annotated[str, Of("launch, copy, sync, alloc, ...", codes=True)]
    calls: Annotated[int, Of("calls in the whole capture")]
    self_ns: Annotated[int, Of("its own time: waiting + profiler + one_time + repeated", "ns")]
    waiting_ns: Annotated[int, Of("waiting for GPU work, its own copy and a full launch queue included", "ns")]
    profiler_ns: Annotated[int, Of("the profiler's own time inside the calls", "ns")]
    one_time_ns: Annotated[
        int | None,
        Of("one-time cost, see the first-call bill; null without steps to tell it by", "ns", label="one-time cost"),
    ]
    repeated_ns: Annotated[
        int | None,
        Of("what every further call costs again; null without steps to tell it by", "ns", label="paid every time"),
    ]
    share: Annotated[float, Of("part of all self time, 0 to 1")]
    repeated_share: Annotated[float | None, Of("part of all repeated time, 0 to 1: the table without first calls")]


COLUMNS = columns_of(ApiBillRow)
ROWS: TableOf[ApiBillRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="whole",
    place=110,
    matters=("NSX103",),
    stepless=True,
    intro=(
        "All time in CUDA calls, split into waiting for the GPU, the profiler itself, one-time cost, and what is paid "
        "every time. Only the last can be cut from a steady step."
    ),
    first=names("name self_ns waiting_ns one_time_ns repeated_ns profiler_ns calls repeated_share share kind"),
    bar="self_ns",
    depth=1,
    terms=("name",),
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

    of_self, of_repeated = (shared_columns.share(rows[c]) for c in ("self_ns", "repeated_ns"))
    rows = rows.with_columns(of_self.alias("share"), of_repeated.alias("repeated_share"))
    return rows.sort("self_ns", "name", descending=[True, False])

"""GPU time in the steady steps by kernel family."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx.analyses.helpers import shared_columns
from nsysx.events.profile import NotRecorded, Profile
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of

KEY = "kernel_families"
TITLE = "GPU time by family"


class FamilyRow(TypedDict):
    """One kind of GPU work."""

    family: Annotated[str, Of("kernel family by pattern; memcpy, memset and opaque graphs under their own names")]
    count: Annotated[int, Of("GPU ops in the steady steps", sums="scope")]
    total_ns: Annotated[int, Of("their time, summed over the steady steps", "ns", sums="scope")]
    share: Annotated[float | None, Of("part of all GPU op time, 0 to 1")]


COLUMNS = columns_of(FamilyRow)
ROWS: TableOf[FamilyRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="steady",
    place=80,
    group="kernel-tables",
    intro=("The same GPU work by kind."),
    first=("family", "total_ns", "share", "count"),
    bar="total_ns",
    depth=1,
)


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per family, longest first; the rows add up to all GPU op time of the steady steps."""
    if not profile.ops.height:
        raise NotRecorded("no GPU work was recorded", "-t cuda")
    ns = (pl.col("end_ns") - pl.col("start_ns")).sum()
    grouped = profile.steady_ops.group_by("family").agg(pl.len().cast(pl.Int64).alias("count"), ns.alias("total_ns"))
    grouped = grouped.with_columns(pl.col("family").cast(pl.String))
    return grouped.with_columns(shared_columns.share(grouped["total_ns"]).alias("share")).sort(
        "total_ns", "family", descending=[True, False]
    )

"""Copies by direction and by the memory at both ends."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx.analyses.helpers import shared_columns
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import lookup
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of

KEY = "copies"
TITLE = "Copies"


class CopyRow(TypedDict):
    """One direction and pair of memories."""

    direction: shared_columns.Direction
    src_kind: shared_columns.FromMemory
    dst_kind: shared_columns.ToMemory
    count: Annotated[int, Of("copies")]
    bytes: Annotated[int, Of("bytes copied", "bytes")]
    total_ns: Annotated[int, Of("time on the device, summed", "ns")]
    bandwidth_bytes_per_s: shared_columns.BytesPerS
    api_ns: Annotated[int | None, Of("duration of the API calls; null if graphs launched all of them", "ns")]


COLUMNS = columns_of(CopyRow)
ROWS: TableOf[CopyRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="whole",
    place=140,
    group="waiting",
    intro=(
        "Copies by direction and kind of host memory. Pageable host memory makes a copy slow and the CPU wait; pinned memory "
        "does not."
    ),
    first=("direction", "src_kind", "dst_kind", "count", "bytes", "total_ns", "bandwidth_bytes_per_s"),
    bar="total_ns",
)


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per direction and memory pair, longest first."""
    if not profile.recorded("kernel") and not profile.recorded("memcpy"):
        raise NotRecorded("no GPU work was recorded", "-t cuda")
    wanted = ("name", "bytes", "src_kind", "dst_kind", "call", "start_ns", "end_ns", "call_start_ns", "call_end_ns")
    copies = profile.ops.select(wanted).filter(profile.ops["op_kind"] == "memcpy")
    launched = lookup.at(profile.attributed.api_calls["gpu_ops"], copies["call"].fill_null(-1).to_numpy())
    copies = copies.with_columns(launched.alias("gpu_ops"))
    ns = pl.col("end_ns") - pl.col("start_ns")
    sole = pl.col("gpu_ops") == 1
    memory = [shared_columns.memory(c) for c in ("src_kind", "dst_kind")]
    grouped = copies.group_by(pl.col("name").cast(pl.String).alias("direction"), *memory).agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("bytes").sum(),
        ns.sum().alias("total_ns"),
        pl.when(sole.any()).then((pl.col("call_end_ns") - pl.col("call_start_ns")).filter(sole).sum()).alias("api_ns"),
    )
    rate = pl.when(pl.col("total_ns") > 0).then(pl.col("bytes") / pl.col("total_ns") * 1e9)
    return grouped.with_columns(rate.alias("bandwidth_bytes_per_s")).sort(
        "total_ns", "direction", "src_kind", "dst_kind", descending=[True, False, False, False]
    )

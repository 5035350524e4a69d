"""Copies by direction and by the memory at both ends."""

from __future__ import annotations

import polars as pl

from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import lookup
from nsysx.model import Column, TableSpec
from nsysx.reading import schema

KEY = "copies"
TITLE = "Copies"
COLUMNS = (
    Column("direction", "String", "", "HtoD, DtoH, DtoD, ..."),
    Column("src_kind", "String", "", "memory of the source: pageable, pinned, device, ...", label="from memory"),
    Column("dst_kind", "String", "", "memory of the destination", label="to memory"),
    Column("count", "Int64", "", "copies"),
    Column("bytes", "Int64", "bytes", "bytes copied"),
    Column("total_ns", "Int64", "ns", "time on the device, summed"),
    Column("bandwidth_bytes_per_s", "Float64", "bytes/s", "bytes over time on the device; null without time"),
    Column("api_ns", "Int64", "ns", "duration of the API calls; null if graphs launched all of them"),
)
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
    memory = [
        pl.col(c).replace_strict(schema.MEMORY_KINDS, default="unknown", return_dtype=pl.String).fill_null("unknown")
        for c in ("src_kind", "dst_kind")
    ]
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

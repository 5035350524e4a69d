"""What a kernel's launch and the GPU's counters say about its limit: few blocks, the last wave, FP32, memory bandwidth."""

from __future__ import annotations

import polars as pl

from nsysx.analyses.helpers.kernel_shapes import shapes
from nsysx.catalogue import Limit
from nsysx.events.profile import Profile
from nsysx.model import Column, TableSpec

KEY = "kernel_limits"
TITLE = "How close kernels come to the device's limits"
COLUMNS = (
    Column("name", "String", "", "kernel; anything else is in parentheses"),
    Column("family", "String", "", "kernel family by pattern"),
    Column("limit", "String", "", "DRAM bandwidth (sampled, 85 % or more), or what the launch says: fewer blocks than SMs, "
           "FP32 beside tensor cores, last wave; null for none"),
    Column("share", "Float64", "", "part of the kernel time of the steady steps, 0 to 1"),
    Column("count", "Int64", "", "executions in the steady steps", sums="scope"),
    Column("total_ns", "Int64", "ns", "kernel time, summed over the steady steps; over all rows, the kernel time", sums="scope"),
    Column("median_ns", "Float64", "ns", "median of one execution"),
    Column("grid", "String", "", "blocks in x, y and z; null when not recorded"),
    Column("block", "String", "", "threads per block; null likewise"),
    Column("blocks", "Int64", "", "blocks in the grid"),
    Column("sm_count", "Int64", "", "SMs of the device; null when not recorded", label="SMs"),
    Column("waves", "Float64", "", "blocks over what all SMs hold at once; null if the device's limits are not recorded"),
    Column("tail_share", "Float64", "", "share of the block slots of all waves that the last wave leaves empty; null up to one wave"),
    Column("occupancy", "Float64", "", "theoretical: warps of this kernel that fit on an SM over those that an SM can hold, 0 to 1"),
    Column("occupancy_limit", "String", "", "what limits it: warps, blocks, registers or shared memory"),
    Column("dram", "Float64", "", "share of the memory bandwidth, sampled while it runs alone, 0 to 1; null for fewer than 10 samples"),
    Column("tensor_active", "Float64", "", "share of cycles in which the tensor cores work, likewise"),
    Column("sm_active", "Float64", "", "share of SMs with a warp, likewise"),
    Column("samples", "Int64", "", "samples while it ran alone; null if GPU metrics were not recorded (nsysx run --gpu-metrics)"),
    Column("registers", "Int64", "", "registers per thread"),
    Column("shared_bytes", "Int64", "bytes", "static and dynamic shared memory per block"),
    Column("number_format", "String", "", "format of a product, by its name: fp32, tf32, bf16, fp16, fp8, int8, fp64; else null"),
)  # fmt: skip
SHOWN = TableSpec(
    covers="steady",
    place=85,
    matters=(Limit.GPU,),
    group="kernel-tables",
    intro=(
        "What the launch says and, where they were sampled, the GPU's counters. Fewer blocks than SMs leave SMs without work; a "
        "kernel of few waves waits for its last one. Low occupancy alone is no fault: kernels that keep tensor cores busy often "
        "hold few warps."
    ),
    first=("name", "total_ns", "share", "limit", "count", "median_ns", "blocks", "waves", "tail_share", "occupancy",
           "occupancy_limit", "number_format", "dram", "tensor_active", "sm_active", "samples"),
    bar="total_ns",
    hide=("sm_count", "grid", "block"),
    depth=1,
    rows=40,
)  # fmt: skip
#: Most shapes listed one by one; the others share one row, so that the sum is all kernel time.
_ROWS = 60


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per kernel and launch shape of the steady steps, longest total first. Raises NotRecorded."""
    rows = profile.once(shapes)
    whole = int(rows["total_ns"].sum())
    share = pl.col("total_ns") / whole if whole else pl.lit(None, dtype=pl.Float64)
    rows = rows.with_columns(
        share.alias("share"),
        pl.col("name", "family").cast(pl.String),
        pl.col("grid_text").alias("grid"),
        pl.col("block_text").alias("block"),
    ).select(c.name for c in COLUMNS)
    unlisted = rows.slice(_ROWS)
    if not unlisted.height:
        return rows
    sums = {c: int(unlisted[c].sum()) for c in ("count", "total_ns")}
    other = {"name": f"({unlisted.height} other kernels and shapes)", "share": float(unlisted["share"].sum()), **sums}
    return pl.concat([rows.head(_ROWS), pl.DataFrame([other], schema=rows.schema)])

"""What a kernel's launch and the GPU's counters say about its limit: few blocks, the last wave, FP32, memory bandwidth."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx.analyses.helpers import shared_columns
from nsysx.analyses.helpers.analysis_bounds import MOST_LIMIT_ROWS, NAMED_SHAPES_SHARE
from nsysx.analyses.helpers.kernel_shapes import shapes
from nsysx.catalogue import StepLimit
from nsysx.events.profile import Profile
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of

KEY = "kernel_limits"
TITLE = "How close kernels come to the device's limits"


class KernelLimitRow(TypedDict):
    """One kernel and launch shape."""

    name: Annotated[str, Of("kernel; anything else is in parentheses")]
    family: Annotated[str | None, Of("kernel family by pattern")]
    limit: Annotated[
        str | None,
        Of(
            "DRAM bandwidth (sampled, 85 % or more), or what the launch says: fewer blocks than SMs, "
            "FP32 beside tensor cores, last wave; null for none"
        ),
    ]
    share: Annotated[float, Of("part of the kernel time of the steady steps, 0 to 1")]
    count: Annotated[int, Of("executions in the steady steps", sums="scope")]
    total_ns: Annotated[
        int, Of("kernel time, summed over the steady steps; over all rows, the kernel time", "ns", sums="scope")
    ]
    median_ns: Annotated[float | None, Of("median of one execution", "ns")]
    grid: Annotated[str | None, Of("blocks in x, y and z; null when not recorded")]
    block: Annotated[str | None, Of("threads per block; null likewise")]
    blocks: Annotated[int | None, Of("blocks in the grid")]
    sm_count: Annotated[int | None, Of("SMs of the device; null when not recorded", label="SMs")]
    waves: Annotated[
        float | None, Of("blocks over what all SMs hold at once; null if the device's limits are not recorded")
    ]
    tail_share: Annotated[
        float | None, Of("share of the block slots of all waves that the last wave leaves empty; null up to one wave")
    ]
    occupancy: Annotated[
        float | None, Of("theoretical: warps of this kernel that fit on an SM over those that an SM can hold, 0 to 1")
    ]
    occupancy_limit: Annotated[str | None, Of("what limits it: warps, blocks, registers or shared memory")]
    dram: Annotated[
        float | None,
        Of("share of the memory bandwidth, from samples of all its repetitions, 0 to 1; null for fewer than 10"),
    ]
    tensor_active: Annotated[float | None, Of("share of cycles in which the tensor cores work, likewise")]
    sm_active: Annotated[float | None, Of("share of SMs with a warp, likewise")]
    samples: Annotated[
        int | None,
        Of("intervals of the sampler in which it ran; null if GPU metrics were not recorded (nsysx run --gpu-metrics)"),
    ]
    registers: Annotated[int | None, Of("registers per thread")]
    shared_bytes: Annotated[int | None, Of("static and dynamic shared memory per block", "bytes")]
    number_format: Annotated[
        str | None, Of("format of a product, by its name: fp32, tf32, bf16, fp16, fp8, int8, fp64; else null")
    ]


COLUMNS = columns_of(KernelLimitRow)
ROWS: TableOf[KernelLimitRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="steady",
    place=85,
    matters=(StepLimit.GPU,),
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
#: What the row that holds all the rest is named after, see ``columns.with_rest``.
REST = "other kernels and shapes"


def require(profile: Profile) -> None:
    """Raise NotRecorded where there is no such table."""
    profile.once(shapes)


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per kernel and launch shape of the steady steps, longest total first. Raises NotRecorded."""
    rows = profile.once(shapes)
    rows = rows.with_columns(
        shared_columns.share(rows["total_ns"]).alias("share"),
        pl.col("name", "family").cast(pl.String),
        pl.col("grid_text").alias("grid"),
        pl.col("block_text").alias("block"),
    ).select(c.name for c in COLUMNS)
    listed, unlisted = rows.head(MOST_LIMIT_ROWS), rows.slice(MOST_LIMIT_ROWS)
    each = unlisted.group_by("name", maintain_order=True).agg(
        pl.col("family").first(), pl.col("share", "count", "total_ns").sum()
    )
    # A kernel of many shapes is not hidden in the rest: what tells its shapes apart is null in its row.
    named = each.filter(pl.col("share").fill_null(0.0) >= NAMED_SHAPES_SHARE).sort("total_ns", descending=True)
    left = unlisted.join(named.select("name"), on="name", how="anti", maintain_order="left")
    rows = pl.concat([listed, named, left], how="diagonal").select(rows.columns)
    return shared_columns.with_rest(rows, listed.height + named.height, REST, "share", "count", "total_ns")

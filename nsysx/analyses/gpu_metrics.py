"""What the GPU's own counters say about kernels, families, modules and phases: SMs, tensor cores, memory bandwidth, clock."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx.analyses.helpers import gpu_counters
from nsysx.analyses.helpers.analysis_bounds import MOST_METRIC_ROWS
from nsysx.events import gpu_samples
from nsysx.events.profile import Profile
from nsysx.frames import frame_columns, lookup
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of

KEY = "gpu_metrics"
TITLE = "GPU counters"


class CountersRow(TypedDict):
    """The step, a kernel, family, module or phase."""

    by: Annotated[
        str, Of("step (all that was sampled in the steady steps, idle time too), kernel, family, module or phase")
    ]
    name: Annotated[str | None, Of("its name; null for GPU work outside of all of them")]
    total_ns: Annotated[
        int,
        Of("time of its kernels in the steady steps; for the step, the steady steps themselves", "ns", sums="scope"),
    ]
    samples: Annotated[
        int, Of("samples that lie in one of its kernels, an interval from its ends, with nothing else running")
    ]
    sm_active: Annotated[
        float | None, Of("share of SMs with a warp, mean of the samples, 0 to 1; null for fewer than 10 of them")
    ]
    tensor_active: Annotated[float | None, Of("share of cycles in which the tensor cores work, likewise")]
    dram: Annotated[float | None, Of("share of the memory bandwidth, read and write together, likewise")]
    dram_read: Annotated[float | None, Of("reading alone")]
    dram_write: Annotated[float | None, Of("writing alone")]
    clock_mhz: Annotated[float | None, Of("clock of the GPCs, likewise", "MHz")]


COLUMNS = columns_of(CountersRow)
ROWS: TableOf[CountersRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="shown device",
    place=88,
    group="kernel-tables",
    intro=(
        "Sampled by the device itself, so over every process that uses it. A sample counts for a kernel only if the kernel "
        "runs alone around it: short kernels get a dash."
    ),
    first=("name", "by", "total_ns", "dram", "tensor_active", "sm_active", "clock_mhz", "samples"),
    hide=("dram_read", "dram_write"),
    unknown="outside",
    bar="dram",
    depth=1,
    rows=60,
)


def _step(profile: Profile) -> pl.DataFrame:
    """Return the row of the steady steps as a whole."""
    start, end = profile.window
    device = -1 if profile.device is None else profile.device
    inside = gpu_samples.in_window(profile.trace, profile.process, device, start, end)
    if inside is None:
        return pl.DataFrame(schema=_SCHEMA)
    row = gpu_counters.means(inside.with_columns(by=pl.lit("step")), ["by"])
    return row.with_columns(name=pl.lit(profile.scope.mean), total_ns=pl.lit(end - start, dtype=pl.Int64)).select(
        *_SCHEMA
    )


_SCHEMA = frame_columns.schema(COLUMNS)


def table(profile: Profile) -> pl.DataFrame:
    """Return the row of the step, then those of kernels, families, modules and phases, longest first. Raises NotRecorded."""
    samples = profile.once(gpu_counters.samples)
    ops = profile.steady_ops
    if profile.device is not None:
        ops = lookup.having(ops, device=profile.device)
    ops = ops.filter(ops["op_kind"] == "kernel").select(
        "op", "name", "family", "module", "phase", ns=pl.col("end_ns") - pl.col("start_ns")
    )
    joined = samples.join(ops, on="op", how="inner")
    parts = [_step(profile)]
    for by, column in (("kernel", "name"), ("family", "family"), ("module", "module"), ("phase", "phase")):
        total = ops.group_by(column).agg(pl.col("ns").sum().alias("total_ns"))
        rows = total.join(gpu_counters.means(joined, [column]), on=column, how="left", nulls_equal=True)
        rows = rows.with_columns(
            pl.lit(by).alias("by"), pl.col(column).cast(pl.String).alias("name"), pl.col("samples").fill_null(0)
        )
        rows = rows.sort("total_ns", "name", descending=[True, False], nulls_last=True)
        parts.append(rows.head(MOST_METRIC_ROWS).select(*_SCHEMA))
    return pl.concat(parts)

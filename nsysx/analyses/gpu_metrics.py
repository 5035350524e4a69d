"""What the GPU's own counters say about kernels, families, modules and phases: SMs, tensor cores, memory bandwidth, clock."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx.analyses.helpers import gpu_counters
from nsysx.analyses.helpers.analysis_bounds import MOST_METRIC_ROWS, SAMPLED_METRIC_SHARE
from nsysx.events import gpu_samples
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import frame_columns, lookup
from nsysx.model import TableSpec
from nsysx.recording.default_counters import LINKS
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
    samples: Annotated[int, Of("intervals of the sampler in which it runs, all of its times together")]
    sm_active: Annotated[
        float | None,
        Of(
            "share of SMs with a warp while it runs, 0 to 1; null for fewer than 10 samples, or where they leave it open",
            "share",
            label="SMs active",
        ),
    ]
    sm_issue: Annotated[
        float | None, Of("share of cycles in which the SMs issue an instruction, likewise", "share", label="SM issue")
    ]
    tensor_active: Annotated[
        float | None, Of("share of cycles in which the tensor cores work, likewise", "share", label="tensor cores")
    ]
    dram: Annotated[
        float | None, Of("share of the memory bandwidth, read and write together, likewise", "share", label="DRAM")
    ]
    dram_read: Annotated[float | None, Of("reading alone", "share", label="DRAM read")]
    dram_write: Annotated[float | None, Of("writing alone", "share", label="DRAM written")]
    clock_mhz: Annotated[float | None, Of("clock of the GPCs, likewise", "MHz", label="clock")]
    pcie_rx: Annotated[
        float | None,
        Of(
            "of the step: share of the bandwidth of PCIe to the device, 0 to 1; null where it was not sampled, and for kernels",
            "share",
        ),
    ]
    pcie_tx: Annotated[float | None, Of("from the device, likewise", "share")]
    nvlink_rx: Annotated[float | None, Of("of NVLink to the device, likewise", "share")]
    nvlink_tx: Annotated[float | None, Of("of NVLink from the device, likewise", "share")]


COLUMNS = columns_of(CountersRow)
ROWS: TableOf[CountersRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="shown device",
    place=88,
    group="kernel-tables",
    intro=(
        "Sampled by the device itself, so over every process that uses it; all repetitions of a kernel together. What runs too little, "
        "or always beside other work, gets a dash."
    ),
    first=("name", "by", "total_ns", "dram", "tensor_active", "sm_active", "sm_issue", "clock_mhz", "samples"),
    hide=("dram_read", "dram_write", *(name for name, _ in LINKS)),
    unknown="outside",
    bar="dram",
    depth=1,
    rows=60,
)
_LAUNCH = ("name", "grid", "block")


def _step(profile: Profile) -> pl.DataFrame:
    """Return the row of the steady steps as a whole."""
    start, end = profile.window
    device = -1 if profile.device is None else profile.device
    inside = gpu_samples.in_window(profile.trace, profile.process, device, start, end)
    if inside is None:
        return pl.DataFrame(schema=_SCHEMA)
    means = (pl.col(c).cast(pl.Float64).mean() for c in _SCHEMA if c in inside.columns)
    row = inside.select(*means, pl.len().cast(pl.Int64).alias("samples"), clock_mhz=pl.col("clock_hz").mean() / 1e6)
    step = {"by": pl.lit("step"), "name": pl.lit(profile.scope.mean), "total_ns": pl.lit(end - start, dtype=pl.Int64)}
    return row.with_columns(**step).select(*_SCHEMA)


_SCHEMA = frame_columns.schema(COLUMNS)


def table(profile: Profile) -> pl.DataFrame:
    """Return the row of the step, then those of kernels, families, modules and phases, longest first. Raises NotRecorded."""
    ops = profile.steady_ops
    if profile.device is not None:
        ops = lookup.having(ops, device=profile.device)
    ops = ops.filter(ops["op_kind"] == "kernel").select(
        *_LAUNCH, "family", "module", "phase", ns=pl.col("end_ns") - pl.col("start_ns")
    )
    shares = gpu_counters.of_kernels(profile)
    longest = ops.group_by(_LAUNCH).agg(pl.col("ns").sum().alias("_whole"))
    ops = ops.join(
        longest.join(shares, on=_LAUNCH, how="left", nulls_equal=True), on=_LAUNCH, how="left", nulls_equal=True
    )
    parts = [_step(profile)]
    for by, column in (("kernel", "name"), ("family", "family"), ("module", "module"), ("phase", "phase")):
        rows = ops.group_by(column).agg(
            pl.col("ns").sum().alias("total_ns"),
            (pl.col("samples") * pl.col("ns") / pl.col("_whole")).sum().round().cast(pl.Int64).alias("samples"),
            *(_mean(c) for c in shares.columns if c in _SCHEMA and c not in ("name", "samples")),
        )
        rows = rows.with_columns(*(pl.lit(None, dtype=pl.Float64).alias(link) for link, _ in LINKS))
        rows = rows.with_columns(pl.lit(by).alias("by"), pl.col(column).cast(pl.String).alias("name"))
        rows = rows.sort("total_ns", "name", descending=[True, False], nulls_last=True)
        parts.append(rows.head(MOST_METRIC_ROWS).select(*_SCHEMA))
    counted = pl.concat(parts)
    if not counted["samples"].sum():
        raise NotRecorded("no sample of the counters lies in the steady steps", "nsysx run --gpu-metrics -- CMD")
    return counted


def _mean(counter: str) -> pl.Expr:
    """Return a counter over all kernels of a group, by their time; null where it is not sampled for most of that."""
    ns, sampled = pl.col("ns"), pl.col(counter).is_not_null()
    mean = (pl.col(counter) * ns).sum() / ns.filter(sampled).sum()
    return pl.when(ns.filter(sampled).sum() >= SAMPLED_METRIC_SHARE * ns.sum()).then(mean).alias(counter)

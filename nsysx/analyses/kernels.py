"""Kernel time by kernel name, and where most of each comes from: its operator, module and line."""

from __future__ import annotations

from typing import Annotated, TypedDict

import numpy as np
import polars as pl

from nsysx.analyses.helpers import shared_columns
from nsysx.analyses.helpers.module_names import folded
from nsysx.analyses.helpers.operator_work import operators_of_report
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import lookup
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "kernels"
TITLE = "Kernels"


class KernelRow(TypedDict):
    """One kernel name."""

    name: Annotated[str, Of("kernel with its template arguments")]
    family: Annotated[str, Of("kernel family by pattern")]
    count: Annotated[int, Of("executions")]
    total_ns: Annotated[int, Of("kernel time: end - start, summed", "ns")]
    mean_ns: Annotated[float, Of("mean kernel time", "ns")]
    median_ns: Annotated[float, Of("median kernel time", "ns")]
    min_ns: Annotated[int, Of("shortest", "ns")]
    max_ns: Annotated[int, Of("longest", "ns")]
    std_ns: Annotated[float | None, Of("sample standard deviation, null for a single execution", "ns", label="std dev")]
    share: Annotated[float | None, Of("part of all kernel time, 0 to 1")]
    step_ns: Annotated[float | None, Of("its time in a steady step, mean; null without steps", "ns", label="per step")]
    operator: Annotated[str | None, Of("operator that has most of its time; null where no operators were recorded")]
    module: Annotated[
        str | None, Of("module that has most of its time, * where several alike have; null where none is known")
    ]
    file: Annotated[
        str | None, Of("file of the line that launches most of it; null where no line was noted", label="Python line")
    ]
    line: Annotated[int | None, Of("that line")]
    api_self_ns: Annotated[
        int | None, Of("self time of its launch calls; null if graphs launched all of it", "ns", label="API self time")
    ]
    queue_ns: Annotated[
        int | None,
        Of(
            "time from the end of the launch call to the start, summed; null without calls", "ns", label="queue, summed"
        ),
    ]


COLUMNS = columns_of(KernelRow)
ROWS: TableOf[KernelRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="whole",
    place=70,
    group="kernel-tables",
    intro=(
        "Functions that ran on the GPU, and what has most of the time of each. Queue is how long they waited after their launch, "
        "summed: long queues are normal on a busy GPU."
    ),
    first=names("name step_ns total_ns share module file operator count median_ns queue_ns mean_ns max_ns api_self_ns"),
    bar="total_ns",
    hide=("min_ns", "std_ns"),
)


def require(profile: Profile) -> None:
    """Raise NotRecorded where there is no such table."""
    if not profile.recorded("kernel"):
        raise NotRecorded("no kernel was recorded", "-t cuda")


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per kernel name, longest total first."""
    require(profile)
    kernels = profile.ops.select("name", "family", "call", "queue_ns", ns=pl.col("end_ns") - pl.col("start_ns"))
    kernels = kernels.filter(profile.ops["op_kind"] == "kernel")
    # A graph launch is one call for many kernels: its time belongs to the graph and must not be counted per kernel.
    calls, call = profile.attributed.api_calls, kernels["call"].fill_null(-1).to_numpy()
    sole = call >= 0
    sole[sole] = calls["gpu_ops"].to_numpy()[call[sole]] == 1
    kernels = kernels.with_columns(lookup.at(calls["self_ns"], np.where(sole, call, -1)).alias("self_ns"))
    ns = pl.col("ns")
    # The name determines the family.
    grouped = kernels.group_by("name").agg(
        pl.col("family").first(),
        pl.len().cast(pl.Int64).alias("count"),
        ns.sum().alias("total_ns"),
        ns.mean().alias("mean_ns"),
        ns.median().alias("median_ns"),
        ns.min().alias("min_ns"),
        ns.max().alias("max_ns"),
        ns.std().alias("std_ns"),
        *(
            pl.when(pl.col(c).count() > 0).then(pl.col(c).sum()).alias(f)
            for c, f in (("self_ns", "api_self_ns"), ("queue_ns", "queue_ns"))
        ),
    )
    grouped = grouped.join(_per_step(profile), on="name", how="left").join(_places(profile), on="name", how="left")
    grouped = grouped.with_columns(
        shared_columns.share(grouped["total_ns"]).alias("share"), pl.col("name", "family").cast(pl.String)
    )
    grouped = grouped.sort("total_ns", "name", descending=[True, False])
    return grouped.select(c.name for c in COLUMNS)


def _per_step(profile: Profile) -> pl.DataFrame:
    """Return name, step_ns: the mean time of each kernel in a steady step, 0 for those of other steps; null without steps."""
    kernel = pl.col("op_kind") == "kernel"
    times = pl.when(kernel).then(pl.col("end_ns") - pl.col("start_ns")).otherwise(0).sum()
    sums = profile.steady_ops.group_by("name").agg(times.alias("ns"))
    sums = sums.select("name", pl.Series("step_ns", [profile.scope.per_step(ns) for ns in sums["ns"]], pl.Float64))
    every = profile.ops.select("name").unique(maintain_order=True).join(sums, on="name", how="left")
    per_step = pl.col("step_ns").fill_null(0.0) if profile.scope.steps else pl.lit(None, pl.Float64)
    return every.select("name", per_step.alias("step_ns"))


def _places(profile: Profile) -> pl.DataFrame:
    """Return name, operator, module, file, line: what has most of the time of each kernel, null where nothing is known."""
    ops = profile.ops["op", "name", "module", "start_ns", "end_ns"].filter(profile.ops["op_kind"] == "kernel")
    op, code = ops["op"].to_numpy(), profile.code()
    line_row = np.full(len(op), -1) if code is None else code.places_of(code.op[op])
    lines = pl.DataFrame(schema={"file": pl.String, "line": pl.Int64}) if code is None else code.places
    try:
        operators = profile.once(operators_of_report)
        operator = lookup.at(operators.rows["name"].cast(pl.String), operators.op[op])
    except NotRecorded:
        operator = pl.Series([None] * len(op), dtype=pl.String)
    most = ops.select("name").unique(maintain_order=True)
    # Summed before anything is done with names: a report has many kernels, and few combinations.
    rows = ops.select(
        "name",
        "module",
        operator.alias("operator"),
        place=pl.Series(line_row),
        ns=pl.col("end_ns") - pl.col("start_ns"),
    )
    rows = rows.group_by("name", "module", "operator", "place").agg(pl.col("ns").sum())
    rows = rows.with_columns(pl.col("module").cast(pl.String), pl.col("place").replace(-1, None))
    modules = rows["module"].drop_nulls().unique().to_list()
    rows = rows.with_columns(pl.col("module").replace(modules, [folded(m) for m in modules]).alias("pattern"))
    for column in ("pattern", "operator", "place"):
        grouped = rows.filter(pl.col(column).is_not_null()).group_by("name", column)
        sums = grouped.agg(pl.col("ns").sum(), pl.col("module").n_unique().alias("alike"), pl.col("module").min())
        first = sums.sort("ns", column, descending=[True, False]).unique("name", keep="first", maintain_order=True)
        if column == "pattern":  # a star stands for the numbers of several modules, not of one
            alike = pl.when(pl.col("alike") > 1).then("pattern").otherwise("module").alias("module")
            first = first.select("name", "ns", "alike", alike)
        else:
            first = first.drop("module")
        most = most.join(first.drop("ns", "alike"), on="name", how="left", maintain_order="left")
    row = most["place"].fill_null(-1).to_numpy()
    return most.drop("place").with_columns(lookup.at(lines[c], row).alias(c) for c in ("file", "line"))

"""Kernel time by kernel name."""

from __future__ import annotations

from typing import Annotated, TypedDict

import numpy as np
import polars as pl

from nsysx.analyses.helpers import shared_columns
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import lookup
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "kernels"
NEEDS = "kernel"
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
        "Functions that ran on the GPU. Queue is how long they waited after their launch, summed: long queues are normal on a "
        "busy GPU."
    ),
    first=names("name total_ns share count mean_ns median_ns max_ns queue_ns api_self_ns"),
    bar="total_ns",
    hide=("min_ns", "std_ns"),
)


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per kernel name, longest total first."""
    if not profile.recorded(NEEDS):
        raise NotRecorded("no kernel was recorded", "-t cuda")
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
    grouped = grouped.with_columns(
        shared_columns.share(grouped["total_ns"]).alias("share"), pl.col("name", "family").cast(pl.String)
    )
    return grouped.sort("total_ns", "name", descending=[True, False])

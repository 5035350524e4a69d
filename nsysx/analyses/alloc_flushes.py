"""Each time the caching allocator returned everything to the driver and allocated again (num_alloc_retries)."""

from __future__ import annotations

import polars as pl

from nsysx.analyses.helpers import allocator_retries
from nsysx.events.profile import NotRecorded, Profile
from nsysx.model import Column, TableSpec

KEY = "alloc_flushes"
TITLE = "Flushes of the memory cache"
COLUMNS = (
    Column("start_ns", "Int64", "ns", "start of the first free", label="time"),
    Column("step", "Int64", "", "index of the step; null outside of steps and where steps are not known"),
    Column("steady", "Boolean", "", "whether that is a steady step"),
    Column("duration_ns", "Int64", "ns", "from the first free to the end of the retry"),
    Column("frees", "Int64", "", "segments freed"),
    Column("freed_bytes", "Int64", "bytes", "bytes freed; null when not recorded (nsysx run --memory)"),
    Column("retry_bytes", "Int64", "bytes", "bytes then allocated; null likewise"),
    Column("idle_caused_ns", "Int64", "ns", "device idle time that began in these calls", label="GPU idle caused"),
    Column("module", "String", "", "module that asked for memory"),
    Column("phase", "String", "", "phase in which it asked"),
)
SHOWN = TableSpec(
    covers="whole",
    place=170,
    group="waiting",
    intro=(
        "Each time PyTorch returned its cached memory to the driver because it found no room: frees, then a new allocation, "
        "and the GPU runs dry."
    ),
    first=(
        "start_ns",
        "step",
        "duration_ns",
        "idle_caused_ns",
        "frees",
        "freed_bytes",
        "retry_bytes",
        "module",
        "phase",
        "steady",
    ),
    depth=1,
)


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per flush of the whole capture, in order of time; no row when there was none."""
    if not profile.recorded("runtime"):
        raise NotRecorded("no CUDA API call was recorded", "-t cuda")
    rows = allocator_retries.flushes(profile).sort("start_ns")
    steps = profile.steps.cpu
    if profile.steps.source == "capture":
        steps = steps.head(0)
    bounds = steps.select(
        "process", "index", "steady", pl.col("start_ns").alias("_a"), pl.col("end_ns").alias("_b")
    ).sort("_a")
    rows = rows.join_asof(bounds, left_on="start_ns", right_on="_a", by="process", check_sortedness=False)
    inside = pl.col("start_ns") < pl.col("_b")
    return rows.with_columns(
        pl.when(inside).then(pl.col("index")).alias("step"),
        pl.when(inside).then(pl.col("steady")).alias("steady"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"),
    )

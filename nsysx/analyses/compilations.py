"""Each compilation of torch.compile, and why a function was compiled again."""

from __future__ import annotations

import polars as pl

from nsysx.analyses.helpers import pauses
from nsysx.events.profile import Profile
from nsysx.model import Column, TableSpec

KEY = "compilations"
TITLE = "Compilations of torch.compile"
COLUMNS = (
    Column("start_ns", "Int64", "ns", "start", label="time"),
    Column("step", "Int64", "", "index of the step; null outside of steps and where steps are not known"),
    Column("steady", "Boolean", "", "whether that is a steady step"),
    Column("duration_ns", "Int64", "ns", "time that the thread spent compiling"),
    Column("gpu_idle_ns", "Int64", "ns", "part of it in which the device had no work; null if it never has any"),
    Column("function", "String", "", "function that was compiled"),
    Column("place", "String", "", "file and first line of the function"),
    Column("id", "String", "", "torch's number: 3/1 is the second compilation of function 3"),
    Column("backward", "Boolean", "", "whether its backward was compiled"),
    Column("reason", "String", "", "the guard that failed, in torch's words; null for the first time"),
    Column("failed", "String", "", "type of the error that ended it; null without one"),
)
SHOWN = TableSpec(
    covers="whole",
    place=194,
    group="where",
    intro=(
        "torch.compile compiles a function at its first call, and again when a guard fails: an input is of a kind that it has "
        "not seen. The reason is in torch's words."
    ),
    first=("start_ns", "step", "duration_ns", "gpu_idle_ns", "function", "reason", "place", "id", "backward", "failed"),
    hide=("steady",),
    bar="duration_ns",
    depth=1,
    rows=40,
    keep="duration_ns",
)


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per compilation of the whole capture, in order of time. Raises NotRecorded."""
    file = pl.col("file").str.split("/").list.last()
    line = pl.format(":{}", pl.col("line"))
    rows = pauses.placed(profile, "compile")
    return rows.with_columns(pl.concat_str(file, line, ignore_nulls=True).replace("", None).alias("place"))

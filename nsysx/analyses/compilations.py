"""Each compilation of torch.compile, and why a function was compiled again."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx.analyses.helpers import step_pauses
from nsysx.events.profile import Profile
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of

KEY = "compilations"
TITLE = "Compilations of torch.compile"


class CompilationRow(TypedDict):
    """One compilation."""

    start_ns: Annotated[int, Of("start", "ns", label="time")]
    step: Annotated[int | None, Of("index of the step; null outside of steps and where steps are not known")]
    steady: Annotated[bool, Of("whether that is a steady step")]
    duration_ns: Annotated[int, Of("time that the thread spent compiling", "ns")]
    gpu_idle_ns: Annotated[int | None, Of("part of it in which the device had no work; null if it never has any", "ns")]
    function: Annotated[str, Of("function that was compiled")]
    place: Annotated[str | None, Of("file and first line of the function")]
    id: Annotated[str, Of("torch's number: 3/1 is the second compilation of function 3")]
    backward: Annotated[bool | None, Of("whether its backward was compiled")]
    reason: Annotated[str | None, Of("the guard that failed, in torch's words; null for the first time")]
    failed: Annotated[str | None, Of("type of the error that ended it; null without one")]


COLUMNS = columns_of(CompilationRow)
ROWS: TableOf[CompilationRow] = TableOf(KEY)
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
    rows = step_pauses.placed(profile, "compile")
    return rows.with_columns(pl.concat_str(file, line, ignore_nulls=True).replace("", None).alias("place"))

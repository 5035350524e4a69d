"""What the data loader does: the lines of its workers, of its pin memory thread, and of loading in the main thread."""

from __future__ import annotations

from typing import Annotated, TypedDict

import numpy as np
import polars as pl

from nsysx.events import sampled_stacks
from nsysx.events.profile import NotRecorded, Profile
from nsysx.events.sampled_lines import nearest_for
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of

KEY = "loader_lines"
TITLE = "Data loader by line"
#: Which part of the loader a stack is in, by the file of PyTorch's that stands in it; the first that does.
_PARTS = (
    ("collate", r"torch/utils/data/_utils/collate\.py$"),
    ("load", r"torch/utils/data/_utils/fetch\.py$"),
    ("pin", r"torch/utils/data/_utils/pin_memory\.py$"),
    ("wait", r"torch/utils/data/_utils/worker\.py$"),
)
_PLACE = ("file", "line", "function", "framework")


class LoaderLineRow(TypedDict):
    """One line, library function and part of the loader."""

    file: Annotated[
        str, Of("file of the innermost frame of the user's own code, else of the innermost frame", label="Python line")
    ]
    line: Annotated[int, Of("its line")]
    function: Annotated[str, Of("its function")]
    framework: Annotated[
        str | None,
        Of("library function that ran below it, as file:function; null in the line's own code", label="inside"),
    ]
    part: Annotated[
        str, Of("load (the data set's own work), collate (samples to a batch), pin, or wait (for something to do)")
    ]
    time_ns: Annotated[
        int,
        Of(
            "time of all its threads and processes together, of all ranks in the report, in the steady steps; from samples",
            "ns",
            sums="scope",
            label="time of all workers",
        ),
    ]
    share: Annotated[float | None, Of("share of the loader's time that is not waiting; null for waiting")]
    samples: Annotated[int, Of("samples that this rests on, in all steps together")]
    threads: Annotated[int, Of("threads that were seen at it")]


COLUMNS = columns_of(LoaderLineRow)
ROWS: TableOf[LoaderLineRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="shown device",
    place=191,
    group="where",
    intro=(
        "Where batches are made. The time of several workers adds up, so it can be more than the step; a step waits for data only "
        "where the data loader's table says so."
    ),
    first=("file", "framework", "part", "share", "time_ns", "samples"),
    bar="time_ns",
    hide=("threads",),
    depth=1,
)


def _parts(frames: pl.DataFrame) -> pl.DataFrame:
    """Return stack, part of the stacks that are the loader's."""
    path = frames["file"].cast(pl.String).str.replace_all("\\", "/", literal=True)
    by_part = [
        pl.DataFrame({"stack": frames["stack"].filter(path.str.contains(pattern).fill_null(False))}).with_columns(
            part=pl.lit(part)
        )
        for part, pattern in _PARTS
    ]
    return pl.concat(by_part).unique("stack", keep="first", maintain_order=True)


def _in_steps(profile: Profile) -> pl.DataFrame:
    """Return the samples of all processes in the steady steps on the CPU, with weight (ns)."""
    windows = profile.steps.cpu_windows.filter(pl.col("process") == profile.process)
    start, end = windows["start_ns", "end_ns"].row(0) if windows.height else (0, 0)
    weighed = [profile.trace.samples.clear().with_columns(weight=pl.lit(0, pl.Int64))]
    for _, part in profile.trace.samples.group_by("thread", maintain_order=True):
        time = part["time_ns"].to_numpy()
        period = max(int(np.median(np.diff(time))), 1) if len(time) > 1 else 1
        weighed.append(part.with_columns(pl.Series("weight", nearest_for(time, period), dtype=pl.Int64)))
    return pl.concat(weighed).filter((pl.col("time_ns") >= start) & (pl.col("time_ns") < end))


def table(profile: Profile) -> pl.DataFrame:
    """Return a row per line, library function and part, longest first."""
    if not profile.recorded("python_sample"):
        raise NotRecorded("Python's stacks were not sampled", "nsys profile --python-sampling=true")
    samples = _in_steps(profile).join(_parts(profile.trace.stacks), on="stack", how="inner", maintain_order="left")
    if not samples.height:
        raise NotRecorded(
            "no sample of Python's stack is in a DataLoader; workers that are forked are not seen by nsys"
        )
    places = sampled_stacks.places(profile.trace.stacks)
    line = pl.Series("place", places.place[samples["stack"].to_numpy()], dtype=pl.UInt32)
    rows = samples.with_columns(line).join(
        places.places.with_row_index("place"), on="place", how="left", maintain_order="left"
    )
    rows = rows.group_by(*_PLACE, "part").agg(
        pl.col("weight").sum().alias("time_ns"),
        pl.len().cast(pl.Int64).alias("samples"),
        pl.col("thread").n_unique().cast(pl.Int64).alias("threads"),
    )
    works = pl.col("part") != "wait"
    share = pl.when(works).then(pl.col("time_ns") / pl.col("time_ns").filter(works).sum())
    rows = rows.with_columns(share=share).sort(
        "time_ns", *_PLACE, "part", descending=[True] + [False] * 5, nulls_last=True
    )
    return rows.select(c.name for c in COLUMNS)

"""Device and pinned memory over time, as the driver handed it out, in as many points as a picture needs."""

from __future__ import annotations

from typing import Annotated, TypedDict

import numpy as np
import polars as pl

from nsysx.analyses.helpers import shared_columns
from nsysx.analyses.helpers.analysis_bounds import MEMORY_LINE_POINTS
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import frame_columns
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "memory"
TITLE = "Memory over time"


class MemoryRow(TypedDict):
    """One point of one kind of memory."""

    process: Annotated[int, Of("process key")]
    device: Annotated[int, Of("CUDA ordinal inside the process")]
    kind: Annotated[str, Of("device, pinned, managed, ...")]
    time_ns: Annotated[int, Of("start of the stretch", "ns")]
    bytes: Annotated[int, Of("held at the end of the stretch, counted from the start of the capture", "bytes")]
    peak_bytes: Annotated[int, Of("most that was held in the stretch", "bytes")]
    allocations: Annotated[int, Of("allocations in the stretch")]
    frees: Annotated[int, Of("frees in the stretch")]
    allocated_bytes: Annotated[int, Of("bytes allocated in the stretch", "bytes")]
    freed_bytes: Annotated[int, Of("bytes freed in the stretch", "bytes")]


COLUMNS = columns_of(MemoryRow)
ROWS: TableOf[MemoryRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="whole",
    place=180,
    group="waiting",
    intro=("Memory handed out by the driver since the capture began, PyTorch's cache included."),
    first=names("time_ns kind bytes peak_bytes allocations frees allocated_bytes freed_bytes device"),
    hide=("process",),
    depth=2,
)


def table(profile: Profile) -> pl.DataFrame:
    """Return stretches in order of time per process, device and kind; bytes = the bytes before + allocated - freed.

    Only changes during the capture are known: memory allocated before it is in no row.
    """
    if not profile.recorded("memory_usage"):
        raise NotRecorded("memory events were not recorded", "nsysx run --memory -- CMD")
    rows = profile.trace.memory_usage.drop_nulls("bytes").sort("time_ns", "address", "freed")
    size = pl.col("bytes").abs()
    freed = pl.col("freed") != 0
    kind = shared_columns.memory("memory_kind")
    rows = rows.with_columns(kind.alias("kind"), size.alias("_size"), freed.alias("_freed"))
    rows = rows.with_columns(pl.when("_freed").then(-pl.col("_size")).otherwise(pl.col("_size")).alias("_change"))
    parts = []
    for (process, device, memory_kind), part in rows.group_by("process", "device", "kind", maintain_order=True):
        time = part["time_ns"].to_numpy()
        first, last = int(time[0]), int(time[-1])
        width = max(1, -(-(last - first + 1) // MEMORY_LINE_POINTS))
        stretch = (time - first) // width
        level = np.cumsum(part["_change"].to_numpy())
        part = part.with_columns(pl.Series("_stretch", stretch), pl.Series("_level", level))
        parts.append(
            part.group_by("_stretch", maintain_order=True)
            .agg(
                pl.col("_level").last().alias("bytes"),
                pl.col("_level").max().alias("peak_bytes"),
                (~pl.col("_freed")).sum().cast(pl.Int64).alias("allocations"),
                pl.col("_freed").sum().cast(pl.Int64).alias("frees"),
                pl.col("_size").filter(~pl.col("_freed")).sum().alias("allocated_bytes"),
                pl.col("_size").filter("_freed").sum().alias("freed_bytes"),
            )
            .with_columns(
                pl.lit(process, dtype=pl.Int64).alias("process"),
                pl.lit(device, dtype=pl.Int64).alias("device"),
                pl.lit(memory_kind).alias("kind"),
                (pl.col("_stretch") * width + first).alias("time_ns"),
            )
        )
    empty = pl.DataFrame(schema=frame_columns.schema(COLUMNS))
    return pl.concat([empty, *(p.select(empty.columns) for p in parts)])

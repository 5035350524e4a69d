"""Each window between two CUDA events as the program reads it, and what was in it."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx.analyses import events
from nsysx.analyses.helpers import event_pairs
from nsysx.analyses.helpers.analysis_bounds import MOST_EVENT_WINDOWS
from nsysx.events.profile import Profile
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "event_windows"
TITLE = "CUDA event windows, one by one"


class WindowRow(TypedDict):
    """One window between two CUDA events."""

    site: Annotated[int, Of("row of the events table that it belongs to, from 0")]
    start_ns: Annotated[int, Of("when the device reached the first record", "ns", label="time")]
    reading_ns: Annotated[int, Of("what elapsed_time says; the sum of the six parts below", "ns")]
    low_ns: Annotated[int, Of("lower bound of the reading, whatever the host's delay", "ns")]
    high_ns: Annotated[int | None, Of("upper bound of the reading; null if nothing bounds it", "ns")]
    kernel_ns: event_pairs.KernelNs
    copy_ns: event_pairs.CopyNs
    memset_ns: event_pairs.MemsetNs
    launch_wait_ns: event_pairs.LaunchWaitNs
    other_streams_ns: event_pairs.OtherStreamsNs
    idle_ns: event_pairs.IdleNs
    kernels: Annotated[int, Of("kernels of the stream that started inside")]
    start_event: Annotated[int, Of("CUDA event id")]
    end_event: Annotated[int, Of("CUDA event id")]


def parts_of(row: WindowRow | events.EventRow) -> dict[str, int]:
    """Return what is in a window, or in all of a place, by part (ns), see ``event_pairs.PARTS``."""
    return {
        "kernel_ns": row["kernel_ns"],
        "copy_ns": row["copy_ns"],
        "memset_ns": row["memset_ns"],
        "launch_wait_ns": row["launch_wait_ns"],
        "other_streams_ns": row["other_streams_ns"],
        "idle_ns": row["idle_ns"],
    }


COLUMNS = columns_of(WindowRow)
ROWS: TableOf[WindowRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="whole",
    place=230,
    matters=("NSX107", "NSX115"),
    intro=("The same windows one by one, in order of time."),
    first=names("start_ns site reading_ns kernel_ns copy_ns memset_ns launch_wait_ns other_streams_ns idle_ns"),
    depth=2,
)


def table(profile: Profile) -> pl.DataFrame:
    """Return the first 500 windows in order of time."""
    pairs, _ = events.grouped(profile)
    return pairs.sort("start_ns", "end_ns").head(MOST_EVENT_WINDOWS).select(c.name for c in COLUMNS)

"""Each window between two CUDA events as the program reads it, and what was in it."""

from __future__ import annotations

import polars as pl

from nsysx.analyses import events
from nsysx.analyses.helpers import event_pairs
from nsysx.events.profile import Profile
from nsysx.model import Column, TableSpec

KEY = "event_windows"
TITLE = "CUDA event windows, one by one"
#: Most windows that are listed; ``events`` holds the sums of all.
_ROWS = 500
COLUMNS = (
    Column("site", "Int64", "", "row of the events table that it belongs to, from 0"),
    Column("start_ns", "Int64", "ns", "when the device reached the first record", label="time"),
    Column("reading_ns", "Int64", "ns", "what elapsed_time says; the sum of the six parts below"),
    Column("low_ns", "Int64", "ns", "lower bound of the reading, whatever the host's delay"),
    Column("high_ns", "Int64", "ns", "upper bound of the reading; null if nothing bounds it"),
    *(c for c in events.COLUMNS if c.name in event_pairs.PARTS),
    Column("kernels", "Int64", "", "kernels of the stream that started inside"),
    Column("start_event", "Int64", "", "CUDA event id"),
    Column("end_event", "Int64", "", "CUDA event id"),
)
SHOWN = TableSpec(
    covers="whole",
    place=230,
    matters=("NSX107", "NSX115"),
    intro=("The same windows one by one, in order of time."),
    first=(
        "start_ns",
        "site",
        "reading_ns",
        "kernel_ns",
        "copy_ns",
        "memset_ns",
        "launch_wait_ns",
        "other_streams_ns",
        "idle_ns",
    ),
    depth=2,
)


def table(profile: Profile) -> pl.DataFrame:
    """Return the first 500 windows in order of time."""
    pairs, _ = events.grouped(profile)
    return pairs.sort("start_ns", "end_ns").head(_ROWS).select(c.name for c in COLUMNS)

"""Each full or long garbage collection of Python, with how long the GPU was idle during it."""

from __future__ import annotations

import polars as pl

from nsysx.analyses.helpers import pauses
from nsysx.events.profile import Profile
from nsysx.model import Column, TableSpec

KEY = "garbage_collection"
TITLE = "Garbage collections"
COLUMNS = (
    Column("start_ns", "Int64", "ns", "start", label="time"),
    Column("step", "Int64", "", "index of the step; null outside of steps and where steps are not known"),
    Column("steady", "Boolean", "", "whether that is a steady step"),
    Column("duration_ns", "Int64", "ns", "time in which no thread of the process runs Python"),
    Column("gpu_idle_ns", "Int64", "ns", "part of it in which the device had no work; null if it never has any"),
    Column("generation", "Int64", "", "2 for a collection of everything, 0 and 1 for the younger objects"),
    Column("collected", "Int64", "", "objects that were garbage"),
    Column("phase", "String", "", "phase of the step in which it began"),
    Column(
        "module",
        "String",
        "",
        "module in which it began; null outside, and between two modules of a step without marks",
    ),
)
SHOWN = TableSpec(
    covers="whole",
    place=192,
    matters=("NSX109",),
    group="where",
    intro=(
        "Python's collector stops every Python thread while it looks for garbage. Listed: full collections, and others of "
        "100 us or longer."
    ),
    first=("start_ns", "step", "duration_ns", "gpu_idle_ns", "generation", "collected", "phase", "module", "steady"),
    bar="duration_ns",
    depth=1,
    rows=40,
    keep="duration_ns",
)


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per collection of the whole capture, in order of time. Raises NotRecorded."""
    return pauses.placed(profile, "gc")

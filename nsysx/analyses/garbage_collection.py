"""Each full or long garbage collection of Python, with how long the GPU was idle during it."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx.analyses.helpers import step_pauses
from nsysx.events.profile import Profile
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of

KEY = "garbage_collection"
TITLE = "Garbage collections"


class CollectionRow(TypedDict):
    """One garbage collection."""

    start_ns: Annotated[int, Of("start", "ns", label="time")]
    step: Annotated[int | None, Of("index of the step; null outside of steps and where steps are not known")]
    steady: Annotated[bool | None, Of("whether that is a steady step")]
    duration_ns: Annotated[int, Of("time in which no thread of the process runs Python", "ns")]
    gpu_idle_ns: Annotated[int | None, Of("part of it in which the device had no work; null if it never has any", "ns")]
    generation: Annotated[int | None, Of("2 for a collection of everything, 0 and 1 for the younger objects")]
    collected: Annotated[int | None, Of("objects that were garbage")]
    phase: Annotated[str | None, Of("phase of the step in which it began")]
    module: Annotated[
        str | None, Of("module in which it began; null outside, and between two modules of a step without marks")
    ]


COLUMNS = columns_of(CollectionRow)
ROWS: TableOf[CollectionRow] = TableOf(KEY)
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
    return step_pauses.placed(profile, "gc")

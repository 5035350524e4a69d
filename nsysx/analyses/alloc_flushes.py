"""Each time the caching allocator returned everything to the driver and allocated again (num_alloc_retries)."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx.analyses.helpers import allocator_retries, step_pauses
from nsysx.events.profile import NotRecorded, Profile
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "alloc_flushes"
TITLE = "Flushes of the memory cache"


class FlushRow(TypedDict):
    """One flush of the caching allocator."""

    start_ns: Annotated[int, Of("start of the first free", "ns", label="time")]
    step: Annotated[int | None, Of("index of the step; null outside of steps and where steps are not known")]
    steady: Annotated[bool | None, Of("whether that is a steady step")]
    duration_ns: Annotated[int, Of("from the first free to the end of the retry", "ns")]
    frees: Annotated[int, Of("segments freed")]
    freed_bytes: Annotated[int | None, Of("bytes freed; null when not recorded (nsysx run --memory)", "bytes")]
    retry_bytes: Annotated[int | None, Of("bytes then allocated; null likewise", "bytes")]
    idle_caused_ns: Annotated[int, Of("device idle time that began in these calls", "ns", label="GPU idle caused")]
    module: Annotated[str | None, Of("module that asked for memory")]
    phase: Annotated[str | None, Of("phase in which it asked")]


COLUMNS = columns_of(FlushRow)
ROWS: TableOf[FlushRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="whole",
    place=170,
    group="waiting",
    intro=(
        "Each time PyTorch returned its cached memory to the driver because it found no room: frees, then a new allocation, "
        "and the GPU runs dry."
    ),
    first=names("start_ns step duration_ns idle_caused_ns frees freed_bytes retry_bytes module phase steady"),
    depth=1,
)


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per flush of the whole capture, in order of time; no row when there was none."""
    if not profile.recorded("runtime"):
        raise NotRecorded("no CUDA API call was recorded", "-t cuda")
    return step_pauses.in_steps(profile, allocator_retries.flushes(profile).sort("start_ns"))

"""Python's lock: idle time of the GPU while the launching thread waited for the lock, and who held it."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx.analyses.helpers import shared_columns
from nsysx.events.gil import gil_idle, lines_of
from nsysx.events.host_pieces import CAUSES
from nsysx.events.profile import NotRecorded, Profile
from nsysx.events.sampled_lines import known_lines
from nsysx.frames import frame_columns
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of

KEY = "gil_waits"
TITLE = "Waits for Python's lock"
#: Holder of idle time in which the thread did not wait for the lock, and of waits whose holder was not recorded.
FREE, UNKNOWN = "(did not wait for it)", "(not noted)"


class GilRow(TypedDict):
    """One holder of the lock and the line that it ran."""

    holder: Annotated[
        str, Of(f"thread that held the lock, by name or number; {FREE} for all other idle time", label="held by")
    ]
    file: Annotated[
        str | None,
        Of(
            "file of what the holder ran: its innermost frame in the user's code; null when not sampled",
            label="Python line",
        ),
    ]
    line: Annotated[int, Of("its line")]
    function: Annotated[str, Of("its function")]
    framework: Annotated[str, Of("framework function that ran below it, as file:function", label="inside")]
    idle_ns: shared_columns.HostIdleNs
    loader_idle_ns: shared_columns.LoaderIdleNs


COLUMNS = columns_of(GilRow)
ROWS: TableOf[GilRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="shown device",
    place=46,
    group="where",
    intro="Only one thread at a time runs Python. Who held the lock while the launching thread waited for it and the GPU idled.",
    first=("holder", "file", "framework", "idle_ns", "loader_idle_ns"),
    bar="idle_ns",
    depth=1,
)
_PLACE = ("file", "line", "function", "framework")


def table(profile: Profile) -> pl.DataFrame:
    """Return a row per holder and line that it ran, longest idle time first."""
    if profile.ranges.gil is None:
        raise NotRecorded("who held Python's lock (GIL) was not recorded", "nsysx run --gil")
    parts = profile.once(gil_idle)
    middle = ((parts["start_ns"] + parts["end_ns"]) // 2).to_numpy()
    holder_line = pl.Series(
        "place", lines_of(profile, parts["holder"].fill_null(-1).to_numpy(), middle), dtype=pl.Int64
    )
    lines = known_lines(profile)
    places = lines.places.places if lines else pl.DataFrame(schema=frame_columns.schema(COLUMNS, *_PLACE))
    names = profile.trace.thread_name.select(pl.col("thread").alias("holder"), pl.col("name").cast(pl.String))
    rows = parts.with_columns(holder_line).join(names.unique("holder"), on="holder", how="left", maintain_order="left")
    rows = rows.join(
        places.with_row_index("place").with_columns(pl.col("place").cast(pl.Int64)),
        on="place",
        how="left",
        maintain_order="left",
    )
    number = pl.format("thread {}", pl.col("holder") % (1 << 24))
    who = (
        pl.when(~pl.col("waits"))
        .then(pl.lit(FREE))
        .when(pl.col("holder").is_null())
        .then(pl.lit(UNKNOWN))
        .otherwise(pl.coalesce("name", number))
    )
    ns = pl.col("end_ns") - pl.col("start_ns")
    rows = (
        rows.with_columns(holder=who)
        .group_by("holder", *_PLACE)
        .agg(ns.filter(pl.col("cause") == cause).sum().alias(column) for column, cause in CAUSES.items())
    )
    order = ["idle_ns", "loader_idle_ns", "holder", *_PLACE]
    rows = rows.sort(*order, descending=[True, True] + [False] * 5, nulls_last=True)
    return rows.select(c.name for c in COLUMNS)

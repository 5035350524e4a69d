"""Operating system calls during the GPU's idle time: how much of the host code was waiting, and for what."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx.analyses.helpers import shared_columns
from nsysx.events.host_pieces import CAUSES
from nsysx.events.os_calls import KINDS, os_idle
from nsysx.events.profile import NotRecorded, Profile
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of

KEY = "os_waits"
TITLE = "Operating system calls while the GPU idles"
#: The name for time in no such call.
NO_CALL = "(in no call)"


class OsWaitRow(TypedDict):
    """One function of the operating system, module and phase."""

    name: Annotated[str, Of(f"function of the operating system's library; {NO_CALL} for all other idle time")]
    kind: Annotated[
        str | None, Of(f"what it waits for: {', '.join(dict.fromkeys(KINDS.values()))}, other; null outside of calls")
    ]
    module: Annotated[str, Of("module whose work came next, in parentheses what lies outside modules", label="before")]
    phase: Annotated[str | None, Of("phase of the work that came next")]
    calls: Annotated[int, Of("calls during idle time in the steady steps; 0 outside of calls", sums="scope")]
    idle_ns: shared_columns.HostIdleNs
    loader_idle_ns: shared_columns.LoaderIdleNs


COLUMNS = columns_of(OsWaitRow)
ROWS: TableOf[OsWaitRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="shown device",
    place=47,
    group="where",
    intro=(
        "Host code either runs or waits: for a lock, a file, another process. Which call the launching thread was in while the GPU "
        "idled."
    ),
    first=("name", "kind", "module", "idle_ns", "calls", "loader_idle_ns", "phase"),
    bar="idle_ns",
    depth=1,
)


def table(profile: Profile) -> pl.DataFrame:
    """Return a row per function, module and phase, longest idle time first."""
    if not profile.recorded("osrt"):
        raise NotRecorded("calls of the operating system were not recorded", "nsysx run --osrt")
    if not profile.recorded("runtime"):
        raise NotRecorded("no CUDA API call was recorded", "-t cuda")
    parts = profile.once(os_idle).with_columns(pl.col("name", "kind", "module", "phase").cast(pl.String))
    ns = pl.col("end_ns") - pl.col("start_ns")
    rows = parts.group_by("name", "kind", "module", "phase").agg(
        pl.col("span").drop_nulls().n_unique().cast(pl.Int64).alias("calls"),
        *(ns.filter(pl.col("cause") == cause).sum().alias(column) for column, cause in CAUSES.items()),
    )
    order = ["idle_ns", "loader_idle_ns", "name", "module", "phase"]
    rows = rows.sort(*order, descending=[True, True, False, False, False], nulls_last=True)
    return rows.with_columns(pl.col("name").fill_null(NO_CALL)).select(c.name for c in COLUMNS)

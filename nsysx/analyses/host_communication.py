"""Communication that the host itself makes (MPI, UCX, gloo): how often, how long, and how long the GPU idles for it."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx.catalogue import Cause
from nsysx.events import host_messages
from nsysx.events.host_pieces import host_pieces, split
from nsysx.events.profile import NotRecorded, Profile
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "host_communication"
TITLE = "Communication on the host"


class HostCommunicationRow(TypedDict):
    """One function of a library."""

    library: Annotated[str, Of("MPI, UCX, or gloo, of which only its operations are known")]
    name: Annotated[str, Of("its function; of gloo the operation")]
    holds: Annotated[
        bool | None,
        Of(
            "whether its thread does nothing else meanwhile; messages of UCX are on their way meanwhile; null for gloo, of which "
            "the report does not tell when an operation ends"
        ),
    ]
    seen: Annotated[int, Of("in the whole capture", label="in the capture")]
    calls: Annotated[int, Of("that begin in the steady steps", sums="scope")]
    time_ns: Annotated[int | None, Of("their time; null for gloo", "ns", sums="scope", label="time")]
    idle_ns: Annotated[
        int | None,
        Of(
            "idle time of the shown device for them; null for what does not hold its thread",
            "ns",
            sums="scope",
            label="GPU idle",
        ),
    ]
    bytes: Annotated[int | None, Of("bytes of their messages; null where none were noted", "bytes", sums="scope")]


COLUMNS = columns_of(HostCommunicationRow)
ROWS: TableOf[HostCommunicationRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="shown device",
    place=48,
    group="where",
    intro=(
        "Ranks that communicate without the GPU. Where reports of several ranks are given, the table of the job divides it into waiting "
        "and transfer."
    ),
    first=names("library name time_ns idle_ns calls bytes holds seen"),
    bar="idle_ns",
    depth=1,
)


def table(profile: Profile) -> pl.DataFrame:
    """Return a row per library and function, longest idle time first."""
    if not host_messages.recorded(profile.trace):
        raise NotRecorded("no call of MPI or UCX was recorded", "nsysx run --mpi -- CMD")
    # A report without GPU work has no process that is shown.
    process = pl.col("process") == profile.process if profile.attributed.gpu_ops.height else pl.lit(True)
    made = host_messages.calls(profile.trace).filter(process)
    windows = profile.steps.cpu_windows.filter(process)
    start, end = (
        windows.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0) if windows.height else (None, None)
    )
    steady = pl.lit(True) if start is None else pl.col("start_ns").is_between(start, end, closed="left")
    holding = made.filter("holds")
    parts = split(host_pieces(profile, (Cause.HOST_COMM,)), holding)
    idle = parts.with_columns(
        holding["library", "name"][parts["span"].fill_null(0)] if holding.height else holding["library", "name"]
    )
    waited = idle.group_by("library", "name").agg(idle_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    marked = host_messages.gloo(profile.trace).filter(process)
    rows = pl.concat(
        [
            made.select("library", "name", "holds", "start_ns", "bytes", ns=pl.col("end_ns") - pl.col("start_ns")),
            marked.select("name", "start_ns", library=pl.lit(host_messages.GLOO)),
        ],
        how="diagonal",
    )
    per_function = ["library", "name", "holds"]
    rows = rows.group_by(per_function).agg(
        pl.len().cast(pl.Int64).alias("seen"),
        pl.col("start_ns").filter(steady).len().cast(pl.Int64).alias("calls"),
        pl.when(pl.col("ns").null_count() == 0).then(pl.col("ns").filter(steady).sum()).alias("time_ns"),
        pl.when(pl.col("bytes").count() > 0).then(pl.col("bytes").filter(steady).sum()).alias("bytes"),
    )
    rows = rows.join(waited, on=["library", "name"], how="left").with_columns(
        idle_ns=pl.when("holds").then(pl.col("idle_ns").fill_null(0))
    )
    order = ["idle_ns", "time_ns", *per_function]
    return rows.sort(order, descending=[True, True, False, False, False], nulls_last=True).select(
        c.name for c in COLUMNS
    )

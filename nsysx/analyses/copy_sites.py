"""Copies in the steady steps by place: how fast against what is possible, hidden behind kernels or exposed, and why."""

from __future__ import annotations

from typing import Annotated, TypedDict

import numpy as np
import polars as pl

from nsysx.analyses.helpers import shared_columns
from nsysx.analyses.helpers.analysis_bounds import HIDDEN_COPIES_SHARE
from nsysx.analyses.helpers.host_stopwatch import gpu_calls
from nsysx.catalogue import DeviceActivity
from nsysx.events.ledger import CLASSES
from nsysx.events.profile import NotRecorded, Profile
from nsysx.events.thread_roles import elsewhere
from nsysx.frames import frame_columns, lookup
from nsysx.frames.frame_bounds import LONG_AGO_NS
from nsysx.frames.intervals import I64
from nsysx.model import TableSpec
from nsysx.replay.replay_bounds import LARGE_COPY_BYTES
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "copy_sites"
TITLE = "Copies by place"


class CopySiteRow(TypedDict):
    """The copies of one place and kind of memory."""

    direction: shared_columns.Direction
    src_kind: shared_columns.FromMemory
    dst_kind: shared_columns.ToMemory
    module: Annotated[str | None, Of("innermost module at the call")]
    phase: Annotated[str | None, Of("phase at the call")]
    thread_role: shared_columns.ThreadRole
    file: shared_columns.File
    line: shared_columns.Line
    count: Annotated[int, Of("copies in the steady steps", sums="scope")]
    bytes: Annotated[int, Of("bytes copied", "bytes", sums="scope")]
    largest_bytes: Annotated[int, Of("largest copy", "bytes")]
    total_ns: Annotated[int, Of("time on the device: hidden + exposed", "ns", sums="scope")]
    hidden_ns: Annotated[int, Of("part of it while a kernel ran on the same device: costs nothing", "ns", sums="scope")]
    exposed_ns: Annotated[int, Of("part of it while no kernel ran", "ns", sums="scope")]
    bandwidth_bytes_per_s: shared_columns.BytesPerS
    limit_bytes_per_s: Annotated[
        float | None, Of("what is possible, see limit_from; null when not known", "bytes/s", label="possible")
    ]
    limit_from: Annotated[
        str | None,
        Of("memory (half the device's bandwidth: a copy reads and writes), or the fastest pinned copy in the report"),
    ]
    api_ns: Annotated[
        int | None, Of("duration of the API calls; null if graphs launched all of them", "ns", sums="scope")
    ]
    obstacle: Annotated[
        str | None,
        Of("why it is not hidden: pageable, sync_after, same_stream, nothing_beside; null when it is", codes=True),
    ]


COLUMNS = columns_of(CopySiteRow)
ROWS: TableOf[CopySiteRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="steady",
    place=150,
    matters=("NSX105",),
    group="waiting",
    intro=(
        "Copies by the place that asks for them. Hidden time overlaps kernels and costs nothing; the obstacle says what exposes "
        "the remainder."
    ),
    first=names(
        "direction module file exposed_ns hidden_ns obstacle count bytes bandwidth_bytes_per_s "
        "limit_bytes_per_s src_kind dst_kind phase"
    ),
    bar="exposed_ns",
    depth=2,
)
_WANTED = (
    *("process", "device", "stream", "name", "start_ns", "end_ns", "bytes", "src_kind", "dst_kind"),
    *("call", "call_start_ns", "call_end_ns", "module", "phase"),
)


def _followed_by_sync(profile: Profile, calls: I64) -> I64:
    """Return, per call, the end of the synchronize that is the thread's next GPU call; long ago if that call is none."""
    gpu = gpu_calls(profile)
    ended = np.full(len(calls), LONG_AGO_NS, np.int64)
    row = np.searchsorted(gpu.call, calls, side="right")
    near = np.flatnonzero((calls >= 0) & np.append(gpu.sync, False)[row])
    thread = profile.attributed.api_calls["thread"].to_numpy()
    near = near[thread[gpu.call[row[near]]] == thread[calls[near]]]
    ended[near] = gpu.end(row[near])
    return ended


def _with_overlap(profile: Profile, copies: pl.DataFrame) -> pl.DataFrame:
    """Add hidden_ns and same_stream (whether kernels run on the copy's stream in the steady steps)."""
    hidden = np.zeros(copies.height, np.int64)
    kernels = (1 << CLASSES.index(DeviceActivity.COMPUTE)) | (1 << CLASSES.index(DeviceActivity.COMM))
    devices = copies["process", "device"].with_row_index("row")
    for (process, device), part in lookup.parted(devices, "process", "device").items():
        rows = part["row"].to_numpy()
        activity = profile.ledgers.activity[process, device]
        start, end = (copies[c].to_numpy()[rows] for c in ("start_ns", "end_ns"))
        hidden[rows] = activity.within((activity.labels & kernels) > 0, start, end)
    ops, stream = profile.steady_ops, ("process", "device", "stream")
    kernel = ops["op_kind"] == "kernel"
    places = copies.select(stream).unique()
    busy = [
        bool((kernel & (ops["process"] == p) & (ops["device"] == d) & (ops["stream"] == s)).any())
        for p, d, s in places.iter_rows()
    ]
    copies = copies.with_columns(pl.Series("hidden_ns", hidden))
    return copies.join(
        places.with_columns(pl.Series("same_stream", busy, dtype=pl.Boolean)),
        on=stream,
        how="left",
        maintain_order="left",
    )


def _limits(profile: Profile) -> dict[tuple[str, str, str], tuple[float, str]]:
    """Return (direction, source, destination) -> (possible bytes/s, where that figure comes from)."""
    ns = pl.col("end_ns") - pl.col("start_ns")
    seen = profile.ops["name", "bytes", "src_kind", "dst_kind", "start_ns", "end_ns"]
    seen = seen.filter(profile.ops["op_kind"] == "memcpy").filter(pl.col("bytes") >= LARGE_COPY_BYTES, ns > 0)
    seen = seen.with_columns(
        shared_columns.memory("src_kind"), shared_columns.memory("dst_kind"), pl.col("name").cast(pl.String)
    )
    pinned = seen.filter((seen["src_kind"] == "pinned") | (seen["dst_kind"] == "pinned"))
    rates = {
        d: float(r)
        for d, r in pinned.group_by("name").agg((pl.col("bytes") / ns * 1e9).max()).iter_rows()
        if r is not None
    }
    memory = [g.memory_bandwidth for g in profile.trace.capture.gpus if g.memory_bandwidth]
    fastest: dict[tuple[str, str, str], tuple[float, str]] = {}
    for direction, source, target in seen["name", "src_kind", "dst_kind"].unique().iter_rows():
        if direction == "DtoD" and memory:
            fastest[direction, source, target] = (min(memory) / 2, "memory")
        elif direction in rates:
            fastest[direction, source, target] = (rates[direction], "fastest pinned copy in this report")
    return fastest


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per place and kind of memory, longest exposed first."""
    if not profile.recorded("kernel") and not profile.recorded("memcpy"):
        raise NotRecorded("no GPU work was recorded", "-t cuda")
    copies = profile.steady_ops[list(_WANTED)].filter(profile.steady_ops["op_kind"] == "memcpy")
    if not copies.height:
        return pl.DataFrame(schema=frame_columns.schema(COLUMNS))
    call = copies["call"].fill_null(-1).to_numpy()
    copies = copies.with_columns(lookup.at(profile.attributed.api_calls["gpu_ops"], call).alias("gpu_ops"))
    copies = copies.join(profile.lines(), on="call", how="left", maintain_order="left")
    copies = _with_overlap(profile, copies)
    calling = lookup.at(profile.attributed.api_calls["thread"], call)
    copies = copies.with_columns(elsewhere(calling, profile.attributed.roles))
    sync_end = _followed_by_sync(profile, call)
    ns = pl.col("end_ns") - pl.col("start_ns")
    copies = copies.with_columns(
        pl.Series("_synced", sync_end >= copies["end_ns"].to_numpy()),
        shared_columns.memory("src_kind"),
        shared_columns.memory("dst_kind"),
        ns.alias("_ns"),
    )
    sole = pl.col("gpu_ops") == 1
    text = [pl.col(c).cast(pl.String) for c in ("module", "phase")]
    rows = copies.group_by(
        pl.col("name").cast(pl.String).alias("direction"), "src_kind", "dst_kind", *text, "thread_role", "file", "line"
    ).agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("bytes").sum(),
        pl.col("bytes").max().alias("largest_bytes"),
        pl.col("_ns").sum().alias("total_ns"),
        pl.col("hidden_ns").sum(),
        pl.when(sole.any()).then((pl.col("call_end_ns") - pl.col("call_start_ns")).filter(sole).sum()).alias("api_ns"),
        (pl.col("_ns").filter("_synced").sum() * 2 > pl.col("_ns").sum()).alias("_synced"),
        (pl.col("_ns").filter(pl.col("same_stream").fill_null(False)).sum() * 2 > pl.col("_ns").sum()).alias("_same"),
    )
    pageable = (pl.col("src_kind") == "pageable") | (pl.col("dst_kind") == "pageable")
    obstacle = (
        pl.when(pl.col("hidden_ns") >= HIDDEN_COPIES_SHARE * pl.col("total_ns"))
        .then(None)
        .when(pageable)
        .then(pl.lit("pageable"))
        .when("_synced")
        .then(pl.lit("sync_after"))
        .when("_same")
        .then(pl.lit("same_stream"))
        .otherwise(pl.lit("nothing_beside"))
    )
    limits = _limits(profile)
    keys = rows["direction", "src_kind", "dst_kind"].rows()
    rows = rows.with_columns(
        (pl.col("total_ns") - pl.col("hidden_ns")).alias("exposed_ns"),
        pl.when(pl.col("total_ns") > 0).then(pl.col("bytes") / pl.col("total_ns") * 1e9).alias("bandwidth_bytes_per_s"),
        pl.Series("limit_bytes_per_s", [limits[k][0] if k in limits else None for k in keys], dtype=pl.Float64),
        pl.Series("limit_from", [limits[k][1] if k in limits else None for k in keys], dtype=pl.String),
        obstacle.alias("obstacle"),
    )
    order = ["direction", "src_kind", "dst_kind", "module", "phase", "thread_role", "file", "line"]
    return rows.sort("exposed_ns", "total_ns", *order, descending=[True, True] + [False] * len(order), nulls_last=True)

"""What a call that can block waited for: backlog + own GPU op + host = its duration, to the nanosecond."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.catalogue import Call
from nsysx.events.attribute import Attributed
from nsysx.events.event_bounds import (
    CLOCK_ERROR_NS,
    COPY_AND_WAIT_NS,
    DRAINED_SOON_NS,
    FEWEST_USUAL_CALLS,
    ON_DEVICE_KIND,
)
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.streams import Streams, records
from nsysx.frames import lookup
from nsysx.frames.frame_bounds import LONG_AGO_NS
from nsysx.frames.intervals import I64, length
from nsysx.reading import schema
from nsysx.reading.load import Trace


def _blocking_copies(ops: pl.DataFrame) -> pl.DataFrame:
    """Return call, pageable (one end is host memory that is not pinned), inside (device to device) of copy calls."""
    pageable = (pl.col("src_kind") == 0).fill_null(False) | (pl.col("dst_kind") == 0).fill_null(False)
    copies = ops.filter(ops["op_kind"] == "memcpy").drop_nulls("call")
    return copies.group_by("call").agg(
        pageable.any().alias("pageable"),
        (pl.col("copy_kind") == ON_DEVICE_KIND).all().alias("inside"),
        pl.col("start_ns").min().alias("own_start_ns"),
        pl.col("end_ns").max().alias("own_end_ns"),
        pl.len().alias("own_ops"),
        pl.col("stream").first().alias("own_stream"),
        pl.col("context").first().alias("own_context"),
    )


def _blocking(calls: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that can block, with their own copies."""
    may = dict.fromkeys((*Call.WAITS, *Call.ALLOCATOR), 1)
    rows = calls[np.flatnonzero(lookup.coded(calls["kind"], may) > 0)]
    kind, is_async = pl.col("kind").cast(pl.String), pl.col("name").cast(pl.String).str.contains("Async")
    # A copy inside the device never holds the host, whatever its name; one from or to pageable memory does, likewise.
    holds = pl.col("pageable") | (~is_async & ~pl.col("inside"))
    rows = rows.join(_blocking_copies(ops), on="call", how="left", maintain_order="left").filter(
        (kind == Call.SYNC) | (kind.is_in(Call.ALLOCATOR) & ~is_async) | ((kind == Call.COPY) & holds)
    )
    # Without calls inside another that can block: a runtime call and the driver call in it wait once.
    reach = pl.col("end_ns").cum_max().shift(1).over("thread")
    rows = rows.sort("thread", "start_ns", -pl.col("end_ns"), "call")
    return rows.filter(reach.is_null() | (pl.col("end_ns") > reach) | (pl.col("start_ns") >= reach)).sort("call")


def _targets(trace: Trace, calls: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Add stream (NO_STREAM for all), context (null for all), before_ns, awaited: what each call waits for.

    The API names what is waited for; the sync record only says which stream or event.
    """
    sync = trace.sync["process", "correlation_id", "context", "stream", "event", "start_ns"]
    if sync.height:
        sync = sync.filter(sync["correlation_id"] != 0).sort("start_ns")
        sync = sync.unique(["process", "correlation_id"], keep="first", maintain_order=True)
    sync = sync.drop("start_ns").rename({"stream": "sync_stream", "event": "sync_event"})
    rows = rows.join(sync, on=["process", "correlation_id"], how="left", maintain_order="left")
    named, none = pl.col("name").cast(pl.String), pl.lit(schema.NO_STREAM)
    kind = pl.col("kind").cast(pl.String)
    is_sync, is_copy = kind == Call.SYNC, kind == Call.COPY
    event = pl.when(is_sync & named.str.contains("Event")).then("sync_event")
    rows = records(trace, calls, rows.with_columns(event.alias("event")))
    on_event = pl.col("rec_ns").is_not_null()
    on_stream = is_sync & named.str.contains("Stream")
    chosen = pl.when(on_event).then("rec_stream").when(is_copy).then("own_stream")
    stream = chosen.when(on_stream).then(pl.col("sync_stream").fill_null(none)).otherwise(none)
    context = pl.when(on_event).then("rec_context").when(is_copy).then("own_context").when(is_sync).then("context")
    awaited = pl.when(on_event).then(pl.lit("event")).when(stream == none).then(pl.lit("device"))
    return rows.with_columns(
        stream.alias("stream"),
        context.alias("context"),
        pl.when(on_event).then("rec_ns").otherwise("start_ns").alias("before_ns"),
        awaited.otherwise(pl.lit("stream")).alias("awaited"),
    )


def _drained(streams: Streams, rows: pl.DataFrame) -> I64:
    """Return the last end of the work that each call waits for, LONG_AGO_NS for none."""
    d = np.full(rows.height, LONG_AGO_NS, np.int64)
    keys = ["process", "context", "stream"]
    parts = rows.with_row_index("_row").partition_by(keys, maintain_order=True, as_dict=True)
    for (process, context, stream), part in parts.items():
        asked, before = part["_row"].to_numpy(), part["before_ns"].to_numpy()
        for key in streams.places() if stream == schema.NO_STREAM else [(process, context, stream)]:
            if key[0] == process and (context is None or key[1] == context):
                d[asked] = np.maximum(d[asked], streams.last_end(key, before))
    return d


def _allocations_that_waited(rows: pl.DataFrame, d: I64) -> Flags:
    """Return which calls of the allocator waited until the device had drained, of those that return after it had.

    One that waited lasts its backlog longer than the usual call of its name, one that did not is as long as that: the nearer
    counts. Usual is the median of the calls that found nothing queued; where there are few, one that returns within DRAIN_NS.
    """
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    free = pl.Series(d <= start) & rows["kind"].cast(pl.String).is_in(Call.ALLOCATOR)
    alone = rows.filter(free).select("process", "name", (pl.col("end_ns") - pl.col("start_ns")).alias("ns"))
    usual = alone.group_by("process", "name").agg(pl.col("ns").median().alias("usual"), pl.len().alias("calls"))
    joined = rows["process", "name"].join(
        usual.filter(pl.col("calls") >= FEWEST_USUAL_CALLS), on=["process", "name"], how="left", maintain_order="left"
    )
    longer = end - start - joined["usual"].fill_null(float("nan")).to_numpy()
    waited: Flags = np.where(np.isnan(longer), end - d <= DRAINED_SOON_NS, longer > (d - start) / 2)
    return waited


def wait_splits(trace: Trace, attributed: Attributed) -> pl.DataFrame:
    """Return the split of every call that can block: backlog + own op + host = its duration, to the nanosecond.

    Columns: call, awaited (event, stream, device), backlog_ns, own_op_ns, host_ns, site. Awaited work is what the process
    launched before the call starts, on the stream or before the event that the call names, else on the device; a copy or
    synchronize on the legacy default stream waits for all blocking streams. d = its last end. A call that returns before d did
    not wait for it, however long it took; for allocations see ``_allocations_that_waited``. Of nested calls the outer one
    waits. ``site`` is shared by a copy and the synchronize that waits for it in the same breath (``.item()``, ``.cpu()``):
    the call of the copy; they are edited as a whole. Elsewhere it is the call itself.
    """
    columns = ("call", "process", "thread", "start_ns", "end_ns", "kind", "name", "correlation_id")
    calls, ops = attributed.api_calls[columns], attributed.gpu_ops
    rows = _targets(trace, calls, _blocking(calls, ops))
    d = _drained(Streams(trace, calls, ops), rows)
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    kind = rows["kind"].cast(pl.String)
    copies, names_target = (
        (kind == Call.COPY).to_numpy(),
        ((kind == Call.SYNC) & rows["context"].is_not_null()).to_numpy(),
    )
    # A synchronize that names its target cannot return before the target is done: where it seems to, by no more than the
    # error of the clocks, the work ended with the call.
    d = np.where(names_target & (d > end) & (d <= end + CLOCK_ERROR_NS), end, d)
    allocates = kind.is_in(Call.ALLOCATOR).to_numpy()
    waited = (d > start) & (d <= end)
    if (waited & allocates).any():
        waited &= ~allocates | _allocations_that_waited(rows, d)
    backlog = np.where(waited, d - start, 0)
    own_ns = _own_op_ns(rows, ops, copies, start + backlog, end)
    return rows["call", "awaited"].with_columns(
        pl.Series("backlog_ns", backlog, dtype=pl.Int64),
        pl.Series("own_op_ns", own_ns, dtype=pl.Int64),
        pl.Series("host_ns", (end - start) - backlog - own_ns, dtype=pl.Int64),
        pl.Series("site", _sites(calls, rows["call"].to_numpy()), dtype=pl.Int64),
    )


def _own_op_ns(rows: pl.DataFrame, ops: pl.DataFrame, copies: Flags, after: I64, end: I64) -> I64:
    """Return the time of each call's own copies behind its backlog (ns)."""
    own_start, own_end = (lookup.filled(rows[c], 0) for c in ("own_start_ns", "own_end_ns"))
    own_ns = np.where(copies, np.maximum(np.minimum(own_end, end) - np.maximum(own_start, after), 0), 0)
    # A batch of copies under one call can have pauses in between.
    batches = rows["own_ops", "call"].with_row_index("_row").filter(rows["own_ops"] > 1)
    if not batches.height:
        return own_ns
    members = ops.filter((ops["op_kind"] == "memcpy") & ops["call"].is_in(batches["call"].implode()))
    for row, call in batches["_row", "call"].iter_rows():
        awaited = members.filter(pl.col("call") == call)
        s, e = awaited["start_ns"].to_numpy(), awaited["end_ns"].to_numpy()
        own_ns[row] = length(np.maximum(s, after[row]), np.minimum(e, end[row])) if copies[row] else 0
    return own_ns


def _sites(calls: pl.DataFrame, chosen: I64) -> I64:
    """Return the site of each chosen call. ``calls`` is sorted by thread and start; a call's number is its row."""
    columns = calls["kind", "name", "thread", "start_ns", "end_ns"]
    asking, before = columns[chosen], columns[np.maximum(chosen - 1, 0)]
    after = ((asking["kind"] == Call.SYNC) & (before["kind"] == Call.COPY)).to_numpy() & (chosen > 0)
    after &= lookup.matching(asking["name"], "Stream") & (asking["thread"] == before["thread"]).to_numpy()
    after &= (asking["start_ns"] - before["end_ns"]).to_numpy() <= COPY_AND_WAIT_NS
    return np.where(after, chosen - 1, chosen)

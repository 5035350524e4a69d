"""What a call that can block waited for: backlog + own GPU op + host = its duration, to the nanosecond."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from nsysx.events.attribute import Attributed
from nsysx.frames import lookup
from nsysx.frames.intervals import I64, length
from nsysx.reading import schema
from nsysx.reading.load import Trace

#: GPU and CPU stamps come from two clocks; work was seen to end up to 7 us after the synchronize that waited for it returned.
CLOCK_ERROR_NS = 20_000

#: An allocation or free that waits for the device returns this soon after it has drained.
_DRAIN_NS = 50_000

#: Before every event; times can be negative.
_NEVER = -(1 << 62)


def _blocking_copies(ops: pl.DataFrame) -> pl.DataFrame:
    """Return call, pageable (one end is host memory that is not pinned), inside (device to device) of copy calls."""
    pageable = (pl.col("src_kind") == 0).fill_null(False) | (pl.col("dst_kind") == 0).fill_null(False)
    copies = ops.filter((pl.col("op_kind") == "memcpy") & pl.col("call").is_not_null())
    return copies.group_by("call").agg(
        pageable.any().alias("pageable"), (pl.col("copy_kind") == 8).all().alias("inside")
    )


def wait_splits(trace: Trace, attributed: Attributed) -> pl.DataFrame:
    """Return the split of every call that can block: backlog + own op + host = its duration, to the nanosecond.

    Awaited work is what the process launched before the call starts, on the stream or before the event that the call names,
    else on the device. d = its last end. A call that returns before d did not wait for it, however long it took; nor did an
    allocation that goes on long after d.
    """
    calls, ops = attributed.api_calls, attributed.gpu_ops
    calls = calls.select("call", "process", "start_ns", "end_ns", "kind", "name", "correlation_id")
    may = {"sync": 1, "alloc": 1, "free": 1, "host_alloc": 1, "copy": 1}
    rows = calls.filter(pl.Series(lookup.coded(calls["kind"], may) > 0))
    kind, name = pl.col("kind").cast(pl.String), pl.col("name").cast(pl.String)
    is_async = name.str.contains("Async")
    # A copy inside the device never holds the host, whatever its name; one from or to pageable memory does, likewise.
    holds = pl.col("pageable") | (~is_async & ~pl.col("inside"))
    rows = rows.join(_blocking_copies(ops), on="call", how="left", maintain_order="left").filter(
        (kind == "sync") | (kind.is_in(["alloc", "free", "host_alloc"]) & ~is_async) | ((kind == "copy") & holds)
    )
    rows = rows.select(calls.columns)
    own = (
        ops.filter(pl.col("op_kind") == "memcpy")
        .group_by("call")
        .agg(
            pl.col("start_ns").min().alias("own_start_ns"),
            pl.col("end_ns").max().alias("own_end_ns"),
            pl.len().alias("own_ops"),
            pl.col("stream").first().alias("own_stream"),
            pl.col("context").first().alias("own_context"),
        )
    )
    sync = trace.sync.filter(pl.col("correlation_id") != 0).sort("start_ns")
    sync = sync.unique(["process", "correlation_id"], keep="first", maintain_order=True)
    sync = sync.select(
        "process",
        "correlation_id",
        "context",
        pl.col("stream").alias("sync_stream"),
        pl.col("event").alias("sync_event"),
    )
    rows = rows.join(own, on="call", how="left", maintain_order="left")
    rows = rows.join(sync, on=["process", "correlation_id"], how="left", maintain_order="left")
    named, none = pl.col("name").cast(pl.String), pl.lit(schema.NO_STREAM)
    is_sync, is_copy = kind == "sync", kind == "copy"
    rows = _records(
        trace,
        calls,
        rows.with_columns(pl.when(is_sync & named.str.contains("Event")).then("sync_event").alias("event")),
    )
    on_event = pl.col("rec_ns").is_not_null()
    # The API names what is waited for; the sync record only says which stream or event.
    rows = rows.with_columns(
        pl.when(on_event)
        .then("rec_stream")
        .when(is_copy)
        .then("own_stream")
        .when(is_sync & named.str.contains("Stream"))
        .then(pl.col("sync_stream").fill_null(none))
        .otherwise(none)
        .alias("stream"),
        pl.when(on_event)
        .then("rec_context")
        .when(is_copy)
        .then("own_context")
        .when(is_sync)
        .then("context")
        .alias("context"),
        pl.when(on_event).then("rec_ns").otherwise("start_ns").alias("before_ns"),
        pl.when(on_event).then(pl.lit("event")).alias("awaited"),
    )
    rows = rows.with_columns(
        pl.coalesce(
            "awaited", pl.when(pl.col("stream") == none).then(pl.lit("device")).otherwise(pl.lit("stream"))
        ).alias("awaited")
    )
    streams = _Streams(trace, calls, ops)
    d = np.full(rows.height, _NEVER, np.int64)
    for (proc, ctx, stream), part in rows.with_row_index("_row").group_by(
        "process", "context", "stream", maintain_order=True
    ):
        asked, before = part["_row"].to_numpy(), part["before_ns"].to_numpy()
        for key in streams.work.keys() | streams.edges.keys() if stream == schema.NO_STREAM else [(proc, ctx, stream)]:
            if key[0] == proc and (ctx is None or key[1] == ctx):
                d[asked] = np.maximum(d[asked], streams.last_end(key, before))
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    copies = rows.select(is_copy).to_series().to_numpy()
    names_target = rows.select(is_sync & pl.col("context").is_not_null()).to_series().to_numpy()
    # A synchronize that names its target cannot return before the target is done: where it seems to, by no more than the
    # error of the clocks, the work ended with the call.
    late = names_target & (d > end) & (d <= end + CLOCK_ERROR_NS)
    d = np.where(late, end, d)
    # An allocation that goes on long after the device has drained did not wait for it: it was busy with itself.
    prompt = rows.select(kind.is_in(["sync", "copy"])).to_series().to_numpy() | (end - d <= _DRAIN_NS)
    waited = (d > start) & (d <= end) & prompt
    backlog = np.where(waited, d - start, 0)
    after = start + backlog
    own_start, own_end = rows["own_start_ns"].fill_null(0).to_numpy(), rows["own_end_ns"].fill_null(0).to_numpy()
    own_ns = np.where(copies, np.maximum(np.minimum(own_end, end) - np.maximum(own_start, after), 0), 0)
    # A batch of copies under one call can have pauses in between.
    batches = rows.with_row_index("_row").filter(pl.col("own_ops") > 1).select("_row", "call")
    members = ops.filter(
        (pl.col("op_kind").cast(pl.String) == "memcpy") & pl.col("call").is_in(batches["call"].implode())
    )
    for row, call in batches.iter_rows() if batches.height else ():
        mine = members.filter(pl.col("call") == call)
        s, e = mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy()
        own_ns[row] = length(np.maximum(s, after[row]), np.minimum(e, end[row])) if copies[row] else 0
    return rows.select("call", "awaited").with_columns(
        pl.Series("backlog_ns", backlog, dtype=pl.Int64),
        pl.Series("own_op_ns", own_ns, dtype=pl.Int64),
        pl.Series("host_ns", (end - start) - backlog - own_ns, dtype=pl.Int64),
    )


def _records(trace: Trace, calls: pl.DataFrame, asked: pl.DataFrame) -> pl.DataFrame:
    """Add rec_context, rec_stream, rec_ns: the last record of ``event`` that was called before ``start_ns``; null if none.

    ``asked`` has process, event, start_ns; its row order is kept.
    """
    records = (
        trace.event.join(
            calls.filter(lookup.matching(calls["kind"], "^event$")).select(
                "process", "correlation_id", pl.col("start_ns").alias("rec_ns")
            ),
            on=["process", "correlation_id"],
            how="inner",
        )
        .select(
            "process", "event", pl.col("context").alias("rec_context"), pl.col("stream").alias("rec_stream"), "rec_ns"
        )
        .sort("rec_ns")
    )
    return (
        asked.with_row_index("_row")
        .with_columns(pl.col("event").replace(schema.NO_STREAM, None))
        .sort("start_ns")
        .join_asof(
            records,
            left_on="start_ns",
            right_on="rec_ns",
            by=["process", "event"],
            allow_exact_matches=False,
            check_sortedness=False,
        )
        .sort("_row")
        .drop("_row")
    )


#: Process, context (null where not recorded) and stream.
_Place = tuple[int, int | None, int]


def _work(ops: pl.DataFrame, window: tuple[int, int] | None) -> Iterator[tuple[_Place, tuple[I64, I64]]]:
    """Yield each stream with the launches of its ops, sorted, and the last end of what was launched up to each."""
    place = ["process", "context", "stream"]
    # Work that was launched outside the trace was launched at the latest when it started.
    latest = pl.col("start_ns") if window is None else pl.min_horizontal("start_ns", pl.lit(window[0]))
    launch = ops.select(pl.coalesce("call_start_ns", latest).alias("ns"))["ns"].to_numpy()
    end = ops["end_ns"].to_numpy()
    rows = ops.select(*place, pl.int_range(pl.len(), dtype=pl.Int64).alias("row"))
    for (process, context, stream), part in rows.group_by(place, maintain_order=True):
        row = part["row"].to_numpy()
        row = row[np.argsort(launch[row], kind="stable")]
        yield (process, context, stream), (launch[row], np.maximum.accumulate(end[row]))


class _Streams:
    """The last end of what a stream holds: its own work, and through event waits the work of other streams."""

    def __init__(self, trace: Trace, calls: pl.DataFrame, ops: pl.DataFrame) -> None:
        place = ["process", "context", "stream"]
        edges = trace.sync.join(
            calls.filter(lookup.matching(calls["name"], "StreamWaitEvent")).select(
                "process", "correlation_id", pl.col("start_ns").alias("at_ns")
            ),
            on=["process", "correlation_id"],
            how="inner",
        ).with_columns(pl.col("at_ns").alias("start_ns"))
        edges = _records(trace, calls, edges).drop_nulls("rec_ns").sort("at_ns")
        self.work = dict(_work(ops, trace.window))
        self.edges: dict[_Place, tuple[I64, I64]] = {}
        if not edges.height:
            return
        source = list(edges.select("process", "rec_context", "rec_stream").iter_rows())
        recorded = edges["rec_ns"].to_numpy()
        groups = edges.with_row_index("_row").group_by(place, maintain_order=True).agg("_row", "at_ns")
        rows = {tuple(key): (np.array(r), np.array(t)) for *key, r, t in groups.iter_rows()}
        by_source: dict[_Place, list[int]] = {}
        for i, key in enumerate(source):
            by_source.setdefault(key, []).append(i)
        # A wait holds what its event's stream held when it was recorded, other waits of that stream included: a fixed point,
        # reached in as many rounds as the longest chain of waits that matters.
        held = np.full(edges.height, _NEVER, np.int64)
        while True:
            self.edges = {key: (at, np.maximum.accumulate(held[r])) for key, (r, at) in rows.items()}
            new = held.copy()
            for key, mine in by_source.items():
                new[mine] = self.last_end(key, recorded[mine])
            if (new == held).all():
                return
            held = new

    def last_end(self, key: _Place, before: I64) -> I64:
        """Return the latest end of what stream ``key`` holds that was launched before each instant, _NEVER for nothing."""
        result = np.full(len(before), _NEVER, np.int64)
        for held in (self.work, self.edges):
            if key in held:
                order, reach = held[key]
                i = np.searchsorted(order, before, side="left") - 1
                result = np.maximum(result, np.where(i >= 0, reach[np.maximum(i, 0)], _NEVER))
        return result

"""What a stream holds: its own work, and what it was told to wait for.

A stream that waits for an event (cudaStreamWaitEvent) holds the work in front of that event, too. The legacy default stream and the
blocking streams of its context hold each other's work: each op of one waits for all earlier ops of the other.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from nsysx.catalogue import Call
from nsysx.events.event_bounds import BLOCKING_STREAM, DEFAULT_STREAM
from nsysx.frames import lookup
from nsysx.frames.frame_bounds import LONG_AGO_NS
from nsysx.frames.intervals import I64
from nsysx.reading import schema
from nsysx.reading.load import Trace


def records(trace: Trace, calls: pl.DataFrame, asked: pl.DataFrame) -> pl.DataFrame:
    """Add rec_context, rec_stream, rec_ns: the last record of ``event`` that was called before ``start_ns``; null if none.

    ``asked`` has process, event, start_ns; its row order is kept.
    """
    if not trace.event.height or not asked.height:
        nothing = pl.lit(None, pl.Int64)
        return asked.with_columns(rec_context=nothing, rec_stream=nothing, rec_ns=nothing)
    records = (
        trace.event.join(
            calls.filter(calls["kind"] == Call.EVENT).select(
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
    keys = ["process", "context", "stream"]
    # Work that was launched outside the trace was launched at the latest when it started.
    latest = pl.col("start_ns") if window is None else pl.min_horizontal("start_ns", pl.lit(window[0]))
    launch = ops.select(pl.coalesce("call_start_ns", latest).alias("ns"))["ns"].to_numpy()
    end = ops["end_ns"].to_numpy()
    rows = ops[keys].with_row_index("row").partition_by(keys, maintain_order=True, as_dict=True)
    for (process, context, stream), part in rows.items():
        row = part["row"].to_numpy()
        row = row[np.argsort(launch[row], kind="stable")]
        yield (process, context, stream), (launch[row], np.maximum.accumulate(end[row]))


def _blocking(trace: Trace, places: set[_Place]) -> dict[_Place, list[_Place]]:
    """Return the blocking streams of the context of each legacy default stream.

    The default stream is made by nobody, so it is the one that is not among those that were made, unless it says so.
    """
    made = {(pid, context, stream): how for pid, context, stream, how in trace.cuda_stream.iter_rows()}
    waits_for: dict[_Place, list[_Place]] = {}
    for stream_key in places:
        process, context, stream = stream_key
        in_context = {s: how for (pid, c, s), how in made.items() if pid == process & 0xFFFFFF and c == context}
        blocking = [s for s, how in in_context.items() if how == BLOCKING_STREAM and s != stream]
        if blocking and in_context.get(stream, DEFAULT_STREAM) == DEFAULT_STREAM:
            waits_for[stream_key] = [(process, context, s) for s in blocking]
    return waits_for


class Streams:
    """The last end of what a stream holds: its own work, and through event waits the work of other streams."""

    def __init__(self, trace: Trace, calls: pl.DataFrame, ops: pl.DataFrame) -> None:
        columns = ["process", "context", "stream"]
        self.work = dict(_work(ops, trace.window))
        self.edges: dict[_Place, tuple[I64, I64]] = {}
        if not trace.event.height:  # then none is waited for
            self._blocking = _blocking(trace, set(self.work))
            return
        edges = trace.sync.join(
            calls.filter(lookup.matching(calls["name"], "StreamWaitEvent")).select(
                "process", "correlation_id", pl.col("start_ns").alias("at_ns")
            ),
            on=["process", "correlation_id"],
            how="inner",
        ).with_columns(pl.col("at_ns").alias("start_ns"))
        edges = records(trace, calls, edges).drop_nulls("rec_ns").sort("at_ns")
        places = {*self.work, *edges[columns].iter_rows(), *trace.event[columns].unique().iter_rows()}
        self._blocking = _blocking(trace, places)
        if not edges.height:
            return
        source = list(edges["process", "rec_context", "rec_stream"].iter_rows())
        recorded = edges["rec_ns"].to_numpy()
        groups = edges.with_row_index("_row").group_by(columns, maintain_order=True).agg("_row", "at_ns")
        rows = {tuple(key): (np.array(r), np.array(t)) for *key, r, t in groups.iter_rows()}
        by_source: dict[_Place, list[int]] = {}
        for i, key in enumerate(source):
            by_source.setdefault(key, []).append(i)
        # A wait holds what its event's stream held when it was recorded, other waits of that stream included: a fixed point,
        # reached in as many rounds as the longest chain of waits that matters.
        held = np.full(edges.height, LONG_AGO_NS, np.int64)
        while True:
            self.edges = {key: (times, np.maximum.accumulate(held[r])) for key, (r, times) in rows.items()}
            new = held.copy()
            for key, members in by_source.items():
                new[members] = self.last_end(key, recorded[members])
            if (new == held).all():
                return
            held = new

    def places(self) -> set[_Place]:
        """Return all streams that hold anything."""
        return self.work.keys() | self.edges.keys()

    def last_end(self, key: _Place, before: I64) -> I64:
        """Return the latest end of what stream ``key`` holds that was launched before each instant, LONG_AGO_NS for nothing."""
        result = np.full(len(before), LONG_AGO_NS, np.int64)
        for stream_key in (key, *self._blocking.get(key, ())):
            for held in (self.work, self.edges):
                if stream_key in held:
                    order, reach = held[stream_key]
                    i = np.searchsorted(order, before, side="left") - 1
                    result = np.maximum(result, np.where(i >= 0, reach[np.maximum(i, 0)], LONG_AGO_NS))
        return result

"""The ledgers: what each device and each thread did at every instant, why a device idled, and what a blocking call waited for.

Each is a ``StepFunction`` or a frame of disjoint segments, so that any window can be integrated exactly and parts sum to the
whole. The definitions are DESIGN 2's; they are the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl

from nsysx.events.attribute import Attributed
from nsysx.events.correlate import KINDS
from nsysx.frames import lookup
from nsysx.frames.intervals import I64, StepFunction, coverage, length, merged, union
from nsysx.reading import schema
from nsysx.reading.load import Trace

#: Classes of GPU work by priority: where several run at once, the first counts and the others are hidden behind it.
CLASSES = ("compute", "comm", "HtoD", "DtoH", "DtoD", "copy_other", "memset")
COPIES = ("HtoD", "DtoH", "DtoD", "copy_other")

#: Why a device idled. See ``idle_segments``.
CAUSES = (
    "launch_latency",
    "sync",
    "alloc",
    "load",
    "copy_call",
    "other_api",
    "data_loader",
    "profiler",
    "host_code",
    "dependency",
    "kernel_gap",
    "untraced_launch",
    "no_further_work",
)
_CAUSE = {name: i for i, name in enumerate(CAUSES)}

#: What an API call of a kind means for a device that idles meanwhile.
_CAUSE_OF_KIND = {
    "sync": "sync",
    "alloc": "alloc",
    "free": "alloc",
    "host_alloc": "alloc",
    "load": "load",
    "copy": "copy_call",
    "memset": "copy_call",
}

#: The part of the CPU ledger that an API kind belongs to.
CPU_PARTS = {
    "launch": "launch_ns",
    "graph_launch": "launch_ns",
    "copy": "copy_ns",
    "memset": "copy_ns",
    "sync": "sync_wait_ns",
    "alloc": "alloc_ns",
    "free": "alloc_ns",
    "host_alloc": "alloc_ns",
    "load": "load_ns",
    "event": "other_api_ns",
    "other": "other_api_ns",
}


#: GPU and CPU stamps come from two clocks; work was seen to end up to 7 us after the synchronize that waited for it returned.
CLOCK_ERROR_NS = 20_000

#: An allocation or free that waits for the device returns this soon after it has drained.
_DRAIN_NS = 50_000

#: Before every event; times can be negative.
_NEVER = -(1 << 62)


@dataclass(frozen=True)
class Ledgers:
    """``activity`` labels each instant of a device with a bit mask over CLASSES, 0 where it idles.

    ``threads`` labels each instant of a thread with the row of the innermost API call, -1 outside CUDA. ``idle`` has one row
    per piece of a gap: process, device, start_ns, end_ns, cause, gap, op (that ended the gap), began_in (the API call in
    which the launching thread was when the device ran dry, null for none). ``waits`` has one row per call that can block:
    call, backlog_ns, own_op_ns, host_ns, idle_caused_ns, awaited.
    """

    activity: dict[tuple[int, int], StepFunction]
    threads: dict[int, StepFunction]
    idle: pl.DataFrame
    waits: pl.DataFrame


#: Copy codes (``schema.COPY_KINDS``) by direction.
_DIRECTION = {"HtoD": (1, 3, 11), "DtoH": (2, 4, 12), "DtoD": (5, 6, 7, 8, 10, 13)}


def _classes(ops: pl.DataFrame) -> I64:
    """Return the row of each op's class in CLASSES, -1 for none."""
    other = CLASSES.index("copy_other")
    found = lookup.coded(ops["cls"], {"compute": 0, "comm": 1, "copy": other, "memset": CLASSES.index("memset")})
    copies = np.flatnonzero(found == other)
    kind = ops["copy_kind"].gather(copies).fill_null(-1).to_numpy()
    for direction, codes in _DIRECTION.items():
        found[copies[np.isin(kind, codes)]] = CLASSES.index(direction)
    return found


def _activity(ops: pl.DataFrame, start: int, end: int) -> StepFunction:
    s, e = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    cls = _classes(ops)
    masks = [cls == i for i in range(len(CLASSES))]
    return coverage([(s[m], e[m]) for m in masks], start, end)


def windows_function(start: I64, end: I64, label: I64) -> StepFunction:
    """Return disjoint windows, sorted by start, as a function that carries each window's label."""
    keep = end > start
    start, end, label = start[keep], end[keep], label[keep]
    times = np.stack([start, end], axis=1).ravel()
    labels = np.stack([label, np.full(len(label), -1, np.int64)], axis=1).ravel()
    return StepFunction(times, labels[:-1])


_IDLE = {
    "process": pl.Int64,
    "device": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "cause": pl.Int64,
    "gap": pl.Int64,
    "op": pl.Int64,
    "began_in": pl.Int64,
}


#: Start, end, label and cause of pieces of idle time.
_Pieces = tuple[I64, I64, I64, I64]
#: Gaps are split in blocks: what is needed in between stays in the cache and costs no new memory.
_BLOCK = 1 << 16


@dataclass(frozen=True)
class _Host:
    """What the threads of one process did, for blaming gaps."""

    threads: dict[int, StepFunction]
    cause_of_call: I64
    overhead: StepFunction
    data: dict[int, StepFunction]

    def split(self, thread: int | None, start: I64, end: I64, label: I64, cause: int) -> Iterator[_Pieces]:
        """Yield (start, end, label, cause) of the pieces of disjoint windows, which are sorted.

        Profiler overhead is taken out first. With ``thread`` the rest goes to what that thread did, without to ``cause``.
        """
        real = end > start
        start, end, label = start[real], end[real], label[real]
        if thread is None and not len(self.overhead.labels):
            yield start, end, label, np.full(len(start), cause)
            return
        for first in range(0, len(start), _BLOCK):
            rows = slice(first, first + _BLOCK)
            yield self._split(thread, start[rows], end[rows], label[rows], cause)

    def _split(self, thread: int | None, start: I64, end: I64, label: I64, cause: int) -> _Pieces:
        empty = StepFunction(np.empty(0, np.int64), np.empty(0, np.int64))
        calls = empty if thread is None else self.threads.get(thread, empty)
        data = empty if thread is None else self.data.get(thread, empty)
        # Only what changes inside a window cuts it; most calls begin and end while the device is busy.
        times = merged([start, end, *(f.borders_in(start, end) for f in (self.overhead, calls, data))])
        window = np.searchsorted(start, times[:-1], side="right") - 1
        keep = times[:-1] < end[window]
        begin, finish, window = times[:-1][keep], times[1:][keep], window[keep]
        if thread is None:
            why = np.full(len(begin), cause, np.int64)
        else:
            why = np.where(data.at(begin) > 0, _CAUSE["data_loader"], _CAUSE["host_code"])
            call = calls.at(begin)
            why[call >= 0] = self.cause_of_call[call[call >= 0]]
        why[self.overhead.at(begin) > 0] = _CAUSE["profiler"]
        return begin, finish, label[window], why


def _blame(
    ops: pl.DataFrame, activity: StepFunction, host: _Host, process: int, device: int, first_gap: int
) -> pl.DataFrame:
    """Return the idle pieces of one device.

    A gap [g0, g1) ends with GPU op X, launched by call L on thread T:

    - no L: untraced_launch; no X (after the last op): no_further_work.
    - L started in the gap: from there on launch_latency; before, what T did: inside an API call its kind, else data loading
      or host code.
    - L started before the gap: X could start ``latency`` after L at the earliest, so up to there it is launch_latency (and
      all of it while L still ran at g0). The rest is kernel_gap when X only followed the work of its own stream, else
      dependency (an event or stream wait).

    ``latency`` is the median launch latency of ops that ended a gap in which their launch began: what a launch takes when
    nothing is in its way. Profiler overhead is subtracted everywhere.
    """
    idle = activity.labels == 0
    g0, g1 = activity.times[:-1][idle], activity.times[1:][idle]
    n = len(g0)
    if not n:
        return pl.DataFrame(schema=_IDLE)
    lasting = ops["end_ns"] > ops["start_ns"]
    real = ops if lasting.all() else ops.filter(lasting)
    real = lookup.ordered(real, "start_ns", ["call_start_ns", "call", "stream", "op"])
    start = real["start_ns"].to_numpy()
    x = np.searchsorted(start, g1, side="left")
    ended = x < len(start)
    ended[ended] = start[x[ended]] == g1[ended]
    x = np.where(ended, x, 0)
    far = np.iinfo(np.int64).max // 4
    called = real["call_start_ns"].fill_null(far).to_numpy()[x] if len(start) else np.full(n, far)
    returned = real["call_end_ns"].fill_null(far).to_numpy()[x] if len(start) else np.full(n, far)
    has_call = ended & (called < far)
    thread = real["thread"].fill_null(-1).to_numpy()[x] if len(start) else np.full(n, -1)
    # Whether X's own stream ran until g0: then X only waited for its turn.
    same_stream = np.zeros(n, np.bool_)
    if len(start):
        by_end = np.argsort(real["end_ns"].to_numpy(), kind="stable")
        ends, stream = real["end_ns"].to_numpy()[by_end], real["stream"].to_numpy()
        candidate, past = np.searchsorted(ends, g0, side="left"), np.searchsorted(ends, g0, side="right")
        while (left := np.flatnonzero(candidate < past)).size:  # as often as ops end at one instant
            same_stream[left] |= stream[by_end[candidate[left]]] == stream[x[left]]
            candidate[left] += 1
    in_gap = has_call & (called >= g0)
    latency = int(np.median((g1 - np.minimum(called, g1))[in_gap])) if in_gap.any() else 0
    queued = has_call & ~in_gap
    ready = np.where(returned > g0, g1, np.clip(called + latency, g0, g1))
    split = np.where(in_gap, np.minimum(called, g1), np.where(queued, ready, g1))

    gap = np.arange(n)
    pieces: list[_Pieces] = []
    for t in np.unique(thread[in_gap]).tolist():
        mine = in_gap & (thread == t)
        pieces += host.split(t, g0[mine], split[mine], gap[mine], 0)
    for chosen, begin, finish, cause in (
        (in_gap, split, g1, "launch_latency"),
        (queued, g0, split, "launch_latency"),
        (queued & same_stream, split, g1, "kernel_gap"),
        (queued & ~same_stream, split, g1, "dependency"),
        (ended & ~has_call, g0, g1, "untraced_launch"),
    ):
        pieces += host.split(None, begin[chosen], finish[chosen], gap[chosen], _CAUSE[cause])
    rest = ~ended
    pieces.append((g0[rest], g1[rest], gap[rest], np.full(int(rest.sum()), _CAUSE["no_further_work"])))
    began_in = np.full(n, -1, np.int64)
    for t in np.unique(thread[has_call]).tolist():
        if t in host.threads:
            mine = has_call & (thread == t)
            began_in[mine] = host.threads[t].at(g0[mine])
    order = np.argsort(np.concatenate([p[0] for p in pieces]), kind="stable")
    s, e, label, why = (np.concatenate([p[i] for p in pieces])[order] for i in range(4))
    op = np.where(ended, real["op"].to_numpy()[x], -1) if len(start) else np.full(n, -1)
    return pl.DataFrame(
        {
            "process": np.full(len(s), process),
            "device": np.full(len(s), device),
            "start_ns": s,
            "end_ns": e,
            "cause": why,
            "gap": label + first_gap,
            "op": _or_null(op[label]),
            "began_in": _or_null(began_in[label]),
        },
        schema=_IDLE,
    )


def _or_null(rows: I64) -> pl.Series:
    """Return row numbers with null for -1."""
    series = pl.Series(rows)
    return series.set(series < 0, None) if (rows < 0).any() else series


def _blocking_copies(ops: pl.DataFrame) -> pl.DataFrame:
    """Return call, pageable (one end is host memory that is not pinned), inside (device to device) of copy calls."""
    pageable = (pl.col("src_kind") == 0).fill_null(False) | (pl.col("dst_kind") == 0).fill_null(False)
    copies = ops.filter((pl.col("op_kind") == "memcpy") & pl.col("call").is_not_null())
    return copies.group_by("call").agg(
        pageable.any().alias("pageable"), (pl.col("copy_kind") == 8).all().alias("inside")
    )


def _waits(trace: Trace, attributed: Attributed) -> pl.DataFrame:
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


#: What the ledger of a device needs of its work.
_BLAMED = (
    "start_ns", "end_ns", "cls", "copy_kind", "call_start_ns", "call_end_ns", "call", "thread", "stream", "op"
)  # fmt: skip


def build(trace: Trace, attributed: Attributed) -> Ledgers:
    """Return the ledgers of a whole report; windows are taken from them later."""
    calls, ops = attributed.api_calls, attributed.gpu_ops
    threads = attributed.threads
    causes = [_CAUSE[_CAUSE_OF_KIND.get(k, "other_api")] for k in KINDS]
    by_kind = dict(zip(KINDS, causes, strict=True))
    cause_of_call = lookup.coded(calls["kind"], by_kind)
    loading: dict[int, StepFunction] = {}
    for (thread,), part in attributed.phase_spans.filter(pl.col("phase") == "data").group_by("thread"):
        loading[int(thread)] = coverage([(part["start_ns"].to_numpy(), part["end_ns"].to_numpy())])
    activity: dict[tuple[int, int], StepFunction] = {}
    pieces: list[pl.DataFrame] = [pl.DataFrame(schema=_IDLE)]
    gaps = 0
    span = pl.concat([calls.select("process", "start_ns", "end_ns"), ops.select("process", "start_ns", "end_ns")])
    spans = {
        p: (a, b)
        for p, a, b in span.group_by("process").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).iter_rows()
    }
    for process, device in ops.select("process", "device").unique(maintain_order=True).iter_rows():
        mine = (ops["process"] == process) & (ops["device"] == device)
        part = ops.select(_BLAMED) if mine.all() else ops.select(_BLAMED).filter(mine)
        key = (int(process), int(device))
        start, end = spans[process]
        activity[key] = _activity(part, start, end)
        overhead = trace.overhead.filter(pl.col("process") == process)
        s, e = union(overhead["start_ns"].to_numpy(), overhead["end_ns"].to_numpy())
        host = _Host(threads, cause_of_call, coverage([(s, e)]), loading)
        pieces.append(_blame(part, activity[key], host, *key, gaps))
        gaps += int((activity[key].labels == 0).sum())
    idle = pl.concat(pieces)
    caused = (
        idle.drop_nulls("began_in")
        .with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("ns"))
        .group_by("began_in")
        .agg(pl.col("ns").sum().alias("idle_caused_ns"))
    )
    waits = _waits(trace, attributed).join(
        caused, left_on="call", right_on="began_in", how="left", maintain_order="left"
    )
    return Ledgers(activity, threads, idle, waits.with_columns(pl.col("idle_caused_ns").fill_null(0)))


def _counts_as(bit: int, mask: int) -> bool:
    return mask & bit > 0 and mask & (bit - 1) == 0


def gpu_parts(activity: StepFunction, start: I64, end: I64) -> dict[str, I64]:
    """Return the GPU ledger of each window [start, end) of one device (ns).

    compute + comm + copy + memset + idle = end - start, exactly; busy is the first four. ``hidden_*`` is copy or
    communication that ran behind something of higher priority and therefore costs nothing.
    """
    masks = activity.shares(start, end)
    bits = {name: 1 << i for i, name in enumerate(CLASSES)}
    copies = sum(bits[c] for c in COPIES)

    def time(chosen: Callable[[int], bool]) -> I64:
        return sum((ns for mask, ns in masks.items() if chosen(mask)), np.zeros(len(start), np.int64))

    # The lowest bit has the highest priority.
    parts = {name: time(partial(_counts_as, bit)) for name, bit in bits.items()}
    window = end - start
    busy = time(lambda m: m > 0)
    return {
        "window_ns": window,
        "compute_ns": parts["compute"],
        "comm_ns": parts["comm"],
        "copy_ns": sum((parts[c] for c in COPIES), np.zeros(len(start), np.int64)),
        **{f"copy_{c.removeprefix('copy_')}_ns": parts[c] for c in COPIES},
        "memset_ns": parts["memset"],
        "idle_ns": window - busy,
        "busy_ns": busy,
        "hidden_copy_ns": time(lambda m: m & copies > 0 and m & (bits["compute"] | bits["comm"]) > 0),
        "hidden_comm_ns": time(lambda m: m & bits["comm"] > 0 and m & bits["compute"] > 0),
    }


def idle_parts(idle: pl.DataFrame, process: int, device: int, start: I64, end: I64) -> dict[str, I64]:
    """Return the idle time of a device in each window [start, end) by cause (ns), causes without any left out.

    The windows are in order and do not overlap.
    """
    mine = idle.filter((pl.col("process") == process) & (pl.col("device") == device))
    begin, finish, cause = (mine[name].to_numpy() for name in ("start_ns", "end_ns", "cause"))
    first = np.searchsorted(end, begin, side="right")
    touched = np.maximum(np.searchsorted(start, finish, side="left") - first, 0)
    piece = np.repeat(np.arange(len(begin)), touched)
    window = first[piece] + np.arange(len(piece)) - np.repeat(np.cumsum(touched) - touched, touched)
    ns = np.minimum(finish[piece], end[window]) - np.maximum(begin[piece], start[window])
    found = lookup.totals(cause[piece] * len(start) + window, ns, len(CAUSES) * len(start)).reshape(len(CAUSES), -1)
    return {name: found[i] for i, name in enumerate(CAUSES) if found[i].any()}


def idle_in(idle: pl.DataFrame, process: int, device: int, start: int, end: int) -> dict[str, int]:
    """Return the idle time of a device in [start, end) by cause (ns), causes without time left out."""
    return {c: int(ns[0]) for c, ns in idle_parts(idle, process, device, np.array([start]), np.array([end])).items()}

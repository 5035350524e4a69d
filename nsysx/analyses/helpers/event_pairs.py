"""Pairs of CUDA events as the program reads them, and what the device did between the two.

Which pairs: ``elapsed_time`` of PyTorch asks both events, start then end, whether they are done, directly one after the other
(two cudaEventQuery calls on one thread, nothing in between, both answered yes): those are the pairs, as they were read.
Where a process reads none that way, records that no stream waits for and nobody queries are paired by order on their thread
and stream: first with second, third with fourth; events recorded in turns of three or more (start, middle, end) are paired
each with the next of its turn. A pair can only be read once its end is reached: in a process whose streams wait for events, it is
one only if its thread waits for the device before it records one of the two events again; else a runtime orders its streams by them.

When the device reached a record: its own time stamp where the capture has them. Else by stream order: not before the work
that was launched into the stream earlier is done (or the event that the stream was told to wait for), and not before the
call that records it; not after the start of the work that was launched into the stream later. Between these bounds the record
takes place as soon as it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import polars as pl

from nsysx.events.event_bounds import READ_GAP_NS
from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64, StepFunction, coverage, overlay
from nsysx.frames.lookup import matching
from nsysx.rows import Of, names

_FAR = np.iinfo(np.int64).max

_NO_PAIRS = pl.DataFrame()

#: Their columns: the types of a row's fields.
KernelNs = Annotated[int, Of("a kernel of the stream ran", "ns")]
CopyNs = Annotated[int, Of("only a copy of the stream ran", "ns")]
MemsetNs = Annotated[int, Of("only a memset of the stream ran", "ns")]
LaunchWaitNs = Annotated[int, Of("the stream was empty: the CPU had not launched the next work yet", "ns")]
OtherStreamsNs = Annotated[int, Of("the stream was idle, another stream of the device was not", "ns")]
IdleNs = Annotated[int, Of("launched but not started: start latency and dependencies", "ns")]
PARTS = ("kernel_ns", "copy_ns", "memset_ns", "launch_wait_ns", "other_streams_ns", "idle_ns")

_RECORD = names("record process thread device context stream event call start_ns end_ns stamp_ns")


@dataclass(frozen=True)
class EventWindows:
    """``pairs``: one row per window. ``records``: one row per cudaEventRecord that the report has."""

    records: pl.DataFrame
    pairs: pl.DataFrame


def _records(profile: Profile, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the records in the order of their calls."""
    calls = calls.filter(matching(calls["name"], "EventRecord"))
    stamp = pl.when(pl.col("device_ns") > 0).then(pl.col("device_ns"))
    rows = profile.trace.event.with_columns(stamp.alias("stamp_ns")).join(
        calls["process", "thread", "correlation_id", "call", "start_ns", "end_ns"],
        on=["process", "correlation_id"],
        how="inner",
    )
    # nsys writes device 0 into rows like these; the context tells.
    ops, places = profile.attributed.gpu_ops, []
    for process, context in rows["process", "context"].drop_nulls().unique().iter_rows():
        first = ((ops["process"] == process) & (ops["context"] == context)).arg_max()
        if first is not None and (ops["process"][first], ops["context"][first]) == (process, context):
            places.append((process, context, ops["device"][first]))
    devices = pl.DataFrame(places, schema=dict.fromkeys(("process", "context", "device"), pl.Int64), orient="row")
    rows = rows.join(devices, on=["process", "context"], how="left", maintain_order="left")
    rows = rows.with_columns(pl.col("device", "context").fill_null(0))
    rows = rows.unique("call", keep="first", maintain_order=True).sort("start_ns", "call").with_row_index("record")
    return rows.select(pl.col(_RECORD).cast(pl.Int64))


def _asked(profile: Profile, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls about events: call, process, thread, name, event, stream, start_ns, end_ns, done."""
    sync = profile.trace.sync.filter(profile.trace.sync["correlation_id"] != 0).select(
        "process",
        "correlation_id",
        "event",
        pl.col("context").fill_null(0).alias("waiting_context"),
        pl.col("stream").alias("waiting_stream"),
    )
    rows = calls.filter(matching(calls["name"], "EventQuery|StreamWaitEvent|EventSynchronize"))
    rows = rows.with_columns(pl.col("name").cast(pl.String)).join(sync, on=["process", "correlation_id"], how="inner")
    done = (~pl.col("failed")).alias("done")
    chosen = ("call", "process", "thread", "name", "event", "waiting_context", "waiting_stream", "start_ns", "end_ns")
    return rows.select(*chosen, done).unique("call", keep="first", maintain_order=True).sort("call")


def _latest(records: pl.DataFrame) -> dict[tuple[int, int], tuple[list[int], list[int]]]:
    """Return (process, event) -> (times of its records, their rows), in order."""
    by_event: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for process, event, start, row in records["process", "event", "start_ns", "record"].iter_rows():
        times, rows = by_event.setdefault((process, event), ([], []))
        times.append(start)
        rows.append(row)
    return by_event


def _read_pairs(records: pl.DataFrame, asked: pl.DataFrame) -> list[tuple[int, int]]:
    """Return (start record, end record) of each reading by two queries."""
    queries = asked.filter(pl.col("name").str.contains("EventQuery"))
    if not queries.height:
        return []
    by_event = _latest(records)
    # Only caches poll events that are not done yet.
    polled = set(queries.filter(~queries["done"])["process", "event"].iter_rows())
    waited = set(asked.filter(pl.col("name").str.contains("StreamWaitEvent"))["process", "event"].iter_rows())
    rows = queries["call", "process", "thread", "event", "start_ns", "end_ns"].rows()
    pairs: list[tuple[int, int]] = []
    streams = records["context", "stream"].rows()
    i = 0
    while i + 1 < len(rows):
        (call, process, thread, first, _, asked_end), (next_call, _, next_thread, second, again, _) = (
            rows[i],
            rows[i + 1],
        )
        keys = ((process, first), (process, second))
        read = next_call == call + 1 and next_thread == thread and first != second and again - asked_end <= READ_GAP_NS
        if read and not any(k in polled or k in waited or k not in by_event for k in keys):
            a, b = (_last_record_before(by_event[k], again) for k in keys)
            if a is not None and b is not None and a < b and streams[a] == streams[b]:
                pairs.append((a, b))
                i += 2
                continue
        i += 1
    return sorted(set(pairs), key=lambda pair: (pair[1], pair[0]))


def _last_record_before(record: tuple[list[int], list[int]], time: int) -> int | None:
    times, rows = record
    i = int(np.searchsorted(times, time, side="left")) - 1
    return rows[i] if i >= 0 else None


def _awaited(records: pl.DataFrame, calls: pl.DataFrame, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the pairs whose thread waits for the device between their end and the next record of one of their events."""
    waits = calls.filter(matching(calls["name"], "Synchronize"))["thread", "end_ns"].sort("end_ns")
    returned = {thread: part["end_ns"].to_numpy() for (thread,), part in waits.group_by("thread", maintain_order=True)}
    by_event = _latest(records)
    process, thread, event, begun = (records[c].to_list() for c in ("process", "thread", "event", "start_ns"))
    kept = []
    for a, b in pairs:
        times = returned.get(thread[b])
        again = [_recorded_again_ns(by_event[process[i], event[i]], begun[b]) for i in (a, b)]
        i = -1 if times is None else int(np.searchsorted(times, begun[b], side="right"))
        if times is not None and i < len(times) and times[i] <= min(again):
            kept.append((a, b))
    return kept


def _recorded_again_ns(record: tuple[list[int], list[int]], time: int) -> int:
    """Return when an event is recorded again after ``time`` (ns), _FAR if never."""
    i = int(np.searchsorted(record[0], time, side="right"))
    return record[0][i] if i < len(record[0]) else int(_FAR)


def _ordered_pairs(records: pl.DataFrame, asked: pl.DataFrame) -> list[tuple[int, int]]:
    """Return pairs by the order of records, for programs whose readings cannot be seen."""
    used = asked.filter(pl.col("name").str.contains("StreamWaitEvent|EventQuery"))["process", "event"].unique()
    free = records.join(used, on=["process", "event"], how="anti").sort("record")
    pairs: list[tuple[int, int]] = []
    for _, part in free.group_by("thread", "context", "stream", maintain_order=True):
        rows, events = part["record"].to_list(), part["event"].to_list()
        turn = next((i for i in range(1, len(events)) if events[i] == events[0]), 0)
        if turn >= 3 and all(events[i] == events[i - turn] for i in range(turn, len(events))):
            pairs += [(rows[i], rows[i + 1]) for i in range(len(rows) - 1) if (i + 1) % turn]
            continue
        i = 0
        while i + 1 < len(rows):
            if events[i] == events[i + 1]:
                i += 1
                continue
            pairs.append((rows[i], rows[i + 1]))
            i += 2
    return sorted(pairs)


def _device_times(profile: Profile, records: pl.DataFrame, asked: pl.DataFrame) -> tuple[I64, I64, I64]:
    """Return per record (estimate, earliest, latest) of when the device reached it (ns); latest is _FAR if unbounded."""
    n = records.height
    process, context, stream = (records[c].to_numpy() for c in ("process", "context", "stream"))
    start = records["start_ns"].to_numpy()
    done, later = np.full(n, -_FAR, np.int64), np.full(n, _FAR, np.int64)
    for owner, within, on in records["process", "context", "stream"].unique().iter_rows():
        ops = (
            _of_stream(profile.attributed.gpu_ops, owner, within, on).drop_nulls("call_start_ns").sort("call_start_ns")
        )
        on_stream = np.flatnonzero((process == owner) & (context == within) & (stream == on))
        i = np.searchsorted(ops["call_start_ns"].to_numpy(), start[on_stream], side="left")
        done[on_stream] = np.append(-_FAR, np.maximum.accumulate(ops["end_ns"].to_numpy()))[i]
        later[on_stream] = np.append(np.minimum.accumulate(ops["start_ns"].to_numpy()[::-1])[::-1], _FAR)[i]
    waits = asked.filter(pl.col("name").str.contains("StreamWaitEvent"))
    steps = [(t, 0, row) for row, t in enumerate(start.tolist())]
    told = waits["start_ns", "process", "waiting_context", "waiting_stream", "event"].rows()
    steps += [(t[0], 1, row) for row, t in enumerate(told)]
    floor: dict[tuple[int, int, int], int] = {}
    reached: dict[tuple[int, int], int] = {}
    earliest, estimate = [0] * n, [0] * n
    recorded = records["process", "context", "stream", "event", "start_ns", "end_ns"].rows()
    done_, later_ = done.tolist(), later.tolist()
    for _, kind, row in sorted(steps):
        if kind:
            _, owner, within, on, event = told[row]
            floor[owner, within, on] = max(floor.get((owner, within, on), -_FAR), reached.get((owner, event), -_FAR))
            continue
        owner, within, on, event, begin, finish = recorded[row]
        before = max(done_[row], floor.get((owner, within, on), -_FAR))
        earliest[row] = max(before, begin)
        estimate[row] = max(earliest[row], min(max(before, finish), later_[row]))
        reached[owner, event] = estimate[row]
    likely = np.array(estimate, np.int64)
    return likely, np.array(earliest, np.int64), np.maximum(later, likely)


def _of_stream(ops: pl.DataFrame, process: int, context: int, stream: int) -> pl.DataFrame:
    """Return the GPU ops of one stream: device, op_kind, start_ns, end_ns, call_start_ns, call_end_ns."""
    on_stream = (ops["process"] == process) & (ops["context"].fill_null(0) == context) & (ops["stream"] == stream)
    return ops["device", "op_kind", "start_ns", "end_ns", "call_start_ns", "call_end_ns"].filter(on_stream)


def _stream_function(ops: pl.DataFrame, records: pl.DataFrame, times: I64) -> StepFunction:
    """Return what a stream does at each instant, as bits: 1 kernel, 2 copy, 4 memset, 8 waits for a launch."""
    kind = ops["op_kind"]
    s, e = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    sets = [kind.is_in(["kernel", "graph"]), kind == "memcpy", kind == "memset"]
    masks = [m.to_numpy() for m in sets]
    # A record is an op without length: a wait for the work after it is a new one.
    begin = np.concatenate([s, times])
    finish = np.concatenate([e, times])
    issued = np.concatenate([ops["call_end_ns"].fill_null(-_FAR).to_numpy(), records["end_ns"].to_numpy()])
    order = np.lexsort((finish, begin))
    begin, finish, issued = begin[order], finish[order], issued[order]
    reach = np.concatenate([begin[:1], np.maximum.accumulate(finish)[:-1]])
    wait_end = np.minimum(begin, issued)
    return coverage([*((s[m], e[m]) for m in masks), (reach, np.maximum(wait_end, reach))])


def windows(profile: Profile) -> EventWindows:
    """Return the event windows of a report; ``reading_ns`` = the sum of PARTS."""
    # The API calls that may be about events.
    calls = profile.attributed.api_calls
    columns = ("call", "process", "thread", "correlation_id", "name", "start_ns", "end_ns", "failed")
    about = calls.select(columns).filter(matching(calls["kind"], "^(event|sync)$"))
    records, asked = _records(profile, about), _asked(profile, about)
    matched = _pairs(records, asked, about)
    if not matched:
        return EventWindows(records, _NO_PAIRS)
    first, last = (np.array([pair[i] for pair in matched], np.int64) for i in range(2))
    estimate, earliest, latest = _device_times(profile, records, asked)
    stamps = records["stamp_ns"].fill_null(0).to_numpy()
    stamped = (stamps[first] > 0) & (stamps[last] >= stamps[first])
    start = np.where(stamped, stamps[first], estimate[first])
    end = np.maximum(np.where(stamped, stamps[last], estimate[last]), start)
    bound = stamped | ((latest[last] < _FAR) & (latest[first] < _FAR))
    high = np.where(stamped, end - start, latest[last] - earliest[first])
    low = np.where(stamped, end - start, np.maximum(earliest[last] - np.minimum(latest[first], start), 0))
    pairs = pl.DataFrame(
        {
            "start_record": first,
            "end_record": last,
            "paired_by": [by for *_, by in matched],
            "device_stamps": stamped,
            "start_ns": start,
            "end_ns": end,
            "reading_ns": end - start,
            "low_ns": low,
            "high_ns": pl.Series(high).set(pl.Series(~bound), None),
            **_window_contents(profile, records, np.where(stamps > 0, stamps, estimate), (first, start, end)),
        },
        schema_overrides={"paired_by": pl.String},
    )
    return EventWindows(records, _placed(profile, records, pairs))


def _pairs(records: pl.DataFrame, asked: pl.DataFrame, calls: pl.DataFrame) -> list[tuple[int, int, str]]:
    """Return (start record, end record, how they were paired) for each process: by its readings if those are visible."""
    pairs: list[tuple[int, int, str]] = []
    for (process,), of_process in records.group_by("process", maintain_order=True):
        asked_there = asked.filter(asked["process"] == process)
        if read := _read_pairs(records, asked_there):
            pairs += [(a, b, "read") for a, b in read]
        else:
            ordered = _ordered_pairs(of_process, asked_there)
            if asked_there["name"].str.contains("StreamWaitEvent").any():
                ordered = _awaited(records, calls, ordered)
            pairs += [(a, b, "order") for a, b in ordered]
    return pairs


def _window_contents(
    profile: Profile, records: pl.DataFrame, reached: I64, pairs: tuple[I64, I64, I64]
) -> dict[str, I64]:
    """Return the contents of the windows [start, end): kernels, gpu_ops, and the PARTS (ns).

    ``reached`` is when the device reached each record; ``pairs`` are the first record, start and end of each window.
    """
    first, start, end = pairs
    sums = {name: np.zeros(len(first), np.int64) for name in ("kernels", "gpu_ops", *PARTS)}
    streams = records["process", "device", "context", "stream"]
    of_pair = streams[first.tolist()]
    for (process, device, context, stream), rows in of_pair.with_row_index("i").group_by(streams.columns):
        i = rows["i"].to_numpy()
        ops = _of_stream(profile.attributed.gpu_ops, process, context, stream).filter(pl.col("device") == device)
        there = (streams["process"] == process) & (streams["context"] == context) & (streams["stream"] == stream)
        on_stream = _stream_function(ops, records.filter(there), reached[there.to_numpy()])
        nothing = StepFunction(np.empty(0, np.int64), np.empty(0, np.int64))
        activity = profile.ledgers.activity.get((int(process), int(device)), nothing)
        for name, ns in _parts(on_stream, activity, start[i], end[i]).items():
            sums[name][i] = ns
        for name, chosen in (("kernels", ops["op_kind"] == "kernel"), ("gpu_ops", ops["op_kind"].is_not_null())):
            begun = np.sort(ops["start_ns"].filter(chosen).to_numpy())
            sums[name][i] = np.searchsorted(begun, end[i]) - np.searchsorted(begun, start[i])
    return sums


def _parts(stream: StepFunction, device: StepFunction, start: I64, end: I64) -> dict[str, I64]:
    """Return the PARTS of windows, by what their stream does, and else by whether the device is busy."""
    low, high = int(start.min()), int(end.max())
    borders, (bits, busy) = (
        overlay([stream, device], low, high) if high > low else (np.array([low, low + 1]), [np.array([0])] * 2)
    )
    bits = np.maximum(bits, 0)
    function = StepFunction(borders, bits)
    label = np.select([bits & 1 > 0, bits & 2 > 0, bits & 4 > 0, bits & 8 > 0, busy > 0], [0, 1, 2, 3, 4], default=5)
    return {name: function.within(label == k, start, end) for k, name in enumerate(PARTS)}


def _placed(profile: Profile, records: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs with where their first record was made: process, thread, device, stream, events, module, phase."""
    where = ("process", "thread", "device", "stream", "call")
    first = records.select(pl.col("record").alias("start_record"), *where, pl.col("event").alias("start_event"))
    last = records.select(pl.col("record").alias("end_record"), pl.col("event").alias("end_event"))
    pairs = pairs.join(first, on="start_record", how="left", maintain_order="left")
    pairs = pairs.join(last, on="end_record", how="left", maintain_order="left")
    calls = profile.attributed.api_calls
    return pairs.with_columns(calls[c].gather(pairs["call"]).cast(pl.String) for c in ("module", "phase"))

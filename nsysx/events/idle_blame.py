"""Why a device idled: each gap goes to causes that sum to it exactly.

A gap is judged as a whole, by the ops around it wherever they lie, and only then cut to a window.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.catalogue import CAUSES, Cause
from nsysx.events.attribute import Attributed
from nsysx.events.event_bounds import CLOCK_ERROR_NS, FEWEST_FOR_MEDIAN, USUAL_LAUNCH_NS, USUAL_PAUSE_NS
from nsysx.events.host_activity import FAR, Gaps, Host, Pieces, hosts
from nsysx.frames import frame_columns, lookup
from nsysx.frames.intervals import I64, StepFunction
from nsysx.reading.load import Trace

_IDLE = frame_columns.schema(frame_columns.IDLE)


@dataclass(frozen=True)
class _Usual:
    """How long something takes when nothing is in its way, and from when on something was (ns)."""

    ns: int
    noticed: int

    @staticmethod
    def usual_among(seen: I64, default: int) -> _Usual:
        ns = int(np.median(seen)) if len(seen) >= FEWEST_FOR_MEDIAN else default
        return _Usual(ns, max(2 * ns, ns + CLOCK_ERROR_NS))


def _gaps(ops: pl.DataFrame, activity: StepFunction) -> Gaps:
    idle = activity.labels == 0
    g0, g1 = activity.times[:-1][idle], activity.times[1:][idle]
    lasting = ops["end_ns"] > ops["start_ns"]
    real = ops if lasting.all() else ops.filter(lasting)
    real = lookup.ordered(real, "start_ns", ["call_start_ns", "call", "stream", "op"])
    start = real["start_ns"].to_numpy()
    x = np.searchsorted(start, g1, side="left")
    ended = x < len(start)
    ended[ended] = start[x[ended]] == g1[ended]
    row = np.where(ended, x, -1)

    def of_x(column: str, missing: int) -> I64:
        return lookup.filled(lookup.at(real[column], row), missing)

    stream = of_x("stream", -1)
    by_end = np.argsort(real["end_ns"].to_numpy(), kind="stable")
    ends, of_end = real["end_ns"].to_numpy()[by_end], real["stream"].to_numpy()[by_end]
    same_stream = np.zeros(len(g0), np.bool_)
    candidate, past = np.searchsorted(ends, g0, side="left"), np.searchsorted(ends, g0, side="right")
    while (left := np.flatnonzero(candidate < past)).size:  # as often as ops end at one instant
        same_stream[left] |= of_end[candidate[left]] == stream[left]
        candidate[left] += 1
    called, returned = of_x("call_start_ns", FAR), of_x("call_end_ns", FAR)
    call = lookup.filled(real["call"], -1)
    rows = np.arange(len(call), dtype=np.int32)
    first = np.empty(call.max(initial=-1) + 2, np.int32)
    first[call[::-1]] = rows[::-1]
    repeated = first[call] < rows
    under_way = ended & (called < FAR) & repeated[np.maximum(row, 0)] if len(repeated) else np.zeros(len(g0), np.bool_)
    return Gaps(
        g0,
        g1,
        ended=ended,
        called=called,
        returned=returned,
        thread=of_x("thread", -1),
        op=of_x("op", -1),
        stream=stream,
        same_stream=same_stream,
        under_way=under_way,
    )


def _ready(gaps: Gaps) -> tuple[I64, I64]:
    """Return where the launch latency of each gap begins, and where it ends: from there on X waited for something else.

    - L began in the gap: X could start the usual latency after L began, at the earliest when L returned.
    - L began before: likewise, but not when another op of L had begun (a graph has many): then its launch was over. A queued op
      that only followed its own stream may pause as two kernels usually do.

    What is not noticeably later than that is latency (or pause) to the end.
    """
    g0, g1 = gaps.g0, gaps.g1
    in_gap, queued = gaps.in_gap, gaps.queued
    begin = np.where(in_gap, np.minimum(gaps.called, g1), np.where(queued, g0, g1))
    latency = _Usual.usual_among((g1 - begin)[in_gap], USUAL_LAUNCH_NS)
    possible = np.maximum(gaps.called + latency.ns, gaps.returned)
    late = g1 - possible > latency.noticed - latency.ns
    # A queued op could have started long before: whatever time is left had another reason.
    late |= queued & (possible <= g0)
    over = queued & gaps.under_way
    late, possible = late | over, np.where(over, g0, possible)
    end = np.where(late, np.clip(possible, begin, g1), g1)
    return begin, end


def _pauses(gaps: Gaps, ready: I64) -> I64:
    """Return where the pause between two kernels of one stream ends, ``ready`` where X did not just follow its own stream."""
    follows = gaps.queued & gaps.same_stream
    pause = _Usual.usual_among((gaps.g1 - ready)[follows], USUAL_PAUSE_NS)
    long = gaps.g1 - ready > pause.noticed
    return np.where(follows, np.where(long, ready + pause.ns, gaps.g1), ready)


def _waited_for(gaps: Gaps, device: int, work: pl.DataFrame) -> tuple[I64, I64]:
    """Return device and stream of the work of the process that ended last before X began, -1 where that tells nothing.

    It ended in the gap (then on another device), or as the gap began, on another stream.
    """
    if not work.height:
        return np.full(len(gaps.g0), -1), np.full(len(gaps.g0), -1)
    ends, devices, streams = (work[c].to_numpy() for c in ("end_ns", "device", "stream"))
    last = np.searchsorted(ends, gaps.g1, side="right") - 1
    adjoining = (last >= 0) & (ends[np.maximum(last, 0)] >= gaps.g0)
    last = np.maximum(last, 0)
    adjoining &= (devices[last] != device) | (streams[last] != gaps.stream)
    return np.where(adjoining, devices[last], -1), np.where(adjoining, streams[last], -1)


def _blame(gaps: Gaps, host: Host, process: int, device: int, work: pl.DataFrame) -> pl.DataFrame:
    """Return the idle pieces of one device.

    A gap [g0, g1) ends with GPU op X, launched by call L on thread T:

    - no L: untraced_launch; no X (after the last op): no_further_work.
    - L began in the gap: before L, what the thread in control did (``Host.in_control``): inside an API call its kind, else
      data loading or host code. From L on launch_latency, and past the usual latency dependency (``_ready``).
    - L began before the gap: up to the usual latency behind L launch_latency, unless an earlier op of L had begun. The rest
      is kernel_gap when X only followed the work of its own stream and paused no longer than kernels usually do; else
      dependency (an event or stream wait).

    "Usual" is the median of 20 or more, else a stated default. Profiler overhead is subtracted everywhere.
    """
    g0, g1, gap = gaps.g0, gaps.g1, np.arange(len(gaps.g0))
    in_gap, called = gaps.in_gap, gaps.in_gap | gaps.queued
    begin, ready = _ready(gaps)
    paused = _pauses(gaps, ready)
    control, taken = host.in_control(gaps)
    # A launch that is noted behind the start of its kernel takes over when the gap ends.
    taken = np.minimum(taken, begin)
    pieces: list[Pieces] = []
    for who, start, end in ((control, g0, taken), (gaps.thread, taken, begin)):
        for thread in np.unique(who[in_gap]).tolist():
            of_thread = in_gap & (who == thread)
            pieces += host.split(thread, start[of_thread], np.maximum(end, start)[of_thread], gap[of_thread], 0)
    for chosen, start, end, cause in (
        (called, begin, ready, Cause.LAUNCH_LATENCY),
        (called, ready, paused, Cause.KERNEL_GAP),
        (called, paused, g1, Cause.DEPENDENCY),
        (gaps.ended & ~called, g0, g1, Cause.UNTRACED_LAUNCH),
    ):
        pieces += host.split(None, start[chosen], end[chosen], gap[chosen], cause.number)
    rest = ~gaps.ended
    pieces.append((g0[rest], g1[rest], gap[rest], np.full(int(rest.sum()), Cause.NO_FURTHER_WORK.number)))
    s, e, label, why = (np.concatenate([p[i] for p in pieces]) for i in range(4))
    began_in, until = host.began_in(np.where(called, control, -1), g0)
    s, e, label, why = _cut(s, e, label, why, until)
    # Before L was called somebody was late: whoever was in control, then the thread of L.
    late = in_gap[label] & (s < begin[label])
    who = np.where(late, np.where(s < taken[label], control[label], gaps.thread[label]), -1)
    waits = why == Cause.DEPENDENCY.number
    on_device, on_stream = (np.where(waits, waited[label], -1) for waited in _waited_for(gaps, device, work))
    return pl.DataFrame(
        {
            "process": np.full(len(s), process),
            "device": np.full(len(s), device),
            "start_ns": s,
            "end_ns": e,
            "cause": why,
            "gap": label,
            "op": _or_null(gaps.op[label]),
            "began_in": _or_null(np.where(s < until[label], began_in[label], -1)),
            "thread": _or_null(who),
            "waited_device": _or_null(on_device),
            "waited_stream": _or_null(on_stream),
        },
        schema=_IDLE,
    )


def _cut(s: I64, e: I64, label: I64, why: I64, borders: I64) -> Pieces:
    """Return pieces in order of time, cut where the border of their gap lies inside."""
    border = borders[label]
    inside = (s < border) & (border < e)
    begin = np.concatenate((s, border[inside]))
    end = np.concatenate((np.where(inside, border, e), e[inside]))
    order = np.argsort(begin, kind="stable")
    label, why = np.concatenate((label, label[inside])), np.concatenate((why, why[inside]))
    return begin[order], end[order], label[order], why[order]


def _or_null(rows: I64) -> pl.Series:
    """Return row numbers with null for -1."""
    series = pl.Series(rows)
    return series.set(series < 0, None) if (rows < 0).any() else series


#: What the blame of a device needs of its work.
_BLAMED = ("start_ns", "end_ns", "call_start_ns", "call_end_ns", "call", "thread", "stream", "op")


def idle_pieces(trace: Trace, attributed: Attributed, activities: dict[tuple[int, int], StepFunction]) -> pl.DataFrame:
    """Return the idle time of all devices in pieces.

    Columns: process, device, start_ns, end_ns, cause (``Cause.number``), gap, op (that ended the gap), began_in (the API call in
    which the thread that kept the device waiting was when it ran dry, null for none and for what idles longer than that call
    lasted), thread (the one that was late with the launch, null where none was), waited_device and waited_stream (of a dependency,
    where the work that ended last tells; else null).
    """
    parts = lookup.parted(attributed.gpu_ops.select("process", "device", *_BLAMED), "process", "device")
    gaps_of = {device: _gaps(parts[device], activity) for device, activity in activities.items()}
    # After the gaps: while those are found, what the threads did would only fill memory.
    of_process = hosts(trace, attributed)
    by_end = {
        process: lookup.ordered(work.drop("process"), "end_ns", ["device", "stream"])
        for (process,), work in lookup.parted(
            attributed.gpu_ops["process", "device", "stream", "end_ns"], "process"
        ).items()
    }
    pieces: list[pl.DataFrame] = [pl.DataFrame(schema=_IDLE)]
    count = 0
    for (process, device), gaps in gaps_of.items():
        if len(gaps.g0):
            blamed = _blame(gaps, of_process[process], process, device, by_end[process])
            pieces.append(blamed.with_columns(pl.col("gap") + count) if count else blamed)
            count += len(gaps.g0)
    return pl.concat(pieces)


def idle_parts(pieces: pl.DataFrame, start: I64, end: I64) -> dict[str, I64]:
    """Return the idle time of one device in each window [start, end) by cause (ns), causes without any left out.

    ``pieces`` are the idle pieces of that device; the windows are in order and do not overlap.
    """
    begin, finish, cause = (pieces[name].to_numpy() for name in ("start_ns", "end_ns", "cause"))
    first = np.searchsorted(end, begin, side="right")
    touched = np.maximum(np.searchsorted(start, finish, side="left") - first, 0)
    piece = np.repeat(np.arange(len(begin)), touched)
    window = first[piece] + np.arange(len(piece)) - np.repeat(np.cumsum(touched) - touched, touched)
    ns = np.minimum(finish[piece], end[window]) - np.maximum(begin[piece], start[window])
    sums = lookup.totals(cause[piece] * len(start) + window, ns, len(CAUSES) * len(start)).reshape(len(CAUSES), -1)
    return {name: sums[i] for i, name in enumerate(CAUSES) if sums[i].any()}


def idle_in(pieces: pl.DataFrame, start: int, end: int) -> dict[str, int]:
    """Return the idle time of one device in [start, end) by cause (ns), causes without time left out."""
    return {c: int(ns[0]) for c, ns in idle_parts(pieces, np.array([start]), np.array([end])).items()}

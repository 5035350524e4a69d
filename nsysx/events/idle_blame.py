"""Why a device idled: each gap goes to causes that sum to it exactly.

A gap is judged as a whole, by the ops around it wherever they lie, and only then cut to a window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.events.attribute import Attributed
from nsysx.events.correlate import KINDS
from nsysx.frames import lookup
from nsysx.frames.intervals import I64, StepFunction, coverage, merged, union
from nsysx.reading.load import Trace

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


#: What the blame of a device needs of its work.
_BLAMED = ("start_ns", "end_ns", "call_start_ns", "call_end_ns", "call", "thread", "stream", "op")


def idle_pieces(trace: Trace, attributed: Attributed, activities: dict[tuple[int, int], StepFunction]) -> pl.DataFrame:
    """Return the idle time of all devices in pieces.

    Columns: process, device, start_ns, end_ns, cause (row of CAUSES), gap, op (that ended the gap), began_in (the API call in
    which the launching thread was when the device ran dry, null for none).
    """
    calls, ops = attributed.api_calls, attributed.gpu_ops
    causes = [_CAUSE[_CAUSE_OF_KIND.get(k, "other_api")] for k in KINDS]
    cause_of_call = lookup.coded(calls["kind"], dict(zip(KINDS, causes, strict=True)))
    loading: dict[int, StepFunction] = {}
    for (thread,), part in attributed.phase_spans.filter(pl.col("phase") == "data").group_by("thread"):
        loading[int(thread)] = coverage([(part["start_ns"].to_numpy(), part["end_ns"].to_numpy())])
    pieces: list[pl.DataFrame] = [pl.DataFrame(schema=_IDLE)]
    gaps = 0
    for (process, device), activity in activities.items():
        mine = (ops["process"] == process) & (ops["device"] == device)
        part = ops.select(_BLAMED) if mine.all() else ops.select(_BLAMED).filter(mine)
        overhead = trace.overhead.filter(pl.col("process") == process)
        s, e = union(overhead["start_ns"].to_numpy(), overhead["end_ns"].to_numpy())
        host = _Host(attributed.threads, cause_of_call, coverage([(s, e)]), loading)
        pieces.append(_blame(part, activity, host, process, device, gaps))
        gaps += int((activity.labels == 0).sum())
    return pl.concat(pieces)


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

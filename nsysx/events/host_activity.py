"""What the threads of a process did while a device idled: who kept it waiting, in which call, for what reason."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.catalogue import Call, Cause, Trait
from nsysx.events import host_messages
from nsysx.events.attribute import Attributed
from nsysx.events.event_bounds import CLOCK_ERROR_NS, GAP_BLOCK_ROWS
from nsysx.events.nvtx_ranges import Flags
from nsysx.frames import lookup
from nsysx.frames.intervals import I64, Labels, StepFunction, coverage, merged, union
from nsysx.reading.load import Trace

_BLOCKING = [cause.number for cause in Cause if Trait.BLOCKS in cause.trait]

#: Start, end, label and cause of pieces of idle time.
Pieces = tuple[I64, I64, I64, I64]


FAR = np.iinfo(np.int64).max // 4


@dataclass(frozen=True)
class Gaps:
    """The idle gaps of one device and the op X that ends each, launched by call L on ``thread`` (-1: none).

    ``called`` and ``returned`` are begin and end of L, far away without L. ``same_stream``: the stream of X ran until the gap
    began, so that X only waited for its turn. ``under_way``: an earlier op of L had begun (a graph has many), so that its launch
    was over.
    """

    g0: I64
    g1: I64
    ended: Flags
    called: I64
    returned: I64
    thread: I64
    op: I64
    stream: I64
    same_stream: Flags
    under_way: Flags

    @property
    def in_gap(self) -> Flags:
        """L began in the gap."""
        return self.ended & (self.called < FAR) & (self.called >= self.g0)

    @property
    def queued(self) -> Flags:
        """L began before the gap."""
        return self.ended & (self.called < self.g0)


@dataclass(frozen=True)
class _Calls:
    """API calls of one thread: begin and end of each, in order of begin, and the number of the first; they count up."""

    start: I64
    end: I64
    first: int


@dataclass(frozen=True)
class Host:
    """What the threads of one process did, for blaming gaps.

    ``calls``: per thread. ``data`` and ``meeting``: when a thread loads data, and communicates. ``launched`` and ``launcher``: begin and
    thread of all calls that launched work, in order. ``outer``: of each call the outermost one that it lies in. ``begin`` and
    ``end``: of each call.
    """

    threads: dict[int, StepFunction]
    cause_of_call: Labels
    overhead: StepFunction
    data: dict[int, StepFunction]
    meeting: dict[int, StepFunction]
    calls: dict[int, _Calls]
    launched: I64
    launcher: I64
    outer: Labels
    begin: I64
    end: I64

    def in_control(self, gaps: Gaps) -> tuple[I64, I64]:
        """Return the thread that kept each gap waiting, and when the thread of L took over from it.

        That is T, the thread of L, unless T handed over: another thread launched last before L, and T made no call since that
        launch until some time in the gap. ``backward()`` runs on autograd's thread while the main thread waits for it, and what
        the main thread did before it called is why the first launch of the backward came late.
        """
        control, taken = gaps.thread.copy(), gaps.g0.copy()
        before = np.searchsorted(self.launched, gaps.called, side="left") - 1
        for thread in np.unique(gaps.thread[gaps.in_gap]).tolist():
            waiting = np.flatnonzero(gaps.in_gap & (gaps.thread == thread) & (before >= 0))
            calls = self.calls.get(thread)
            if calls is None or not len(waiting):
                continue
            first = np.searchsorted(calls.start, gaps.g0[waiting], side="left")
            last_start = np.where(first > 0, calls.start[np.maximum(first - 1, 0)], -FAR)
            outside = self.threads[thread].at(gaps.g0[waiting]) < 0
            other, since = self.launcher[before[waiting]], self.launched[before[waiting]]
            handed = (other != thread) & outside & (last_start < since) & (first < len(calls.start))
            chosen = waiting[handed]
            control[chosen] = other[handed]
            taken[chosen] = np.minimum(calls.start[first[handed]], gaps.called[chosen])
        return control, taken

    def began_in(self, thread: I64, time: I64) -> tuple[I64, I64]:
        """Return the call in which a thread was when the device ran dry, -1 for none, and until when its idle time is owed to it.

        A synchronize that returned up to the error of the clocks before still counts. A call that had not been made would have
        let the thread go on earlier by the length of the call: what idles longer than that has another reason.
        """
        begun, until = np.full(len(time), -1, np.int64), time.copy()
        for t in np.unique(thread[thread >= 0]).tolist():
            if t not in self.threads:
                continue
            of_thread = np.flatnonzero(thread == t)
            call = self.threads[t].at(time[of_thread]).astype(np.int64)
            calls = self.calls[t]
            last = np.searchsorted(calls.start, time[of_thread], side="right") - 1
            row, end = calls.first + np.maximum(last, 0), calls.end[np.maximum(last, 0)]
            just = (call < 0) & (last >= 0) & (end > time[of_thread] - CLOCK_ERROR_NS)
            just &= self.cause_of_call[row] == Cause.SYNC.number
            call = np.where(just, row, call)
            outer = self.outer[np.maximum(call, 0)]
            blocks = np.isin(self.cause_of_call[outer], _BLOCKING)
            begun[of_thread] = np.where(call < 0, -1, np.where(blocks, outer, call))
        has_begun = begun >= 0
        until[has_begun] += self.end[begun[has_begun]] - self.begin[begun[has_begun]]
        return begun, until

    def split(self, thread: int | None, start: I64, end: I64, label: I64, cause: int) -> Iterator[Pieces]:
        """Yield (start, end, label, cause) of the pieces of disjoint windows, which are sorted.

        Profiler overhead is taken out first. With ``thread`` the rest goes to what that thread did, without to ``cause``.
        """
        real = end > start
        start, end, label = start[real], end[real], label[real]
        if thread is None and not len(self.overhead.labels):
            yield start, end, label, np.full(len(start), cause)
            return
        for first in range(0, len(start), GAP_BLOCK_ROWS):
            rows = slice(first, first + GAP_BLOCK_ROWS)
            yield self._split(thread, start[rows], end[rows], label[rows], cause)

    def _split(self, thread: int | None, start: I64, end: I64, label: I64, cause: int) -> Pieces:
        empty = StepFunction(np.empty(0, np.int64), np.empty(0, np.int64))
        calls = empty if thread is None else self.threads.get(thread, empty)
        data = empty if thread is None else self.data.get(thread, empty)
        meeting = empty if thread is None else self.meeting.get(thread, empty)
        # Only what changes inside a window cuts it; most calls begin and end while the device is busy.
        times = merged([start, end, *(f.borders_in(start, end) for f in (self.overhead, calls, data, meeting))])
        window = np.searchsorted(start, times[:-1], side="right") - 1
        keep = times[:-1] < end[window]
        begin, finish, window = times[:-1][keep], times[1:][keep], window[keep]
        if thread is None:
            why = np.full(len(begin), cause, np.int64)
        else:
            why = np.where(data.at(begin) > 0, Cause.DATA_LOADER.number, Cause.HOST_CODE.number)
            call = calls.at(begin)
            why[call >= 0] = self.cause_of_call[call[call >= 0]]
            # What such a call does for it, as a copy of what is sent, is part of it.
            why[meeting.at(begin) > 0] = Cause.HOST_COMM.number
        why[self.overhead.at(begin) > 0] = Cause.PROFILER.number
        return begin, finish, label[window], why


def _of_threads(thread: I64) -> Iterator[tuple[int, int]]:
    """Yield [first, last) of the rows of each thread; rows of one thread follow each other."""
    borders = [0, *(np.flatnonzero(thread[1:] != thread[:-1]) + 1).tolist(), len(thread)]
    yield from ((a, b) for a, b in itertools.pairwise(borders) if b > a)


def _outermost(calls: pl.DataFrame) -> Labels:
    """Return the outermost call that each lies in, itself where it lies in none. ``calls`` is sorted by thread and start."""
    thread, start, end = (calls[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    root = np.ones(len(thread), np.bool_)
    for a, b in _of_threads(thread):
        root[a + 1 : b] = start[a + 1 : b] >= np.maximum.accumulate(end[a : b - 1])
    outer: Labels = np.maximum.accumulate(np.where(root, np.arange(len(root), dtype=np.int32), np.int32(0)))
    return outer


def hosts(trace: Trace, attributed: Attributed) -> dict[int, Host]:
    """Return what the threads of each process did."""
    calls, ops = attributed.api_calls, attributed.gpu_ops
    causes = [Cause.of_call(kind).number for kind in Call.KINDS]
    cause_of_call = lookup.coded(calls["kind"], dict(zip(Call.KINDS, causes, strict=True))).astype(np.int8)
    loading: dict[int, StepFunction] = {}
    spans = attributed.phase_spans.filter(attributed.phase_spans["phase"] == "data")
    for (loader,), part in lookup.parted(spans, "thread").items():
        loading[loader] = coverage([(part["start_ns"].to_numpy(), part["end_ns"].to_numpy())])
    meeting = {
        thread: coverage([(part["start_ns"].to_numpy(), part["end_ns"].to_numpy())])
        for (thread,), part in lookup.parted(host_messages.blocking(trace), "thread").items()
    }
    thread, start, end = (calls[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    of_thread = {int(thread[a]): _Calls(start[a:b], end[a:b], a) for a, b in _of_threads(thread)}
    outer = _outermost(calls)
    threads = dict(attributed.threads)
    launching = calls["process", "thread", "start_ns"].filter(calls["gpu_ops"] > 0)
    launching = lookup.ordered(launching, "start_ns", ["thread"])
    overheads = lookup.parted(trace.overhead["process", "start_ns", "end_ns"], "process")
    launches = lookup.parted(launching, "process")
    by_process = {}
    for process in lookup.present(ops["process"]):
        overhead = overheads.get((process,), trace.overhead.clear())
        s, e = union(overhead["start_ns"].to_numpy(), overhead["end_ns"].to_numpy())
        launches_here = launches.get((process,), launching.clear())
        launched, launcher = launches_here["start_ns"].to_numpy(), launches_here["thread"].to_numpy()
        by_process[process] = Host(
            threads,
            cause_of_call,
            overhead=coverage([(s, e)]),
            data=loading,
            meeting=meeting,
            calls=of_thread,
            launched=launched,
            launcher=launcher,
            outer=outer,
            begin=start,
            end=end,
        )
    return by_process

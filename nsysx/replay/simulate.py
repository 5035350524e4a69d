"""Running a chain: when each call and each GPU op begins, with every cause in its place.

Between two places where the CPU waits or a stream waits for another, all times follow from sums and running maxima, so that a
stretch of calls is a few operations on columns: an op ends at ``max(arrives, end of the one before + pause) + duration``, which
less the sum of pauses and durations so far is a running maximum. The same holds for a CPU that finds the launch queue full,
as long as the stretch launches no more ops than the queue holds. Where stretches are short, calls are run one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nsysx.frames.intervals import I64
from nsysx.replay.chain import COPY, PLAIN, RECORD, SYNC, WAIT_EVENT, Chain
from nsysx.replay.columns import Columns, Flags, columns

#: Rounds of the steps: one to settle, one to measure, one to end it.
ROUNDS = 3
#: Launches stall at this many pending ops where no other number was seen.
_QUEUE = 1024
#: Fewer items than this are quicker run one by one (some 40 us a stretch, below 1 us an item).
_SHORT = 48
#: Before everything.
_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Run:
    """What a replay yields: when all GPU work of each round is done; in the measured round CPU time blocked by call.

    ``cpu_ns`` and ``gpu_ns`` are the CPU and GPU work of one round.
    """

    ends: list[int]
    blocked: dict[int, int]
    cpu_ns: int
    gpu_ns: int

    @property
    def round_ns(self) -> int:
        """What a round takes: by the last end, because a copy stream that runs ahead is not what the step takes."""
        return self.ends[-1] - self.ends[-2]


@dataclass(frozen=True)
class Happened:
    """What happened when (ns), a row per round: each item's call and return, each op's begin."""

    called: I64
    left: I64
    op_begin: I64


#: Of one stream in a stretch: its number; of each of its ops the place, the item, whether it starts when launched, latency,
#: duration, and the sum of pauses and durations up to and with it. Places and items count from the stretch's first.
_Queue = tuple[int, I64, I64, Flags, I64, I64, I64]


#: Item, kind, host time before it, cost, tail (-1: waits for nothing), target, stream, first and last op + 1.
_Row = tuple[int, int, int, int, int, int, int, int, int]


@dataclass(frozen=True)
class _Stretch:
    """Items [first, last) between two places that wait.

    ``call_at`` is when each is called, from 0 on and without any wait, ``whole_ns`` what they take; ``loads`` are those that
    launch, ``launched`` how many of the ``ops`` each of these finds launched before it.
    """

    first: int
    last: int
    call_at: I64
    whole_ns: int
    loads: I64
    launched: I64
    ops: int
    streams: tuple[_Queue, ...]


class _Machine:
    """CPU, streams and launch queue while a chain runs. ``calls`` gets the call and the return of each item of each round."""

    def __init__(self, cols: Columns, calls: tuple[list[int], list[int]] | None) -> None:
        self.cols = cols
        self.plan = _plan(cols, calls is not None)
        self.limit = cols.limit or _QUEUE
        self.t = 0
        self.free = [0] * (cols.streams + 1)
        self.events: dict[int, int] = {}
        self.begins: list[int] = []  # of all ops in launch order, for the queue limit
        self.calls = calls
        self.blocked: list[tuple[int, int]] = []  # item, ns; emptied by who asks for a round's

    @cached_property
    def _op_rows(self) -> dict[int, list[tuple[int, int, int, int, int]]]:
        """First op -> stream, latency, pause, offset and duration of the ops of each item that runs alone."""
        cols = self.cols
        spans = [
            (row[-2], row[-1]) for part in self.plan if isinstance(part, list) for row in part if row[-2] < row[-1]
        ]
        ops = np.fromiter((op for a, b in spans for op in range(a, b)), np.int64)
        of = (cols.op_stream, cols.op_latency, cols.op_pause, cols.op_offset, cols.op_duration)
        rows = zip(*(column[ops].tolist() for column in of), strict=True)
        return {a: list(itertools.islice(rows, b - a)) for a, b in spans}

    def one_by_one(self, rows: list[_Row]) -> None:
        """Run these items, one after the other."""
        t, free, begins, limit = self.t, self.free, self.begins, self.limit
        ops, end = self._op_rows, 0
        called, left = self.calls or (None, None)
        for i, kind, gap, cost, tail, target, stream, a, b in rows:
            t += gap
            begun = t
            if a < b:
                if len(begins) >= limit and begins[-limit] > t:
                    begun = begins[-limit]  # the queue is full until then
                head = -1
                for op_stream, latency, pause, offset, duration in ops[a]:
                    begin = begun + latency if offset < 0 or head < 0 else head + offset
                    if (at := free[op_stream] + pause) > begin:
                        begin = at
                    if head < 0:
                        head = begin
                    free[op_stream] = end = begin + duration
                    begins.append(begin)
                if kind == COPY and tail >= 0 and end + tail > begun + cost:
                    begun = end + tail - cost
            elif kind == SYNC:
                if (done := self._done(target)) > t:
                    begun = done
            elif kind == RECORD:
                self.events[target] = free[stream]
            elif kind == WAIT_EVENT and (done := self.events.get(target, 0)) > free[stream]:
                free[stream] = done
            if begun > t:
                self.blocked.append((i, begun - t))
            if called is not None and left is not None:
                called.append(t)
                left.append(begun + cost)
            t = begun + cost
        self.t = t

    def _done(self, target: int) -> int:
        """Return when what a synchronize waits for is done."""
        return max(self.free) if target == -1 else self.free[target] if target >= 0 else self.events.get(target, 0)

    def at_once(self, stretch: _Stretch) -> None:
        """Run a stretch."""
        cols = self.cols
        call_at = self.t + stretch.call_at
        late = self._late(stretch, call_at)
        begun = call_at if late is None else call_at + late
        begins = np.empty(stretch.ops, np.int64)
        for stream, at, item, heads, latency, duration, taken in stretch.streams:
            ends = begun[item] + latency + duration - taken
            ends[~heads] = _NEVER
            np.maximum(ends, self.free[stream], out=ends)
            ends = np.maximum.accumulate(ends) + taken
            self.free[stream] = int(ends[-1])
            begins[at] = ends - duration
        self.begins += begins.tolist()
        waited = 0
        if late is not None:
            grown = np.diff(late, prepend=0)
            held = np.flatnonzero(grown)
            self.blocked += zip((held + stretch.first).tolist(), grown[held].tolist(), strict=True)
            waited = int(late[-1])
            call_at = begun - grown
        if self.calls is not None:
            called, left = self.calls
            called += call_at.tolist()
            left += (begun + cols.cost[stretch.first : stretch.last]).tolist()
        self.t += stretch.whole_ns + waited

    def _late(self, stretch: _Stretch, call_at: I64) -> I64 | None:
        """Return by how much full queues have held up each item, None where none was full."""
        full_from = stretch.launched + len(self.begins) - self.limit
        loads, full_from = stretch.loads[full_from >= 0], full_from[full_from >= 0]
        if not len(loads):
            return None
        lowest = int(full_from[0])
        begins = np.array(self.begins[lowest : int(full_from[-1]) + 1], np.int64)
        over = begins[full_from - lowest] - call_at[loads]
        if (over <= 0).all():
            return None
        late = np.zeros(len(call_at), np.int64)
        late[loads] = np.maximum(over, 0)
        return np.maximum.accumulate(late)


def _plan(cols: Columns, every: bool) -> list[_Stretch | list[_Row]]:
    """Return the items in order, as stretches that run at once and rows that run one by one."""
    counts = np.diff(cols.first_op)
    alone = (cols.kind == RECORD) | (cols.kind == WAIT_EVENT) | (cols.waits & (cols.kind == SYNC))
    alone |= cols.waits & (cols.kind == COPY) & (cols.tail >= 0) & (counts > 0)
    # Ops behind the first of their item: those that queue behind it, or start when launched, need no look at when it began.
    first = cols.first_op[cols.op_item]
    behind = (np.arange(len(first)) > first) & (cols.op_offset >= 0)
    other = behind & ((cols.op_offset > 0) | (cols.op_stream != cols.op_stream[first]))
    alone[cols.op_item[other]] = True
    plan: list[_Stretch | list[_Row]] = []
    at = 0
    for begin, end in _long(alone, cols.first_op, cols.limit or _QUEUE):
        if at < begin:
            plan.append(_rows(cols, at, begin, every))
        plan.append(_stretch(cols, begin, end, behind))
        at = end
    if at < len(alone):
        plan.append(_rows(cols, at, len(alone), every))
    return plan


def _long(alone: Flags, first_op: I64, limit: int) -> Iterator[tuple[int, int]]:
    """Yield [begin, end) of the stretches between items that run alone which are worth it and that an empty queue would hold."""
    at = 0
    for stop in [*np.flatnonzero(alone).tolist(), len(alone)]:
        while stop - at >= _SHORT:
            end = min(max(int(np.searchsorted(first_op, first_op[at] + limit)), at + 1), stop)
            if end - at >= _SHORT:
                yield at, end
            at = end
        at = stop + 1


def _rows(cols: Columns, first: int, last: int, every: bool) -> list[_Row]:
    """Return items [first, last) as rows; without ``every`` those that do nothing are host time of the next one's."""
    items = slice(first, last)
    counts = np.diff(cols.first_op[first : last + 1])
    idle = (counts == 0) & ((cols.kind[items] == PLAIN) | ((cols.kind[items] == SYNC) & ~cols.waits[items]))
    kept = np.arange(first, last) if every else first + np.flatnonzero(~idle)
    # A wait that was taken away is a plain call.
    kind, tail = np.where(idle, PLAIN, cols.kind[items]), np.where(cols.waits[items], cols.tail[items], -1)
    spent = np.append(0, np.cumsum(cols.gap[items] + cols.cost[items]))
    place = kept - first
    called = spent[place + 1] - cols.cost[kept]
    gap = np.diff(called, prepend=0) - np.append(0, cols.cost[kept][:-1]) if len(kept) else called
    of = (
        gap,
        cols.cost[kept],
        tail[place],
        cols.target[kept],
        cols.stream[kept],
        cols.first_op[kept],
        cols.first_op[kept + 1],
    )
    rows = list(zip(kept.tolist(), kind[place].tolist(), *(column.tolist() for column in of), strict=True))
    rest = int(spent[-1]) - (int(spent[place[-1] + 1]) if len(place) else 0)
    return [*rows, (last - 1, PLAIN, rest, 0, -1, -1, -1, 0, 0)] if rest else rows


def _stretch(cols: Columns, first: int, last: int, behind: Flags) -> _Stretch:
    took = cols.gap[first:last] + cols.cost[first:last]
    call_at = np.cumsum(took) - cols.cost[first:last]
    a, b = int(cols.first_op[first]), int(cols.first_op[last])
    of = cols.op_stream[a:b]
    streams = []
    for stream in np.flatnonzero(np.bincount(of)).tolist():
        at = np.flatnonzero(of == stream)
        op = a + at
        duration = cols.op_duration[op]
        taken = np.cumsum(cols.op_pause[op] + duration)
        streams.append((stream, at, cols.op_item[op] - first, ~behind[op], cols.op_latency[op], duration, taken))
    loads = np.flatnonzero(np.diff(cols.first_op[first : last + 1]))
    launched = cols.first_op[first:last][loads] - a
    return _Stretch(first, last, call_at, int(took.sum()), loads, launched, b - a, tuple(streams))


def run(chain: Chain | Columns, rounds: int = ROUNDS) -> Run:
    """Re-run the chain ``rounds`` times in a row. O(items + ops) per round."""
    cols = columns(chain) if isinstance(chain, Chain) else chain
    return _run(cols, _Machine(cols, None), rounds)


def traced(cols: Columns, rounds: int = ROUNDS) -> tuple[Run, Happened]:
    """Re-run the chain ``rounds`` times in a row; return also what happened when."""
    called, left = list[int](), list[int]()
    machine = _Machine(cols, (called, left))
    result = _run(cols, machine, rounds)
    return result, Happened(*(np.array(c, np.int64).reshape(rounds, -1) for c in (called, left, machine.begins)))


def _run(cols: Columns, machine: _Machine, rounds: int) -> Run:
    blocked: dict[int, int] = {}
    ends: list[int] = []
    for number in range(rounds):
        machine.blocked.clear()
        for part in machine.plan:
            if isinstance(part, _Stretch):
                machine.at_once(part)
            else:
                machine.one_by_one(part)
        ends.append(max(machine.free))
        if number == rounds - 2:
            for i, ns in machine.blocked:
                call = int(cols.call[i])
                blocked[call] = blocked.get(call, 0) + ns
    return Run(ends, blocked, int((cols.gap + cols.cost).sum()), int(cols.op_duration.sum()))

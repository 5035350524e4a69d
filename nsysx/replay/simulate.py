"""Runs a chain: computes when each call and each GPU op begins.

Between two points where the CPU waits, or one stream waits for another, all times follow from sums and running maxima, so a
stretch of calls takes only a few operations on columns. An op ends at ``max(arrival, end of the previous op + pause) + duration``;
minus the sum of pauses and durations so far, this is a running maximum. The same holds for a CPU that finds a stream's launch queue
full, as long as the stretch launches no more ops than the queue holds. In short stretches, calls are run one by one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from nsysx.frames.intervals import I64
from nsysx.replay.chain import COPY, PLAIN, RECORD, SYNC, WAIT_EVENT, Chain
from nsysx.replay.chain_columns import Columns, Flags, columns
from nsysx.replay.replay_bounds import NOT_AWAITED, REPLAYED_ROUNDS, SHORT_STRETCH_ITEMS, USUAL_QUEUE_OPS

#: Earlier than any time.
_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class ReplayResult:
    """The result of a replay (ns). ``ends``: when all GPU work of each round is done.

    ``blocked``: call -> time that it blocks the CPU in the measured round. ``cpu_ns`` and ``gpu_ns``: the CPU time without blocking,
    and the GPU work, of one round.
    """

    ends: list[int]
    blocked: dict[int, int]
    cpu_ns: int
    gpu_ns: int

    @property
    def round_ns(self) -> int:
        """The length of a round: the distance of the last two ends, so that a copy stream that runs ahead does not count."""
        return self.ends[-1] - self.ends[-2]


@dataclass(frozen=True)
class Times:
    """When things happened (ns), one row per round: each item's call and return, and each op's start."""

    called: I64
    left: I64
    op_begin: I64


@dataclass(frozen=True)
class _Queue:
    """One stream in a stretch: its number, and for each of its ops the index, the item, whether it starts when launched, latency and
    duration (ns), and the sum of pauses and durations including its own. Indices and items count from the stretch's first.

    ``loads`` are the items whose first op is on this stream, and ``launched`` is how many ops of the stretch it had before each.
    """

    stream: int
    position: I64
    item: I64
    heads: Flags
    latency: I64
    duration: I64
    taken: I64
    loads: I64
    launched: I64


#: Stream, latency, pause, offset, duration and joint of an op.
_Ran = tuple[int, int, int, int, int, int]
#: Item, kind, host time before it, cost, tail (`NOT_AWAITED`: does not wait for its own op), target, stream, its ops.
_Row = tuple[int, int, int, int, int, int, int, tuple[_Ran, ...]]


@dataclass(frozen=True)
class _State:
    """What a round begins with (ns): the CPU's time, when each stream and event is done, and how many ops each stream had so far."""

    t: int
    free: list[int]
    events: dict[int, int]
    launched: list[int]


@dataclass(frozen=True)
class _Stretch:
    """Items [first, last) between two items that wait.

    ``call_at`` is when each item is called, counted from the stretch's start and without any wait; ``whole_ns`` is their whole time.
    """

    first: int
    last: int
    call_at: I64
    whole_ns: int
    ops: int
    streams: tuple[_Queue, ...]


class Machine:
    """The CPU, streams and their launch queues while a chain runs. If given, ``calls`` receives call and return of each item.

    ``joint`` is for each op the number of the collective that it is, -1 for none; only ``play`` can run those.
    """

    def __init__(self, cols: Columns, calls: tuple[list[int], list[int]] | None, joint: I64 | None = None) -> None:
        self.cols = cols
        every = calls is not None
        self.plan = _plan(cols, every) if joint is None else [_rows(cols, (0, len(cols.kind)), every, joint)]
        self.limit = cols.limit or USUAL_QUEUE_OPS
        self.t = 0
        self.free = [0] * (cols.streams + 1)
        self.events: dict[int, int] = {}
        self.begins: list[int] = []  # of all ops in launch order
        self.queued: list[list[int]] = [[] for _ in self.free]  # the same by stream, for its queue's limit
        self.calls = calls
        self.blocked: list[tuple[int, int]] = []  # (item, ns) of the current round

    @cached_property
    def used(self) -> list[bool]:
        """Whether anything ever happens on each stream."""
        used = np.zeros(len(self.free), np.bool_)
        used[self.cols.op_stream] = True
        used[self.cols.stream[self.cols.kind == WAIT_EVENT]] = True
        flags: list[bool] = used.tolist()
        return flags

    def state(self) -> _State:
        """Return what the next round begins with."""
        return _State(self.t, list(self.free), dict(self.events), list(map(len, self.queued)))

    def play(self) -> Generator[tuple[int, int], int, None]:
        """Run one round, item by item: yield (collective, when this rank arrives), and be sent when it ends."""
        for part in self.plan:
            if isinstance(part, list):
                yield from self.one_by_one(part)
            else:
                self.at_once(part)

    def one_by_one(self, rows: list[_Row]) -> Generator[tuple[int, int], int, None]:
        """Run these items one after another; see ``play``."""
        t, free, begins, queued, limit = self.t, self.free, self.begins, self.queued, self.limit
        end = 0
        called, left = self.calls or (None, None)
        for i, kind, gap, cost, tail, target, stream, ops in rows:
            t += gap
            begun = t
            if ops:
                pending = queued[ops[0][0]]
                if len(pending) >= limit and pending[-limit] > t:
                    begun = pending[-limit]  # until then the queue is full
                head = -1
                for op_stream, latency, pause, offset, duration, joint in ops:
                    begin = begun + latency if offset < 0 or head < 0 else head + offset
                    if (earliest := free[op_stream] + pause) > begin:
                        begin = earliest
                    if head < 0:
                        head = begin
                    end = begin + duration if joint < 0 else (yield joint, begin)
                    free[op_stream] = end
                    begins.append(begin)
                    queued[op_stream].append(begin)
                if kind == COPY and tail != NOT_AWAITED and end + tail > begun + cost:
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
        """Return when the target of a synchronize is done."""
        return max(self.free) if target == -1 else self.free[target] if target >= 0 else self.events.get(target, 0)

    def at_once(self, stretch: _Stretch) -> None:
        """Run the items of a stretch together."""
        cols = self.cols
        call_at = self.t + stretch.call_at
        late = self._delays(stretch, call_at)
        begun = call_at if late is None else call_at + late
        begins = np.empty(stretch.ops, np.int64)
        for queue in stretch.streams:
            ends = begun[queue.item] + queue.latency + queue.duration - queue.taken
            ends[~queue.heads] = _NEVER
            np.maximum(ends, self.free[queue.stream], out=ends)
            ends = np.maximum.accumulate(ends) + queue.taken
            self.free[queue.stream] = int(ends[-1])
            begins[queue.position] = begin = ends - queue.duration
            self.queued[queue.stream] += begin.tolist()
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

    def _delays(self, stretch: _Stretch, call_at: I64) -> I64 | None:
        """Return how much a full queue has delayed each item so far (ns), None if no queue fills up."""
        late: I64 | None = None
        for queue in stretch.streams:
            pending = self.queued[queue.stream]
            full_from = queue.launched + len(pending) - self.limit
            loads, full_from = queue.loads[full_from >= 0], full_from[full_from >= 0]
            if not len(loads):
                continue
            lowest = int(full_from[0])
            begins = np.array(pending[lowest : int(full_from[-1]) + 1], np.int64)
            over = begins[full_from - lowest] - call_at[loads]
            if (over > 0).any():
                late = np.zeros(len(call_at), np.int64) if late is None else late
                late[loads] = np.maximum(over, 0)
        return None if late is None else np.maximum.accumulate(late)


def _plan(cols: Columns, every: bool) -> list[_Stretch | list[_Row]]:
    """Return the items in order, as stretches that run together and rows that run one by one."""
    counts = np.diff(cols.first_op)
    alone = (cols.kind == RECORD) | (cols.kind == WAIT_EVENT) | (cols.waits & (cols.kind == SYNC))
    alone |= cols.waits & (cols.kind == COPY) & (cols.tail != NOT_AWAITED) & (counts > 0)
    # Later ops of an item: those that directly follow the first one, or start when launched, do not depend on when it began.
    first = cols.first_op[cols.op_item]
    behind = (np.arange(len(first)) > first) & (cols.op_offset >= 0)
    other = behind & ((cols.op_offset > 0) | (cols.op_stream != cols.op_stream[first]))
    alone[cols.op_item[other]] = True
    plan: list[_Stretch | list[_Row]] = []
    joint = np.full(len(cols.op_item), -1)
    reached = 0
    for begin, end in _long_stretches(alone, cols.first_op, cols.limit or USUAL_QUEUE_OPS):
        if reached < begin:
            plan.append(_rows(cols, (reached, begin), every, joint))
        plan.append(_stretch(cols, begin, end, behind))
        reached = end
    if reached < len(alone):
        plan.append(_rows(cols, (reached, len(alone)), every, joint))
    return plan


def _long_stretches(alone: Flags, first_op: I64, limit: int) -> Iterator[tuple[int, int]]:
    """Yield [begin, end) of each stretch between items that run alone that is long enough and whose ops fit into the queue."""
    reached = 0
    for stop in [*np.flatnonzero(alone).tolist(), len(alone)]:
        while stop - reached >= SHORT_STRETCH_ITEMS:
            end = min(max(int(np.searchsorted(first_op, first_op[reached] + limit)), reached + 1), stop)
            if end - reached >= SHORT_STRETCH_ITEMS:
                yield reached, end
            reached = end
        reached = stop + 1


def _rows(cols: Columns, part: tuple[int, int], every: bool, joint: I64) -> list[_Row]:
    """Return the items of a part [first, last) as rows. Without ``every``, items that only take time become host time before the next."""
    first, last = part
    items = slice(first, last)
    counts = np.diff(cols.first_op[first : last + 1])
    idle = (counts == 0) & ((cols.kind[items] == PLAIN) | ((cols.kind[items] == SYNC) & ~cols.waits[items]))
    kept = np.arange(first, last) if every else first + np.flatnonzero(~idle)
    # A sync whose wait was removed is a plain call.
    kind, tail = np.where(idle, PLAIN, cols.kind[items]), np.where(cols.waits[items], cols.tail[items], NOT_AWAITED)
    spent = np.append(0, np.cumsum(cols.gap[items] + cols.cost[items]))
    position = kept - first
    called = spent[position + 1] - cols.cost[kept]
    gap = np.diff(called, prepend=0) - np.append(0, cols.cost[kept][:-1]) if len(kept) else called
    arrays = (
        gap,
        cols.cost[kept],
        tail[position],
        cols.target[kept],
        cols.stream[kept],
    )
    of_op = (cols.op_stream, cols.op_latency, cols.op_pause, cols.op_offset, cols.op_duration, joint)
    low, high = int(cols.first_op[first]), int(cols.first_op[last])
    ops = zip(*(column[low:high].tolist() for column in of_op), strict=True)
    # Most items launch one op or none, and no item with ops is left out.
    launched = [((next(ops),) if n == 1 else tuple(islice(ops, n))) if n else () for n in counts[position].tolist()]
    numbers = (kept.tolist(), kind[position].tolist(), *(column.tolist() for column in arrays))
    rows = list(zip(*numbers, launched, strict=True))
    after = int(spent[-1]) - (int(spent[position[-1] + 1]) if len(position) else 0)  # items after the last row
    return [*rows, (last - 1, PLAIN, after, 0, NOT_AWAITED, -1, -1, ())] if after else rows


def _stretch(cols: Columns, first: int, last: int, behind: Flags) -> _Stretch:
    took = cols.gap[first:last] + cols.cost[first:last]
    call_at = np.cumsum(took) - cols.cost[first:last]
    a, b = int(cols.first_op[first]), int(cols.first_op[last])
    op_streams = cols.op_stream[a:b]
    streams = []
    for stream in np.flatnonzero(np.bincount(op_streams)).tolist():
        position = np.flatnonzero(op_streams == stream)
        op = a + position
        duration = cols.op_duration[op]
        taken = np.cumsum(cols.op_pause[op] + duration)
        item = cols.op_item[op] - first
        launched = np.flatnonzero(op == cols.first_op[cols.op_item[op]])
        of_ops = (position, item, ~behind[op], cols.op_latency[op], duration, taken)
        streams.append(_Queue(stream, *of_ops, item[launched], launched))
    return _Stretch(
        first,
        last,
        call_at=call_at,
        whole_ns=int(took.sum()),
        ops=b - a,
        streams=tuple(streams),
    )


def run(chain: Chain | Columns, rounds: int = REPLAYED_ROUNDS) -> ReplayResult:
    """Run the chain ``rounds`` times in a row, in O(items + ops) per round. The last but one round is measured.

    The last one is not run where it would repeat the one before, as it does in most programs.
    """
    cols = columns(chain) if isinstance(chain, Chain) else chain
    return _run(cols, Machine(cols, None), rounds)


def traced(cols: Columns, rounds: int = REPLAYED_ROUNDS) -> tuple[ReplayResult, Times]:
    """Run the chain ``rounds`` times in a row; return also when each call and op began."""
    called, left = list[int](), list[int]()
    machine = Machine(cols, (called, left))
    result = _run(cols, machine, rounds)
    return result, Times(*(np.array(c, np.int64).reshape(rounds, -1) for c in (called, left, machine.begins)))


def _run(cols: Columns, machine: Machine, rounds: int) -> ReplayResult:
    blocked: dict[int, int] = {}
    ends: list[int] = []
    before = after = machine.state()
    for number in range(rounds):
        if number == rounds - 1 and machine.calls is None and _repeats(before, after, machine):
            took = after.t - before.t
            ends.append(max(ns + took if used else ns for ns, used in zip(after.free, machine.used, strict=True)))
            break
        machine.blocked.clear()
        for _ in machine.play():
            raise AssertionError("a collective of several ranks in a replay of one")
        before, after = after, machine.state()
        ends.append(max(machine.free))
        if number == rounds - 2:
            for i, ns in machine.blocked:
                call = int(cols.call[i])
                blocked[call] = blocked.get(call, 0) + ns
    return ReplayResult(ends, blocked, int((cols.gap + cols.cost).sum()), int(cols.op_duration.sum()))


def _repeats(before: _State, after: _State, machine: Machine) -> bool:
    """Return whether the next round is the last one, only later: it begins with the same state, and ``before`` that one did.

    A launch looks back as many ops of its stream as the queue holds. Where a round launches fewer, it must find the round before the
    last begun.
    """
    took = after.t - before.t
    if after.events.keys() != before.events.keys():
        return False
    same = all(b - a == took for a, b, used in zip(before.free, after.free, machine.used, strict=True) if used)
    same &= all(
        ns - before.events[event] in (took, 0) for event, ns in after.events.items()
    )  # 0: its stream is never used
    if not same:
        return False
    for begins, earlier, ended in zip(machine.queued, before.launched, after.launched, strict=True):
        launched = ended - earlier
        if launched and (earlier < launched or (launched < machine.limit and begins[earlier - 1] > before.t)):
            return False
        if any(b - a != took for a, b in zip(begins[earlier - launched : earlier], begins[earlier:], strict=True)):
            return False
    return True

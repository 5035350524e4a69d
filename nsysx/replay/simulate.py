"""Running a chain: when each call and each GPU op begins, with every cause in its place."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nsysx.frames.intervals import I64
from nsysx.replay.chain import COPY, PLAIN, RECORD, SYNC, WAIT_EVENT, Chain, Item, Op

#: Rounds of the steps: one to settle, one to measure, one to end it.
ROUNDS = 3
#: Launches stall at this many pending ops where no other number was seen.
_QUEUE = 1024


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
class Arrays:
    """What happened when (ns). Of items: number, where its gap begins, its call, its return. Of ops: see `Op`, place of the item."""

    item: I64
    free_at: I64
    called: I64
    left: I64
    op_begin: I64
    op_end: I64
    op_item: I64
    op_latency: I64
    op_pause: I64


@dataclass
class Trail:
    """Filled by ``run`` for who asks why the GPU idled: (item, gap, begins, returns) of calls, (op, begins) of ops."""

    calls: list[tuple[int, int, int, int]] = field(default_factory=list)
    ops: list[tuple[Op, int, int]] = field(default_factory=list)

    def arrays(self) -> Arrays:
        """Return the trail as columns."""
        calls = np.array(self.calls, np.int64).reshape(-1, 4)
        ops = np.array(
            [(begin, begin + op.duration, place, op.latency, op.pause) for op, place, begin in self.ops], np.int64
        ).reshape(-1, 5)
        return Arrays(*(calls[:, i] for i in range(4)), *(ops[:, i] for i in range(5)))


#: Number of the item, kind, host code before it, cost, its ops.
_Step = tuple[int, int, int, int, tuple[Op, ...]]


def _steps(items: list[Item], every: bool) -> tuple[list[_Step], int]:
    """Return what has an effect, and the host time behind the last of it: a plain call is host time of the next item."""
    steps: list[_Step] = []
    host = 0
    for i, item in enumerate(items):
        if item.kind == PLAIN and not every:
            host += item.gap + item.cost
        else:
            steps.append((i, item.kind, host + item.gap, item.cost, item.ops))
            host = 0
    return steps, host


class _Gpu:
    """The streams and the launch queue while a chain runs."""

    def __init__(self, streams: int, limit: int) -> None:
        self.free = [0] * (streams + 1)
        self.events: dict[int, int] = {}
        self.pending: list[int] = []  # starts of all ops in launch order, for the queue limit
        self.limit = limit or _QUEUE

    def launch(self, t: int, ops: tuple[Op, ...]) -> int:
        """Queue the ops of a call that begins at ``t``; return when the last of them ends."""
        free, pending = self.free, self.pending
        head, end = -1, t
        for _, s, latency, pause, offset, duration in ops:
            begin = t + latency if offset < 0 or head < 0 else head + offset
            if (at := free[s] + pause) > begin:
                begin = at
            if head < 0:
                head = begin
            free[s] = end = begin + duration
            pending.append(begin)
        return end

    def done(self, place: int) -> int:
        """Return when what a synchronize waits for is done."""
        return max(self.free) if place == -1 else self.free[place] if place >= 0 else self.events.get(place, 0)

    def full_until(self, t: int) -> int:
        """Return when a launch at ``t`` finds room in the queue."""
        if len(self.pending) >= self.limit and self.pending[-self.limit] > t:
            return self.pending[-self.limit]
        return t


def run(chain: Chain, rounds: int = ROUNDS, trail: Trail | None = None) -> Run:
    """Re-run the chain ``rounds`` times in a row; ``trail`` gets what happened when. O(items + ops) per round."""
    steps, host = _steps(chain.items, every=trail is not None)
    items, gpu = chain.items, _Gpu(chain.streams, chain.limit)
    blocked: dict[int, int] = {}
    ends: list[int] = []
    t = 0
    for number in range(rounds):
        measured = number == rounds - 2
        for i, kind, gap, cost, ops in steps:
            t += gap
            begun = t
            if ops:
                begun = gpu.full_until(t)
                end = gpu.launch(begun, ops)
                after = begun + cost
                if kind == COPY and items[i].waits and items[i].tail >= 0:
                    end += items[i].tail
                    if end > after:
                        begun += end - after
                        after = end
            else:
                begun = _without_ops(items[i], kind, t, gpu)
                after = begun + cost
            if measured and begun > t:
                call = items[i].call
                blocked[call] = blocked.get(call, 0) + begun - t
            if trail is not None:
                place = len(trail.calls)
                trail.calls.append((i, t - gap, t, after))
                begins = gpu.pending[len(gpu.pending) - len(ops) :]
                trail.ops += [(op, place, begin) for op, begin in zip(ops, begins, strict=True)]
            t = after
        t += host
        ends.append(max(gpu.free))
    cpu = sum(item.gap + item.cost for item in items)
    return Run(ends, blocked, cpu, sum(op.duration for item in items for op in item.ops))


def _without_ops(item: Item, kind: int, t: int, gpu: _Gpu) -> int:
    """Return until when a call without work of its own blocks; note what it tells the streams."""
    if kind == SYNC and item.waits:
        return max(gpu.done(item.target), t)
    if kind == RECORD:
        gpu.events[item.target] = gpu.free[item.stream]
    elif kind == WAIT_EVENT:
        gpu.free[item.stream] = max(gpu.free[item.stream], gpu.events.get(item.target, 0))
    return t

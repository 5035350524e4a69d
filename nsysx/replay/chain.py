"""Turns the recorded steps into a chain: API calls in the order of their start, each with the GPU work that it launched.

The threads that drive the GPU take turns (autograd works while the main thread waits for it), so all their calls have one common
order. The time between two calls is host code, as long as it was recorded. A call inside another call is part of it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from nsysx.catalogue import Call
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.replay.call_data import CallData, awaited, call_data, events
from nsysx.replay.overhead import Added
from nsysx.replay.replay_bounds import (
    DEEP_QUEUE_OPS,
    END_OF_TIME_NS,
    MERGED_CALLS_NS,
    NOT_AWAITED,
    STREAM_FREE_SOON_NS,
    USUAL_KERNEL_PAUSE_NS,
)
from nsysx.replay.replayed_window import ReplayedWindow

#: Kinds of items. A copy may wait for its own op, a sync for other work; plain calls only take CPU time.
LAUNCH, SYNC, COPY, RECORD, WAIT_EVENT, PLAIN = range(6)


class Op(NamedTuple):
    """One GPU op; times in ns. ``offset`` counts from the start of the item's first op; -1: the op starts when launched."""

    op: int
    stream: int
    latency: int
    pause: int
    offset: int
    duration: int


class ChainItem(NamedTuple):
    """One API call with the host code before it; times in ns.

    ``gap`` is the host code, of which ``loading`` is waiting for data; ``cost`` is the CPU time of the call without waiting.
    ``tail`` is the time from the end of the call's own copy to its return (negative: it returns when the last part of pageable
    memory is in a staging buffer), `NOT_AWAITED` if it does not wait for the copy. ``target`` is what
    a sync waits for: a stream, -1 for the device, or -2 - event; for an event record or wait it is the event, and ``stream`` the
    stream. ``site`` is the call of the copy to which a synchronize belongs, -1 for none. ``added_before`` and ``added_inside`` are
    what tracing added to gap and cost, ``most_before`` and ``most_inside`` as much as can lie right there (see `overhead.Added`).
    """

    kind: int
    call: int
    api: str
    gap: int
    loading: int
    cost: int
    waits: bool = False
    tail: int = NOT_AWAITED
    target: int = -1
    stream: int = -1
    site: int = -1
    ops: tuple[Op, ...] = ()
    added_before: int = 0
    added_inside: int = 0
    most_before: int = 0
    most_inside: int = 0


@dataclass
class Chain:
    """The items of the window in order. ``limit``: number of pending ops of a stream at which its launches stall, 0 if none was seen to.

    ``borders`` are the indices of the items with which steps begin. The last item, whose ``call`` is -1, is the host code before
    ``closing``, the API call with which the next step begins (-1: none).
    """

    items: list[ChainItem]
    streams: int
    limit: int = 0
    borders: frozenset[int] = frozenset()
    closing: int = -1


@dataclass
class _Queues:
    """The state of the streams, as recorded, at the call that is being added."""

    start_ns: int
    free: dict[int, int]  # stream -> when its last op ends
    numbers: dict[int, int] = field(default_factory=dict)  # stream -> its number in the chain
    held: dict[int, int] = field(default_factory=dict)  # event -> when it is done
    begun: dict[int, list[int]] = field(default_factory=dict)  # stream -> starts of its ops in launch order
    stalled: list[int] = field(default_factory=list)  # number of pending ops of its stream at each launch that stalled
    pauses: list[int] = field(default_factory=list)  # between queued ops of a stream

    def number(self, stream: int) -> int:
        return self.numbers.setdefault(stream, len(self.numbers))

    def pending(self, instant: int) -> bool:
        """Return whether any launched work is unfinished at ``instant``."""
        return max(self.free.values(), default=self.start_ns) > instant

    def depth(self, stream: int, instant: int) -> int:
        """Return how many launched ops of a stream have not begun at ``instant``: each stream has a queue of its own.

        H200: launches stalled at 1,022 pending ops of their stream, with up to 16 of another one.
        """
        begun = self.begun.get(stream, [])
        return len(begun) - bisect_right(begun, instant)

    def launched(self, stream: int, start: int) -> None:
        """Add an op of a stream that starts at ``start``."""
        begun = self.begun.setdefault(stream, [])
        begun.append(max(start, begun[-1]) if begun else start)


def chain(profile: Profile, window: ReplayedWindow, added: Added) -> Chain:
    """Return the calls and ops of the window as a chain. O(calls + ops)."""
    data = call_data(profile, window)
    queues = _queues(profile, window)
    ops = _ops_of_calls(window)
    items: list[ChainItem] = []
    borders: list[int] = []
    starts = [*window.starts, END_OF_TIME_NS]
    columns, reach = _own_time(window)
    costs = (each.tolist() for each in (added.before, added.inside, added.most_before, added.most_inside))
    for (call, kind, a, b, gap, cost, nested), traced in zip(
        zip(*columns, strict=True), zip(*costs, strict=True), strict=True
    ):
        launched = ops.get(call, _NONE)
        if nested and not launched and items:
            last = items[-1]  # the call before, whose time already contains it and what tracing added to it
            before_ns, inside_ns, _, most_ns = traced
            items[-1] = last._replace(
                added_inside=last.added_inside + before_ns + inside_ns, most_inside=last.most_inside + most_ns
            )
            continue
        loading = min(data.loading.get(call, 0), gap)
        item = ChainItem(PLAIN, call, kind, gap, loading, cost, False, NOT_AWAITED, -1, -1, -1, (), *traced)
        item = _classified(item, launched, (a, b), data, queues)
        begins = a >= starts[len(borders)]
        while a >= starts[len(borders)]:
            borders.append(len(items))
        if items and not begins and _mergeable(items[-1], item):
            items[-1] = _merged(items[-1], item)
        else:
            items.append(item)
    _settle_pauses(items, queues)
    after = max(window.end_ns - reach, 0)  # the host code after the last call belongs to the round
    items.append(ChainItem(PLAIN, -1, "", after, min(data.loading.get(-1, 0), after), 0, added_before=added.after))
    limit = int(np.median(queues.stalled)) if queues.stalled else 0
    return Chain(items, len(queues.numbers), limit, frozenset(borders), _closing(profile, window))


def _own_time(window: ReplayedWindow) -> tuple[tuple[list[Any], ...], int]:
    """Return the calls as columns, and when the last of them ends (ns).

    The columns are call, kind, start, end, the host code before it, its cost (times in ns), and whether it lies within calls before.
    """
    calls = window.calls["call", "kind", "start_ns", "end_ns"].with_columns(window.calls["kind"].cast(pl.String))
    a, b = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    ends = np.maximum.accumulate(np.append(window.start_ns, b))
    reach = ends[:-1]
    cost, nested = np.maximum(b - np.maximum(a, reach), 0), (a < reach) & (b <= reach)
    host = np.maximum(a - reach, 0)
    return (*(c.to_list() for c in calls.iter_columns()), host.tolist(), cost.tolist(), nested.tolist()), int(ends[-1])


def _queues(profile: Profile, window: ReplayedWindow) -> _Queues:
    """Return the state of the streams at the first call: what was launched before it, and the events that a stream then waits for."""
    called = pl.coalesce("call_start_ns", "start_ns").alias("called_ns")
    before = window.ops.select(called, "stream", "start_ns", "end_ns").filter(pl.col("called_ns") < window.start_ns)
    queues = _Queues(window.start_ns, dict(before.group_by("stream").agg(pl.col("end_ns").max()).iter_rows()))
    # What has not begun by now fills the launch queue, too.
    waiting = before.filter(pl.col("start_ns") > window.start_ns).sort("called_ns", "start_ns")
    for stream, start in waiting["stream", "start_ns"].iter_rows():
        queues.launched(stream, start)
    before = before.drop("start_ns")
    late = before.filter(pl.col("end_ns") > window.start_ns)  # an event behind other work is done by now
    if not late.height:
        return queues
    calls = profile.attributed.api_calls.filter(
        pl.col("thread").is_in(window.calls["thread"].unique().implode())
        & pl.col("start_ns").is_between(late["called_ns"].min(), window.start_ns, closed="left")
    ).sort("start_ns")
    records, edges = events(profile, calls)
    if not edges:
        return queues
    free: dict[int, int] = {}
    launched = late.sort("called_ns").rows()
    index = 0
    for call, start in calls["call", "start_ns"].iter_rows():
        while index < len(launched) and launched[index][0] < start:
            _, stream, end = launched[index]
            free[stream] = max(free.get(stream, 0), end)
            index += 1
        if call in records:
            event, stream = records[call]
            queues.held[event] = free.get(stream, window.start_ns)
        elif call in edges:
            event, stream = edges[call]
            free[stream] = max(free.get(stream, 0), queues.held.get(event, 0))
    queues.free |= {stream: max(end, queues.free.get(stream, 0)) for stream, end in free.items()}
    return queues


def _closing(profile: Profile, window: ReplayedWindow) -> int:
    """Return the first call after the window on the replayed threads, -1 if there is none."""
    calls = profile.attributed.api_calls
    start, threads = calls["start_ns"].to_numpy(), lookup.present(window.calls["thread"])
    behind = np.flatnonzero((start >= window.end_ns) & np.isin(calls["thread"].to_numpy(), threads))
    return int(calls["call"][int(behind[start[behind].argmin()])]) if len(behind) else -1


def _mergeable(last: ChainItem, item: ChainItem) -> bool:
    plain = last.kind == item.kind == PLAIN and last.api == item.api
    return plain and not last.loading and not item.loading and item.gap < MERGED_CALLS_NS


def _merged(last: ChainItem, item: ChainItem) -> ChainItem:
    return last._replace(
        gap=last.gap + item.gap,
        cost=last.cost + item.cost,
        added_before=last.added_before + item.added_before,
        added_inside=last.added_inside + item.added_inside,
        most_before=last.most_before + item.most_before,
        most_inside=last.most_inside + item.most_inside,
    )


#: Op, stream, start, end of a GPU op.
_Ran = tuple[int, int, int, int]
_NONE: list[_Ran] = []


def _ops_of_calls(window: ReplayedWindow) -> dict[int, list[_Ran]]:
    """Return call -> its ops. An op without a call joins the call of the op that began last before it."""
    called = window.ops["call_start_ns"]
    launched = window.ops.filter((called >= window.start_ns) & (called < window.end_ns))
    by_call: dict[int, list[_Ran]] = {}
    columns = ("call", "op", "stream", "start_ns", "end_ns")
    for call, *ran in launched[columns].sort("call", "start_ns", "op").iter_rows():
        by_call.setdefault(call, []).append((ran[0], ran[1], ran[2], ran[3]))
    if window.ops["call"].null_count() and launched.height:
        orphans = window.ops.filter(pl.col("call").is_null()).sort("start_ns")
        led = launched.sort("start_ns")
        starts, callers = led["start_ns"].to_numpy(), led["call"].to_list()
        last = int(led["end_ns"].to_numpy().max())
        for op, stream, a, b in orphans.select(columns[1:]).iter_rows():
            step = int(np.searchsorted(starts, a, side="right")) - 1
            if step >= 0 and (a < last or step == len(starts) - 1) and a < window.end_ns:
                by_call[callers[step]].append((op, stream, a, b))
    return by_call


def _classified(
    item: ChainItem, launched: list[_Ran], when: tuple[int, int], data: CallData, queues: _Queues
) -> ChainItem:
    """Return the item with its kind, what it waits for and what it launches; update ``queues``."""
    blocking = data.waits.get(item.call)
    if item.api == Call.SYNC:
        target = data.targets.get(item.call, -1)
        cost = min(item.cost, blocking[1]) if blocking else item.cost
        target = queues.number(target) if target >= 0 else target
        return item._replace(kind=SYNC, waits=True, cost=cost, target=target, site=data.sites.get(item.call, -1))
    if launched:
        kind, cost, waits, tail = _launching(item, launched, when, blocking, data, queues)
        made = _queued(item.call, launched, when[0], data, queues)
        return item._replace(kind=kind, cost=cost, waits=waits, tail=tail, ops=made)
    # A free waits for the device whenever work is queued, even if the synchronize before it left nothing to wait for.
    if blocking is not None and (blocking[0] or (item.api == Call.FREE and not queues.pending(when[1]))):
        return item._replace(kind=SYNC, waits=True, cost=min(item.cost, blocking[1]))
    if item.call in data.records:
        event, stream = data.records[item.call]
        queues.held[event] = queues.free.get(stream, queues.start_ns)
        return item._replace(kind=RECORD, target=awaited(event), stream=queues.number(stream))
    if item.call in data.edges:
        event, stream = data.edges[item.call]
        held = queues.held.get(event, queues.start_ns)
        queues.free[stream] = max(queues.free.get(stream, queues.start_ns), held)
        return item._replace(kind=WAIT_EVENT, target=awaited(event), stream=queues.number(stream))
    return item


def _launching(
    item: ChainItem,
    launched: list[_Ran],
    when: tuple[int, int],
    blocking: tuple[int, int] | None,
    data: CallData,
    queues: _Queues,
) -> tuple[int, int, bool, int]:
    """Return kind, cost, waits and tail of a call with GPU work: a launch, or a copy that may wait for itself or earlier work."""
    a, b = when
    if blocking is None or item.api != Call.COPY:
        depth = queues.depth(launched[0][1], a)
        if depth >= DEEP_QUEUE_OPS and item.cost > 3 * max(data.usual_cost, 1):
            queues.stalled.append(depth)
            return LAUNCH, data.usual_cost, False, NOT_AWAITED
        return LAUNCH, item.cost, False, NOT_AWAITED
    backlog, host = blocking
    began, ended = launched[0][2], max(o[3] for o in launched)
    # A call that lasts for most of its copy moves the data itself.
    if ended - b <= max(b - began, 0):
        # It may also wait for an event that its stream waits for; then its own stream had nothing queued.
        free = queues.free.get(launched[0][1], queues.start_ns)
        held = (backlog or free > a) and not _staged(item.call, began - a, began - free, data)
        return COPY, min(item.cost, data.usual_cost) if held else max(min(began, b) - a, 0), True, b - ended
    return (COPY, min(item.cost, host), True, NOT_AWAITED) if backlog else (COPY, item.cost, False, NOT_AWAITED)


def _staged(call: int, latency: int, pause: int, data: CallData) -> bool:
    """Return whether a copy began when the CPU had filled its staging buffer, and not when its stream was free (times in ns)."""
    return pause > STREAM_FREE_SOON_NS and latency <= data.usual_latency + data.staging.get(call, -data.usual_latency)


def _queued(call: int, launched: list[_Ran], called: int, data: CallData, queues: _Queues) -> tuple[Op, ...]:
    """Return the ops of a call with what delayed each of them, and add them to ``queues``.

    An op that found its stream idle shows no pause of its own. If it began ``p`` ns after the stream was free, its pause is at
    most ``p``, and it is stored as ``~p`` until the usual pause is known.
    """
    made: list[Op] = []
    head, usual = -1, data.usual_latency
    for op, stream, s, e in launched:
        free = queues.free.get(stream, queues.start_ns)
        pause = max(s - free, 0)
        if head >= 0:
            behind = Op(op, queues.number(stream), 0, pause, 0, e - s)
            made.append(behind if free >= head else behind._replace(pause=0, offset=max(s - head, 0)))
        elif called + usual <= free and not _staged(call, s - called, pause, data):
            made.append(Op(op, queues.number(stream), min(usual, max(s - called, 0)), pause, -1, e - s))
            queues.pauses.append(pause)
        else:
            made.append(Op(op, queues.number(stream), max(s - called, 0), ~pause, -1, e - s))
        head = s if head < 0 else head
        queues.free[stream] = max(free, e)
        queues.launched(stream, s)
    return tuple(made)


def _settle_pauses(items: list[ChainItem], queues: _Queues) -> None:
    """Give the usual pause to ops that show none of their own."""
    usual = int(np.median(queues.pauses)) if queues.pauses else USUAL_KERNEL_PAUSE_NS
    for i, item in enumerate(items):
        if item.ops and item.ops[0].pause < 0:
            first = item.ops[0]
            first = first._replace(pause=min(~first.pause, usual))
            items[i] = item._replace(ops=(first, *item.ops[1:]))

"""Work of one stream that begins when a collective of another one ends, although no call of the program makes it wait for that.

Streams share a few queues of the device: what waits for a collective holds up all that is launched behind it into the same queue, as the
copy of a bucket does that a hook of DDP makes on a stream of its own. In a chain that is a pause of the stream, as long as it was recorded.
Where the collective takes another time, because a rank comes sooner or later, it is a wait for the collective.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import replace
from typing import NamedTuple

import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.profile import Profile
from nsysx.replay.chain import RECORD, WAIT_EVENT, Chain, ChainItem, Op
from nsysx.replay.replay_bounds import HELD_COVERED_SHARE, HELD_FROM_NS, MOST_EVENTS


class _Collective(NamedTuple):
    """A collective as recorded (ns), the item that launched it, and its stream."""

    end_ns: int
    start_ns: int
    item: int
    stream: int


def held_by_collectives(profile: Profile, chain: Chain) -> Chain:
    """Return the chain in which ops whose pause is a collective of another stream, launched before, wait for that, by an event."""
    ops = profile.attributed.gpu_ops["op", "start_ns", "end_ns", "cls"]
    comm = ops.filter(ops["cls"] == DeviceActivity.COMM.value)
    paused = [item.ops[0].op for item in chain.items if item.ops and item.ops[0].pause >= HELD_FROM_NS]
    if not comm.height or not paused:
        return chain
    collectives = {op: (start, end) for op, start, end, _ in comm.iter_rows()}
    began = dict(ops.filter(pl.col("op").is_in(paused))["op", "start_ns"].iter_rows())
    held: dict[int, tuple[int, _Collective]] = {}
    launched: list[_Collective] = []
    for i, item in enumerate(chain.items):
        if not item.ops:
            continue
        first = item.ops[0]
        if first.op in collectives and len(item.ops) == 1:
            start, end = collectives[first.op]
            insort(launched, _Collective(end, start, i, first.stream))
        elif (start := began.get(first.op)) is not None and (last := _behind(launched, first, start)) is not None:
            held[i] = start - last.end_ns, last
    return _with_events(chain, held) if held else chain


def _behind(launched: list[_Collective], op: Op, began_ns: int) -> _Collective | None:
    """Return the collective that is nearly all of an op's pause and ends before it begins, None without one."""
    ended = launched[: bisect_right(launched, began_ns, key=lambda each: each.end_ns)]
    last = next((each for each in reversed(ended) if each.stream != op.stream), None)
    if last is None:
        return None
    covered = last.end_ns - max(last.start_ns, began_ns - op.pause)
    return last if covered >= HELD_COVERED_SHARE * op.pause else None


def _with_events(chain: Chain, held: dict[int, tuple[int, _Collective]]) -> Chain:
    """Return the chain with an event behind each of these collectives, and waits for them before the items that they hold up.

    ``held``: item -> how long after its collective it began (ns), and the collective.
    """
    behind = {last.item: last for _, last in held.values()}
    items: list[ChainItem] = []
    borders: list[int] = []
    for i, item in enumerate(chain.items):
        if i in held:
            after_ns, last = held[i]
            items.append(_event(WAIT_EVENT, last.item, item.ops[0].stream))
            op = item.ops[0]._replace(pause=min(item.ops[0].pause, after_ns))
            item = item._replace(ops=(op, *item.ops[1:]))
        if i in chain.borders:
            borders.append(len(items))
        items.append(item)
        if i in behind:
            items.append(_event(RECORD, i, behind[i].stream))
    return replace(chain, items=items, borders=frozenset(borders))


def _event(kind: int, collective: int, stream: int) -> ChainItem:
    """Return the record of an event, or the wait for it, that no call makes: that of the item which launches a collective."""
    return ChainItem(kind, -1, "", 0, 0, 0, target=-3 - MOST_EVENTS - collective, stream=stream)

"""What NCCL says of its own work in its NVTX ranges: to which communicator a kernel belongs, what it moves, and among how many.

NCCL launches the kernel of a call inside the call's range, or, of calls between ncclGroupStart and ncclGroupEnd, inside the
last ncclGroupEnd. Kernels that a CUDA graph replays lie in no range, and say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import polars as pl

from nsysx import ids
from nsysx.frames.intervals import I64
from nsysx.reading.load import Trace

#: What a collective is, by kernel name: ``ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`` -> AllReduce.
#: The kind of messages between two ranks, as `kind_of` calls it.
SEND_RECEIVE = "sendrecv"
_KIND = re.compile(
    r"(AllReduce|AllGather|ReduceScatter|AllToAll\w*|Broadcast|Bcast|Reduce|SendRecv|Gather|Scatter)", re.IGNORECASE
)
_POINT_TO_POINT = {"ncclSend", "ncclRecv"}


@dataclass(frozen=True)
class Member:
    """A process as a member of a communicator: how many there are and which it is, None where that was not recorded."""

    size: int | None
    rank: int | None


@dataclass(frozen=True)
class Message:
    """What one kernel does. ``communicator`` is "" where it is not known, ``bytes`` None likewise.

    ``bytes`` is NCCL's message size: the whole buffer of an all-reduce, what one rank gives to an all-gather, what one gets
    of a reduce-scatter, what one sends to each in an all-to-all. ``pair`` holds the two ranks that send to each other only, in
    order: the n-th message of one pair has nothing to do with the n-th of another. It is empty where that is not known.
    """

    communicator: str
    kind: str
    bytes: int | None
    pair: tuple[int, ...] = ()


@cache
def kind_of(kernel: str) -> str:
    """Return what kind of collective a communication kernel is, its own name where that does not say."""
    match = _KIND.search(kernel)
    return match[1].lower() if match else re.split(r"[<(]", kernel, maxsplit=1)[0]


def bus_bytes(kind: str, size: int | None, message: int | None) -> float | None:
    """Return what a link of each rank carries for a message of ``message`` bytes among ``size`` ranks, as nccl-tests count.

    Divided by the transfer time it is the bus bandwidth, which can be held against that of the link whatever the kind.
    """
    if message is None:
        return None
    if kind in ("broadcast", "bcast", "reduce", SEND_RECEIVE):
        return float(message)
    if not size:
        return None
    if kind == "allreduce":
        return message * 2 * (size - 1) / size
    return float(message * (size - 1)) if kind in ("allgather", "reducescatter", "alltoall") else None


def members(trace: Trace) -> dict[int, dict[str, Member]]:
    """Return process -> communicator -> member: what is said when a communicator is made, split off or destroyed."""
    by_process: dict[int, dict[str, Member]] = {}
    if trace.nccl is not None:
        rows = trace.nccl.filter(pl.col("communicator").is_not_null())
        for thread, communicator, size, rank in rows.select("thread", "communicator", "size", "rank").iter_rows():
            communicators = by_process.setdefault(ids.process_of(thread), {})
            if size is not None or communicator not in communicators:
                communicators[communicator] = Member(size, rank)
    return by_process


#: operation, communicator, bytes, peer
_Call = tuple[str, str | None, int | None, int | None]


@dataclass(slots=True)
class _Unit:
    """One call, or the calls of one group: what lies in [start_ns, end_ns] of the thread belongs together."""

    start_ns: int
    end_ns: int
    calls: list[_Call]


def _units(rows: pl.DataFrame) -> list[_Unit]:
    """Return the units of one thread in order."""
    units: list[_Unit] = []
    depth = 0
    columns = ("operation", "start_ns", "end_ns", "communicator", "bytes", "peer")
    for operation, start, end, communicator, size, peer in rows.select(columns).iter_rows():
        if depth == 0 and (not units or start > units[-1].end_ns):
            units.append(_Unit(start, end, []))
        unit = units[-1]
        unit.end_ns = max(unit.end_ns, end)
        if operation == "ncclGroupStart":
            depth += 1
        elif operation == "ncclGroupEnd":
            depth = max(0, depth - 1)
        elif size is not None:
            unit.calls.append((operation, communicator, size, peer))
    return [u for u in units if u.calls]


def _message(calls: Sequence[_Call], kernel: str, known: Mapping[str, Member], *, alone: bool) -> Message:
    """Return what the kernel ``kernel`` of these calls does; ``alone``: they launched no other."""
    communicators = {c for _, c, _, _ in calls}
    communicator = next(iter(communicators)) if len(communicators) == 1 else None
    if communicator is None:
        return Message("", kind_of(kernel), None)
    operations = {o for o, *_ in calls}
    sizes = [b or 0 for _, _, b, _ in calls]
    total: int | None = None
    pair: tuple[int, ...] = ()
    kind = kind_of(kernel)
    if operations <= _POINT_TO_POINT:
        kind = SEND_RECEIVE
        total = sum(b or 0 for o, _, b, _ in calls if o == "ncclSend") or sum(sizes)
        peers = {p for *_, p in calls}
        me = known[communicator].rank if communicator in known else None
        if len(peers) == 1 and None not in peers and me is not None:
            pair = tuple(sorted((me, peers.pop() or 0)))
    elif len(operations) == 1:
        kind = next(iter(operations)).removeprefix("nccl").lower()
        total = sum(sizes)
    return Message(communicator, kind, total if alone else None, pair)


def messages(trace: Trace, ops: pl.DataFrame, communicators: Mapping[str, Member]) -> list[Message]:
    """Return what each communication kernel does; ``ops`` are those of one process with name, thread, call_start_ns."""
    names = ops["name"].cast(pl.String).to_list()
    said = [Message("", kind_of(name), None) for name in names]
    if trace.nccl is None or not ops.height:
        return said
    seen: dict[tuple[object, ...], Message] = {}  # a program sends the same few messages again and again
    thread, called = ops["thread"].fill_null(-1).to_numpy(), ops["call_start_ns"].fill_null(-1).to_numpy()
    for number in np.unique(thread).tolist():
        units = _units(trace.nccl.filter(pl.col("thread") == number))
        if not units:
            continue
        of_thread = np.flatnonzero(thread == number)
        start = np.array([u.start_ns for u in units], np.int64)
        end = np.array([u.end_ns for u in units], np.int64)
        at: I64 = np.searchsorted(start, called[of_thread], side="right") - 1
        inside = (at >= 0) & (called[of_thread] <= end[np.clip(at, 0, None)])
        launched = np.bincount(at[inside], minlength=len(units))
        for i, unit in zip(of_thread[inside].tolist(), at[inside].tolist(), strict=True):
            calls, alone = units[unit].calls, bool(launched[unit] == 1)
            key = (names[i], alone, *calls)
            if key not in seen:
                seen[key] = _message(calls, names[i], communicators, alone=alone)
            said[i] = seen[key]
    return said

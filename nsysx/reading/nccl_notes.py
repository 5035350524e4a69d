"""Derives from NCCL's NVTX ranges what each communication kernel does: its communicator, its message, the number of ranks.

NCCL launches the kernel of a call inside the call's range, or for calls between ncclGroupStart and ncclGroupEnd inside the
last ncclGroupEnd. Kernels that a CUDA graph replays lie in no range, so nothing is known about them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import polars as pl

from nsysx import ids
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.reading.load import Trace

#: The kind of a message between two ranks, as `kind_of` returns it.
SEND_RECEIVE = "sendrecv"
#: The kind of a collective in its kernel's name: ``ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`` -> AllReduce.
_KIND = re.compile(
    r"(All_?Reduce|All_?Gather|Reduce_?Scatter|All_?To_?All[A-Za-z]*|Broadcast|Bcast|Reduce|SendRecv|Gather|Scatter)",
    re.IGNORECASE,
)
_POINT_TO_POINT = {"ncclSend", "ncclRecv"}


@dataclass(frozen=True)
class CommunicatorMember:
    """A process as a member of a communicator: the number of ranks and its own rank, None if not recorded."""

    size: int | None
    rank: int | None


@dataclass(frozen=True)
class Message:
    """What one kernel does. An unknown ``communicator`` is "", an unknown ``bytes`` None, an unknown ``pair`` empty.

    ``bytes`` is NCCL's message size: the whole buffer of an all-reduce, what a rank contributes to an all-gather, what a rank
    gets from a reduce-scatter, what a rank sends to each other rank in an all-to-all. ``pair`` holds, in order, the two ranks of a
    message that only they exchange: the n-th message of one pair does not belong to the n-th of another. ``root``: the rank that a
    broadcast comes from or a reduction goes to, None where it is not known, or of several messages not one.
    """

    communicator: str
    kind: str
    bytes: int | None
    pair: tuple[int, ...] = ()
    root: int | None = None


@cache
def kind_of(kernel: str) -> str:
    """Return a communication kernel's kind of collective in lower case, or the kernel's name if that does not tell the kind."""
    match = _KIND.search(kernel)
    return match[1].lower().replace("_", "") if match else re.split(r"[<(]", kernel, maxsplit=1)[0]


def bus_bytes(kind: str, size: int | None, message: int | None) -> float | None:
    """Return the bytes that each rank's link carries for a message of ``message`` bytes among ``size`` ranks; None if unknown.

    Divided by the transfer time this is the bus bandwidth, which can be compared with the link's for every kind of collective.
    Source: nccl-tests, doc/PERFORMANCE.md.
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


def members(trace: Trace) -> dict[int, dict[str, CommunicatorMember]]:
    """Return process -> communicator -> member, from the ranges in which a communicator is made, split or destroyed."""
    by_process: dict[int, dict[str, CommunicatorMember]] = {}
    if trace.nccl is not None:
        rows = trace.nccl.filter(pl.col("communicator").is_not_null())
        for thread, communicator, size, rank in rows["thread", "communicator", "size", "rank"].iter_rows():
            communicators = by_process.setdefault(ids.process_of(thread), {})
            if size is not None or communicator not in communicators:
                communicators[communicator] = CommunicatorMember(size, rank)
    return by_process


#: operation, communicator, bytes, peer, root
_Call = tuple[str, str | None, int | None, int | None, int | None]


@dataclass(slots=True)
class _Unit:
    """One call or the calls of one group: all that lies in [start_ns, end_ns] on the thread belongs together."""

    start_ns: int
    end_ns: int
    calls: list[_Call]


def _units(rows: pl.DataFrame) -> list[_Unit]:
    """Return the units of one thread in order, without those that carry no message."""
    units: list[_Unit] = []
    depth = 0
    columns = ("operation", "start_ns", "end_ns", "communicator", "bytes", "peer", "root")
    for operation, start, end, communicator, size, peer, root in rows[columns].iter_rows():
        if depth == 0 and (not units or start > units[-1].end_ns):
            units.append(_Unit(start, end, []))
        unit = units[-1]
        unit.end_ns = max(unit.end_ns, end)
        if operation == "ncclGroupStart":
            depth += 1
        elif operation == "ncclGroupEnd":
            depth = max(0, depth - 1)
        elif size is not None:
            unit.calls.append((operation, communicator, size, peer, root))
    return [u for u in units if u.calls]


def _message(
    calls: Sequence[_Call], kernel: str, known_members: Mapping[str, CommunicatorMember], *, alone: bool
) -> Message:
    """Return what ``kernel``, launched by these calls, does; ``alone``: the calls launched no other kernel."""
    communicators = {c for _, c, *_ in calls}
    communicator = next(iter(communicators)) if len(communicators) == 1 else None
    if communicator is None:
        return Message("", kind_of(kernel), None)
    operations = {o for o, *_ in calls}
    sizes = [b or 0 for _, _, b, *_ in calls]
    roots = {root for *_, root in calls}
    total: int | None = None
    pair: tuple[int, ...] = ()
    kind = kind_of(kernel)
    if operations <= _POINT_TO_POINT:
        kind = SEND_RECEIVE
        total = sum(b or 0 for o, _, b, *_ in calls if o == "ncclSend") or sum(sizes)
        peers = {p for *_, p, _ in calls}
        own_rank = known_members[communicator].rank if communicator in known_members else None
        if len(peers) == 1 and None not in peers and own_rank is not None:
            pair = tuple(sorted((own_rank, peers.pop() or 0)))
    elif len(operations) == 1:
        kind = next(iter(operations)).removeprefix("nccl").lower()
        total = sum(sizes)
    return Message(communicator, kind, total if alone else None, pair, next(iter(roots)) if len(roots) == 1 else None)


def messages(trace: Trace, ops: pl.DataFrame, communicators: Mapping[str, CommunicatorMember]) -> list[Message]:
    """Return one Message per row of ``ops``: the communication kernels of one process, with name, thread, call_start_ns."""
    names = ops["name"].cast(pl.String).to_list()
    unnamed = {name: Message("", kind_of(name), None) for name in set(names)}
    of_kernel = [unnamed[name] for name in names]
    if trace.nccl is None or not ops.height:
        return of_kernel
    seen: dict[tuple[object, ...], Message] = {}  # a program sends the same few messages again and again
    thread, called = lookup.filled(ops["thread"], -1), lookup.filled(ops["call_start_ns"], -1)
    for number in np.unique(thread).tolist():
        units = _units(trace.nccl.filter(pl.col("thread") == number))
        if not units:
            continue
        of_thread = np.flatnonzero(thread == number)
        start = np.array([u.start_ns for u in units], np.int64)
        end = np.array([u.end_ns for u in units], np.int64)
        range_row: I64 = np.searchsorted(start, called[of_thread], side="right") - 1
        inside = (range_row >= 0) & (called[of_thread] <= end[np.clip(range_row, 0, None)])
        launched = np.bincount(range_row[inside], minlength=len(units))
        for i, unit in zip(of_thread[inside].tolist(), range_row[inside].tolist(), strict=True):
            calls, alone = units[unit].calls, bool(launched[unit] == 1)
            key = (names[i], alone, *calls)
            if key not in seen:
                seen[key] = _message(calls, names[i], communicators, alone=alone)
            of_kernel[i] = seen[key]
    return of_kernel

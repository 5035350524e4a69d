"""The communication of a process with what NCCL notes of each: the ranks among which it is, and its bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import settings_of
from nsysx.reading import nccl_notes


def with_messages(profile: Profile) -> pl.DataFrame:
    """Return the communication of the shown process: op, call, ..., phase, name, module, and kind, communicator, bytes and root of each."""
    ops = profile.attributed.gpu_ops
    ops = ops.filter(
        (ops["process"] == profile.process)
        & (ops["cls"] == DeviceActivity.COMM.value)
        & ops["call_start_ns"].is_not_null()
    )
    members = nccl_notes.members(profile.trace).get(profile.process, {})
    noted = nccl_notes.messages(profile.trace, ops, members) if ops.height else []
    texts = (pl.col(column).cast(pl.String) for column in ("phase", "name", "module"))
    return ops.select("op", "call", "thread", "call_start_ns", "recompute", *texts).with_columns(
        kind=pl.Series([m.kind for m in noted], dtype=pl.String),
        communicator=pl.Series([m.communicator for m in noted], dtype=pl.String),
        bytes=pl.Series([m.bytes for m in noted], dtype=pl.Int64),
        root=pl.Series([m.root for m in noted], dtype=pl.Int64),
    )


def group_sizes(profile: Profile, thread: int) -> Callable[[int, int], int | None]:
    """Return what says among how many ranks the first message is that a thread launches in a span of time (ns); None where unknown.

    NCCL notes it where a communicator is made, which may be before the capture: then it is known where all groups of the program are of one
    size.
    """
    sent = profile.once(with_messages)
    sent = sent.filter(sent["thread"] == thread).sort("call_start_ns")
    starts, communicators = sent["call_start_ns"].to_list(), sent["communicator"].to_list()
    members = nccl_notes.members(profile.trace).get(profile.process, {})
    settings = settings_of(profile)
    sizes = set() if settings is None else {len(each) for each in settings.groups_of_ranks()}
    of_all = sizes.pop() if len(sizes) == 1 else None

    def size_of(start_ns: int, end_ns: int) -> int | None:
        first = bisect_left(starts, start_ns)
        if first == len(starts) or starts[first] > end_ns:
            return None
        member = members.get(communicators[first] or "")
        return of_all if member is None or member.size is None else member.size

    return size_of

"""The communication of a process with what NCCL notes of each: the ranks among which it is, and its bytes."""

from __future__ import annotations

import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.profile import Profile
from nsysx.reading import nccl_notes


def with_messages(profile: Profile) -> pl.DataFrame:
    """Return the communication of the shown process: op, call, ..., phase, name, and kind, communicator, bytes and root of each message."""
    ops = profile.attributed.gpu_ops
    ops = ops.filter(
        (ops["process"] == profile.process)
        & (ops["cls"] == DeviceActivity.COMM.value)
        & ops["call_start_ns"].is_not_null()
    )
    members = nccl_notes.members(profile.trace).get(profile.process, {})
    noted = nccl_notes.messages(profile.trace, ops, members) if ops.height else []
    texts = (pl.col(column).cast(pl.String) for column in ("phase", "name"))
    return ops.select("op", "call", "thread", "call_start_ns", "recompute", *texts).with_columns(
        kind=pl.Series([m.kind for m in noted], dtype=pl.String),
        communicator=pl.Series([m.communicator for m in noted], dtype=pl.String),
        bytes=pl.Series([m.bytes for m in noted], dtype=pl.Int64),
        root=pl.Series([m.root for m in noted], dtype=pl.Int64),
    )

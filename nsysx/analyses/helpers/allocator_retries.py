"""Cache flushes and retries of PyTorch's allocator, as they show in the API calls, and the bytes that memory calls moved.

When neither the cache nor the device (or the process's share of it) has a block, the allocator returns its whole cache to the
driver, one free call per segment, and tries again: ``num_alloc_retries``. In a report that is a run of free calls on one
thread, followed at once by an allocation, with no launch, copy or long pause in between.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.analyses.helpers.analysis_bounds import ALLOCATOR_RETRY_NS, EMPTY_FREE_NS
from nsysx.catalogue import Call
from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64

_FREES = r"^(cudaFree|cuMemFree|cuMemUnmap|cuMemRelease)(Async)?$"
_ALLOCS = r"^(cudaMalloc|cuMemAlloc|cuMemCreate|cuMemMap|cuMemSetAccess)(Async)?(_v2)?$"
#: Calls that the allocator itself makes on the way: they do not end a run.
_ALONG = r"EventSynchronize|EventQuery|EventDestroy|EventRecord|IsCapturing|GetDevice|SetDevice|AddressFree|AddressReserve|MemGetInfo"


def bytes_of_calls(profile: Profile) -> pl.DataFrame:
    """Return call -> bytes that it allocated or freed; no rows when not recorded."""
    rows = profile.trace.memory_usage.filter(pl.col("correlation_id").fill_null(0) != 0)
    if not rows.height:
        return pl.DataFrame(schema={"call": pl.Int64, "bytes": pl.Int64})
    calls = profile.attributed.api_calls
    memory = calls["kind"].is_in(Call.ALLOCATOR)
    # For nested calls under one id, the outer one stands for both.
    calls = (
        calls["process", "correlation_id", "call"]
        .filter(memory)
        .unique(["process", "correlation_id"], keep="first", maintain_order=True)
    )
    joined = rows.join(calls, on=["process", "correlation_id"], how="inner")
    return joined.group_by("call").agg(pl.col("bytes").abs().sum())


def members(profile: Profile) -> pl.DataFrame:
    """Return the calls that belong to flushes: flush (number), call, role ("free" or "retry"), in order of time."""
    return profile.once(_members)


def _members(profile: Profile) -> pl.DataFrame:
    schema = {"flush": pl.Int64, "call": pl.Int64, "role": pl.String}
    calls = profile.attributed.api_calls  # sorted by thread and time
    names = calls["name"].unique().cast(pl.String).to_list()
    # cuBLAS sets itself up with a free of nothing, an allocation and then events.
    free, alloc, along, creates = (
        calls["name"].is_in([n for n in names if re.search(pattern, n)]).to_numpy()
        for pattern in (_FREES, _ALLOCS, _ALONG, "EventCreate")
    )
    if not free.any() or not alloc.any():
        return pl.DataFrame(schema=schema)
    top = np.flatnonzero(~along)
    thread, start, end = (calls[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))

    def follows(i: I64) -> npt.NDArray[np.bool_]:
        call, before = top[i], top[i - 1]
        pause = start[call] - np.maximum(end[before], start[before])
        at_once: npt.NDArray[np.bool_] = (i > 0) & (thread[call] == thread[before]) & (pause <= ALLOCATOR_RETRY_NS)
        return at_once

    retries = np.searchsorted(top, np.flatnonzero(alloc & ~along))
    retries = retries[free[top[retries - 1]] & follows(retries)]
    # A run of frees reaches back from a retry to the first call that is not a free or does not follow at once.
    freed = np.flatnonzero(free[top])
    begins = np.flatnonzero(~(follows(freed) & free[top[freed - 1]]))
    rows: list[tuple[int, int, str]] = []
    number = 0
    last = np.searchsorted(freed, retries)
    first = begins[np.searchsorted(begins, last, side="left") - 1]
    for i, a, b in zip(retries.tolist(), first.tolist(), last.tolist(), strict=True):
        frees = top[freed[a:b]]
        if int((end[frees] - start[frees]).sum()) < EMPTY_FREE_NS or (i + 1 < len(top) and creates[top[i + 1]]):
            continue
        rows += [(number, call, "free") for call in frees.tolist()]
        rows.append((number, int(top[i]), "retry"))
        number += 1
    return pl.DataFrame(rows, schema=schema, orient="row")


def flushes(profile: Profile) -> pl.DataFrame:
    """Return one row per flush: process, start_ns, end_ns, frees, freed_bytes, retry_bytes (null when not recorded), call."""
    calls = profile.attributed.api_calls["call", "process", "thread", "start_ns", "end_ns", "module", "phase"]
    rows = members(profile).join(calls, on="call", how="left", maintain_order="left")
    rows = rows.join(bytes_of_calls(profile), on="call", how="left", maintain_order="left")
    idle = profile.waits["call", "idle_caused_ns"]
    rows = rows.join(idle, on="call", how="left", maintain_order="left")
    freed = pl.col("role") == "free"

    def bytes_where(calls: pl.Expr) -> pl.Expr:
        return pl.when(pl.col("bytes").filter(calls).is_not_null().any()).then(pl.col("bytes").filter(calls).sum())

    return rows.group_by("flush", maintain_order=True).agg(
        pl.col("process").first(),
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        freed.sum().cast(pl.Int64).alias("frees"),
        bytes_where(freed).alias("freed_bytes"),
        bytes_where(~freed).alias("retry_bytes"),
        pl.col("idle_caused_ns").fill_null(0).sum(),
        pl.col("call").last(),
        pl.col("module").last().cast(pl.String),
        pl.col("phase").last().cast(pl.String),
    )

"""Cache flush and retry of PyTorch's allocator, as it shows in the API calls, and what memory calls moved.

When neither the cache nor the device (or the process's share of it) has a block, the allocator gives all that it caches back
to the driver, one free call per segment, and asks again: ``num_alloc_retries``. In a report that is a run of free calls on one
thread that is followed at once by an allocation, with no launch, copy or long pause in between.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.columns import matching
from nsysx.facts import Facts

#: From free to free, and from the last free to the retry, the allocator goes straight on; a program that calls
#: empty_cache() and then allocates takes longer than this in Python.
_PAUSE_NS = 100_000
_FREES = r"^(cudaFree|cuMemFree|cuMemUnmap|cuMemRelease)(Async)?$"
_ALLOCS = r"^(cudaMalloc|cuMemAlloc|cuMemCreate|cuMemMap|cuMemSetAccess)(Async)?(_v2)?$"
#: Giving memory back takes longer than this; cudaFree(0), by which libraries wake the driver, does not.
_EMPTY_FREE_NS = 10_000
#: Calls that the allocator itself makes on the way: they do not end a run.
_ALONG = r"EventSynchronize|EventQuery|EventDestroy|EventRecord|IsCapturing|GetDevice|SetDevice|AddressFree|AddressReserve|MemGetInfo"


def bytes_of_calls(facts: Facts) -> pl.DataFrame:
    """Return call -> bytes that it allocated or freed; no rows when not recorded."""
    rows = facts.trace.memory_usage.filter(pl.col("correlation_id").fill_null(0) != 0)
    calls = facts.attributed.api_calls.filter(matching(facts.attributed.api_calls["kind"], "^(alloc|free|host_alloc)$"))
    # Of a call in a call under one id, the outer one stands for both.
    calls = calls.select("process", "correlation_id", "call").unique(
        ["process", "correlation_id"], keep="first", maintain_order=True
    )
    joined = rows.join(calls, on=["process", "correlation_id"], how="inner")
    return joined.group_by("call").agg(pl.col("bytes").abs().sum())


def members(facts: Facts) -> pl.DataFrame:
    """Return the calls that belong to flushes: flush (number), call, role ("free" or "retry"), in order of time."""
    return facts.once("flush_members", _members)


def _members(facts: Facts) -> pl.DataFrame:
    schema = {"flush": pl.Int64, "call": pl.Int64, "role": pl.String}
    calls = facts.attributed.api_calls  # sorted by thread and time
    free, alloc = matching(calls["name"], _FREES), matching(calls["name"], _ALLOCS)
    if not free.any() or not alloc.any():
        return pl.DataFrame(schema=schema)
    top = np.flatnonzero(~matching(calls["name"], _ALONG))
    # cuBLAS sets itself up with a free of nothing, an allocation and then events.
    free, alloc, creates = free[top], alloc[top], matching(calls["name"], "EventCreate")[top]
    thread, start, end, call = (calls[c].to_numpy()[top] for c in ("thread", "start_ns", "end_ns", "call"))
    pause = np.concatenate([[_PAUSE_NS + 1], start[1:] - np.maximum(end[:-1], start[:-1])])
    follows = np.concatenate([[False], thread[1:] == thread[:-1]]) & (pause <= _PAUSE_NS)
    rows: list[tuple[int, int, str]] = []
    number = 0
    for i in np.flatnonzero(alloc & follows).tolist():
        j = i - 1
        while j >= 0 and free[j]:
            if not follows[j]:
                j -= 1
                break
            j -= 1
        if j == i - 1 or int((end - start)[j + 1 : i].sum()) < _EMPTY_FREE_NS or (i + 1 < len(call) and creates[i + 1]):
            continue
        rows += [(number, int(call[k]), "free") for k in range(j + 1, i)]
        rows.append((number, int(call[i]), "retry"))
        number += 1
    return pl.DataFrame(rows, schema=schema, orient="row")


def flushes(facts: Facts) -> pl.DataFrame:
    """Return one row per flush: process, start_ns, end_ns, frees, freed_bytes, retry_bytes (null when not recorded), call."""
    calls = facts.attributed.api_calls.select("call", "process", "thread", "start_ns", "end_ns", "module", "phase")
    rows = members(facts).join(calls, on="call", how="left", maintain_order="left")
    rows = rows.join(bytes_of_calls(facts), on="call", how="left", maintain_order="left")
    idle = facts.ledgers.waits.select("call", "idle_caused_ns")
    rows = rows.join(idle, on="call", how="left", maintain_order="left")
    freed = pl.col("role") == "free"

    def known(of: pl.Expr) -> pl.Expr:
        return pl.when(pl.col("bytes").filter(of).is_not_null().any()).then(pl.col("bytes").filter(of).sum())

    return rows.group_by("flush", maintain_order=True).agg(
        pl.col("process").first(),
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        freed.sum().cast(pl.Int64).alias("frees"),
        known(freed).alias("freed_bytes"),
        known(~freed).alias("retry_bytes"),
        pl.col("idle_caused_ns").fill_null(0).sum(),
        pl.col("call").last(),
        pl.col("module").last().cast(pl.String),
        pl.col("phase").last().cast(pl.String),
    )

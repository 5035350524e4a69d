"""Allocation and free calls in the steady steps: a caching allocator needs none there, so each is worth a look."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx.analyses.helpers import allocator_retries, shared_columns
from nsysx.catalogue import Call
from nsysx.events.profile import NotRecorded, Profile
from nsysx.events.thread_roles import PIN, elsewhere
from nsysx.frames import frame_columns
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "allocator"
TITLE = "Memory calls"


class AllocationRow(TypedDict):
    """The allocation and free calls of one place."""

    api: Annotated[str, Of("API function", label="call")]
    kind: Annotated[str, Of("alloc, free, host_alloc", codes=True)]
    module: Annotated[str | None, Of("innermost module at the call")]
    phase: Annotated[str | None, Of("phase at the call")]
    thread_role: shared_columns.ThreadRole
    file: shared_columns.File
    line: shared_columns.Line
    calls: Annotated[int, Of("calls in the steady steps", sums="scope")]
    steps: Annotated[int | None, Of("steady steps in which it was called; null without steps")]
    total_ns: Annotated[int, Of("duration, summed", "ns", sums="scope")]
    bytes: Annotated[
        int | None, Of("bytes allocated or freed; null when not recorded (nsysx run --memory)", "bytes", sums="scope")
    ]
    in_flushes: Annotated[int, Of("how many of the calls belong to a flush of the cache and its retry", sums="scope")]
    idle_caused_ns: Annotated[
        int | None,
        Of(
            "device idle time that began while the launching thread was in such a call; null without GPU rows",
            "ns",
            sums="scope",
            label="GPU idle caused",
        ),
    ]
    advice: Annotated[
        str | None,
        Of("what usually removes it; null outside of flushes where steps are not known, because it may be setup"),
    ]


COLUMNS = columns_of(AllocationRow)
ROWS: TableOf[AllocationRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="steady",
    place=160,
    matters=("NSX104",),
    group="waiting",
    intro=("Allocation and free calls. PyTorch caches memory, so a steady step should make none."),
    first=names("api module file total_ns idle_caused_ns calls bytes advice in_flushes steps phase kind"),
    bar="total_ns",
    terms=("api",),
)

#: Advice for which a rule has code to paste.
FLUSHED = "the cache is flushed: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, fixed shapes, or less memory"
#: Nobody's module does this.
PINNED = "pad batches to few sizes: the loader's pin thread allocates once for each size that is new to it"
NEW_SIZES = "new sizes each step: pad to a few fixed shapes, or expandable_segments:True"


def require(profile: Profile) -> None:
    """Raise NotRecorded where there is no such table."""
    if not profile.recorded("runtime"):
        raise NotRecorded("no CUDA API call was recorded", "-t cuda")


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per place that calls, longest first; no row when the steady steps allocate nothing."""
    require(profile)
    wanted = ("call", "process", "thread", "start_ns", "end_ns", "name", "kind", "module", "phase")
    memory = profile.steady_calls["kind"].is_in(Call.ALLOCATOR)
    if not memory.any():  # as in most programs, whose allocator keeps what it got
        return pl.DataFrame(schema=frame_columns.schema(COLUMNS))
    calls = profile.steady_calls.select(wanted).filter(memory)
    calls = calls.with_columns(elsewhere(calls["thread"], profile.attributed.roles))
    idle = profile.waits["call", "idle_caused_ns"]
    inside = allocator_retries.members(profile).with_columns(pl.lit(1).alias("_flush"))
    calls = (
        calls.join(idle, on="call", how="left", maintain_order="left")
        .join(inside["call", "_flush"], on="call", how="left", maintain_order="left")
        .join(allocator_retries.bytes_of_calls(profile), on="call", how="left", maintain_order="left")
        .join(profile.lines(), on="call", how="left", maintain_order="left")
    )
    steps = profile.steps.cpu.select("process", "index", pl.col("start_ns").alias("_step_ns")).sort("_step_ns")
    calls = calls.sort("start_ns").join_asof(
        steps, left_on="start_ns", right_on="_step_ns", by="process", check_sortedness=False
    )
    has_steps = profile.steps.source != "capture"
    recorded = profile.recorded("memory_usage")
    text = [pl.col(c).cast(pl.String) for c in ("kind", "module", "phase")]
    rows = calls.group_by(pl.col("name").cast(pl.String).alias("api"), *text, "thread_role", "file", "line").agg(
        pl.len().cast(pl.Int64).alias("calls"),
        (pl.col("index").n_unique().cast(pl.Int64) if has_steps else pl.lit(None, dtype=pl.Int64)).alias("steps"),
        (pl.col("end_ns") - pl.col("start_ns")).sum().alias("total_ns"),
        (pl.col("bytes").sum() if recorded else pl.lit(None, dtype=pl.Int64)).alias("bytes"),
        pl.col("_flush").sum().cast(pl.Int64).alias("in_flushes"),
        (
            pl.col("idle_caused_ns").fill_null(0).sum()
            if profile.attributed.gpu_ops.height
            else pl.lit(None, dtype=pl.Int64).alias("idle_caused_ns")
        ),
    )
    advice = (
        pl.when(pl.col("in_flushes") > 0)
        .then(pl.lit(FLUSHED))
        .when(pl.lit(not has_steps))
        .then(None)
        .when((pl.col("kind") == Call.HOST_ALLOC) & (pl.col("thread_role") == PIN).fill_null(False))
        .then(pl.lit(PINNED))
        .when(pl.col("kind") == Call.HOST_ALLOC)
        .then(pl.lit("reuse pinned buffers: pin once, copy into them"))
        .when(pl.col("kind") == Call.FREE)
        .then(pl.lit("do not call empty_cache() in the loop"))
        .when((pl.col("steps") <= 2) & (profile.scope.steps > 4))
        .then(pl.lit("the cache grew for a new largest shape: run the largest shape first, or pad to fixed shapes"))
        .otherwise(pl.lit(NEW_SIZES))
    )
    return rows.with_columns(advice.alias("advice")).sort(
        "total_ns",
        *("api", "module", "phase", "thread_role", "file", "line"),
        descending=[True] + [False] * 6,
        nulls_last=True,
    )

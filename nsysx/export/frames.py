"""The events behind the tables as public frames: codes as words, packed columns unpacked, every column declared."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from nsysx import ids
from nsysx.catalogue import CAUSES
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import frame_columns
from nsysx.model import Column, Row, Summary
from nsysx.reading import schema


@dataclass(frozen=True, slots=True)
class ExportedFrame:
    """One frame: ``of`` makes it from a profile or raises NotRecorded; its columns are exactly ``columns``, in order."""

    name: str
    title: str
    columns: tuple[Column, ...]
    of: Callable[[Profile], pl.DataFrame]


def _c(name: str, dtype: str, meaning: str, unit: str = "") -> Column:
    return Column(name, dtype, unit, meaning)


_PLACE = (
    _c("phase", "String", "phase of the step in which it was called: forward, backward, optimizer, ...; null for none"),
    _c("module", "String", "module in which it was called, by its path; null for none"),
    _c("grade", "String", "how the module is known: thread, seq, sequence, time, none; see nsysx explain definitions"),
    _c("recompute", "Boolean", "called by a forward that checkpointing runs again in backward"),
    _c("step", "Int64", "index of the step of its process in which it was called; null for none"),
)
_SHAPE = ("grid_x", "grid_y", "grid_z")
_BLOCK = ("block_x", "block_y", "block_z", "registers_per_thread", "shared_memory_bytes")
#: Columns of ``GPU_OPS`` with codes, and the columns with words that replace them here.
_CODED = {"copy_kind": "copy_direction", "src_kind": "source_memory", "dst_kind": "target_memory"}


def _shape_columns() -> tuple[Column, ...]:
    words = "threads of a block", "registers of a thread", "shared memory of a block, static and dynamic"
    return (
        *(_c(n, "Int64", "blocks of the grid, null where not recorded") for n in _SHAPE),
        *(_c(n, "Int64", f"{words[0]}, null likewise") for n in _BLOCK[:3]),
        _c(_BLOCK[3], "Int64", f"{words[1]}, null likewise"),
        _c(_BLOCK[4], "Int64", f"{words[2]}, null likewise", "bytes"),
    )


def _declared(columns: tuple[Column, ...], *names: str) -> tuple[Column, ...]:
    """Return columns, ``names`` of them if given, with names as text: not every reader of Parquet knows categories."""
    kept = (c for c in columns if (c.name in names if names else c.name not in (*_CODED, "grid", "block")))
    return tuple(replace(c, dtype="String") if c.dtype == "Categorical" else c for c in kept)


CALLS = (*_declared(frame_columns.API_CALLS), *_PLACE)
OPS = (
    *_declared(frame_columns.GPU_OPS),
    _c("copy_direction", "String", "direction of a copy: HtoD, DtoH, DtoD, ...; null for others"),
    _c("source_memory", "String", "memory that a copy reads: pageable, pinned, device, ...; null for others"),
    _c("target_memory", "String", "memory that a copy writes, likewise"),
    *_shape_columns(),
    *_PLACE,
)
RANGES = _declared(frame_columns.MARKS)
WAITS = (
    *_declared(frame_columns.API_CALLS, "call", "process", "thread", "start_ns", "end_ns", "name"),
    *_declared(frame_columns.WAITS, "awaited", "backlog_ns", "own_op_ns", "host_ns", "idle_caused_ns"),
)
IDLE = (
    *_declared(frame_columns.IDLE, "process", "device", "start_ns", "end_ns"),
    _c("cause", "String", "what the host was doing: " + ", ".join(CAUSES)),
    *_declared(frame_columns.IDLE, "op", "began_in"),
)
PHASE_SPANS = _declared(frame_columns.PHASE_SPANS)
CPU_STEPS = _declared(frame_columns.CPU_STEPS)
GPU_STEPS = _declared(frame_columns.GPU_STEPS)
MEMORY = (
    frame_columns.PROCESS,
    frame_columns.DEVICE,
    _c("time_ns", "Int64", "time since the session's start", "ns"),
    _c("address", "Int64", "address"),
    _c("bytes", "Int64", "bytes that were allocated or freed", "bytes"),
    _c("memory_kind", "String", "device, pinned, managed, ..."),
    _c("freed", "Boolean", "true if freed, false if allocated"),
)
THREADS = (
    frame_columns.PROCESS,
    frame_columns.THREAD,
    _c("pid", "Int64", "process id"),
    _c("tid", "Int64", "thread id"),
    _c("name", "String", "name"),
)


def _words(codes: dict[int, str], column: str) -> pl.Expr:
    words = pl.col(column).replace_strict(codes, default="unknown", return_dtype=pl.String)
    return pl.when(pl.col(column).is_not_null()).then(words)


def _unpacked(column: str, fields: tuple[tuple[str, int], ...], names: tuple[str, ...]) -> list[pl.Expr]:
    unpacked, shift = [], 0
    for (_, bits), name in zip(fields, names, strict=True):
        unpacked.append(((pl.col(column) // (1 << shift)) % (1 << bits)).alias(name))
        shift += bits
    return unpacked


def step_of(given: Profile, process: pl.Series, instant: pl.Series) -> pl.Series:
    """Return the index of the step in which each instant of a process lies on the CPU, null for none."""
    keys, times = process.fill_null(-1).to_numpy(), instant.fill_null(np.iinfo(np.int64).max).to_numpy()
    numbers = np.full(len(times), -1, np.int64)
    for (key,), steps in given.steps.cpu.sort("start_ns").group_by("process", maintain_order=True):
        start, end, index = (steps[c].to_numpy() for c in ("start_ns", "end_ns", "index"))
        row = np.searchsorted(start, times, side="right") - 1
        inside = (keys == key) & (row >= 0) & (times < end[np.maximum(row, 0)])
        numbers[inside] = index[row[inside]]
    numbered: pl.Series = pl.Series("step", numbers).replace(-1, None)
    return numbered


def _calls(given: Profile) -> pl.DataFrame:
    if not given.recorded("runtime"):
        raise NotRecorded("CUDA API calls were not recorded", "nsysx run -- CMD")
    return given.calls.with_columns(step_of(given, given.calls["process"], given.calls["start_ns"]))


def _ops(given: Profile) -> pl.DataFrame:
    if not given.trace.recorded & {"kernel", "memcpy", "memset", "graph"}:
        raise NotRecorded("GPU work was not recorded", "nsysx run -- CMD")
    return opened_ops(given)


def opened_ops(given: Profile) -> pl.DataFrame:
    """Return the GPU ops with codes as words and packed columns unpacked; no rows if none were recorded."""
    kinds, memories = schema.COPY_KINDS, schema.MEMORY_KINDS
    return given.ops.with_columns(
        step_of(given, given.ops["process"], given.ops["call_start_ns"]),
        *(_words(kinds if old == "copy_kind" else memories, old).alias(new) for old, new in _CODED.items()),
        *_unpacked("grid", schema.GRID, _SHAPE),
        *_unpacked("block", schema.BLOCK, _BLOCK),
    )


def _ranges(given: Profile) -> pl.DataFrame:
    if not given.recorded("nvtx"):
        raise NotRecorded("NVTX ranges were not recorded", "nsysx run -- CMD")
    return given.ranges.ranges


def _waits(given: Profile) -> pl.DataFrame:
    return given.calls.join(given.waits, on="call", how="inner", maintain_order="left")


def _idle(given: Profile) -> pl.DataFrame:
    codes = dict(enumerate(CAUSES))
    cause = pl.col("cause").replace_strict(codes, default=None, return_dtype=pl.String)
    return given.ledgers.idle.with_columns(cause)


def _memory(given: Profile) -> pl.DataFrame:
    if not given.recorded("memory_usage"):
        raise NotRecorded("memory events were not recorded", "nsysx run --memory -- CMD")
    words = _words(schema.MEMORY_KINDS, "memory_kind").fill_null("unknown")
    return given.trace.memory_usage.with_columns(words.alias("memory_kind"), pl.col("freed") != 0)


def _threads(given: Profile) -> pl.DataFrame:
    named = given.trace.thread_name.select("thread", "name").unique("thread", keep="last", maintain_order=True)
    seen = (
        pl.concat([given.calls["thread"], given.ranges.ranges["thread"], named["thread"]]).drop_nulls().unique().sort()
    )
    low = 1 << ids.TID_BITS
    rows = pl.DataFrame({"thread": seen}).join(named, on="thread", how="left", maintain_order="left")
    return rows.with_columns(
        (pl.col("thread") // low).alias("process"),
        (pl.col("thread") // low % low).alias("pid"),
        (pl.col("thread") % low).alias("tid"),
    )


#: Every frame of events; ``calls`` and ``ops`` are the correlated ones.
FRAMES = (
    ExportedFrame("calls", "CUDA API calls, each with the place in the program that made it", CALLS, _calls),
    ExportedFrame(
        "ops", "GPU work: kernels, copies, memsets, whole graphs, each with the call that launched it", OPS, _ops
    ),
    ExportedFrame("ranges", "NVTX ranges with their meaning", RANGES, _ranges),
    ExportedFrame(
        "phase_spans", "Innermost phases of each thread", PHASE_SPANS, lambda given: given.attributed.phase_spans
    ),
    ExportedFrame("blocking_calls", "Calls that can block, split into what they wait for", WAITS, _waits),
    ExportedFrame("gpu_idle", "Pieces of a device's idle time, each with its cause", IDLE, _idle),
    ExportedFrame("cpu_steps", "Steps on the CPU", CPU_STEPS, lambda given: given.steps.cpu),
    ExportedFrame("gpu_steps", "Steps on each device", GPU_STEPS, lambda given: given.steps.gpu),
    ExportedFrame("memory_events", "Allocations and frees", MEMORY, _memory),
    ExportedFrame("threads", "Threads", THREADS, _threads),
)
BY_NAME = {frame.name: frame for frame in FRAMES}


def event_frame(given: Profile, name: str) -> pl.DataFrame:
    """Return a frame of FRAMES by its name. Raises NotRecorded if the report does not hold it, KeyError for no such name."""
    if name not in BY_NAME:
        raise KeyError(f"no frame {name!r}; names() lists the frames of a report")
    frame = BY_NAME[name]
    types = frame_columns.schema(frame.columns)
    made: pl.DataFrame = frame.of(given).select(pl.col(column).cast(dtype) for column, dtype in types.items())
    return made


#: The type of a mapping of names to times: it does not depend on which names occur.
_TIMES = pl.List(pl.Struct({"name": pl.String, "ns": pl.Int64}))


def column_type(column: Column) -> pl.DataType:
    """Return the polars type of a column of a table: times by name are a list of (name, ns), other nested values JSON text."""
    if column.dtype == "Object":
        return _TIMES if column.unit == "ns" else pl.String()
    return frame_columns.schema((column,))[column.name]


def _plain_value(column: Column, value: Any) -> Any:
    if column.dtype != "Object" or value is None:
        return value
    if column.unit == "ns":
        return [{"name": name, "ns": ns} for name, ns in value.items()]
    return json.dumps(value, default=str, ensure_ascii=False)


def table_frame(columns: Sequence[Column], rows: Sequence[Row]) -> pl.DataFrame:
    """Return rows of a table as a frame with the types of ``column_type``, whatever their values."""
    return pl.DataFrame([
        pl.Series(c.name, [_plain_value(c, row.get(c.name)) for row in rows], dtype=column_type(c)) for c in columns
    ])  # fmt: skip


def summary_table(summary: Summary, key: str) -> pl.DataFrame:
    """Return a table of a Summary as a frame. Raises KeyError for no such table, NotRecorded if it was not recorded."""
    table = summary.tables[key]
    if table.rows is None:
        raise NotRecorded(table.reason)
    return table_frame(table.columns, table.rows)

"""A long capture in parts: its cold start, a stretch of steady steps and the longest steps, as if nothing else had been recorded.

Reading every row of thousands of equal steps takes time and memory, and tells nothing that some of them do not tell. So of a long
capture only some parts are read. What lies between them is left out and, as between the two windows of ``nsysx run``
(`joined_windows`), the clock stands still meanwhile: shares of the time that was read stay shares of it. GPU work belongs to the
part in which it was launched, whenever it ran.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from nsysx.frames.frame_bounds import LONG_AGO_NS
from nsysx.frames.intervals import I64
from nsysx.reading import decoding, schema
from nsysx.reading.reading_bounds import (
    AFTER_SESSION_NS,
    LONGEST_STEP_TEXT_BYTES,
    MOST_RANGE_TEXTS,
    PARTS_APART_NS,
)
from nsysx.reading.source_table import Source
from nsysx.reading.trace import Sampled, Trace, Window

#: GPU work, and what is told of a call by its id: they belong to the part of their call.
_WORK = ("kernel", "memcpy", "memset", "graph")
_OF_CALLS = (*_WORK, "sync", "event")
#: Frames whose rows count wherever they lie.
_WHOLE = ("nvtx", "graph_node", "cuda_stream", "thread_name")
#: Columns that hold one instant; 0 in the last one means that it was not noted.
_INSTANTS, _DEVICE_TIME = ("start_ns", "time_ns"), "device_ns"


@dataclass(frozen=True)
class CaptureParts:
    """What is read: ``windows`` of the session (ns), in order; averages are over steps of the one numbered ``main``."""

    windows: tuple[Window, ...]
    main: int
    sampled: Sampled

    def since(self, zero: int) -> tuple[Window, ...]:
        """Return the windows in the time of an export whose session begins at ``zero``."""
        return tuple((a + zero, b + zero) for a, b in self.windows)


@dataclass(frozen=True)
class Choice:
    """How parts are chosen: ``choose`` looks at a capture of which only steps were read, and returns None for all of it.

    ``is_step`` says of the text of a range or mark whether it may be a step.
    """

    is_step: Callable[[str], bool]
    choose: Callable[[Trace], CaptureParts | None]


def inside(source: Source, windows: Sequence[Window], runtime: pl.DataFrame | None) -> str:
    """Return the SQL condition that a row may belong to a part; ``runtime`` are the raw calls of all parts, if they were read.

    Ids of calls count up, so those of a part are a range; that a row belongs to a call of the part is looked up later.
    """
    if source.frame in _WHOLE:
        return "1 = 1"
    time = next((c.sql for c in source.columns if c.name in _INSTANTS), None)
    in_time = " OR ".join(f'("{time}" >= {a} AND "{time}" < {b})' for a, b in windows) if time else "1 = 0"
    if source.frame not in _OF_CALLS:
        return f"({in_time})"
    if runtime is None or not runtime.height:
        return "1 = 1" if time is None else f"({in_time})"
    ranges = []
    for a, b in windows:
        ids = runtime["correlation_id"].filter((runtime["start_ns"] >= a) & (runtime["start_ns"] < b))
        first, last = ids.min(), ids.max()
        if isinstance(first, int) and isinstance(last, int):
            ranges.append(f'"correlationId" BETWEEN {first} AND {last}')
    alone = f'COALESCE("correlationId", 0) = 0 AND ({in_time})'
    return f"({' OR '.join((*ranges, alone))})"


def steps_alone(connection: sqlite3.Connection, tables: Mapping[str, set[str]], is_step: Callable[[str], bool]) -> str:
    """Return the SQL condition that an NVTX row may be a step or names a domain; true for all if that cannot be told by its text's id."""
    if "textId" not in tables["NVTX_EVENTS"] or not {"id", "value"} <= tables.get("StringIds", set()):
        return "1 = 1"
    query = f"SELECT id, CAST(value AS BLOB) FROM StringIds WHERE length(value) <= {LONGEST_STEP_TEXT_BYTES} LIMIT {MOST_RANGE_TEXTS + 1}"
    texts = connection.execute(query).fetchall()
    if len(texts) > MOST_RANGE_TEXTS:
        return "1 = 1"
    named = [str(key) for key, text in texts if isinstance(key, int) and is_step(decoding.text_of(text) or "")]
    inline = 'OR "text" IS NOT NULL' if "text" in tables["NVTX_EVENTS"] else ""
    return f'("textId" IN ({", ".join(named)}) {inline} OR "eventType" = {schema.NVTX_DOMAIN})'


def touching(windows: Sequence[Window]) -> str:
    """Return the SQL condition that an NVTX row may share time with one of the parts."""
    shares = (f'"start" < {b} AND ("end" > {a} OR "start" >= {a})' for a, b in windows)
    return f'({" OR ".join(shares)} OR "end" IS NULL AND "eventType" <> {schema.NVTX_MARK})'


class Clock:
    """The time of the session as the parts have it: it stands still between them. ``shifts`` are added to the times of each part."""

    def __init__(self, windows: Sequence[Window], shifts: Sequence[int]) -> None:
        self.begin, self.end = (np.array(values, np.int64) for values in zip(*windows, strict=True))
        self.shifts = np.array(shifts, np.int64)

    @property
    def seams(self) -> tuple[int, ...]:
        """Where the second and each later part begins, by this clock (ns)."""
        return tuple((self.begin + self.shifts)[1:].tolist())

    def part_of(self, times: I64) -> I64:
        """Return the number of the part in which each time lies, -1 for none."""
        part = self.last_begun(times)
        return np.where(times < self.end[part], part, -1)

    def last_begun(self, times: I64) -> I64:
        """Return the number of the part that began last before each time."""
        return np.maximum(np.searchsorted(self.begin, times, side="right") - 1, 0)

    def at(self, times: I64, part: I64) -> I64:
        """Return times by this clock, each in its part, at its end if it lies behind that."""
        moved: I64 = np.minimum(times, self.end[part]) + self.shifts[part]
        return moved

    def within(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of a frame that begin in a part, by this clock, cut where their part ends."""
        start = next((c for c in _INSTANTS if c in frame.columns), None)
        if start is None:
            return frame
        part = self.part_of(frame[start].fill_null(LONG_AGO_NS).to_numpy())
        return self._moved(frame.filter(part >= 0), part[part >= 0])

    def _moved(self, frame: pl.DataFrame, part: I64) -> pl.DataFrame:
        """Return a frame with all its times by this clock, each row in its part; a time that is null stays so."""
        times = [c for c in (*_INSTANTS, "end_ns") if c in frame.columns]
        return frame.with_columns(
            _moved_values(frame[c], self.at(frame[c].fill_null(0).to_numpy(), part)) for c in times
        )

    def ranges(self, nvtx: pl.DataFrame) -> pl.DataFrame:
        """Return the NVTX rows that share time with a part; a range across several stays one, and an open one stays open."""
        start, end = nvtx["start_ns"].to_numpy(), nvtx["end_ns"].fill_null(AFTER_SESSION_NS).to_numpy()
        kind = nvtx["event_type"].to_numpy()
        first, last = self.last_begun(start), self.last_begun(end - 1)
        behind = (start >= self.end[first]) & (kind != schema.NVTX_DOMAIN)
        ranged = (kind == schema.NVTX_PUSH_POP) | (kind == schema.NVTX_START_END)
        first = np.where(behind & ranged & (last > first), first + 1, first)
        kept = ~behind | (first > self.last_begun(start))
        begin = np.maximum(start, self.begin[first])
        ended = _moved_values(nvtx["end_ns"], self.at(end, np.maximum(last, first)))
        return nvtx.with_columns(pl.Series("start_ns", self.at(begin, first)), ended).filter(kept)

    def of_calls(self, frame: pl.DataFrame, part_of_call: pl.DataFrame) -> pl.DataFrame:
        """Return the rows whose call was read, by this clock; without an id those that lie in a part.

        What runs after the end of its part is not cut there: it is part of what was launched. ``part_of_call``: process,
        correlation_id, part.
        """
        part = _parts_of(frame, part_of_call, self)
        frame, part = frame.filter(part >= 0), part[part >= 0]
        shift = self.shifts[part]
        times = [c for c in (*_INSTANTS, "end_ns") if c in frame.columns]
        moved = [pl.Series(c, frame[c].to_numpy() + shift) for c in times if not frame[c].null_count()]
        if _DEVICE_TIME in frame.columns:
            noted = frame[_DEVICE_TIME].fill_null(0).to_numpy()
            moved.append(_moved_values(frame[_DEVICE_TIME], np.where(noted != 0, noted + shift, noted)))
        return frame.with_columns(moved)


def _moved_values(values: pl.Series, moved: I64) -> pl.Series:
    """Return ``moved`` under the name of ``values``, null where they are."""
    changed = pl.Series(values.name, moved)
    return changed.set(values.is_null(), None) if values.null_count() else changed


def _parts_of(frame: pl.DataFrame, part_of_call: pl.DataFrame, clock: Clock) -> I64:
    """Return the part of each row: that of its call, without an id that of its time; -1 for none."""
    keys = [k for k in ("process", "correlation_id") if k in frame.columns]
    of_call = frame.select(keys).join(part_of_call, on=keys, how="left", maintain_order="left")["part"]
    part = of_call.fill_null(-1).to_numpy(writable=True)
    time = next((c for c in _INSTANTS if c in frame.columns), None)
    if time is not None:
        alone = (frame["correlation_id"].fill_null(0) == 0).to_numpy()
        part[alone] = clock.part_of(frame[time].fill_null(LONG_AGO_NS).to_numpy()[alone])
    return part


def cut(trace: Trace, parts: CaptureParts) -> Trace:
    """Return the trace with the rows of all parts on one clock."""
    still = Clock(parts.windows, [0] * len(parts.windows))
    calls = trace.runtime.select(
        "process", "correlation_id", part=pl.Series(still.part_of(trace.runtime["start_ns"].to_numpy()))
    )
    part_of_call = calls.filter((pl.col("part") >= 0) & (pl.col("correlation_id") != 0))
    part_of_call = part_of_call.unique(["process", "correlation_id"], keep="first", maintain_order=True)
    clock = Clock(parts.windows, _shifts(trace, still, part_of_call))
    made = {name: _of_parts(name, frame, clock, part_of_call) for name, frame in trace.frames.items()}
    begun = np.array([begin for begin, _ in parts.sampled.long], np.int64)
    there = (clock.part_of(begun) >= 0).tolist()
    by_clock = clock.at(begun, clock.last_begun(begun)).tolist()
    lengths = (ns for _, ns in parts.sampled.long)
    long = tuple((t if read else None, ns) for t, read, ns in zip(by_clock, there, lengths, strict=True))
    others = (None if f is None else clock.within(f) for f in (trace.gpu_metrics, trace.python_lines, trace.nccl))
    gpu_metrics, python_lines, nccl = others
    return replace(
        trace,
        frames=made,
        samples=clock.within(trace.samples),
        seams=clock.seams,
        main=parts.main,
        sampled=replace(parts.sampled, long=long),
        gpu_metrics=gpu_metrics,
        python_lines=python_lines,
        nccl=nccl,
    )


def _shifts(trace: Trace, still: Clock, part_of_call: pl.DataFrame) -> list[int]:
    """Return what is added to the times of each part, so that it begins after all work of the part before it."""
    ends = still.end.copy()
    for name in _WORK:
        part = _parts_of(trace.frames[name], part_of_call, still)
        np.maximum.at(ends, part[part >= 0], trace.frames[name]["end_ns"].to_numpy()[part >= 0])
    shifts = [0]
    for before, begin in zip(ends[:-1].tolist(), still.begin[1:].tolist(), strict=True):
        shifts.append(before + shifts[-1] + PARTS_APART_NS - begin)
    return shifts


def _of_parts(name: str, frame: pl.DataFrame, clock: Clock, part_of_call: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of one frame that belong to a part, by the clock of the parts."""
    if name == "nvtx":
        return clock.ranges(frame)
    if name in _OF_CALLS:
        return clock.of_calls(frame, part_of_call)
    if name not in _WHOLE:
        return clock.within(frame)
    times = [(c, frame[c].fill_null(0).to_numpy()) for c in (*_INSTANTS, "end_ns") if c in frame.columns]
    return frame.with_columns(_moved_values(frame[c], clock.at(t, clock.last_begun(t))) for c, t in times)

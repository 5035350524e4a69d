"""Leaves out, and counts, rows without a place or with an impossible time. The sums of what is left fit into 64 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import polars as pl

from nsysx import ids
from nsysx.reading import schema
from nsysx.reading.reading_bounds import (
    HOST_NODE_DEVICE,
    LAST_TIME_NS,
    LONGEST_RANGE_NS,
    MOST_DEVICES,
    MOST_SIZE_BYTES,
    MOST_TABLE_SUM,
)
from nsysx.reading.source_table import Source
from nsysx.reading.trace import REVERSED, LeftOut

#: Columns without which a row cannot be placed, and what they are called in messages.
_PLACE = {
    "start_ns": "time",
    "end_ns": "time",
    "time_ns": "time",
    "thread": "thread",
    "device": "device",
    "stream": "stream",
    "event": "event",
    "event_type": "type",
    "node": "graph node",
}
#: Tables of GPU work, in which a row whose two times are both 0 was not timed.
_GPU_WORK = ("kernel", "memcpy", "memset", "graph")


class _Rows:
    """The rows of one table, and notes of what was left out or changed."""

    def __init__(self, frame: pl.DataFrame, source: Source) -> None:
        self.frame, self.table = frame, source.table
        self.notes: list[LeftOut] = []

    def keep(self, condition: pl.Expr, reason: str) -> None:
        """Leave out the rows for which ``condition`` is not true."""
        kept = self.frame.filter(condition)
        self.note(reason, self.frame.height - kept.height)
        self.frame = kept

    def note(self, reason: str, rows: int, effect: Literal["left out", "kept"] = "left out") -> None:
        if rows:
            self.notes.append(LeftOut(self.table, reason, rows, effect))


def sane(frame: pl.DataFrame, source: Source, around: int | None) -> tuple[pl.DataFrame, list[LeftOut]]:
    """Return a table without the rows that cannot be placed, and notes of what was left out or changed.

    ``around`` is a time (ns) near most rows of the report, None if all rows are near each other. A missing correlation id
    becomes 0, as nsys writes it; an impossible size becomes null.
    """
    given = _Rows(frame, source)
    for column in source.columns:
        if column.bits or column.name not in frame.columns:
            continue
        if column.name == "correlation_id" and given.frame[column.name].null_count():
            if column.required:  # in an optional column, null means that there is none
                given.note("no correlation id", given.frame[column.name].null_count(), "kept")
            given.frame = given.frame.with_columns(pl.col(column.name).fill_null(0))
        placed = column.name in _PLACE and (column.required or source.frame == "nvtx")
        if (
            placed
            and not (source.frame == "nvtx" and column.name == "end_ns")
            and given.frame[column.name].null_count()
        ):
            given.keep(pl.col(column.name).is_not_null(), f"no {_PLACE[column.name]}")
        if (
            column.name == "device"
            and source.frame in _GPU_WORK
            and _outside(given.frame["device"], 0, MOST_DEVICES - 1)
        ):
            possible = pl.col("device").is_between(0, MOST_DEVICES - 1) | (pl.col("device") == HOST_NODE_DEVICE)
            given.keep(possible, "a device that no machine has")
        if column.unit == "bytes":
            _sizes(given, column.name)
        if column.unit == "ns":
            low, high = (
                (-LAST_TIME_NS, LAST_TIME_NS)
                if around is None
                else (around - LONGEST_RANGE_NS, around + LONGEST_RANGE_NS)
            )
            if _outside(given.frame[column.name], low, high):
                # Marks and open ranges have no end, and an event may have no device time, so null is possible.
                possible = pl.col(column.name).is_between(low, high)
                if column.name == "device_ns":
                    possible |= pl.col(column.name) == 0
                given.keep(possible | pl.col(column.name).is_null(), "an impossible time")
    if {"start_ns", "end_ns"} <= set(frame.columns):
        _lengths(given, source)
    return given.frame, given.notes


def _sizes(given: _Rows, name: str) -> None:
    """Make impossible sizes null, and so large ones that the sum would not fit into 64 bits."""
    sizes = given.frame[name]
    most = MOST_SIZE_BYTES
    if sizes.len() > MOST_TABLE_SUM // MOST_SIZE_BYTES and float(sizes.cast(pl.Float64).sum()) > MOST_TABLE_SUM:
        most = MOST_TABLE_SUM // sizes.len()
    if _outside(sizes, 0, most):
        before = sizes.null_count()
        possible = pl.col(name).is_between(0, most)
        given.frame = given.frame.with_columns(pl.when(possible).then(name).alias(name))
        given.note("an impossible size", given.frame[name].null_count() - before, "kept")


def _lengths(given: _Rows, source: Source) -> None:
    """Leave out rows that last for days or end before they begin, and GPU work that was not timed."""
    if source.frame in _GPU_WORK and _outside(given.frame["start_ns"], 1, LAST_TIME_NS):
        given.keep((pl.col("start_ns") != 0) | (pl.col("end_ns") != 0), "both times zero")
    lasted = given.frame["end_ns"] - given.frame["start_ns"]
    least, most = lasted.min(), lasted.max()
    if isinstance(least, int) and least < 0:
        given.keep((lasted >= 0) | lasted.is_null(), REVERSED)
        lasted = lasted.filter((lasted >= 0) | lasted.is_null())
    longest = LONGEST_RANGE_NS
    if (
        isinstance(most, int)
        and most * len(lasted) > MOST_TABLE_SUM
        and float(lasted.cast(pl.Float64).sum()) > MOST_TABLE_SUM
    ):
        longest = MOST_TABLE_SUM // len(lasted)
    if isinstance(most, int) and most > longest:
        given.keep((lasted <= longest) | lasted.is_null(), "an impossible length")


def _outside(values: pl.Series, low: int, high: int) -> bool:
    least, most = values.min(), values.max()
    return isinstance(least, int) and isinstance(most, int) and (least < low or most > high)


def center(frames: Mapping[str, pl.DataFrame]) -> int | None:
    """Return a time (ns) near most rows, None if no two rows lie further apart than a session can last."""
    columns = [f[c] for f in frames.values() for c in ("start_ns", "end_ns", "time_ns") if c in f.columns]
    ends = [e for c in columns for e in (c.min(), c.max()) if isinstance(e, int)]
    if not ends or (
        max(ends) - min(ends) <= LONGEST_RANGE_NS and min(ends) >= -LAST_TIME_NS and max(ends) <= LAST_TIME_NS
    ):
        return None
    starts = max((f["start_ns"] for f in frames.values() if "start_ns" in f.columns), key=len, default=columns[0])
    middle = starts.filter(starts.is_between(-LAST_TIME_NS, LAST_TIME_NS)).median()
    return int(middle) if isinstance(middle, int | float) else 0


def since(frame: pl.DataFrame, zero: int) -> pl.DataFrame:
    """Return a frame with its times counted from ``zero``, the start of the session in the export's own time (ns)."""
    times = [pl.col(c) - zero for c in ("start_ns", "end_ns", "time_ns") if zero and c in frame.columns]
    return frame.with_columns(times) if times else frame


def with_process(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with ``process``, the upper 40 bits of the process or thread key (null if the key is null).

    ``global_pid`` is dropped. A frame without either key is returned as it is.
    """
    key = next((k for k in ("global_pid", "thread") if k in frame.columns), None)
    if key is None:
        return frame
    # Floor division is an arithmetic shift, even for keys whose top bit is set.
    shifted = frame.with_columns((pl.col(key) // (1 << ids.TID_BITS)).alias("process"))
    if key == "thread":
        return shifted
    return shifted[[*(c for c in frame.columns if c not in ("global_pid", "process")), "process"]]


def with_own_process(frames: dict[str, pl.DataFrame], recorded: frozenset[str]) -> list[LeftOut]:
    """Give rows without a process to the only process that made CUDA calls, else to process 0; return notes of that."""
    processes = frames["runtime"]["process"].unique()
    alone = pl.lit(processes.item() if len(processes) == 1 else 0, dtype=pl.Int64)
    notes = []
    for frame, source in schema.SOURCES.items():
        if not any(c.name == "global_pid" for c in source.columns):
            continue
        if missing := frames[frame]["process"].null_count():
            frames[frame] = frames[frame].with_columns(pl.col("process").fill_null(alone))
            if frame in recorded:
                reason = "no process: counted for the only one" if len(processes) == 1 else "no process, of several"
                notes.append(LeftOut(source.table, reason, missing, "merged" if len(processes) == 1 else "kept"))
    return notes

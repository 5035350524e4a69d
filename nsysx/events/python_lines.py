"""The Python line of a call: from Nsight's backtraces, else from the marks that the probe put in front of a wait."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import polars as pl

from nsysx.catalogue import Call
from nsysx.events import sampled_stacks
from nsysx.events.event_bounds import LINE_EARLY_NS, SAME_BREATH_NS
from nsysx.events.nvtx_ranges import Ranges
from nsysx.frames import derived, frame_columns, lookup
from nsysx.reading.load import Trace


def _own_frame(frames: list[str]) -> str:
    """Return the innermost frame of the user's own code, else the innermost one."""
    return next((f for f in frames if not sampled_stacks.is_library(f)), frames[0])


def place(frame: str | None) -> tuple[str, int | None, str]:
    """Return (file, line, function) of ``file:line function``; a file's name may hold spaces, a function's cannot."""
    path, _, function = (frame or "").rpartition(" ")
    file, _, line = path.rpartition(":")
    return file, int(line) if re.fullmatch("[0-9]{1,9}", line) else None, function


def python_lines(trace: Trace, ranges: Ranges, calls: pl.DataFrame) -> pl.DataFrame:
    """Return call -> file, line, function of the first frame of the user's own code; no rows when not recorded.

    Nsight puts each backtrace as a mark inside the call that it belongs to, on the same thread. Some versions record
    such a call twice, one inside the other, and put the mark where the outer one begins, tens of ns before the inner.
    Where Nsight could not, the probe has put a mark in front of the wait (``_probe_frames``).
    """
    native, probe = _native_frames(trace, calls), _probe_frames(ranges, calls)
    rows = pl.concat([native, probe.join(native, on="call", how="anti", maintain_order="left")])
    frames, which = lookup.distinct(rows["frame"])
    places = pl.DataFrame([place(f) for f in frames], schema=_PLACE, orient="row")
    return pl.concat([rows.select("call"), places[which]], how="horizontal")


_PLACE = frame_columns.schema(derived.LINES, "file", "line", "function")
#: ``frame`` is "file:line function".
_FRAMES = {"call": pl.Int64, "frame": pl.Categorical}


def _on_threads(calls: pl.DataFrame, marks: pl.DataFrame, time: str) -> Iterator[tuple[int, int, pl.DataFrame]]:
    """Return the stretch of calls of each thread that has marks, and its marks in order of time."""
    thread = calls["thread"].to_numpy()
    for (thread_key,), part in marks.sort("thread", time).group_by("thread", maintain_order=True):
        low, high = np.searchsorted(thread, [thread_key, thread_key + 1]).tolist()
        yield low, high, part


def _native_frames(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return call, frame of the backtraces inside calls."""
    marks = trace.python_lines
    if marks is None or not marks.height:
        return pl.DataFrame(schema=_FRAMES)
    # A stack is many strings, and there are few stacks.
    texts, stack = lookup.distinct(marks["frames"].list.join("\0").cast(pl.Categorical))
    marks = marks.select("thread", "time_ns", pl.Series("stack", stack))
    of_text = pl.Series([_own_frame(s.split("\0")) if s else None for s in texts], dtype=pl.Categorical)
    stack_of = np.zeros(calls.height, np.int64)
    thread, start, end = (calls[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    for low, high, part in _on_threads(calls, marks, "time_ns"):
        time = part["time_ns"].to_numpy()
        # The first mark from a little before its begin on speaks for a call: of each mark these are a run of calls.
        last = np.searchsorted(start[low:high], time + LINE_EARLY_NS, side="right")
        mark = np.repeat(np.arange(len(time) + 1), np.diff(last, prepend=0, append=high - low))
        inside = np.append(time, np.iinfo(np.int64).max)[mark] <= end[low:high]
        stack_of[low:high][inside] = part["stack"].to_numpy()[mark[inside]]
    stack_of[of_text.is_null().to_numpy()[stack_of]] = 0
    # Of a copy that torch waits for in the same breath (item, nonzero, a mask) only the wait carries a backtrace.
    copy = np.flatnonzero((calls["kind"] == Call.COPY).to_numpy()[:-1])
    breath = (thread[copy] == thread[copy + 1]) & (start[copy + 1] - end[copy] <= SAME_BREATH_NS)
    copy = copy[breath & (stack_of[copy] == 0)]
    stack_of[copy] = stack_of[copy + 1]
    call = np.flatnonzero(stack_of)
    return pl.DataFrame({"call": call, "frame": of_text.gather(stack_of[call])}, schema=_FRAMES)


def _probe_frames(ranges: Ranges, calls: pl.DataFrame) -> pl.DataFrame:
    """Return call, frame as the probe marked them: each mark speaks for what follows it, up to the next wait of the thread."""
    marks = ranges.marks.filter((pl.col("kind") == "sync") & pl.col("own"))
    if not marks.height:
        return pl.DataFrame(schema=_FRAMES)
    start, kind = calls["start_ns"].to_numpy(), calls["kind"]
    sync, copy = (kind == Call.SYNC).to_numpy(), (kind == Call.COPY).to_numpy()
    never = np.iinfo(np.int64).max
    parts = [pl.DataFrame(schema=_FRAMES)]
    for low, high, part in _on_threads(calls, marks["thread", "start_ns", "name"], "start_ns"):
        call = np.flatnonzero(sync[low:high] | copy[low:high]) + low
        mark = np.searchsorted(part["start_ns"].to_numpy(), start[call], side="right") - 1
        first_wait = np.full(part.height, never)
        np.minimum.at(first_wait, mark[sync[call]], np.where(mark >= 0, start[call], never)[sync[call]])
        last = first_wait[mark]
        noted = (mark >= 0) & (start[call] <= last) & (last < never)
        parts.append(
            pl.DataFrame({"call": call[noted], "frame": part["name"].gather(mark[noted])}, schema_overrides=_FRAMES)
        )
    return pl.concat(parts)

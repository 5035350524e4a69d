"""What every analysis is given: the frames of one report, with the windows that figures are taken over."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import polars as pl

from nsysx.events.attribute import Attributed
from nsysx.events.ledger import Ledgers
from nsysx.events.nvtx_ranges import Ranges
from nsysx.events.steps import StepTable
from nsysx.frames import lookup
from nsysx.reading.load import Trace

T = TypeVar("T")


@dataclass(frozen=True)
class Profile:
    """``calls`` and ``ops`` cover the whole capture, or the steps that ``--steps A:B`` names.

    ``steady_calls`` and ``steady_ops`` are those of the steady steps: calls that start in them, and the work that those
    calls launched. ``steady_count`` is how many steps that is, 0 when the report has none.
    """

    trace: Trace
    ranges: Ranges
    attributed: Attributed
    steps: StepTable
    ledgers: Ledgers
    calls: pl.DataFrame
    ops: pl.DataFrame
    steady_calls: pl.DataFrame
    steady_ops: pl.DataFrame
    steady_count: int
    _made: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def once(self, key: str, make: Callable[[Profile], T]) -> T:
        """Return ``make(self)``, made once for all analyses that ask by this key."""
        if key not in self._made:
            try:
                self._made[key] = make(self)
            except NotRecorded as answer:
                self._made[key] = answer
        found: T = self._made[key]
        if isinstance(found, NotRecorded):
            raise found
        return found

    def recorded(self, *frames: str) -> bool:
        """Return whether the report has the tables of these frames at all."""
        return set(frames) <= self.trace.recorded

    def idle(self) -> dict[tuple[int, int], pl.DataFrame]:
        """Return (process, device) -> the idle pieces of its steady window, cut to it: op, cause, began_in (-1 for none), ns."""
        return self.once("idle", _idle)

    def wait_sites(self) -> pl.DataFrame:
        """Return the blocking calls of the steady steps with their split and their call site.

        Columns of ``steady_calls`` and ``ledgers.waits``, and api, file, line, function, site (all of it in words).
        """
        return self.once("wait_sites", _wait_sites)

    def lines(self) -> pl.DataFrame:
        """Return call -> file, line, function of the first frame of the user's own code; no rows when not recorded.

        Nsight puts each backtrace as a mark inside the call that it belongs to, on the same thread. Some versions record
        such a call twice, one inside the other, and put the mark where the outer one begins, tens of ns before the inner.
        Where Nsight could not, the probe has put a mark in front of the wait (`_probe_frames`).
        """
        return self.once("lines", _lines)


#: How long before its call a backtrace may lie; measured: 30 to 60 ns. No call that waits is as short as this.
_LINE_EARLY_NS = 500

#: torch calls the copy and the wait for it from one C++ function; between two calls from Python lies more than this.
_SAME_BREATH_NS = 1_500

#: Code that is not the user's: installed packages, the standard library, the interpreter itself.
_LIBRARY = re.compile(r"(site|dist)-packages/|/lib/python\d|^<|/torch/")


def _own_frame(frames: list[str]) -> str:
    """Return the innermost frame of the user's own code, else the innermost one."""
    return next((f for f in frames if not _LIBRARY.search(f)), frames[0])


def _place(frame: str | None) -> tuple[str, int | None, str]:
    """Return (file, line, function) of ``file:line function``; a file's name may hold spaces, a function's cannot."""
    place, _, function = (frame or "").rpartition(" ")
    file, _, line = place.rpartition(":")
    return file, int(line) if re.fullmatch("[0-9]{1,9}", line) else None, function


def _lines(profile: Profile) -> pl.DataFrame:
    native, probe = _native_frames(profile), _probe_frames(profile)
    rows = pl.concat([native, probe.join(native, on="call", how="anti", maintain_order="left")])
    frames, of = lookup.distinct(rows["frame"])
    place = pl.DataFrame([_place(f) for f in frames], schema=_PLACE, orient="row")
    return pl.concat([rows.select("call"), place[of]], how="horizontal")


_PLACE = {"file": pl.String, "line": pl.Int64, "function": pl.String}
#: ``frame`` is "file:line function".
_FRAMES = {"call": pl.Int64, "frame": pl.Categorical}


def _on_threads(profile: Profile, marks: pl.DataFrame, time: str) -> Iterator[tuple[int, int, pl.DataFrame]]:
    """Return the stretch of calls of each thread that has marks, and its marks in order of time."""
    thread = profile.attributed.api_calls["thread"].to_numpy()
    for (of,), part in marks.sort("thread", time).group_by("thread", maintain_order=True):
        low, high = np.searchsorted(thread, [of, of + 1]).tolist()
        yield low, high, part


def _native_frames(profile: Profile) -> pl.DataFrame:
    """Return call, frame of the backtraces inside calls."""
    marks, calls = profile.trace.python_lines, profile.attributed.api_calls
    if marks is None or not marks.height:
        return pl.DataFrame(schema=_FRAMES)
    # A stack is many strings, and there are few stacks.
    stacks, stack = lookup.distinct(marks["frames"].list.join("\0").cast(pl.Categorical))
    marks = marks.select("thread", "time_ns", pl.Series("stack", stack))
    own = pl.Series([_own_frame(s.split("\0")) if s else None for s in stacks], dtype=pl.Categorical)
    known = np.zeros(calls.height, np.int64)
    thread, start, end = (calls[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    for low, high, part in _on_threads(profile, marks, "time_ns"):
        time = part["time_ns"].to_numpy()
        # The first mark from a little before its begin on speaks for a call: of each mark these are a run of calls.
        last = np.searchsorted(start[low:high], time + _LINE_EARLY_NS, side="right")
        mark = np.repeat(np.arange(len(time) + 1), np.diff(last, prepend=0, append=high - low))
        inside = np.append(time, np.iinfo(np.int64).max)[mark] <= end[low:high]
        known[low:high][inside] = part["stack"].to_numpy()[mark[inside]]
    known[own.is_null().to_numpy()[known]] = 0
    # Of a copy that torch waits for in the same breath (item, nonzero, a mask) only the wait carries a backtrace.
    copy = np.flatnonzero((calls["kind"] == "copy").to_numpy()[:-1])
    breath = (thread[copy] == thread[copy + 1]) & (start[copy + 1] - end[copy] <= _SAME_BREATH_NS)
    copy = copy[breath & (known[copy] == 0)]
    known[copy] = known[copy + 1]
    call = np.flatnonzero(known)
    return pl.DataFrame({"call": call, "frame": own.gather(known[call])}, schema=_FRAMES)


def _probe_frames(profile: Profile) -> pl.DataFrame:
    """Return call, frame as the probe marked them: each mark speaks for what follows it, up to the next wait of the thread."""
    marks = profile.ranges.marks.filter((pl.col("kind") == "sync") & pl.col("own"))
    if not marks.height:
        return pl.DataFrame(schema=_FRAMES)
    start, kind = profile.attributed.api_calls["start_ns"].to_numpy(), profile.attributed.api_calls["kind"]
    sync, copy = (kind == "sync").to_numpy(), (kind == "copy").to_numpy()
    never = np.iinfo(np.int64).max
    parts = [pl.DataFrame(schema=_FRAMES)]
    for low, high, part in _on_threads(profile, marks.select("thread", "start_ns", "name"), "start_ns"):
        call = np.flatnonzero(sync[low:high] | copy[low:high]) + low
        mark = np.searchsorted(part["start_ns"].to_numpy(), start[call], side="right") - 1
        first_wait = np.full(part.height, never)
        np.minimum.at(first_wait, mark[sync[call]], np.where(mark >= 0, start[call], never)[sync[call]])
        last = first_wait[mark]
        said = (mark >= 0) & (start[call] <= last) & (last < never)
        parts.append(
            pl.DataFrame({"call": call[said], "frame": part["name"].gather(mark[said])}, schema_overrides=_FRAMES)
        )
    return pl.concat(parts)


class NotRecorded(Exception):  # noqa: N818 - an answer, not an error
    """An analysis cannot be made from this capture; ``fix`` is what would record it."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix


def _idle(profile: Profile) -> dict[tuple[int, int], pl.DataFrame]:
    process, device, start, end = (
        profile.ledgers.idle[c].to_numpy() for c in ("process", "device", "start_ns", "end_ns")
    )
    others = profile.ledgers.idle.select("op", "cause", pl.col("began_in")).with_columns(
        pl.col("op", "began_in").fill_null(-1)
    )
    found = {}
    for p, d, a, b in profile.steps.windows.select("process", "device", "start_ns", "end_ns").iter_rows():
        rows = np.flatnonzero((process == p) & (device == d) & (end > a) & (start < b))
        ns = np.minimum(end[rows], b) - np.maximum(start[rows], a)
        found[p, d] = others[rows].with_columns(pl.Series("ns", ns, dtype=pl.Int64))
    return found


def _wait_sites(profile: Profile) -> pl.DataFrame:
    calls = profile.steady_calls.join(profile.ledgers.waits, on="call", how="inner", maintain_order="left")
    calls = calls.join(profile.lines(), on="call", how="left", maintain_order="left").with_columns(
        pl.col("name").cast(pl.String).alias("api"), pl.col("module").cast(pl.String), pl.col("phase").cast(pl.String)
    )
    place = pl.when(pl.col("file").is_not_null()).then(
        pl.format("at {}:{}", pl.col("file").str.split("/").list.last(), pl.col("line"))
    )
    inside = pl.when(pl.col("module").is_not_null()).then(pl.format("in {}", "module"))
    phase = pl.when(pl.col("phase").is_not_null()).then(pl.format("({})", "phase"))
    return calls.with_columns(
        pl.concat_str("api", place, inside, phase, separator=" ", ignore_nulls=True).alias("site")
    )


def _inside(frame: pl.DataFrame, windows: pl.DataFrame, time: str) -> pl.DataFrame:
    """Return the rows whose ``time`` lies in the window of their process."""
    process, at = frame["process"].fill_null(-1).to_numpy(), frame[time].fill_null(np.iinfo(np.int64).max).to_numpy()
    inside = np.zeros(len(at), np.bool_)
    for key, start, end in windows.select("process", "start_ns", "end_ns").iter_rows():
        inside |= (process == key) & (at >= start) & (at < end)
    # Rows are sorted by time, at most per thread: what lies in a window is a few runs of rows, and a run costs no memory.
    borders = np.flatnonzero(np.diff(inside, prepend=False, append=False)).tolist()
    if len(borders) > 2 * _MOST_RUNS:
        return frame.filter(pl.Series(inside, dtype=pl.Boolean))
    runs = [frame.slice(a, b - a) for a, b in zip(borders[::2], borders[1::2], strict=True)]
    return pl.concat(runs, rechunk=False) if runs else frame.clear()


#: More pieces than this make a frame slow.
_MOST_RUNS = 16


def gather(
    trace: Trace, ranges: Ranges, attributed: Attributed, steps: StepTable, ledgers: Ledgers, *, only_steady: bool
) -> Profile:
    """Return the profile of a report. ``only_steady``: totals too cover just the steady steps (``--steps A:B``)."""
    calls, ops = attributed.api_calls, attributed.gpu_ops
    if steps.whole:
        steady_calls, steady_ops = calls, ops
    else:
        steady_calls = _inside(calls, steps.cpu_windows, "start_ns")
        steady_ops = _inside(ops, steps.cpu_windows, "call_start_ns")
    mine = steps.cpu.filter(pl.col("process") == steps.process)
    count = mine.height if steps.whole else int(mine["steady"].sum())
    if only_steady:
        calls, ops = steady_calls, steady_ops
    return Profile(trace, ranges, attributed, steps, ledgers, calls, ops, steady_calls, steady_ops, count)

"""What every analysis is given: the frames of one report, with the windows that figures are taken over."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import polars as pl

from nsysx.attribute import Attributed
from nsysx.ledger import Ledgers
from nsysx.load import Trace
from nsysx.ranges import Ranges
from nsysx.replay import Replay, Withheld
from nsysx.replay import build as build_replay
from nsysx.steps import StepTable

T = TypeVar("T")
#: call, file, line, function
_Line = tuple[int, str, int | None, str]


@dataclass(frozen=True)
class Facts:
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

    def once(self, key: str, make: Callable[[Facts], T]) -> T:
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

    @property
    def replay(self) -> Replay | Withheld:
        """The replay of the steady steps, made when it is first asked for, or why there is none."""
        return self.once("replay", build_replay)

    def wait_sites(self) -> pl.DataFrame:
        """Return the blocking calls of the steady steps with their split and their call site.

        Columns of ``steady_calls`` and ``ledgers.waits``, and api, file, line, function, site (all of it in words).
        """
        return self.once("wait_sites", _wait_sites)

    def lines(self) -> pl.DataFrame:
        """Return call -> file, line, function of the first frame of the user's own code; no rows when not recorded.

        Nsight puts each backtrace as a mark inside the call that it belongs to, on the same thread. Some versions record
        such a call twice, one inside the other, and put the mark where the outer one begins, tens of ns before the inner.
        Where Nsight could not, the probe has put a mark in front of the wait (`_probe_lines`).
        """
        schema = {"call": pl.Int64, "file": pl.String, "line": pl.Int64, "function": pl.String}
        rows = self._native_lines()
        known = {row[0] for row in rows}
        rows += [row for row in self._probe_lines() if row[0] not in known]
        return pl.DataFrame(rows, schema=schema, orient="row")

    def _native_lines(self) -> list[_Line]:
        marks = self.trace.python_lines
        if marks is None or not marks.height:
            return []
        begins = (pl.col("start_ns") - _LINE_EARLY_NS).alias("start_ns")
        calls = self.attributed.api_calls.select("call", "thread", begins, "end_ns").sort("start_ns")
        joined = calls.join_asof(
            marks.sort("time_ns"),
            left_on="start_ns",
            right_on="time_ns",
            by="thread",
            strategy="forward",
            check_sortedness=False,
        ).filter(pl.col("time_ns") <= pl.col("end_ns"))
        rows = [(call, *_own_frame(frames)) for call, frames in joined.select("call", "frames").iter_rows() if frames]
        # Of a copy that torch waits for in the same breath (item, nonzero, a mask) only the wait carries a backtrace.
        by_call = {row[0]: row for row in rows}
        after = self.attributed.api_calls.sort("thread", "start_ns").select(
            pl.col("call"),
            pl.col("kind").cast(pl.String),
            pl.col("call").shift(-1).over("thread").alias("next"),
            (pl.col("start_ns").shift(-1).over("thread") - pl.col("end_ns")).alias("gap_ns"),
        )
        breath = after.filter((pl.col("kind") == "copy") & (pl.col("gap_ns") <= _SAME_BREATH_NS))
        for call, following in breath.select("call", "next").iter_rows():
            if call not in by_call and following in by_call:
                rows.append((call, *by_call[following][1:]))
        return rows

    def _probe_lines(self) -> list[_Line]:
        """Return the lines that the probe marked: each mark speaks for what follows it, up to the next wait of the thread."""
        marks = self.ranges.marks.filter((pl.col("kind") == "sync") & pl.col("own"))
        if not marks.height:
            return []
        marks = marks.select("thread", pl.col("start_ns").alias("mark_ns"), "name").sort("mark_ns")
        kind = pl.col("kind").cast(pl.String)
        calls = self.attributed.api_calls.filter(kind.is_in(["sync", "copy"])).select(
            "call", "thread", "start_ns", kind.alias("kind")
        )
        joined = calls.sort("start_ns").join_asof(
            marks, left_on="start_ns", right_on="mark_ns", by="thread", check_sortedness=False
        )
        first_wait = pl.col("start_ns").filter(pl.col("kind") == "sync").min().over("thread", "mark_ns")
        joined = joined.filter(pl.col("mark_ns").is_not_null()).filter(pl.col("start_ns") <= first_wait)
        return [(call, *_place(name)) for call, name in joined.sort("call").select("call", "name").iter_rows()]


#: How long before its call a backtrace may lie; measured: 30 to 60 ns. No call that waits is as short as this.
_LINE_EARLY_NS = 500

#: torch calls the copy and the wait for it from one C++ function; between two calls from Python lies more than this.
_SAME_BREATH_NS = 1_500

#: Code that is not the user's: installed packages, the standard library, the interpreter itself.
_LIBRARY = re.compile(r"(site|dist)-packages/|/lib/python\d|^<|/torch/")


def _own_frame(frames: list[str]) -> tuple[str, int | None, str]:
    """Return (file, line, function) of the innermost frame of the user's own code, else of the innermost one."""
    return _place(next((f for f in frames if not _LIBRARY.search(f)), frames[0]))


def _place(frame: str) -> tuple[str, int | None, str]:
    """Return (file, line, function) of ``file:line function``; a file's name may hold spaces, a function's cannot."""
    place, _, function = frame.rpartition(" ")
    file, _, line = place.rpartition(":")
    return file, int(line) if re.fullmatch("[0-9]{1,9}", line) else None, function


class NotRecorded(Exception):  # noqa: N818 - an answer, not an error
    """An analysis cannot be made from this capture; ``fix`` is what would record it."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix


def _wait_sites(facts: Facts) -> pl.DataFrame:
    calls = facts.steady_calls.join(facts.ledgers.waits, on="call", how="inner", maintain_order="left")
    calls = calls.join(facts.lines(), on="call", how="left", maintain_order="left").with_columns(
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
    return frame if inside.all() else frame.filter(pl.Series(inside, dtype=pl.Boolean))


def gather(
    trace: Trace, ranges: Ranges, attributed: Attributed, steps: StepTable, ledgers: Ledgers, *, only_steady: bool
) -> Facts:
    """Return the facts of a report. ``only_steady``: totals too cover just the steady steps (``--steps A:B``)."""
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
    return Facts(trace, ranges, attributed, steps, ledgers, calls, ops, steady_calls, steady_ops, count)

"""What every analysis is given: the frames of one report, with the windows that figures are taken over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import polars as pl

from nsysx.events.attribute import Attributed
from nsysx.events.ledger import Ledgers
from nsysx.events.nvtx_ranges import Ranges
from nsysx.events.python_lines import python_lines
from nsysx.events.steps import StepTable
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
        """Return call -> file, line, function; see ``python_lines``."""
        return self.once("lines", lambda p: python_lines(p.trace, p.ranges, p.attributed.api_calls))


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

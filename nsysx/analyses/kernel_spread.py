"""Why the same kernel takes different times: the spread per kernel and launch shape, and a verdict backed by a rank test.

Executions of one name, grid, block, registers and shared memory are one kernel here. Candidate reasons:

- first_call: only the first execution is slow;
- concurrent: other GPU work ran at the same time in some executions and not in others;
- cold_l2: before some executions, other work touched more than the L2 cache holds; before others, it cannot have touched half
  of that, and no more time lies between them than the cache makes. The bytes of copies and memsets are known. A kernel touches at
  most its time at the device's full memory bandwidth, and one that only moves data (elementwise, reduction, optimizer ...) at least
  half of that;
- data: call sites (modules) differ: other sizes behind the same launch shape, other values, other layouts;
- clock: the times follow the SM clock if it was sampled (``--clocks``), else all kernels slow down and speed up together.

A reason is named if a rank test gives p < 0.01, the reason explains at least 30 % of the variance of ranks, and no other
reason explains about as much. Otherwise the verdict is cannot_tell, which is an answer too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import erfc, log, sqrt
from typing import Annotated, TypedDict

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx import units
from nsysx.analyses.helpers.analysis_bounds import (
    EXPLAINED_SPREAD_SHARE,
    FEWEST_FOR_REASON,
    FEWEST_FOR_SPREAD,
    FEWEST_SPREAD_EXECUTIONS,
    MOST_COLD_TIMES,
    MOST_SPREAD_ROWS,
    MOST_TESTED_EXECUTIONS,
    SLOW_FIRST_TIMES,
    SPREAD_BINS,
    SPREAD_CHANCE,
    SPREAD_RESOLUTION_NS,
    STEADY_SPREAD_SHARE,
    TIED_CAUSES_SHARE,
)
from nsysx.catalogue import DeviceActivity
from nsysx.events import sm_clocks
from nsysx.events.event_bounds import ON_DEVICE_KIND
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import frame_columns
from nsysx.frames.frame_bounds import LONG_AGO_NS
from nsysx.frames.intervals import I64
from nsysx.frames.statistics import F64, explained, mann_whitney, spearman
from nsysx.model import TableSpec
from nsysx.reading import schema
from nsysx.rows import Of, TableOf, columns_of

KEY = "kernel_spread"
TITLE = "Spread of kernel times"


class SpreadRow(TypedDict):
    """One kernel and launch shape; the last row may be all others."""

    name: Annotated[str, Of("kernel; anything else is in parentheses")]
    grid: Annotated[str | None, Of("blocks, null when not recorded")]
    block: Annotated[str | None, Of("threads per block, null when not recorded")]
    registers: Annotated[int | None, Of("registers per thread, null when not recorded")]
    shared_bytes: Annotated[
        int | None, Of("static and dynamic shared memory per block, null when not recorded", "bytes")
    ]
    count: Annotated[int, Of("executions")]
    total_ns: Annotated[int, Of("kernel time, summed; over all rows, the kernel time", "ns")]
    first_ns: Annotated[int | None, Of("first execution", "ns", label="first call")]
    median_ns: Annotated[float | None, Of("half of the executions took at most this", "ns")]
    p10_ns: Annotated[float | None, Of("a tenth took at most this", "ns")]
    p90_ns: Annotated[float | None, Of("nine tenths took at most this", "ns")]
    spread: Annotated[float | None, Of("(p90 - p10) / median, without the first execution")]
    verdict: Annotated[str, Of("steady, first_call, concurrent, cold_l2, data, clock, cannot_tell", codes=True)]
    detail: Annotated[str, Of("the numbers behind the verdict")]


COLUMNS = columns_of(SpreadRow)
ROWS: TableOf[SpreadRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="whole",
    place=90,
    matters=("NSX108",),
    stepless=True,
    group="kernel-tables",
    intro=(
        "Whether a kernel always takes the same time and, if not, why: first call, cold L2 cache, other work beside it, other "
        "data, or the clock."
    ),
    first=("name", "verdict", "median_ns", "first_ns", "p10_ns", "p90_ns", "spread", "count", "detail", "total_ns"),
    depth=1,
)
#: Families whose kernels only move data: they run near the memory bandwidth.
_MOVES_DATA = ("elementwise", "reduction", "optimizer", "norm", "copy", "softmax and loss", "random", "embedding")

Mask = npt.NDArray[np.bool_]


def _shape(grid: int | None, block: int | None) -> dict[str, str | int | None]:
    if grid is None or block is None:
        return {"grid": None, "block": None, "registers": None, "shared_bytes": None}
    x, y, z, registers, shared = schema.unpack(block, schema.BLOCK)
    dims = "x".join(map(str, schema.unpack(grid, schema.GRID)))
    return {"grid": dims, "block": f"{x}x{y}x{z}", "registers": registers, "shared_bytes": shared}


class _Features:
    """What may explain the time of each GPU op: arrays over the rows of ``profile.ops``, or over those rows by device."""

    def __init__(self, profile: Profile) -> None:
        ops = profile.ops  # sorted by start
        #: Otherwise the first execution in the report is not the first one there was.
        self.from_the_start = profile.trace.window is None
        self.start, self.end = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
        self.duration = self.end - self.start
        self.module = ops["module"].to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
        process, device = ops["process"].to_numpy(), ops["device"].to_numpy()
        places = [(p, np.flatnonzero((process == p[0]) & (device == p[1]))) for p in sorted(profile.ledgers.activity)]
        places = [(p, rows) for p, rows in places if len(rows)]
        self.clock = sm_clocks.at(sm_clocks.sm_clock(profile.trace, len({p[1] for p, _ in places})), self.start)
        #: Row by position in the order by device, and position by row; the positions at which devices begin.
        self.order = np.concatenate([np.empty(0, np.int64), *(rows for _, rows in places)])
        self.position = np.empty_like(self.order)
        self.position[self.order] = np.arange(len(self.order))
        self.borders = np.cumsum([0, *(len(rows) for _, rows in places)])
        # Per op in that order: the last end before it, and the start after it.
        self.reach, self.next = np.full((2, len(self.order)), LONG_AGO_NS)
        for _, rows in places:
            position = self.position[rows]
            self.reach[position[1:]] = np.maximum.accumulate(self.end[rows])[:-1]
            self.next[position] = np.append(self.start[rows][1:], -LONG_AGO_NS)
        cards = {(g.process, g.device): g for g in profile.trace.capture.gpus}
        shown = [cards.get(p) for p, _ in places]
        rates = [(c.memory_bandwidth or 0) / 1e9 if c else 0.0 for c in shown]
        self.l2 = np.array([(c.l2_bytes or 0) if c and r else 0 for c, r in zip(shown, rates, strict=True)], np.float64)
        # Most and least bytes that each op touched: known for copies and memsets, else from the device's bandwidth.
        high = self.duration[self.order] * np.repeat(rates, np.diff(self.borders))
        low = np.where(ops["family"].is_in(_MOVES_DATA).to_numpy()[self.order], high / 2, 0)
        others = np.flatnonzero((ops["op_kind"] != "kernel").to_numpy())
        moved = ops["bytes"].gather(others).fill_null(0).to_numpy().astype(np.float64)
        both_sides = (ops["copy_kind"].gather(others) == ON_DEVICE_KIND).fill_null(False).to_numpy()
        low[self.position[others]] = high[self.position[others]] = np.where(both_sides, 2 * moved, moved)
        self.low, self.high = (np.concatenate(([0.0], np.cumsum(x))) for x in (low, high))

    def place(self, rows: I64) -> I64:
        """Return the number of the device of each row."""
        return np.searchsorted(self.borders, self.position[rows], side="right") - 1

    def cache(self, before: I64, after: I64) -> tuple[Mask, Mask]:
        """Return (cold, warm): the state of the cache before each execution of a kernel, given the execution before it."""
        device, begin, end = self.place(after), self.position[before], self.position[after]
        # The kernel's own data of last time is still there, as far as it fits.
        low, high = self.low[end] - self.low[begin + 1], self.high[end] - self.high[begin + 1]
        l2 = np.where(device == self.place(before), self.l2[device], 0)
        return (l2 > 0) & (low >= l2), (l2 > 0) & (high <= l2 / 2)

    def overlapped(self, rows: I64) -> Mask:
        """Return whether another op of the device ran at the same time."""
        position = self.position[rows]
        beside: Mask = (self.reach[position] > self.start[rows]) | (self.next[position] < self.end[rows])
        return beside


class _Common:
    """How slow the other kernels around a kernel were: mean log of their durations over the median of their shape."""

    def __init__(self, features: _Features, shape: I64) -> None:
        rows = features.order
        rows = rows[(shape[rows] >= 0) & (features.duration[rows] > 0)]
        frame = pl.DataFrame({"shape": shape[rows], "ns": features.duration[rows]})
        usual = frame.group_by("shape").agg(pl.len(), pl.col("ns").median())
        medians = np.full(int(shape.max(initial=-1)) + 1, np.nan)
        medians[usual["shape"].to_numpy()] = np.where(
            usual["len"].to_numpy() >= 2 * FEWEST_SPREAD_EXECUTIONS, usual["ns"].to_numpy(), np.nan
        )
        finite = np.isfinite(medians[shape[rows]])
        rows = rows[finite]
        self.slow = np.log(features.duration[rows] / medians[shape[rows]])
        self.slot = np.full(len(shape), -1, np.int64)
        self.slot[rows] = np.arange(len(rows))
        self.sum = np.add.reduceat(self.slow, np.arange(0, len(rows), SPREAD_BINS)) if len(rows) else np.empty(0)
        self.count = np.bincount(np.arange(len(rows)) // SPREAD_BINS)

    def figure_at(self, kernel: I64, rows: I64) -> F64:
        """Return that figure at ``rows`` of a kernel whose rows are ``kernel``; NaN where too few others ran."""
        slots = self.slot[kernel]
        slots = slots[slots >= 0]
        others = self.count - np.bincount(slots // SPREAD_BINS, minlength=len(self.count))
        slowness = self.sum - np.bincount(slots // SPREAD_BINS, self.slow[slots], minlength=len(self.count))
        mean = np.append(np.where(others >= FEWEST_SPREAD_EXECUTIONS, slowness / np.maximum(others, 1), np.nan), np.nan)
        usual: F64 = mean[self.slot[rows] // SPREAD_BINS]
        return usual


def _kruskal(share: float, executions: int, groups: int) -> float:
    """Return the p-value of the Kruskal-Wallis test (chi-square by the Wilson-Hilferty approximation).

    ``share`` is the part of the variance of ranks between the groups.
    """
    h, k = share * (executions - 1), groups - 1
    if k < 1 or h <= 0:
        return 1.0
    z = ((h / k) ** (1 / 3) - (1 - 2 / (9 * k))) / sqrt(2 / (9 * k))
    return 0.5 * erfc(z / sqrt(2))


def _by_module(module: I64, every: F64) -> tuple[float, float, str] | None:
    """Return (explained, p, detail) for the modules as the reason, None if there are too few or too many of them."""
    _, group, counts = np.unique(module, return_inverse=True, return_counts=True)
    enough = counts >= FEWEST_SPREAD_EXECUTIONS
    groups = int(enough.sum())
    if not 2 <= groups <= len(every) / FEWEST_SPREAD_EXECUTIONS:
        return None
    kept = enough[group]
    group, every, counts = (np.cumsum(enough) - 1)[group[kept]], every[kept], counts[enough]
    ordered, first = every[np.lexsort((every, group))], np.cumsum(counts) - counts
    medians = (ordered[first + (counts - 1) // 2] + ordered[first + counts // 2]) / 2
    share = explained(every, group)
    detail = f"{groups} modules, medians {units.duration(medians.min())} to {units.duration(medians.max())}"
    return share, _kruskal(share, len(every), groups), detail


def _slower_of_two(duration: F64, slow: Mask, fast: Mask, words: tuple[str, str]) -> tuple[float, float, str] | None:
    """Return (explained, p, detail) if ``slow`` takes longer than ``fast``, None if not or if there are too few of either."""
    if slow.sum() < FEWEST_SPREAD_EXECUTIONS or fast.sum() < FEWEST_SPREAD_EXECUTIONS:
        return None
    a, b = float(np.median(duration[slow])), float(np.median(duration[fast]))
    if a <= b:
        return None
    detail = f"{words[0]} {units.duration(a)} ({int(slow.sum())}), {words[1]} {units.duration(b)} ({int(fast.sum())})"
    either = slow | fast
    share = explained(duration[either], slow[either].astype(np.int64))
    return share, mann_whitney(duration[slow], duration[fast]), detail


def _clock(sampled: F64, every: F64, common: F64, range_log: float) -> tuple[float, float, str] | None:
    """Return (explained, p, detail) for the clock as the reason, None if nothing points to it."""
    finite = np.isfinite(sampled)
    if finite.sum() >= FEWEST_FOR_REASON and len(np.unique(sampled[finite])) > 1:
        rho, p = spearman(every[finite], -sampled[finite])
        detail = f"SM clock {sampled[finite].min():.0f} to {sampled[finite].max():.0f} MHz, rank correlation {rho:.2f}"
        return (rho * rho, p, detail) if rho > 0 else None
    finite = np.isfinite(common)
    if finite.sum() < FEWEST_FOR_REASON:
        return None
    rho, p = spearman(every[finite], common[finite])
    if rho <= 0:
        return None
    low, high = np.quantile(common[finite], [0.1, 0.9])
    if float(high - low) < 0.5 * range_log:
        return None
    return rho * rho, p, f"rank correlation {rho:.2f} with the other kernels of the time"


def _verdict(features: _Features, rows: I64, common: Callable[[], _Common]) -> tuple[float | None, str, str]:
    """Return (spread, verdict, detail) of the executions ``rows`` of one kernel, in order of time."""
    if len(rows) < FEWEST_FOR_SPREAD:
        return None, "cannot_tell", "too few executions"
    every = features.duration[rows].astype(np.float64)
    later = every[1:]
    low, median, high = (float(q) for q in np.quantile(later, [0.1, 0.5, 0.9]))
    spread = (high - low) / median if median else None
    calm = high - low <= max(STEADY_SPREAD_SHARE * median, SPREAD_RESOLUTION_NS)
    slow_first = (
        features.from_the_start
        and every[0] > SLOW_FIRST_TIMES * median
        and every[0] - median > 2 * SPREAD_RESOLUTION_NS
    )
    if calm and slow_first:
        if len(rows) >= FEWEST_FOR_REASON and every[0] > later.max():
            return spread, "first_call", f"first {units.duration(every[0])}, later {units.duration(median)}"
        if len(rows) < FEWEST_FOR_REASON:
            return (
                spread,
                "cannot_tell",
                f"first {units.duration(every[0])}, later {units.duration(median)}: too few executions",
            )
    if calm:
        return spread, "steady", ""
    if len(rows) < 2 * FEWEST_SPREAD_EXECUTIONS:
        return spread, "cannot_tell", "too few executions"
    chosen = np.arange(len(rows))
    if len(rows) > MOST_TESTED_EXECUTIONS:
        # Evenly over the capture: more would make the test slower, not better.
        chosen = np.linspace(0, len(rows) - 1, MOST_TESTED_EXECUTIONS).astype(np.int64)
    kernel, rows, every = rows, rows[chosen], every[chosen]
    causes: dict[str, tuple[float, float, str]] = {}
    beside = features.overlapped(rows)
    if answer := _slower_of_two(every, beside, ~beside, ("beside other work", "alone")):
        causes["concurrent"] = answer
    cold, warm = features.cache(kernel[chosen - 1], rows)
    cold[0] = warm[0] = False  # nothing is known of what ran before the first
    words = "after more than the L2 of other data", "repeated"
    if high <= MOST_COLD_TIMES * low and (answer := _slower_of_two(every, cold, warm, words)):
        causes["cold_l2"] = answer
    if answer := _by_module(features.module[rows], every):
        causes["data"] = answer
    if low and (answer := _clock(features.clock[rows], every, common().figure_at(kernel, rows), log(high / low))):
        causes["clock"] = answer
    good = sorted(
        ((e, k, d) for k, (e, p, d) in causes.items() if p < SPREAD_CHANCE and e >= EXPLAINED_SPREAD_SHARE),
        reverse=True,
    )
    if not good:
        return spread, "cannot_tell", "no reason explains the spread"
    if len(good) > 1 and good[1][0] > good[0][0] - TIED_CAUSES_SHARE:
        return spread, "cannot_tell", f"{good[0][1]} or {good[1][1]}"
    return spread, good[0][1], good[0][2]


#: Why no clock and no cache explains the times of a collective.
_OF_COLLECTIVES = "communication waits for other ranks, and messages differ in size"


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per kernel and shape, longest total first; the remaining ones share one row."""
    if not profile.recorded("kernel"):
        raise NotRecorded("no kernel was recorded", "-t cuda")
    kernels = profile.ops.select("name", "grid", "block", "op_kind", "cls", ns=pl.col("end_ns") - pl.col("start_ns"))
    ns = pl.col("ns")
    grouped = (
        kernels.with_row_index("row")
        .filter(kernels["op_kind"] == "kernel")
        .group_by("name", "grid", "block")
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            ns.sum().alias("total_ns"),
            ns.first().alias("first_ns"),
            ns.median().alias("median_ns"),
            ns.quantile(0.1, "linear").alias("p10_ns"),
            ns.quantile(0.9, "linear").alias("p90_ns"),
            pl.col("row"),
            communicates=(pl.col("cls") == DeviceActivity.COMM.value).any(),
        )
        .with_columns(pl.col("name").cast(pl.String))
        .sort("total_ns", "name", "grid", "block", descending=[True, False, False, False])
    )
    features = _Features(profile)

    @cache
    def common() -> _Common:
        shape = np.full(profile.ops.height, -1, np.int64)
        shape[grouped["row"].explode().to_numpy()] = np.repeat(np.arange(grouped.height), grouped["count"])
        return _Common(features, shape)

    rows: list[dict[str, object]] = []
    for line, members in zip(
        grouped.head(MOST_SPREAD_ROWS).drop("row").to_dicts(), grouped["row"].head(MOST_SPREAD_ROWS), strict=True
    ):
        communicates = line.pop("communicates")
        spread, verdict, detail = _verdict(features, members.cast(pl.Int64).to_numpy(), common)
        if communicates and verdict in ("cold_l2", "clock"):
            verdict, detail = "cannot_tell", _OF_COLLECTIVES
        shown = _shape(line["grid"], line["block"])
        rows.append({**line, **shown, "spread": spread, "verdict": verdict, "detail": detail})
    unlisted = grouped.slice(MOST_SPREAD_ROWS)
    if unlisted.height:
        sums = {c: int(unlisted[c].sum()) for c in ("count", "total_ns")}
        rows.append(
            {
                "name": f"({unlisted.height} other kernels and shapes)",
                **sums,
                "verdict": "cannot_tell",
                "detail": "not examined",
            }
        )
    return pl.DataFrame(rows, schema=frame_columns.schema(COLUMNS))

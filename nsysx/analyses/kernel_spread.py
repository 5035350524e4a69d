"""Why the same kernel takes a different time: per kernel and launch shape its spread, and a verdict that a rank test supports.

Executions of one name, grid, block, registers and shared memory are one kernel here. Candidate reasons:

- first_call: only the first execution is slow;
- concurrent: other GPU work ran at the same time in some executions and not in others;
- cold_l2: between two executions other work touched more than the L2 cache holds, in some cases, and in others less than half
  of it could have been touched. Bytes of copies and memsets are known. A kernel touches at most its time at the device's full
  memory bandwidth, and one that only moves data (elementwise, reduction, optimizer ...) at least half of that;
- data: call sites (modules) differ: other sizes behind the same launch shape, other values, other layouts;
- clock: all kernels slow down and speed up together.

A reason is named when a rank test gives p < 0.01 and the reason explains at least 30 % of the variance of ranks, and no other
reason explains about as much. Otherwise the verdict is cannot_tell: that is an answer too.
"""

from __future__ import annotations

from math import erfc, log, sqrt

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx import columns, schema
from nsysx.facts import Facts, NotRecorded, named
from nsysx.intervals import I64
from nsysx.model import Column
from nsysx.stats import F64, mann_whitney, ranks, spearman

KEY = "kernel_spread"
TITLE = "Spread of kernel times"
COLUMNS = (
    Column("name", "String", "", "kernel; in parentheses what is not one"),
    Column("grid", "String", "", "blocks, null when not recorded"),
    Column("block", "String", "", "threads per block, null when not recorded"),
    Column("registers", "Int64", "", "registers per thread, null when not recorded"),
    Column("shared_bytes", "Int64", "bytes", "static and dynamic shared memory per block, null when not recorded"),
    Column("count", "Int64", "", "executions"),
    Column("total_ns", "Int64", "ns", "kernel time, summed; over all rows, the kernel time"),
    Column("first_ns", "Int64", "ns", "first execution"),
    Column("median_ns", "Float64", "ns", "median"),
    Column("p10_ns", "Float64", "ns", "a tenth took at most this"),
    Column("p90_ns", "Float64", "ns", "nine tenths took at most this"),
    Column("spread", "Float64", "", "(p90 - p10) / median of all but the first execution"),
    Column("verdict", "String", "", "steady, first_call, concurrent, cold_l2, data, clock, cannot_tell"),
    Column("detail", "String", "", "the numbers behind the verdict"),
)
_ROWS = 50
#: A spread up to this is steady. Nsight's own resolution is 32 ns: shorter kernels may spread that much.
_STEADY, _RESOLUTION_NS = 0.10, 64
_FIRST = 1.25
_P, _EXPLAINED, _TIE = 0.01, 0.30, 0.05
_LEAST = 5
#: Families whose kernels only move data: they run near the memory bandwidth.
_MOVES_DATA = ("elementwise", "reduction", "optimizer", "norm", "copy", "softmax and loss", "random", "embedding")
_BIN = 64

Mask = npt.NDArray[np.bool_]


def _shape(grid: int | None, block: int | None) -> dict[str, str | int | None]:
    if grid is None or block is None:
        return {"grid": None, "block": None, "registers": None, "shared_bytes": None}
    x, y, z, registers, shared = schema.unpack(block, schema.BLOCK)
    dims = "x".join(map(str, schema.unpack(grid, schema.GRID)))
    return {"grid": dims, "block": f"{x}x{y}x{z}", "registers": registers, "shared_bytes": shared}


class _Features:
    """What may explain the time of each GPU op, as arrays over ``ops`` (all of the devices, sorted by place and start)."""

    def __init__(self, facts: Facts) -> None:
        wanted = ("op", "process", "device", "start_ns", "end_ns", "op_kind", "family", "bytes", "copy_kind", "module")
        ops = facts.ops.select(*wanted, "name", "grid", "block")
        if ops.select("process", "device").unique().height > 1:  # of one device they come in this order
            ops = ops.sort("process", "device", "start_ns", "op")
        self.ops = ops
        n = ops.height
        start, end = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
        self.duration = end - start
        self.overlapped = np.zeros(n, np.bool_)
        self.between_low, self.between_high = np.zeros(n, np.float64), np.zeros(n, np.float64)
        self.l2 = np.zeros(n, np.float64)
        kernel = named(ops["op_kind"], "^kernel$").to_numpy()
        self.kernel = kernel
        moves = columns.coded(ops["family"], dict.fromkeys(_MOVES_DATA, 1)) > 0
        size = ops["bytes"].fill_null(0).to_numpy().astype(np.float64)
        both_sides = (ops["copy_kind"].fill_null(0) == 8).to_numpy()
        known = np.where(both_sides, 2 * size, size)
        cards = {(g.process, g.device): g for g in facts.trace.capture.gpus}
        low, high = np.zeros(n + 1), np.zeros(n + 1)
        place = ops.select("process", "device").with_row_index("row")
        for (process, device), part in place.group_by("process", "device", maintain_order=True):
            rows = part["row"].to_numpy()
            card = cards.get((int(process), int(device)))
            rate = (card.memory_bandwidth or 0) / 1e9 if card else 0.0
            self.l2[rows] = (card.l2_bytes or 0) if card and rate else 0
            most = np.where(kernel[rows], self.duration[rows] * rate, known[rows])
            low[rows + 1] = np.where(kernel[rows], np.where(moves[rows], most / 2, 0), known[rows])
            high[rows + 1] = most
            begun, ended = (np.sort(x[rows], kind="stable") for x in (start, end))
            others = np.searchsorted(begun, end[rows], "left") - np.searchsorted(ended, start[rows], "right") - 1
            self.overlapped[rows] = others > 0
        self.low, self.high = np.cumsum(low), np.cumsum(high)
        self.module = ops["module"].to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
        self.process, self.device = ops["process"].to_numpy(), ops["device"].to_numpy()

    def cache(self, rows: I64) -> tuple[Mask, Mask]:
        """Return (cold, warm) of executions of one kernel, in order; the first is neither."""
        before, after = rows[:-1], rows[1:]
        low = self.low[after] - self.low[before + 1]
        # What the kernel itself touched last time is still there, as far as it fits.
        high = self.high[after] - self.high[before + 1]
        l2 = self.l2[after]
        same = (self.process[after] == self.process[before]) & (self.device[after] == self.device[before])
        cold = np.concatenate([[False], same & (l2 > 0) & (low >= l2)])
        warm = np.concatenate([[False], same & (l2 > 0) & (high <= l2 / 2)])
        return cold, warm


def _explained(duration: F64, groups: list[Mask]) -> float:
    """Return the part of the variance of ranks between the groups, over the executions that are in one."""
    chosen = np.logical_or.reduce(groups)
    r = ranks(duration[chosen])
    total = float(((r - r.mean()) ** 2).sum())
    if not total:
        return 0.0
    inside = [r[g[chosen]] for g in groups]
    return sum(len(x) * (float(x.mean()) - float(r.mean())) ** 2 for x in inside if len(x)) / total


def _kruskal(duration: F64, groups: list[Mask]) -> float:
    """Return the p-value of the Kruskal-Wallis test (chi-square by the Wilson-Hilferty approximation)."""
    chosen = int(np.logical_or.reduce(groups).sum())
    h, k = _explained(duration, groups) * (chosen - 1), len(groups) - 1
    if k < 1 or h <= 0:
        return 1.0
    z = ((h / k) ** (1 / 3) - (1 - 2 / (9 * k))) / sqrt(2 / (9 * k))
    return 0.5 * erfc(z / sqrt(2))


def _two(duration: F64, slow: Mask, fast: Mask, words: tuple[str, str]) -> tuple[float, float, str] | None:
    """Return (explained, p, detail) when ``slow`` takes longer than ``fast``, None when there are too few of either."""
    if slow.sum() < _LEAST or fast.sum() < _LEAST:
        return None
    a, b = float(np.median(duration[slow])), float(np.median(duration[fast]))
    p = mann_whitney(duration[slow], duration[fast])
    if a <= b:
        return None
    detail = f"{words[0]} {a / 1e3:.1f} us ({int(slow.sum())}), {words[1]} {b / 1e3:.1f} us ({int(fast.sum())})"
    return _explained(duration, [slow, fast]), p, detail


def _verdict(features: _Features, rows: I64, common: F64) -> tuple[float | None, str, str]:
    """Return (spread, verdict, detail) of the executions ``rows`` of one kernel, in order of time."""
    every = features.duration[rows].astype(np.float64)
    if len(rows) < 3:
        return None, "cannot_tell", "too few executions"
    rest = every[1:]
    median = float(np.median(rest))
    low, high = (float(q) for q in np.quantile(rest, [0.1, 0.9]))
    spread = (high - low) / median if median else None
    calm = high - low <= max(_STEADY * median, _RESOLUTION_NS)
    slow_first = every[0] > _FIRST * median and every[0] - median > 2 * _RESOLUTION_NS
    if calm and slow_first:
        if len(rows) >= 20 and every[0] > rest.max():
            return spread, "first_call", f"first {every[0] / 1e3:.1f} us, later {median / 1e3:.1f} us"
        if len(rows) < 20:
            return (
                spread,
                "cannot_tell",
                f"first {every[0] / 1e3:.1f} us, later {median / 1e3:.1f} us: too few executions",
            )
    if calm:
        return spread, "steady", ""
    if len(rows) < 2 * _LEAST:
        return spread, "cannot_tell", "too few executions"
    found: dict[str, tuple[float, float, str]] = {}
    beside = features.overlapped[rows]
    if answer := _two(every, beside, ~beside, ("beside other work", "alone")):
        found["concurrent"] = answer
    cold, warm = features.cache(rows)
    if answer := _two(every, cold, warm, ("after more than the L2 of other data", "repeated")):
        found["cold_l2"] = answer
    modules = features.module[rows]
    names, counts = np.unique(modules, return_counts=True)
    groups = [modules == name for name in names[counts >= _LEAST].tolist()]
    if 2 <= len(groups) <= len(rows) / _LEAST:
        medians = sorted(float(np.median(every[g])) for g in groups)
        detail = f"{len(groups)} modules, medians {medians[0] / 1e3:.1f} to {medians[-1] / 1e3:.1f} us"
        found["data"] = (_explained(every, groups), _kruskal(every, groups), detail)
    known = np.isfinite(common[rows])
    if known.sum() >= 20:
        rho, p = spearman(every[known], common[rows][known])
        others = np.quantile(common[rows][known], [0.1, 0.9])
        if rho > 0 and low and float(others[1] - others[0]) >= 0.5 * log(high / low):
            found["clock"] = (rho * rho, p, f"rank correlation {rho:.2f} with the other kernels of the time")
    good = sorted(((e, k, d) for k, (e, p, d) in found.items() if p < _P and e >= _EXPLAINED), reverse=True)
    if not good:
        return spread, "cannot_tell", "no reason explains the spread"
    if len(good) > 1 and good[1][0] > good[0][0] - _TIE:
        return spread, "cannot_tell", f"{good[0][1]} or {good[1][1]}"
    return spread, good[0][1], good[0][2]


def _common(features: _Features, shape: I64) -> F64:
    """Return per op how slow the other kernels of its time were: mean log of duration over its kernel's median; NaN unknown."""
    n = len(shape)
    common = np.full(n, np.nan)
    rows = np.flatnonzero((shape >= 0) & (features.duration > 0))
    if not len(rows):
        return common
    frame = pl.DataFrame({"row": rows, "shape": shape[rows], "ns": features.duration[rows]})
    frame = frame.filter(pl.len().over("shape") >= 2 * _LEAST)
    ratio = (pl.col("ns") / pl.col("ns").median().over("shape")).log()
    frame = frame.with_columns(ratio.alias("r"), (pl.int_range(pl.len()) // _BIN).alias("bin"))
    others = pl.col("r").sum().over("bin") - pl.col("r").sum().over("bin", "shape")
    count = pl.len().over("bin") - pl.len().over("bin", "shape")
    frame = frame.with_columns(pl.when(count >= _LEAST).then(others / count).alias("common"))
    common[frame["row"].to_numpy()] = frame["common"].fill_null(float("nan")).to_numpy()
    return common


def table(facts: Facts) -> pl.DataFrame:
    """Return one row per kernel and shape, longest total first; what is left is one row."""
    if not facts.recorded("kernel"):
        raise NotRecorded("no kernel was recorded", "-t cuda")
    features = _Features(facts)
    kernels = features.ops.with_row_index("row").filter(pl.Series(features.kernel))
    kernels = kernels.with_columns(
        pl.struct(pl.col("name").to_physical(), "grid", "block").rank("dense").alias("shape")
    )
    shape = np.full(features.ops.height, -1, np.int64)
    shape[kernels["row"].to_numpy()] = kernels["shape"].to_numpy()
    common = _common(features, shape)
    ns = pl.col("end_ns") - pl.col("start_ns")
    grouped = (
        kernels.sort("start_ns", "op")
        .group_by("shape", maintain_order=True)
        .agg(
            pl.col("name").first().cast(pl.String),
            pl.col("grid").first(),
            pl.col("block").first(),
            pl.len().cast(pl.Int64).alias("count"),
            ns.sum().alias("total_ns"),
            ns.first().alias("first_ns"),
            ns.median().alias("median_ns"),
            ns.quantile(0.1, "linear").alias("p10_ns"),
            ns.quantile(0.9, "linear").alias("p90_ns"),
            pl.col("row"),
        )
        .sort("total_ns", "name", "shape", descending=[True, False, False])
    )
    rows: list[dict[str, object]] = []
    for line in grouped.head(_ROWS).iter_rows(named=True):
        own = np.array(line.pop("row"), np.int64)
        del line["shape"]
        spread, verdict, detail = _verdict(features, own, common)
        shown = _shape(line["grid"], line["block"])
        rows.append({**line, **shown, "spread": spread, "verdict": verdict, "detail": detail})
    rest = grouped.slice(_ROWS)
    if rest.height:
        sums = {c: int(rest[c].sum()) for c in ("count", "total_ns")}
        rows.append(
            {
                "name": f"({rest.height} other kernels and shapes)",
                **sums,
                "verdict": "cannot_tell",
                "detail": "not examined",
            }
        )
    types = {"String": pl.String, "Int64": pl.Int64, "Float64": pl.Float64}
    return pl.DataFrame(rows, schema={c.name: types[c.dtype] for c in COLUMNS})

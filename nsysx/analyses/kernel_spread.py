"""Why the same kernel takes a different time: per kernel and launch shape its spread, and a verdict that a rank test supports.

Executions of one name, grid, block, registers and shared memory are one kernel here. Candidate reasons:

- first_call: only the first execution is slow;
- concurrent: other GPU work ran at the same time in some executions and not in others;
- cold_l2: between two executions other work touched more than the L2 cache holds, in some cases, and in others less than half
  of it could have been touched. Bytes of copies and memsets are known. A kernel touches at most its time at the device's full
  memory bandwidth, and one that only moves data (elementwise, reduction, optimizer ...) at least half of that;
- data: call sites (modules) differ: other sizes behind the same launch shape, other values, other layouts;
- clock: the times follow the SM clock where it was sampled (``--clocks``), else all kernels slow down and speed up together.

A reason is named when a rank test gives p < 0.01 and the reason explains at least 30 % of the variance of ranks, and no other
reason explains about as much. Otherwise the verdict is cannot_tell: that is an answer too.
"""

from __future__ import annotations

from math import erfc, log, sqrt

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx import schema
from nsysx.columns import matching
from nsysx.facts import Facts, NotRecorded
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
#: Executions of one kernel that are tested.
_SAMPLE = 4_000
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
        ops = facts.ops.sort("process", "device", "start_ns", "op")
        self.ops = ops
        n = ops.height
        start, end = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
        self.duration = end - start
        self.overlapped = np.zeros(n, np.bool_)
        self.between_low, self.between_high = np.zeros(n, np.float64), np.zeros(n, np.float64)
        self.l2 = np.zeros(n, np.float64)
        kernel = matching(ops["op_kind"], "^kernel$")
        self.kernel = kernel
        moves = matching(ops["family"], "^(" + "|".join(_MOVES_DATA) + ")$")
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
            begun, ended = start[rows], np.sort(end[rows], kind="stable")
            others = np.searchsorted(begun, end[rows], "left") - np.searchsorted(ended, start[rows], "right") - 1
            self.overlapped[rows] = others > 0
        self.low, self.high = np.cumsum(low), np.cumsum(high)
        self.module = ops["module"].to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
        self.clock = _sampled_clock(facts, ops)
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


def _sampled_clock(facts: Facts, ops: pl.DataFrame) -> F64:
    """Return the SM clock at the start of each op (MHz), NaN where it was not sampled.

    NVML counts devices its own way, so samples are used only where there is one device on both sides.
    """
    found = np.full(ops.height, np.nan)
    clocks, epoch = facts.trace.run.get("clocks"), facts.trace.capture.utc_epoch_ns
    devices = clocks.get("devices") if isinstance(clocks, dict) else None
    if epoch is None or not isinstance(devices, list) or len(devices) != 1 or ops["device"].n_unique() != 1:
        return found
    times, values = (devices[0].get(key) if isinstance(devices[0], dict) else None for key in ("utc_ns", "sm_mhz"))
    if not isinstance(times, list) or not isinstance(values, list):
        return found
    pairs = [(t, v) for t, v in zip(times, values, strict=False) if isinstance(t, int) and isinstance(v, int)]
    if len(pairs) < _LEAST:
        return found
    at = np.array([t for t, _ in pairs], np.int64) - epoch
    start = ops["start_ns"].to_numpy()
    row = np.searchsorted(at, start, side="right") - 1
    known = (row >= 0) & (start <= at[-1] + 1_000_000_000)
    found[known] = np.array([v for _, v in pairs], np.float64)[row[known]]
    return found


def _clock(
    features: _Features, rows: I64, every: F64, common: F64, range_log: float
) -> tuple[float, float, str] | None:
    """Return (explained, p, detail) of the clock as the reason, None when nothing speaks for it."""
    sampled = features.clock[rows]
    known = np.isfinite(sampled)
    if known.sum() >= 20 and len(np.unique(sampled[known])) > 1:
        rho, p = spearman(every[known], -sampled[known])
        detail = f"SM clock {sampled[known].min():.0f} to {sampled[known].max():.0f} MHz, rank correlation {rho:.2f}"
        return (rho * rho, p, detail) if rho > 0 else None
    known = np.isfinite(common[rows])
    if known.sum() < 20:
        return None
    rho, p = spearman(every[known], common[rows][known])
    others = np.quantile(common[rows][known], [0.1, 0.9])
    if rho <= 0 or float(others[1] - others[0]) < 0.5 * range_log:
        return None
    return rho * rho, p, f"rank correlation {rho:.2f} with the other kernels of the time"


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
    cold, warm = features.cache(rows)
    if len(rows) > _SAMPLE:
        # Evenly over the capture: a test gains nothing from more, and takes its time.
        chosen = np.linspace(0, len(rows) - 1, _SAMPLE).astype(np.int64)
        rows, every, cold, warm = rows[chosen], every[chosen], cold[chosen], warm[chosen]
    found: dict[str, tuple[float, float, str]] = {}
    beside = features.overlapped[rows]
    if answer := _two(every, beside, ~beside, ("beside other work", "alone")):
        found["concurrent"] = answer
    if answer := _two(every, cold, warm, ("after more than the L2 of other data", "repeated")):
        found["cold_l2"] = answer
    modules = features.module[rows]
    names, counts = np.unique(modules, return_counts=True)
    groups = [modules == name for name in names[counts >= _LEAST].tolist()]
    if 2 <= len(groups) <= len(rows) / _LEAST:
        medians = sorted(float(np.median(every[g])) for g in groups)
        detail = f"{len(groups)} modules, medians {medians[0] / 1e3:.1f} to {medians[-1] / 1e3:.1f} us"
        found["data"] = (_explained(every, groups), _kruskal(every, groups), detail)
    if low and (answer := _clock(features, rows, every, common, log(high / low))):
        found["clock"] = answer
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
        .sort("total_ns", "name", "grid", "block", descending=[True, False, False, False])
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

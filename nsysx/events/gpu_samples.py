"""What share of the GPU's counters each kind of GPU work has: samples of the whole device, joined over all repetitions.

A sample is the mean of a counter over one interval of the sampler, in which several kernels run. It is the sum, over what ran, of the
part of the interval that it ran times its own share. Work repeats, so the shares follow from many samples by least squares; idle time and
rare work are unknowns of their own. So a kernel need not last an interval: what counts is how long it runs in all samples together. How
far a share can be trusted is seen where one part of the samples after the other is left out (jackknife; Efron, The Jackknife, the Bootstrap
and Other Resampling Plans, SIAM 1982, chapter 3).

The time of a sample is the begin of its interval: on an H100 at 20 kHz (nsys 2025.3) begins explain the samples of a step of GPT-2 to 3.6
points, ends to 10.5.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.events.event_bounds import (
    APART_RATIO,
    FEWEST_GPU_SAMPLES,
    LEFT_OUT_PARTS,
    MEMORY_BOUND_SHARE,
    MOST_EMPTY_SAMPLES,
    MOST_SAMPLED_KINDS,
    OTHERS_AT_WORK_SHARE,
    RUN_TOGETHER_SHARE,
    SAMPLES_PER_KIND,
    SINGULAR_RATIO,
    SMALL_SAMPLED_KIND_SHARE,
    SURE_SHARE_ERROR,
)
from nsysx.events.profile import Profile
from nsysx.frames import intervals
from nsysx.frames.intervals import I64
from nsysx.reading.counter_samples import SHARES
from nsysx.reading.trace import Trace

F64 = npt.NDArray[np.float64]

_LAUNCH = ("name", "grid", "block")
#: The columns of ``of_kernels`` beside what they are grouped by.
_RESULT = {"samples": pl.Int64, **dict.fromkeys((*SHARES, "dram", "clock_mhz"), pl.Float64)}


def gpus_of(trace: Trace) -> dict[int, list[tuple[int, int]]]:
    """Return gpu -> the (process, device) under which it is used."""
    places: dict[int, list[tuple[int, int]]] = {}
    for device, limits in trace.limits.items():
        if limits.gpu is not None:
            places.setdefault(limits.gpu & 0xFF, []).append(device)
    return places


def interval_ns(times: I64) -> int:
    """Return the interval of sorted samples: the median of their distances; 0 for fewer than two."""
    return int(np.median(np.diff(times))) if len(times) > 1 else 0


def run_before(start: I64, end: I64, instants: I64) -> F64:
    """Return how long the intervals, which may overlap, have run before each instant, summed over them (ns)."""
    total = np.zeros(len(instants))
    for borders, sign in ((np.sort(start), 1.0), (np.sort(end), -1.0)):
        count = np.searchsorted(borders, instants, side="right")
        before = np.concatenate([np.zeros(1), np.cumsum(borders, dtype=np.float64)])
        total += sign * (count * instants.astype(np.float64) - before[count])
    return total


def of_kernels(profile: Profile) -> pl.DataFrame:
    """Return one row per launch of a kernel (name, grid, block) of the steady steps, over all devices of the process.

    Columns beside those: samples (intervals that it ran, rounded), sm_active, sm_issue, tensor_active, dram_read, dram_write, dram (the sum
    of these two), 0 to 1, clock_mhz. Null where the device does not have the counter, where it ran for fewer intervals than
    ``FEWEST_GPU_SAMPLES``, and where the samples leave its share open. No rows where nothing was sampled.
    """
    parts = []
    for gpu, places in gpus_of(profile.trace).items():
        used = [d for p, d in places if p == profile.process]
        if profile.trace.gpu_metrics is not None and used:
            parts.append(_of_gpu(profile, gpu, places, used))
    rates = pl.concat(parts) if parts else _no_rows(profile)
    if len(parts) < 2:
        return rates
    weight = pl.col("samples")
    means = {c: (pl.col(c) * weight).sum() / weight.filter(pl.col(c).is_not_null()).sum() for c in [*_RESULT][1:]}
    return rates.group_by(_LAUNCH, maintain_order=True).agg(
        weight.sum(), *(pl.when(pl.col(c).count() > 0).then(e).alias(c) for c, e in means.items())
    )


def _no_rows(profile: Profile) -> pl.DataFrame:
    return profile.steady_ops[_LAUNCH].clear().with_columns(pl.lit(None, dtype=t).alias(c) for c, t in _RESULT.items())


def _of_gpu(profile: Profile, gpu: int, places: list[tuple[int, int]], used: list[int]) -> pl.DataFrame:
    start, end = profile.window
    assert profile.trace.gpu_metrics is not None
    samples = profile.trace.gpu_metrics.filter(pl.col("gpu") == gpu)
    times = samples["time_ns"].to_numpy()
    interval = interval_ns(times)
    inside = (times >= start) & (times + interval <= end)
    samples, times = samples.filter(pl.Series(inside)), times[inside] - start
    ops = profile.attributed.gpu_ops
    # Rows of a pair are compared as a pair: a process may use several devices.
    ops = ops.filter(pl.any_horizontal((pl.col("process") == p) & (pl.col("device") == d) for p, d in places))
    ops = ops.filter((pl.col("end_ns") > start) & (pl.col("start_ns") < end))["op", "start_ns", "end_ns"]
    steady = profile.steady_ops.filter(pl.col("device").is_in(used)).select("op", *_LAUNCH)
    kinds = steady[_LAUNCH].unique(maintain_order=True).with_row_index("kind")
    if len(times) < LEFT_OUT_PARTS * FEWEST_GPU_SAMPLES or not kinds.height:
        return _no_rows(profile)
    steady = steady.join(kinds, on=_LAUNCH, how="left", nulls_equal=True, maintain_order="left")["op", "kind"]
    ops = ops.join(steady, on="op", how="left", maintain_order="left")
    of_kind = ops["kind"].fill_null(kinds.height).cast(pl.Int64).to_numpy()
    s, e = ops["start_ns"].to_numpy() - start, ops["end_ns"].to_numpy() - start
    numbered = _kinds_as_unknowns(s, e, of_kind, kinds.height, len(times), interval)
    position = np.full(kinds.height + 1, len(numbered))
    position[numbered] = np.arange(len(numbered))
    ran = _ran(s, e, position[of_kind], len(numbered), times, interval)
    counters = {c: samples[c].cast(pl.Float64).to_numpy() for c in SHARES}
    alone = _mostly_alone(s, e, position[of_kind], len(numbered)) & (
        ran[:, : len(numbered)].sum(axis=0) >= FEWEST_GPU_SAMPLES
    )
    values = _solved(ran, counters, samples["clock_hz"].to_numpy() / 1e6, alone)
    rows = pl.DataFrame({c: pl.Series(values[c], dtype=t, nan_to_null=True) for c, t in _RESULT.items()})
    return kinds[numbered].drop("kind").hstack(rows)


def _kinds_as_unknowns(start: I64, end: I64, of_kind: I64, kinds: int, samples: int, interval: int) -> I64:
    """Return the kinds whose shares are unknowns of their own: the longest, as many as so many samples can tell apart."""
    total = np.bincount(of_kind, end - start, kinds + 1)[:kinds]
    longest = np.argsort(-total, kind="stable")[: min(MOST_SAMPLED_KINDS, samples // SAMPLES_PER_KIND)]
    return longest[total[longest] >= SMALL_SAMPLED_KIND_SHARE * samples * interval]


def _ran(start: I64, end: I64, of_kind: I64, kinds: int, times: I64, interval: int) -> F64:
    """Return the part of each sample's interval in which each kind ran; last that of all other work, then idle time."""
    ran = np.zeros((len(times), kinds + 2))
    for kind in range(kinds + 1):
        rows = of_kind == kind
        s, e = start[rows], end[rows]
        ran[:, kind] = run_before(s, e, times + interval) - run_before(s, e, times)
    s, e = intervals.union(start, end)
    ran[:, -1] = interval - (run_before(s, e, times + interval) - run_before(s, e, times))
    return ran / interval


def _mostly_alone(start: I64, end: I64, of_kind: I64, kinds: int) -> npt.NDArray[np.bool_]:
    """Return which kinds have the device for themselves for most of their time."""
    borders = np.concatenate([start, end])
    order = np.argsort(borders, kind="stable")
    count = np.cumsum(np.repeat([1, -1], len(start))[order])
    several = np.concatenate([np.zeros(1), np.cumsum(np.diff(borders[order]) * (count[:-1] > 1))])
    position = np.empty(len(borders), np.int64)
    position[order] = np.arange(len(borders))
    beside = several[position[len(start) :]] - several[position[: len(start)]]
    return (
        np.bincount(of_kind, beside, kinds + 1)[:kinds]
        <= RUN_TOGETHER_SHARE * np.bincount(of_kind, end - start, kinds + 1)[:kinds]
    )


def _solved(ran: F64, counters: dict[str, F64], clock: F64, alone: npt.NDArray[np.bool_]) -> dict[str, F64]:
    """Return the columns of ``_RESULT`` for each kind, NaN where a figure is not known."""
    total, nothing = ran.sum(axis=0), np.full(len(alone), np.nan)
    result = {**dict.fromkeys(_RESULT, nothing), "samples": np.round(total[:-2])}
    values = {c: v for c, v in counters.items() if np.isnan(v).mean() < MOST_EMPTY_SAMPLES}
    good = ~np.isnan(np.stack([*values.values(), np.zeros(len(ran))])).any(axis=0)
    if good.sum() < LEFT_OUT_PARTS * FEWEST_GPU_SAMPLES:
        return result
    rates, errors = _least_squares(ran[good], {c: v[good] for c, v in values.items()})
    idle_use, how_sure = (kind["sm_active"][-1] if "sm_active" in kind else 0.0 for kind in (rates, errors))
    if total[-1] >= FEWEST_GPU_SAMPLES and how_sure <= SURE_SHARE_ERROR and idle_use > OTHERS_AT_WORK_SHARE:
        return result
    for name, share in rates.items():
        sure = alone & (errors[name][:-2] <= SURE_SHARE_ERROR)
        result[name] = np.where(sure, np.clip(share[:-2], 0.0, 1.0), np.nan)
    result["dram"] = np.minimum(result["dram_read"] + result["dram_write"], 1.0)
    good = ~np.isnan(clock)
    if good.any():
        weight = ran[good, :-2]
        mean = clock[good] @ weight / np.maximum(weight.sum(axis=0), 1e-9)
        result["clock_mhz"] = np.where(alone, mean, np.nan)
    return result


def _least_squares(matrix: F64, values: dict[str, F64]) -> tuple[dict[str, F64], dict[str, F64]]:
    """Return the unknowns of each counter, none below 0, and their standard errors, infinite where the samples do not tell one apart."""
    parts = np.array_split(np.arange(len(matrix)), LEFT_OUT_PARTS)
    each = np.column_stack([*values.values()]) if values else np.zeros((len(matrix), 0))
    squares = np.stack([matrix[p].T @ matrix[p] for p in parts])
    products = np.stack([matrix[p].T @ each[p] for p in parts])
    whole, right = squares.sum(axis=0), products.sum(axis=0)
    apart = np.diag(np.linalg.pinv(whole, rcond=SINGULAR_RATIO, hermitian=True) @ whole) > 1 - APART_RATIO
    rates, errors = {}, {}
    for i, name in enumerate(values):
        without = np.stack(
            [_at_least_zero(whole - s, right[:, i] - r[:, i]) for s, r in zip(squares, products, strict=True)]
        )
        error = np.sqrt((LEFT_OUT_PARTS - 1) / LEFT_OUT_PARTS * ((without - without.mean(axis=0)) ** 2).sum(axis=0))
        rates[name], errors[name] = _at_least_zero(whole, right[:, i]), np.where(apart, error, np.inf)
    return rates, errors


def _at_least_zero(squares: F64, products: F64) -> F64:
    """Return the unknowns of least squares from their normal equations; what comes out below 0 is 0, the others are solved again."""
    left, rates = np.arange(len(products)), np.zeros(0)
    ridge = SINGULAR_RATIO * np.trace(squares)
    while len(left):
        rates = np.linalg.solve(squares[np.ix_(left, left)] + ridge * np.eye(len(left)), products[left])
        if (rates >= 0).all():
            break
        left = left[rates >= 0]
    result = np.zeros(len(products))
    result[left] = rates
    return result


def memory_bound(profile: Profile, chosen: pl.DataFrame) -> tuple[frozenset[int], float]:
    """Return which of the chosen ops are at the memory bandwidth, and what part of their time the bytes take at least.

    Told by kernel and launch shape; (no ops, 0.0) where nothing was sampled.
    """
    means = profile.once(of_kernels).filter(pl.col("dram") >= MEMORY_BOUND_SHARE)
    if not means.height:
        return frozenset(), 0.0
    bound = chosen.join(means, on=_LAUNCH, how="semi", nulls_equal=True)
    return frozenset(bound["op"].to_list()), float(means["dram"].to_numpy().min())


def in_window(trace: Trace, process: int, device: int, start: int, end: int) -> pl.DataFrame | None:
    """Return the samples of a device in [start, end); None where its counters were not sampled."""
    limits, samples = trace.limits.get((process, device)), trace.gpu_metrics
    if samples is None or limits is None or limits.gpu is None:
        return None
    of_gpu = samples.filter(pl.col("gpu") == limits.gpu & 0xFF)
    if not of_gpu.height:
        return None
    inside = of_gpu.filter((of_gpu["time_ns"] >= start) & (of_gpu["time_ns"] < end))
    return inside.with_columns(dram=pl.col("dram_read") + pl.col("dram_write"))

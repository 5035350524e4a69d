"""Chooses the steps, calls and GPU work that are replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx import units
from nsysx.events import levels
from nsysx.events.event_bounds import AS_GOOD_MEAN_SHARE, LEAST_RUN_SHARE
from nsysx.events.profile import Profile
from nsysx.events.step_work import gpu_work
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.replay import peers
from nsysx.replay.replay_bounds import (
    FEWEST_STEPS_OF_JOB,
    HOST_FALLS_BACK_SHARE,
    MOST_CROSSING_SHARE,
    MOST_OPS_OF_JOB,
    MOST_REPLAYED_OPS,
    WAITING_CALL_NS,
)


@dataclass(frozen=True)
class ReplayedWindow:
    """What is replayed: calls of the threads that drive a device, in order of their start, and all ops of that device; times in ns.

    ``first`` is the index of the first step, ``numbers`` and ``starts`` are those of all steps, and ``gpu_span`` reaches from the
    first one's start to the last one's end on the device. ``recorded_ns`` is the mean step on the device; ``between_ns``, per step,
    is the time between steps (evaluation, a checkpoint), which is replayed but does not count as part of a step.
    """

    calls: pl.DataFrame
    ops: pl.DataFrame
    device: int
    start_ns: int
    end_ns: int
    gpu_span: tuple[int, int]
    recorded_ns: int
    between_ns: int
    first: int
    numbers: tuple[int, ...]
    starts: tuple[int, ...]

    @property
    def steps(self) -> int:
        """The number of replayed steps."""
        return len(self.numbers)

    def step_ns(self, round_ns: int) -> int:
        """Return the length of a step (ns) if all steps and what lies between them take ``round_ns``."""
        return round_ns // self.steps - self.between_ns


@dataclass(frozen=True)
class Withheld:
    """The reason why there is no replay."""

    reason: str


def choose(profile: Profile) -> ReplayedWindow | Withheld:
    """Return the steady steps of the shown process on its busiest device, or why they cannot be replayed."""
    steps = profile.steps
    if steps.whole or steps.steady is None:
        return Withheld("the report has no steps to replay")
    first, last = steps.steady
    cpu = lookup.having(steps.cpu, process=steps.process).sort("index")
    cut = cpu["cut"].to_list()
    while last >= first and cut[last]:  # the end of a step is where the next one of its part of the capture begins
        last -= 1
    if last < first:
        return Withheld("no step follows the steady one, so its end is not known")
    device = profile.device
    gpu = _within(lookup.having(steps.gpu, process=steps.process), first, last)
    if not gpu.height or device is None:
        return Withheld("no GPU work was recorded in the steady steps")
    gpu = lookup.having(gpu, device=device)
    first, last = _fitting(profile, cpu, gpu, first, last)
    tiles = _within(gpu, first, last)
    recorded = int((tiles["end_ns"] - tiles["start_ns"]).sum()) // (last - first + 1)
    if recorded <= 0:
        return Withheld("the steady steps contain no GPU time")
    begin, finish = int(tiles["start_ns"].to_numpy().min()), int(tiles["end_ns"].to_numpy().max())
    span = (finish - begin) // (last - first + 1)
    start, end = _launch_times(profile, cpu, device, first, last) or (
        int(cpu["start_ns"][first]),
        _end(profile, cpu, device, last),
    )
    driving = _driving(profile, device, start, end)
    if isinstance(driving, Withheld):
        return driving
    numbers, starts = (tuple(cpu[name][first : last + 1].to_list()) for name in ("number", "start_ns"))
    between = max(span - recorded, 0)
    return ReplayedWindow(*driving, device, start, end, (begin, finish), recorded, between, first, numbers, starts)


def _within(tiles: pl.DataFrame, first: int, last: int) -> pl.DataFrame:
    """Return the tiles of these steps."""
    return tiles.filter((tiles["index"] >= first) & (tiles["index"] <= last))


def _end(profile: Profile, cpu: pl.DataFrame, device: int, last: int) -> int:
    """Return when the last step ends on the CPU (ns): where the next step begins, or something between the steps."""
    between = profile.steps.between
    behind = (pl.col("process") == profile.steps.process) & (pl.col("device") == device) & (pl.col("index") == last)
    after = between.filter(behind)["cpu_start_ns"].min()
    return int(after) if isinstance(after, int) else int(cpu["start_ns"][last + 1])


def _launched(profile: Profile, **which: int) -> I64:
    """Return, sorted, when the GPU ops that meet ``which`` (a process, a device) were launched (ns)."""
    ops = lookup.having(profile.attributed.gpu_ops["process", "device", "call_start_ns"], **which)
    return np.sort(ops["call_start_ns"].drop_nulls().to_numpy(), kind="stable")


def _launch_times(profile: Profile, cpu: pl.DataFrame, device: int, first: int, last: int) -> tuple[int, int] | None:
    """Return when the CPU launches the first work of the first step on the device, and that of the step after the last (ns).

    A step on the device lasts from its first work to that of the next step, so the window on the CPU must reach from launch to
    launch. From one CPU step border to another it would contain one wait for data too many and lack another, and such waits differ
    widely. The first work is what is launched first, not what starts first on the device: with several streams that can be a
    different launch in each step. None if a step has no launch, or something lies between the steps.
    """
    of_device = {"process": profile.steps.process, "device": device}
    between = profile.steps.between
    if between.height and _within(lookup.having(between, **of_device), first, last).height:
        return None
    called = _launched(profile, **of_device)
    starts = cpu["start_ns"].to_numpy()
    begun = []
    for step in (first, last + 1):
        first_call = int(np.searchsorted(called, starts[step]))
        if first_call == len(called) or (step + 1 < len(starts) and called[first_call] >= starts[step + 1]):
            return None
        begun.append(int(called[first_call]))
    return begun[0], begun[1]


#: The columns of calls and ops that a chain needs.
_CALL = ("call", "process", "thread", "start_ns", "end_ns", "kind", "name", "correlation_id")
_OP = ("op", "process", "device", "stream", "start_ns", "end_ns", "call", "thread", "call_start_ns", "latency_ns")


def _driving(profile: Profile, device: int, start: int, end: int) -> tuple[pl.DataFrame, pl.DataFrame] | Withheld:
    """Return the calls that drive the device in [start, end) and the device's ops, or why they cannot form a chain."""
    calls = profile.attributed.api_calls[_CALL]
    inside = (calls["start_ns"] >= start) & (calls["start_ns"] < end)
    calls = calls.filter(inside & (calls["process"] == profile.steps.process))
    ops = lookup.having(profile.attributed.gpu_ops[_OP], process=profile.steps.process, device=device)
    called_here = np.isin(lookup.filled(ops["call"], -1), calls["call"].to_numpy())
    driving = lookup.present(ops["thread"].filter(pl.Series(called_here, dtype=pl.Boolean)))
    if not driving:
        return Withheld("the GPU work of the steady steps was launched outside the trace")
    driven = calls.filter(np.isin(calls["thread"].to_numpy(), driving))
    driven = driven.sort("start_ns", "end_ns", descending=[False, True])
    crossing = _concurrency(driven)
    if crossing > MOST_CROSSING_SHARE:
        return Withheld(f"several threads drive the GPU at once ({units.share(crossing, 1)} of the time in CUDA calls)")
    return driven, ops


def _fitting(profile: Profile, cpu: pl.DataFrame, tiles: pl.DataFrame, first: int, last: int) -> tuple[int, int]:
    """Return the first and last replayed step: all steady ones, if they have few enough GPU ops.

    If not, it is the run of steps whose mean length and mean GPU work are closest to those of all, so that figures of replayed and of
    steady steps agree (steps as long as the others may wait where those compute); of equally good runs, the last. Ranks of a job in
    one report all take the same run, or they could not be replayed together.
    """
    called = _launched(profile, process=profile.steps.process)
    borders = np.searchsorted(called, cpu["start_ns"].to_numpy()[first : last + 2])
    if borders[-1] - borders[0] <= MOST_REPLAYED_OPS:
        return first, last
    if (run := _of_job(profile, cpu, first, last)) is not None:
        return run
    count = last - first + 1
    length = np.zeros(count, np.int64)
    length[tiles["index"].to_numpy() - first] = (tiles["end_ns"] - tiles["start_ns"]).to_numpy()
    end = np.arange(1, count + 1)
    # For each ``end``, the first step from which the ops are few enough; a single step is replayed however many ops it has.
    begin = np.minimum(np.searchsorted(borders, borders[end] - MOST_REPLAYED_OPS), end - 1)
    ops = lookup.having(profile.attributed.gpu_ops[_OP], process=profile.steps.process)
    work = gpu_work(cpu[first : last + 1], _within(tiles, first, last), ops)
    steps = cpu[first : last + 1]
    level = _level(begin, end, _host_ns(profile, steps)[None, :], length[None, :])
    chosen = _nearest_to_mean(*level, length, work)
    return first + chosen[0], first + chosen[1] - 1


def _nearest_to_mean(begin: I64, end: I64, length: npt.NDArray[Any], *others: I64) -> tuple[int, int]:
    """Return the run [begin, end) of steps whose mean is closest to the mean of all; of equally good ones the last.

    ``length`` is that of each step, ``others`` are other times of the steps whose means have to agree as well (ns). A run that is
    shorter than ``LEAST_RUN_SHARE`` of the longest one does not count.
    """
    long = np.flatnonzero(end - begin >= LEAST_RUN_SHARE * (end - begin).max())
    begin, end = begin[long], end[long]
    off = np.zeros(len(begin))
    for times in (length, *others):
        upto = np.append(0, np.cumsum(times))
        off += np.abs((upto[end] - upto[begin]) / (end - begin) - upto[-1] / len(times))
    best = np.flatnonzero(off <= off.min() + AS_GOOD_MEAN_SHARE * length.mean())[-1]
    return int(begin[best]), int(end[best])


def _host_ns(profile: Profile, steps: pl.DataFrame) -> I64:
    """Return how long the host itself takes for each of these steps of one process (ns): long calls, which wait, are left out."""
    took = pl.col("end_ns") - pl.col("start_ns")
    calls = profile.attributed.api_calls["process", "start_ns", "end_ns"]
    long = lookup.having(calls, process=int(steps["process"][0])).filter(took >= WAITING_CALL_NS)
    start, ns = long["start_ns"].to_numpy(), long.select(took).to_series().to_numpy()
    within = np.append(0, np.cumsum(ns[np.argsort(start, kind="stable")]))
    upto = np.searchsorted(np.sort(start), np.append(steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()))
    waited = within[upto].reshape(2, -1)
    host: I64 = steps.select(took).to_series().to_numpy() - (waited[1] - waited[0])
    return host


def _level(begin: I64, end: I64, host: I64, worked: I64) -> tuple[I64, I64]:
    """Return the runs [begin, end) in which no rank's host falls back towards its device; all of them where none is such a run.

    ``host`` and ``worked``: rows of how long each step takes a rank's host and its device (ns). A host that is slower than its
    device, while what it launched before keeps that busy, would set the step if the run were repeated, as a replay does.
    """
    behind, whole = (
        np.append(np.zeros((len(ns), 1), np.int64), np.cumsum(ns, axis=1), axis=1) for ns in (host - worked, worked)
    )
    falls = (behind[:, end] - behind[:, begin]) / np.maximum(whole[:, end] - whole[:, begin], 1)
    level = falls.max(axis=0) <= HOST_FALLS_BACK_SHARE
    return (begin[level], end[level]) if level.any() else (begin, end)


def _of_job(profile: Profile, cpu: pl.DataFrame, first: int, last: int) -> tuple[int, int] | None:
    """Return the run for all ranks of the report, by the mean of their steps of the same number; None for a single rank.

    Each rank that asks gets the same numbers: as many steps as the rank with the most GPU ops may have.
    """
    ranks = peers.ranks(profile)
    if len(ranks) < 2:
        return None
    number = pl.col("number")
    numbered = profile.steps.cpu.select("process", "index", number).filter(pl.col("process").is_in(ranks))
    if numbered["process", "number"].is_duplicated().any():  # steps that count anew in each epoch
        return None
    tiles = profile.steps.gpu.join(numbered, on=["process", "index"])
    tiles = tiles.filter(number.is_in(cpu["number"][first : last + 1].implode()))
    of_step = tiles.group_by("number").agg((pl.col("end_ns") - pl.col("start_ns")).mean(), pl.col("process").n_unique())
    whole = of_step.filter(pl.col("process") == len(ranks)).sort("number")
    numbers, length = whole["number"].to_numpy(), whole["end_ns"].to_numpy()
    if not len(numbers):
        return None
    spanned = pl.col("call_start_ns").is_between(*(int(x) for x in (tiles["start_ns"].min(), tiles["end_ns"].max())))  # type: ignore[arg-type]
    launched = profile.attributed.gpu_ops["process", "call_start_ns"].filter(spanned).group_by("process").len()
    per_step = launched.filter(pl.col("process").is_in(ranks))["len"].to_numpy().max() / of_step.height
    parts = profile.steps.parts  # a window holds few steps of several parts
    fewest = min(FEWEST_STEPS_OF_JOB * parts, int(MOST_OPS_OF_JOB // per_step))
    most = max(int(MOST_REPLAYED_OPS // per_step), fewest, 1)
    worked = tiles.select("process", "index", gpu_ns=pl.col("end_ns") - pl.col("start_ns"))
    both = profile.steps.cpu.join(worked, on=["process", "index"]).filter(number.is_in(numbers.tolist()))
    of_rank = both.sort("process", "number").partition_by("process", maintain_order=True)
    host_ns, gpu_ns = ([_host_ns(profile, each) for each in of_rank], [each["gpu_ns"].to_numpy() for each in of_rank])
    every = _every(gpu_ns, numbers, int(MOST_OPS_OF_JOB // per_step))
    most = max(most // every, 1) * every
    apart = np.diff(numbers)  # by the first of its parts, or one by one
    breaks = np.append(0, np.flatnonzero(apart != apart.min(initial=np.iinfo(np.int64).max)) + 1)
    end = np.arange(1, len(numbers) + 1)
    begin = np.maximum(end - most, breaks[np.searchsorted(breaks, end - 1, side="right") - 1])
    if (periods := (end - begin) % every == 0).any():
        begin, end = begin[periods], end[periods]
    run = _nearest_to_mean(*_level(begin, end, np.array(host_ns), np.array(gpu_ns)), length)
    index = dict(zip(cpu["number"].to_list(), cpu["index"].to_list(), strict=True))
    return index[int(numbers[run[0]])], index[int(numbers[run[1] - 1])]


def _every(gpu_ns: Sequence[I64], numbers: I64, most: int) -> int:
    """Return after how many steps long ones come again on a rank, ``most`` or fewer; 1 where they do not.

    A run that is no whole number of these holds too many of what one rank does in them alone, or none. ``gpu_ns``: steps of each rank.
    """
    periods = {levels.period(levels.levels(ns, numbers)) for ns in gpu_ns if len(ns) == len(numbers)} - {None}
    every = periods.pop() if len(periods) == 1 else None
    return every if every is not None and every <= most else 1


def _concurrency(calls: pl.DataFrame) -> float:
    """Return the share of API time during which another driving thread is inside a call, too."""
    thread, start, end = (calls[name].to_numpy() for name in ("thread", "start_ns", "end_ns"))
    both = 0
    for number in np.unique(thread).tolist():
        others = np.maximum.accumulate(np.where(thread == number, np.iinfo(np.int64).min, end))
        of_thread = thread == number
        both += int((np.clip(others[of_thread], start[of_thread], end[of_thread]) - start[of_thread]).sum())
    whole = int((end - start).sum())
    return both / whole if whole else 0.0

"""Which steps, calls and GPU work are replayed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx import units
from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64

#: More GPU ops than this are not replayed: some steady steps that follow each other stand for the others.
_MOST_OPS = 8_000
#: A run of steps that is shorter than this part of the longest that fits stands for nothing.
_LEAST_RUN = 0.5
#: Means of steps that differ by less than this part are as good as each other.
_AS_GOOD = 0.01
#: Threads that are in CUDA calls together for more than this part of the time do not take turns.
_MOST_CROSSING = 0.05


@dataclass(frozen=True)
class Window:
    """What is replayed: calls of the threads that drive a device, in order of their start, and all ops of that device.

    ``first`` is the index of the first step, ``numbers`` and ``starts`` are those of all, ``gpu_span`` is from their begin to
    their end on the device. ``recorded_ns`` is their mean there, ``between_ns`` what lies between two of them (evaluation, a
    checkpoint), per step: it is replayed and belongs to none.
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
        """How many steps that is."""
        return len(self.numbers)

    def step_ns(self, round_ns: int) -> int:
        """Return what one step takes where all of them, and what lies between, take ``round_ns``."""
        return round_ns // self.steps - self.between_ns


@dataclass(frozen=True)
class Withheld:
    """Why there is no replay."""

    reason: str


def choose(profile: Profile) -> Window | Withheld:
    """Return the steady steps of the shown process on its busiest device, or why they cannot be replayed."""
    steps = profile.steps
    if steps.whole or steps.steady is None:
        return Withheld("the report has no steps to replay")
    first, last = steps.steady
    cpu = steps.cpu.filter(pl.col("process") == steps.process).sort("index")
    if last + 1 >= cpu.height:
        return Withheld("no step follows the steady ones, so that their end is not seen")
    device = profile.device
    gpu = steps.gpu.filter((pl.col("process") == steps.process) & pl.col("index").is_between(first, last))
    if not gpu.height or device is None:
        return Withheld("no GPU work was recorded in the steady steps")
    gpu = gpu.filter(pl.col("device") == device)
    first, last = _fitting(profile, cpu, gpu, first, last)
    tiles = gpu.filter(pl.col("index").is_between(first, last))
    recorded = int((tiles["end_ns"] - tiles["start_ns"]).sum()) // (last - first + 1)
    if recorded <= 0:
        return Withheld("the steady steps hold no GPU time")
    begin, finish = (int(x) for x in tiles.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0))
    span = (finish - begin) // (last - first + 1)
    start, end = _begun(profile, cpu, device, first, last) or (
        int(cpu["start_ns"][first]),
        _end(profile, cpu, device, last),
    )
    driving = _driving(profile, device, start, end)
    if isinstance(driving, Withheld):
        return driving
    numbers, starts = (tuple(cpu[name][first : last + 1].to_list()) for name in ("number", "start_ns"))
    between = max(span - recorded, 0)
    return Window(*driving, device, start, end, (begin, finish), recorded, between, first, numbers, starts)


def _end(profile: Profile, cpu: pl.DataFrame, device: int, last: int) -> int:
    """Return where the last step ends on the CPU: with the next one, or where something else begins that is not a step."""
    between = profile.steps.between
    behind = (pl.col("process") == profile.steps.process) & (pl.col("device") == device) & (pl.col("index") == last)
    after = between.filter(behind)["cpu_start_ns"].min()
    return int(after) if isinstance(after, int) else int(cpu["start_ns"][last + 1])


def _launched(profile: Profile, which: pl.Expr) -> I64:
    """Return when the GPU ops that meet ``which`` (on process and device) were launched, sorted (ns)."""
    ops = profile.attributed.gpu_ops.select("process", "device", "call_start_ns").filter(which)
    return np.sort(ops["call_start_ns"].drop_nulls().to_numpy(), kind="stable")


def _begun(profile: Profile, cpu: pl.DataFrame, device: int, first: int, last: int) -> tuple[int, int] | None:
    """Return when the CPU launches the first work of the first step on the device, and that of the one after the last.

    A step lasts from its first work to that of the next, and with it what the host does before: waiting for data is of very
    different length, and the steps on the CPU hold one wait too many and one too few. The first work is what is launched first,
    not what the device begins with: with several streams that is another launch from step to step. None where this is not seen.
    """
    of_device = (pl.col("process") == profile.steps.process) & (pl.col("device") == device)
    if profile.steps.between.filter(of_device & pl.col("index").is_between(first, last)).height:
        return None
    called = _launched(profile, of_device)
    starts = cpu["start_ns"].to_numpy()
    begun = []
    for step in (first, last + 1):
        at = int(np.searchsorted(called, starts[step]))
        if at == len(called) or (step + 1 < len(starts) and called[at] >= starts[step + 1]):
            return None
        begun.append(int(called[at]))
    return begun[0], begun[1]


#: What a chain is made of.
_CALL = ("call", "process", "thread", "start_ns", "end_ns", "kind", "name", "correlation_id")
_OP = ("op", "process", "device", "stream", "start_ns", "end_ns", "call", "thread", "call_start_ns", "latency_ns")


def _driving(profile: Profile, device: int, start: int, end: int) -> tuple[pl.DataFrame, pl.DataFrame] | Withheld:
    """Return the calls that drive the device in [start, end) and its ops, or why they make no chain."""
    of_process = pl.col("process") == profile.steps.process
    calls = profile.attributed.api_calls.select(_CALL)
    calls = calls.filter(of_process & (pl.col("start_ns") >= start) & (pl.col("start_ns") < end))
    ops = profile.attributed.gpu_ops.select(_OP).filter(of_process & (pl.col("device") == device))
    driving = ops.join(calls.select("call"), on="call", how="semi")["thread"].unique().to_list()
    if not driving:
        return Withheld("the GPU work of the steady steps was launched outside the trace")
    driven = calls.filter(pl.col("thread").is_in(driving)).sort("start_ns", "end_ns", descending=[False, True])
    crossing = _concurrency(driven)
    if crossing > _MOST_CROSSING:
        return Withheld(f"several threads drive the GPU at once ({units.share(crossing, 1)} of the time in CUDA calls)")
    return driven, ops


def _fitting(profile: Profile, cpu: pl.DataFrame, tiles: pl.DataFrame, first: int, last: int) -> tuple[int, int]:
    """Return the first and last of the steps that are replayed: all steady ones where their GPU ops are few enough.

    Else it is the run of steps whose mean is that of all, so that figures of replayed and of steady steps agree; of runs that
    are as good, the last.
    """
    called = _launched(profile, pl.col("process") == profile.steps.process)
    borders = np.searchsorted(called, cpu["start_ns"].to_numpy()[first : last + 2])
    if borders[-1] - borders[0] <= _MOST_OPS:
        return first, last
    count = last - first + 1
    length = np.zeros(count, np.int64)
    length[tiles["index"].to_numpy() - first] = (tiles["end_ns"] - tiles["start_ns"]).to_numpy()
    upto = np.append(0, np.cumsum(length))
    end = np.arange(1, count + 1)
    # The first step from which on the steps before ``end`` hold few enough ops; one step is replayed whatever it holds.
    begin = np.minimum(np.searchsorted(borders, borders[end] - _MOST_OPS), end - 1)
    long = np.flatnonzero(end - begin >= _LEAST_RUN * (end - begin).max())
    begin, end = begin[long], end[long]
    off = np.abs((upto[end] - upto[begin]) / (end - begin) - upto[-1] / count)
    best = np.flatnonzero(off <= off.min() + _AS_GOOD * upto[-1] / count)[-1]
    return first + int(begin[best]), first + int(end[best]) - 1


def _concurrency(calls: pl.DataFrame) -> float:
    """Return the share of API time in which another driving thread is inside a call too."""
    thread, start, end = (calls[name].to_numpy() for name in ("thread", "start_ns", "end_ns"))
    both = 0
    for number in np.unique(thread).tolist():
        others = np.maximum.accumulate(np.where(thread == number, np.iinfo(np.int64).min, end))
        of_thread = thread == number
        both += int((np.clip(others[of_thread], start[of_thread], end[of_thread]) - start[of_thread]).sum())
    whole = int((end - start).sum())
    return both / whole if whole else 0.0

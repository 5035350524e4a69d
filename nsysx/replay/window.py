"""Which steps, calls and GPU work are replayed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.events.profile import Profile

#: More GPU ops than this are not replayed: the last steady steps that fit stand for the others.
_MOST_OPS = 8_000
#: Threads that are in CUDA calls together for more than this part of the time do not take turns.
_MOST_CROSSING = 0.05


@dataclass(frozen=True)
class Window:
    """What is replayed: calls of the threads that drive a device, in order of their start, and all ops of that device.

    ``numbers`` and ``starts`` are those of the steps, ``recorded_ns`` is their mean on the device, ``between_ns`` what lies
    between two of them (evaluation, a checkpoint), per step: it is replayed and belongs to none.
    """

    calls: pl.DataFrame
    ops: pl.DataFrame
    device: int
    start_ns: int
    end_ns: int
    recorded_ns: int
    between_ns: int
    numbers: tuple[int, ...]
    starts: tuple[int, ...]

    @property
    def steps(self) -> int:
        """How many steps that is."""
        return len(self.numbers)


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
    first = _fitting(profile, cpu, first, last)
    gpu = steps.gpu.filter((pl.col("process") == steps.process) & pl.col("index").is_between(first, last))
    if not gpu.height:
        return Withheld("no GPU work was recorded in the steady steps")
    device = profile.device
    if device is None:
        return Withheld("no GPU work was recorded in the steady steps")
    tiles = gpu.filter(pl.col("device") == device)
    recorded = int((tiles["end_ns"] - tiles["start_ns"]).sum()) // (last - first + 1)
    if recorded <= 0:
        return Withheld("the steady steps hold no GPU time")
    span = int(tiles.select(pl.col("end_ns").max() - pl.col("start_ns").min()).item()) // (last - first + 1)
    start, end = int(cpu["start_ns"][first]), int(cpu["start_ns"][last + 1])
    driving = _driving(profile, device, start, end)
    if isinstance(driving, Withheld):
        return driving
    numbers, starts = (tuple(cpu[name][first : last + 1].to_list()) for name in ("number", "start_ns"))
    return Window(*driving, device, start, end, recorded, max(span - recorded, 0), numbers, starts)


#: What a chain is made of.
_CALL = ("call", "process", "thread", "start_ns", "end_ns", "kind", "name", "correlation_id")
_OP = ("op", "process", "device", "stream", "start_ns", "end_ns", "call", "thread", "call_start_ns", "latency_ns")


def _driving(profile: Profile, device: int, start: int, end: int) -> tuple[pl.DataFrame, pl.DataFrame] | Withheld:
    """Return the calls that drive the device in [start, end) and its ops, or why they make no chain."""
    own = pl.col("process") == profile.steps.process
    calls = profile.attributed.api_calls.select(_CALL)
    calls = calls.filter(own & (pl.col("start_ns") >= start) & (pl.col("start_ns") < end))
    ops = profile.attributed.gpu_ops.select(_OP).filter(own & (pl.col("device") == device))
    driving = ops.join(calls.select("call"), on="call", how="semi")["thread"].unique().to_list()
    if not driving:
        return Withheld("the GPU work of the steady steps was launched outside the trace")
    mine = calls.filter(pl.col("thread").is_in(driving)).sort("start_ns", "end_ns", descending=[False, True])
    crossing = _concurrency(mine)
    if crossing > _MOST_CROSSING:
        return Withheld(f"several threads drive the GPU at once ({crossing:.0%} of the time in CUDA calls)")
    return mine, ops


def _fitting(profile: Profile, cpu: pl.DataFrame, first: int, last: int) -> int:
    """Return the first step from which on the steady ones hold few enough GPU ops."""
    ops = profile.attributed.gpu_ops.select("process", "call_start_ns").filter(
        pl.col("process") == profile.steps.process
    )
    called = np.sort(ops["call_start_ns"].drop_nulls().to_numpy(), kind="stable")
    borders = np.searchsorted(called, cpu["start_ns"].to_numpy()[first : last + 2])
    few = np.flatnonzero(borders[-1] - borders[:-1] <= _MOST_OPS)
    return first + int(few[0]) if len(few) else last


def _concurrency(calls: pl.DataFrame) -> float:
    """Return the share of API time in which another driving thread is inside a call too."""
    whole = 0
    both = 0
    reach: dict[int, int] = {}
    for thread, a, b in calls.select("thread", "start_ns", "end_ns").iter_rows():
        whole += b - a
        others = max((end for t, end in reach.items() if t != thread), default=a)
        both += max(min(others, b) - a, 0)
        reach[thread] = max(reach.get(thread, a), b)
    return both / whole if whole else 0.0

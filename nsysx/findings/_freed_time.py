"""What a change saves that takes work off the GPU, where no replay comes near the recorded steps: the recorded times of that work tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.catalogue import DeviceActivity
from nsysx.frames import intervals
from nsysx.replay.edits import RemoveOps, ScaleOps
from nsysx.replay.engine import Edit
from nsysx.saving import Saving


class StepOnDevice(NamedTuple):
    """The GPU ops of the steady steps on one device, ``per_step`` of a sum over them, the shown step and its idle time (ns)."""

    ops: pl.DataFrame
    per_step: Callable[[float], int]
    step_ns: int
    idle_ns: int


def saved_by_times(step: StepOnDevice, edits: Sequence[Edit], error: float) -> Saving | None:
    """Return what edits save of the GPU's own work, None where they take off no work but communication, which may only wait.

    All of the time counts in which nothing else works where the GPU never idles, and at least none where it idles for half of the step:
    then it may wait for its host. What only communicates there counts at most. Both are as uncertain as the replay is off (``error``).
    """
    work, comm = (step.per_step(_alone_ns(step.ops, edits, comm=comm)) for comm in (False, True))
    if work <= 0:
        return None
    sure, error_share = max(0.0, 1 - 2 * step.idle_ns / max(step.step_ns, 1)), min(error, 1.0)
    least, most = round(work * sure * (1 - error_share)), round((work + comm) * (1 + error_share))
    why = f"the time on the GPU of what goes: the replay misses the recorded step by {units.share(error, 1)}"
    return Saving.between(least, min(most, step.step_ns), why)


def _alone_ns(ops: pl.DataFrame, edits: Sequence[Edit], *, comm: bool) -> float:
    """Return for how long only what these edits take off works, or communicates where nothing works (ns, in all steps)."""
    ops = ops.select("op", "start_ns", "end_ns", sends=pl.col("cls") == DeviceActivity.COMM.value)
    freed = 0.0
    for edit in edits:
        if not isinstance(edit, RemoveOps | ScaleOps):
            continue
        goes = ops["op"].is_in(list(edit.ops))
        works = ops.filter(~ops["sends"])
        left = 1 - edit.factor if isinstance(edit, ScaleOps) else 1.0
        if comm:
            beside, without = ops, ops.filter(~(goes & ops["sends"]))
        else:
            beside, without = works, works.filter(~works["op"].is_in(list(edit.ops)))
        freed += left * (_length(beside) - _length(without))
    return freed


def _length(ops: pl.DataFrame) -> int:
    return intervals.length(ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy())

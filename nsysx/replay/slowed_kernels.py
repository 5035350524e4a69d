"""Kernels that take longer beside communication than alone: NCCL works on the same multiprocessors and memory."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.profile import Profile
from nsysx.frames.intervals import union
from nsysx.replay.replay_bounds import FEWEST_KERNEL_RUNS


def slowed_by_communication(profile: Profile) -> list[tuple[frozenset[int], float]]:
    """Return the groups of ``slowed`` for the ops of the shown process."""
    ops = profile.attributed.gpu_ops.select("op", "process", "cls", "name", "grid", "block", "start_ns", "end_ns")
    ops = ops.filter(pl.col("process") == profile.steps.process)
    is_comm = ops["cls"] == DeviceActivity.COMM.value
    return slowed(ops.filter(~is_comm), ops.filter(is_comm))


def slowed(ops: pl.DataFrame, comm: pl.DataFrame) -> list[tuple[frozenset[int], float]]:
    """Return groups of ops that ran beside communication and were slowed by it, each with a factor below 1.

    The factor is the median time of the same kernel (name, grid, block) alone over its median time beside communication. Kernels
    without enough runs of both kinds are left out.
    """
    start, end = union(comm["start_ns"].to_numpy(), comm["end_ns"].to_numpy())
    if not len(start):
        return []
    a, b = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    first = np.searchsorted(end, a, side="right")
    beside = (first < len(start)) & (start[np.minimum(first, len(start) - 1)] < b)
    same = ("name", "grid", "block")
    timed = ops.select("op", *same, ns=pl.col("end_ns") - pl.col("start_ns")).with_columns(beside=beside)
    factors = []
    for _, alike in timed.group_by(same):
        alone, together = alike.filter(~pl.col("beside")), alike.filter("beside")
        if min(alone.height, together.height) >= FEWEST_KERNEL_RUNS:
            usual, slow = alone["ns"].to_numpy(), together["ns"].to_numpy()
            factor = float(np.median(usual) / np.median(slow)) if np.median(slow) else 1.0
            if factor < 1:
                factors.append((frozenset(together["op"].to_list()), factor))
    return factors

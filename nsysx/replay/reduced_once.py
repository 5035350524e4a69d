"""What is left of the GPU work of a rank where gradients are reduced in the last of several micro-steps alone."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.events import micro_steps
from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64, union
from nsysx.frames.statistics import F64
from nsysx.replay.slowed_kernels import slowed_by_communication


def shares(profile: Profile, ops: I64) -> F64 | None:
    """Return what is left of the time of each of these GPU ops (0: it is gone); None where no step has several reducing micro-steps.

    The early reductions and the copies into and out of their buckets go. Kernels that ran beside one take as long as they take alone,
    where that is known.
    """
    micro = micro_steps.micro_steps(profile)
    if micro is None:
        return None
    left = np.ones(len(ops))
    timed = profile.attributed.gpu_ops.select("op", "start_ns", "end_ns")
    early = timed.filter(pl.col("op").is_in(list(micro.early)))
    begin, end = union(early["start_ns"].to_numpy(), early["end_ns"].to_numpy())
    for group, factor in profile.once(slowed_by_communication):
        beside = timed.filter(pl.col("op").is_in(list(group)))
        first = np.searchsorted(end, beside["start_ns"].to_numpy(), side="right")
        meets = (first < len(end)) & (begin[np.minimum(first, len(end) - 1)] < beside["end_ns"].to_numpy())
        left[np.isin(ops, beside["op"].to_numpy()[meets])] = factor
    left[np.isin(ops, list(micro.early | micro.copies))] = 0.0
    return left

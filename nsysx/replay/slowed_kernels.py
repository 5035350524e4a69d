"""Kernels that take longer beside communication than alone: NCCL works on the same multiprocessors and memory."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.profile import Profile
from nsysx.frames.intervals import union
from nsysx.replay.replay_bounds import FEWEST_KERNEL_RUNS, STEADY_KERNEL_TIMES

#: What kernels that do the same work share. A grid alone does not tell it: that of a persistent matrix product is the number of
#: multiprocessors, whatever its size. Layers of one build (``blocks.0``, ``blocks.1``) do the same work.
_SAME = ("name", "grid", "block", "phase", "module")


def slowed_by_communication(profile: Profile) -> list[tuple[frozenset[int], float]]:
    """Return the groups of ``slowed`` for the ops of the shown process."""
    ops = profile.attributed.gpu_ops.select("op", "process", "op_kind", "cls", *_SAME, "start_ns", "end_ns")
    ops = ops.filter(pl.col("process") == profile.steps.process)
    is_comm = ops["cls"] == DeviceActivity.COMM.value
    return slowed(ops.filter(~is_comm & (ops["op_kind"] == "kernel")), ops.filter(is_comm))


def slowed_ns(profile: Profile) -> float:
    """Return how much longer the kernels beside communication take than alone, over the steady steps of the shown process (ns)."""
    ops = profile.steady_ops.filter(pl.col("process") == profile.steps.process)
    ns = ops.select("op", ns=pl.col("end_ns") - pl.col("start_ns"))
    groups = profile.once(slowed_by_communication)
    return sum((1 - factor) * float(ns["ns"].filter(ns["op"].is_in(list(group))).sum()) for group, factor in groups)


def slowed(ops: pl.DataFrame, comm: pl.DataFrame) -> list[tuple[frozenset[int], float]]:
    """Return groups of ops that ran beside communication and were slowed by it, each with a factor below 1.

    The factor is the median time of the same work alone over its median time beside communication. Kernels without enough runs of
    both kinds are left out, and so are those that alone take now this long, now that: their inputs differ.
    """
    start, end = union(comm["start_ns"].to_numpy(), comm["end_ns"].to_numpy())
    if not len(start):
        return []
    a, b = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    first = np.searchsorted(end, a, side="right")
    beside = (first < len(start)) & (start[np.minimum(first, len(start) - 1)] < b)
    modules = ops["module"].drop_nulls().unique()
    alike_modules = dict(zip(modules, modules.cast(pl.String).str.replace_all(r"\d+", "#"), strict=True))
    timed = ops.select(
        "op",
        *_SAME[:-1],
        pl.col("module").replace_strict(alike_modules, default=None, return_dtype=pl.String),
        ns=pl.col("end_ns") - pl.col("start_ns"),
    ).with_columns(beside=beside)
    runs = timed.group_by(_SAME, maintain_order=True).agg(
        pl.col("op", "ns").filter("beside").name.prefix("beside_"), alone_ns=pl.col("ns").filter(~pl.col("beside"))
    )
    enough = pl.min_horizontal(pl.col("alone_ns", "beside_ns").list.len()) >= FEWEST_KERNEL_RUNS
    factors = []
    for together, together_ns, alone_ns in runs.filter(enough)["beside_op", "beside_ns", "alone_ns"].iter_rows():
        low, usual, high = np.quantile(alone_ns, (0.1, 0.5, 0.9))
        factor = float(usual / max(np.median(together_ns), 1))
        if factor < 1 and high <= STEADY_KERNEL_TIMES * low:
            factors.append((frozenset(together), factor))
    return factors

"""What a rank's collectives wait for the other ranks of the same report, and how long these take for themselves.

A collective ends on all ranks together, so the shortest of its kernels is its transfer and what another takes longer is
waiting. Tracing makes the host of every rank slower, one more than the other, and with it this waiting: it is not work of the
GPU that a step keeps without a profiler. Synchronous ranks take as long as the one that takes longest for itself, which is how
the straggler study of ByteDance (OSDI 2025, arXiv 2505.05713) replays a job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import polars as pl

from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64
from nsysx.reading import nccl_notes

#: No more than this many other ranks are replayed: of equal ones more say nothing new.
_MOST_PEERS = 8
#: Waiting below this part of the replayed time is not looked at.
_LEAST_WAITING = 0.01


def waiting(profile: Profile, start_ns: int, end_ns: int) -> dict[int, int]:
    """Return op -> how long a collective of the shown process waits for another of the report (ns).

    Of those that begin in the window, where all that waits is a notable part of it; of what has no counterpart nothing is said.
    """
    ops = profile.attributed.gpu_ops.filter(pl.col("cls") == "comm").select(
        "op", "process", "device", "start_ns", "end_ns", pl.col("name").cast(pl.String)
    )
    if ops["process"].n_unique() < 2:
        return {}
    kinds = {name: nccl_notes.kind_of(name) for name in ops["name"].unique().to_list()}
    ops = ops.with_columns(pl.col("name").replace(kinds).alias("kind"))
    shown = pl.col("process") == profile.process
    waited: dict[int, int] = {}
    for kind in ops["kind"].unique().to_list():
        same = ops.filter(pl.col("kind") == kind)
        of_shown = same.filter(shown & pl.col("start_ns").is_between(start_ns, end_ns, closed="left"))
        shortest = (of_shown["end_ns"] - of_shown["start_ns"]).to_numpy().copy()
        length = shortest.copy()
        for _, other in same.filter(~shown).group_by("process", "device"):
            np.minimum(shortest, _counterparts(of_shown, other), out=shortest)
        waited |= dict(zip(of_shown["op"].to_list(), (length - shortest).tolist(), strict=True))
    return waited if sum(waited.values()) >= _LEAST_WAITING * (end_ns - start_ns) else {}


def unknown(profile: Profile) -> dict[int, int]:
    """Return op -> how long it communicates at all (ns), where no other rank is in the report: all of that may be waiting."""
    ops = profile.attributed.gpu_ops.filter(pl.col("cls") == "comm").select("op", "process", "start_ns", "end_ns")
    if ops["process"].n_unique() != 1:
        return {}
    return dict(zip(ops["op"].to_list(), (ops["end_ns"] - ops["start_ns"]).to_list(), strict=True))


def _counterparts(collectives: pl.DataFrame, other: pl.DataFrame) -> I64:
    """Return how long the counterpart of each collective took: of those that run at the same time the one with the nearest end."""
    never = np.iinfo(np.int64).max
    if not collectives.height or not other.height:
        return np.full(collectives.height, never)
    other = other.sort("end_ns")
    start, end = other["start_ns"].to_numpy(), other["end_ns"].to_numpy()
    own_start, own_end = collectives["start_ns"].to_numpy(), collectives["end_ns"].to_numpy()
    after = np.clip(np.searchsorted(end, own_end), 0, len(end) - 1)
    before = np.maximum(after - 1, 0)
    at = np.where(np.abs(end[before] - own_end) < np.abs(end[after] - own_end), before, after)
    together = (start[at] < own_end) & (own_start < end[at])
    return np.where(together, end[at] - start[at], never)


def communication(profile: Profile) -> list[int]:
    """Return the ops of the shown process that communicate."""
    ops = profile.attributed.gpu_ops.select("op", "process", "cls")
    return ops.filter((pl.col("process") == profile.process) & (pl.col("cls") == "comm"))["op"].to_list()


def others(profile: Profile) -> Iterator[Profile]:
    """Yield the profile as if another rank of the report were the shown one, for each that has collectives and steps."""
    communicating = profile.attributed.gpu_ops.filter(pl.col("cls") == "comm")["process"].unique().to_list()
    known = profile.steps.windows["process"].unique().sort().to_list()
    for process in [p for p in known if p != profile.process and p in communicating][:_MOST_PEERS]:
        yield replace(profile, steps=replace(profile.steps, process=process), _made={})

"""How many GPU ops run at once on a device: what runs alone, and what has company."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.frames import lookup
from nsysx.frames.intervals import I64, StepFunction


def running(start: I64, end: I64) -> StepFunction:
    """Return how many of the intervals [start, end) hold each instant, from the first begin to the last end."""
    starts, ends = np.sort(start), np.sort(end)
    times = np.concatenate([starts, ends])
    order = np.argsort(times, kind="stable")
    change = np.concatenate([np.ones(len(starts), np.int64), -np.ones(len(ends), np.int64)])
    return StepFunction(times[order], np.cumsum(change[order])[:-1])


def alone(ops: pl.DataFrame, everything: pl.DataFrame) -> npt.NDArray[np.float64]:
    """Return, per op, the part of its time in which nothing else of ``everything`` runs on its device (0 to 1).

    Both are GPU ops with process, device, start_ns, end_ns; ``everything`` holds the ops, too.
    """
    share = np.zeros(ops.height)
    where = ops["process", "device"].with_row_index("row")
    everything = everything["process", "device", "start_ns", "end_ns"]
    for (process, device), rows in lookup.parted(where, "process", "device").items():
        members = rows["row"].cast(pl.Int64).to_numpy()
        all_of_it = lookup.having(everything, process=process, device=device)
        function = running(all_of_it["start_ns"].to_numpy(), all_of_it["end_ns"].to_numpy())
        start, end = (ops[c].to_numpy()[members] for c in ("start_ns", "end_ns"))
        share[members] = function.within(function.labels == 1, start, end) / np.maximum(end - start, 1)
    return share

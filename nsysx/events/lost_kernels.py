"""Launches whose work on the device is not in the report, and the steps at the end of a recording whose kernels were lost.

nsys drops what the device has not done when a recording ends. Where the device sets the pace, that is the work of the last steps,
from one launch on nearly all of it: up to 1,024 launches wait in its queue. These steps have no length on the device and no
kernels, so no figure may hold them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.catalogue import Call
from nsysx.frames import lookup


def lost(calls: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Return which calls launch a kernel that is not in the report, though it was put on the device.

    Between the begin and the end of a graph's capture on their thread launches put nothing on it.
    """
    idle: npt.NDArray[np.bool_] = ((calls["kind"] == Call.LAUNCH) & (calls["gpu_ops"] == 0)).to_numpy()
    if not idle.any() or not (begun := lookup.matching(calls["name"], r"^cu(da)?StreamBeginCapture")).any():
        return idle
    ended = lookup.matching(calls["name"], r"^cu(da)?StreamEndCapture")
    rows = np.flatnonzero(begun | ended | idle)  # few of all calls
    few = calls["process", "thread", "start_ns"][rows].with_columns(
        row=rows, change=begun[rows].astype(np.int32) - ended[rows]
    )
    captures = pl.col("change").cum_sum().over("process", "thread") > 0
    captured = few.sort("process", "thread", "start_ns").filter(captures)["row"].to_numpy()
    result: npt.NDArray[np.bool_] = idle.copy()
    result[captured] = False
    return result


def at_the_end(calls: pl.DataFrame) -> bool:
    """Return whether kernels are lost of the last launches alone: none of those behind the first of them has any."""
    missing, worked = lost(calls), (calls["gpu_ops"] > 0).fill_null(False).to_numpy()
    start = calls["start_ns"].to_numpy()
    return bool(missing.any() and worked.any() and start[missing].min() > start[worked].max())


def _graphs_lost(calls: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Return which launches of graphs have no work in the report; none where no graph has any, because that was not recorded."""
    graphs = (calls["kind"] == Call.GRAPH_LAUNCH).to_numpy()
    worked = (calls["gpu_ops"] > 0).to_numpy()
    return graphs & ~worked if (graphs & worked).any() else np.zeros(calls.height, np.bool_)


def whole(steps: pl.DataFrame, calls: pl.DataFrame, seams: Sequence[int]) -> tuple[pl.DataFrame, dict[int, int]]:
    """Return the steps without those whose kernels were lost when a recording ended, and how many those are of each process.

    ``steps``: process, start_ns and end_ns, of one or several parts that begin at the ``seams``. The first step of which kernels are
    lost stays as the last of its part: it shows where the step before ends, and is left out as every last one is.
    """
    missing = lost(calls) | _graphs_lost(calls)
    if not missing.any() or not steps.height:
        return steps, {}
    gone = calls["process", "start_ns"].filter(missing)
    kept, counts = [], {}
    for of_process in steps.sort("process", "start_ns").partition_by("process", maintain_order=True):
        process = int(of_process["process"][0])
        start = of_process["start_ns"].to_numpy()
        launched = np.sort(gone.filter(pl.col("process") == process)["start_ns"].to_numpy())
        missed = np.diff(np.searchsorted(launched, np.append(start, np.iinfo(np.int64).max)))
        without = missed > missed.min()
        part = np.searchsorted(np.asarray(seams, np.int64), start, side="right")
        # From the end of each part backwards: whether all steps from here on have lost some.
        tail = np.zeros(len(start), np.bool_)
        for number in np.unique(part):
            rows = np.flatnonzero(part == number)
            tail[rows] = np.logical_and.accumulate(without[rows][::-1])[::-1]
        first = tail & ~np.append(False, tail[:-1] & (part[1:] == part[:-1]))
        if (tail & ~first).any():
            counts[process] = int(tail.sum())
            of_process = of_process.filter(pl.Series(~tail | first))
        kept.append(of_process)
    return (pl.concat(kept), counts) if counts else (steps, {})

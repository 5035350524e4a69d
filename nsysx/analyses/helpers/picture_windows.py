"""Which windows of a capture are drawn: the typical steady step and the slowest one, or the whole capture and a closer look."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.analyses.helpers.analysis_bounds import CLOSER_LOOK_OPS
from nsysx.events.profile import Profile


class DrawnWindow(NamedTuple):
    """What is drawn: a title, the stretch [start_ns, end_ns), instants in it with a name, and the step in it."""

    title: str
    start_ns: int
    end_ns: int
    marks: tuple[tuple[int, str], ...] = ()
    step: tuple[int, int] | None = None


def windows(profile: Profile) -> tuple[DrawnWindow, ...]:
    """Return the typical steady step and the slowest one (the whole capture where there are no steps)."""
    steps = profile.steps
    tiles = steps.gpu.filter((steps.gpu["process"] == steps.process) & (steps.gpu["end_ns"] > steps.gpu["start_ns"]))
    if steps.source == "capture" or steps.steady is None or not tiles.height:
        window = steps.cpu_windows.filter(steps.cpu_windows["process"] == steps.process)
        if not window.height:
            return ()
        start, end = window["start_ns", "end_ns"].row(0)
        whole = DrawnWindow("The whole capture", start, end)
        closer = _closer(profile, steps.process)
        # Single operations show only where the window is much shorter than the capture.
        if closer is None or closer[1] - closer[0] > (end - start) / 4:
            return (whole,)
        return whole, DrawnWindow("A closer look, where the GPU works most", *closer)
    busiest = (
        tiles.group_by("device")
        .agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns"))
        .sort("ns", "device", descending=[True, False])
    )
    tiles = tiles.filter((pl.col("device") == busiest["device"][0]) & pl.col("index").is_between(*steps.steady))
    if not tiles.height:
        return ()
    tiles = tiles.with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("ns")).sort("ns", "index")
    rows = tiles["index", "start_ns", "end_ns"].rows()
    cpu = dict(steps.cpu.filter(steps.cpu["process"] == steps.process)["index", "start_ns"].iter_rows())
    result = []
    for title, (index, start, end) in (("A typical step", rows[len(rows) // 2]), ("The slowest steady step", rows[-1])):
        # Begin with the CPU step, so that its launches are seen before the kernels that they start; a CPU far ahead is cut.
        begin = max(min(cpu.get(index, start), start), start - (end - start))
        step = f"step {profile.step_of_capture(index)}"
        result.append(DrawnWindow(f"{title} ({step})", begin, end, ((start, f"{step} on the GPU"),), (start, end)))
    return tuple(result[:1] if len(rows) == 1 else result)


def _closer(profile: Profile, process: int) -> tuple[int, int] | None:
    """Return the window of a few consecutive launches, with all work that they start, in which the GPU works most."""
    ops = profile.attributed.gpu_ops.filter((pl.col("process") == process) & pl.col("call_start_ns").is_not_null())
    ops = ops.sort("call_start_ns", "op")
    if ops.height < 2 * CLOSER_LOOK_OPS:
        return None
    begin = ops["call_start_ns"].to_numpy()[: -CLOSER_LOOK_OPS + 1]
    length = ops["end_ns"].to_numpy() - np.maximum(ops["start_ns"].to_numpy(), ops["call_start_ns"].to_numpy())
    sums = np.concatenate([[0], np.cumsum(length)])
    last = np.lib.stride_tricks.sliding_window_view(ops["end_ns"].to_numpy(), CLOSER_LOOK_OPS).max(axis=1)
    span = np.maximum(last - begin, 1)
    best = int(np.argmax((sums[CLOSER_LOOK_OPS:] - sums[:-CLOSER_LOOK_OPS]) / span))
    margin = int(span[best]) // 20
    return int(begin[best]) - margin, int(last[best]) + margin

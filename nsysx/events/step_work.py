"""How long each step is, and how much the GPU works in it."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.frames.intervals import I64


def lengths(cpu: pl.DataFrame, tiles: pl.DataFrame) -> tuple[I64, I64]:
    """Return the length of each step, of its longest tile, on the CPU where it has none (ns), and the number it was given."""
    longest = tiles.group_by("index").agg((pl.col("end_ns") - pl.col("start_ns")).max().alias("d"))
    both = cpu.join(longest, on="index", how="left", maintain_order="left")
    step_ns: I64 = both.select(pl.coalesce("d", pl.col("end_ns") - pl.col("start_ns")))["d"].to_numpy()
    return step_ns, both["number"].to_numpy()


def gpu_work(cpu: pl.DataFrame, tiles: pl.DataFrame, ops: pl.DataFrame) -> I64:
    """Return the durations of the GPU ops that begin in the tiles of each step of ``cpu``, summed over devices (ns).

    Two streams at once count twice: it is the work, not the time that it takes.
    """
    sums = np.zeros(int(cpu["index"].max() or 0) + 1 if cpu.height else 0, np.int64)  # type: ignore[arg-type]
    for (process, device), of_device in tiles.group_by("process", "device"):
        work = ops.filter((ops["process"] == process) & (ops["device"] == device))["start_ns", "end_ns"]
        work = work.sort("start_ns")
        total = np.concatenate(([0], np.cumsum((work["end_ns"] - work["start_ns"]).to_numpy())))
        inside = of_device.filter(pl.col("index") < len(sums))
        first, last = (
            np.searchsorted(work["start_ns"].to_numpy(), inside[c].to_numpy()) for c in ("start_ns", "end_ns")
        )
        np.add.at(sums, inside["index"].to_numpy(), total[last] - total[first])
    of_steps: I64 = sums[cpu["index"].to_numpy()]
    return of_steps

"""How long each step is, and how much the GPU works in it."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.frames import lookup
from nsysx.frames.frame_bounds import LONG_AGO_NS
from nsysx.frames.intervals import I64


def lengths(cpu: pl.DataFrame, tiles: pl.DataFrame) -> tuple[I64, I64]:
    """Return the length of each step, of its longest tile, on the CPU where it has none (ns), and the number it was given."""
    index, tile = cpu["index"].to_numpy(), tiles["index"].to_numpy()
    longest = np.full(max(index.max(initial=-1), tile.max(initial=-1)) + 1, LONG_AGO_NS)
    np.maximum.at(longest, tile, (tiles["end_ns"] - tiles["start_ns"]).to_numpy())
    on_cpu = (cpu["end_ns"] - cpu["start_ns"]).to_numpy()
    return np.where(longest[index] > LONG_AGO_NS, longest[index], on_cpu), cpu["number"].to_numpy()


def gpu_work(cpu: pl.DataFrame, tiles: pl.DataFrame, ops: pl.DataFrame) -> I64:
    """Return the durations of the GPU ops that begin in the tiles of each step of ``cpu``, summed over devices (ns).

    Two streams at once count twice: it is the work, not the time that it takes.
    """
    sums = np.zeros(int(cpu["index"].max() or 0) + 1 if cpu.height else 0, np.int64)  # type: ignore[arg-type]
    timed = ops["process", "device", "start_ns", "end_ns"]
    for (process, device), of_device in lookup.parted(tiles, "process", "device").items():
        work = lookup.having(timed, process=process, device=device).sort("start_ns")
        total = np.concatenate(([0], np.cumsum((work["end_ns"] - work["start_ns"]).to_numpy())))
        index = of_device["index"].to_numpy()
        inside = index < len(sums)
        first, last = (
            np.searchsorted(work["start_ns"].to_numpy(), of_device[c].to_numpy()[inside])
            for c in ("start_ns", "end_ns")
        )
        np.add.at(sums, index[inside], total[last] - total[first])
    of_steps: I64 = sums[cpu["index"].to_numpy()]
    return of_steps

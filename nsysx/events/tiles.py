"""GPU steps: the tiles that CPU steps cut the timeline of each device into."""

from __future__ import annotations

import numpy as np
import polars as pl


def gpu_tiles(cpu: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return GPU steps per (process, device, index): from the first op of a step to the first op of the next."""
    parts = []
    schema = {"process": pl.Int64, "device": pl.Int64, "index": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
    wanted = ops.select("process", "device", "call_start_ns", "start_ns", "end_ns")
    launched = wanted.drop_nulls("call_start_ns")
    for (process, device), part in launched.group_by("process", "device", maintain_order=True):
        steps = cpu.filter(pl.col("process") == process)
        if not steps.height:
            continue
        starts, last_end = steps["start_ns"].to_numpy(), int(steps["end_ns"].to_numpy()[-1])
        called, begin, end = (part[c].to_numpy() for c in ("call_start_ns", "start_ns", "end_ns"))
        step = np.searchsorted(starts, called, side="right") - 1
        inside = (step >= 0) & (called < last_end)
        if not inside.any():
            continue
        n = len(starts)
        border = np.full(n + 1, np.iinfo(np.int64).max)
        np.minimum.at(border, step[inside], begin[inside])
        # The last step has no successor to end it: it ends with its own work.
        border[n] = end[inside & (step == step[inside].max())].max()
        # A step without GPU work takes the border of the next: an empty tile. Prefetched work may start early.
        border = np.minimum.accumulate(border[::-1])[::-1]
        parts.append(
            pl.DataFrame(
                {
                    "process": np.full(n, process),
                    "device": np.full(n, device),
                    "index": steps["index"].to_numpy(),
                    "start_ns": border[:-1],
                    "end_ns": border[1:],
                },
                schema=schema,
            )
        )
    return pl.concat([pl.DataFrame(schema=schema), *parts]).sort("process", "device", "index")

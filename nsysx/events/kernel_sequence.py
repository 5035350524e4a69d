"""Steps from the repeated kernel sequence, where nothing names them."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.frames.intervals import I64

#: What every source of steps gives.
STEP = {
    "process": pl.Int64,
    "thread": pl.Int64,
    "number": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}


def _period(names: I64) -> tuple[int, int] | None:
    """Return (first index, period) of the repeated part of a sequence of kernel ids, None when nothing repeats.

    Candidates are the distances at which a kernel recurs regularly: half of its occurrences or more lie that far apart. One
    holds when at least 90 % of a tail of three periods or more repeats with it. Parts of a step repeat too (layers,
    optimizer kernels), but explain a short tail only: the smallest period wins whose tail is nearly the longest.
    """
    n = len(names)
    order = np.argsort(names, kind="stable")
    same = names[order][1:] == names[order][:-1]
    gaps, kernel = (order[1:] - order[:-1])[same], names[order][1:][same]
    pairs, counts = np.unique(np.stack([kernel, gaps]), axis=1, return_counts=True)
    whole = dict(zip(*np.unique(kernel, return_counts=True), strict=True))
    regular = [
        int(gap)
        for (name, gap), count in zip(pairs.T.tolist(), counts.tolist(), strict=True)
        if 2 * count >= whole[name] and 8 <= gap <= n // 3
    ]
    found: list[tuple[int, int]] = []
    for period in sorted(set(regular)):
        equal = names[:-period] == names[period:]
        # The tail that repeats: steady steps come last, warm-up first; teardown is short.
        share = np.cumsum(equal[::-1])[::-1] / np.arange(len(equal), 0, -1)
        good = np.flatnonzero(share >= 0.9)
        if len(good) and len(equal) - good[0] >= 2 * period:
            head = np.flatnonzero(equal[good[0] :])
            found.append((int(good[0] + head[0]), period))
    longest = min((first for first, _ in found), default=0)
    return next(((first, period) for first, period in found if n - first >= 0.9 * (n - longest)), None)


def from_kernels(ops: pl.DataFrame) -> pl.DataFrame:
    """Return steps from the repeated kernel sequence of each process's busiest stream; kernels of graphs count too."""
    parts = []
    kernels = ops.filter((pl.col("op_kind").cast(pl.String) == "kernel") & pl.col("call").is_not_null())
    for (process,), part in kernels.group_by("process", maintain_order=True):
        top = (
            part.group_by("device", "stream")
            .len()
            .sort("len", "device", "stream", descending=[True, False, False])
            .row(0)
        )
        line = part.filter((pl.col("device") == top[0]) & (pl.col("stream") == top[1])).sort("start_ns", "op")
        names = line["name"].to_physical().to_numpy()
        found = _period(names) if len(names) >= 24 else None
        if found is None:
            continue
        first, period = found
        starts = line["call_start_ns"].to_numpy()
        borders = np.maximum.accumulate(starts[first::period])
        if len(borders) < 3:
            continue
        parts.append(
            pl.DataFrame(
                {
                    "process": np.full(len(borders) - 1, process),
                    "thread": line["thread"].to_numpy()[first::period][:-1],
                    "number": np.arange(len(borders) - 1),
                    "start_ns": borders[:-1],
                    "end_ns": borders[1:],
                },
                schema=STEP,
            )
        )
    return pl.concat([pl.DataFrame(schema=STEP), *parts]).filter(pl.col("end_ns") > pl.col("start_ns"))

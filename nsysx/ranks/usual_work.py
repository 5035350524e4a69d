"""What each step computes where its kernels take as long as they usually do: one that takes longer has more work, or was only slowed down.

Ranks that share a GPU slow each other: the same kernels, as large and as often, take longer in a step in which the other rank works.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.frames.intervals import I64
from nsysx.ranks.rank_record import LedgerTiles


def usual_ns(kernels: pl.DataFrame, tiles: LedgerTiles) -> I64:
    """Return how long each tile computes (ns), as long as those do on average that run the same compute kernels: as often, as large.

    A kernel has one size for many lengths where a grid fills the GPU: only all of a step tell which length it is.
    """
    start = kernels["start_ns"].to_numpy()
    tile = np.searchsorted(tiles.start_ns, start, side="right") - 1
    inside = (tile >= 0) & (start < tiles.end_ns[np.maximum(tile, 0)])
    named = kernels.select(pl.col("name").cast(pl.String), "grid", "block")
    kinds = (
        named.select(pl.struct("name", "grid", "block").rank("dense").alias("kind"))["kind"].to_numpy().astype(np.int64)
    )
    counts = np.zeros((len(tiles.start_ns), int(kinds.max(initial=0)) + 1), np.int64)
    np.add.at(counts, (tile[inside], kinds[inside]), 1)
    _, alike = np.unique(counts, axis=0, return_inverse=True)
    compute = tiles.parts[DeviceActivity.COMPUTE.column]
    means = np.bincount(alike.ravel(), compute) / np.maximum(np.bincount(alike.ravel()), 1)
    whole: I64 = np.rint(means[alike.ravel()]).astype(np.int64)
    return whole

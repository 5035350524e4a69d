"""The idle pieces of the busiest device with what is left of them without a profiler, so that all who tell idle time agree."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from nsysx.events.profile import Profile
from nsysx.model import Unprofiled


def recorded(profile: Profile) -> pl.DataFrame:
    """Return the idle pieces of the busiest device in the steady steps, clipped to them: as the ledger has them, and ``ns``."""
    start, end = profile.window
    pieces = profile.ledgers.idle_of(profile.steps.process, profile.device)
    idle = pieces.filter((pl.col("end_ns") > start) & (pl.col("start_ns") < end))
    ns = pl.min_horizontal("end_ns", pl.lit(end)) - pl.max_horizontal("start_ns", pl.lit(start))
    return idle.with_columns(ns.alias("ns"))


def without_tracing(
    idle: pl.DataFrame, before: Mapping[int, int], span: tuple[int, int], known: Unprofiled, steps: int
) -> pl.DataFrame:
    """Add ``real_ns`` to the pieces of so many steps: their part of the idle time of as many steps without a profiler.

    ``before`` is how long the device idles before each replayed op, ``span`` where the replayed steps are. Of these a gap keeps
    what the replay leaves of it, never more than was recorded; elsewhere the same part is left as there.
    """
    left = pl.DataFrame(
        {"op": list(before), "_left": list(before.values())}, schema={"op": pl.Int64, "_left": pl.Int64}
    )
    # A gap that the replay no longer has is gone; one before an op that it does not hold, as the first one after the replayed
    # steps, is told by the others.
    start, end = span
    inside = (pl.col("start_ns") >= start) & (pl.col("start_ns") < end)
    recorded = pl.col("ns").sum().over("op")
    part = pl.when(inside).then((pl.col("_left") / recorded).clip(0.0, 1.0))
    gaps = idle.join(left, on="op", how="left", maintain_order="left").with_columns(_part=part)
    replayed = gaps.filter(pl.col("_part").is_not_null())
    usual = (
        float((replayed["_part"] * replayed["ns"]).sum() / max(int(replayed["ns"].sum()), 1))
        if replayed.height
        else 1.0
    )
    part_left = gaps["_part"].fill_null(usual).to_numpy() * gaps["ns"].to_numpy()
    whole = known.step_ns * max(steps, 1) * (1 - known.gpu_busy)
    # Rounded so that nothing is lost: the pieces sum to the whole.
    upto = np.rint(np.cumsum(part_left) * (whole / max(float(part_left.sum()), 1.0))).astype(np.int64)
    return idle.with_columns(pl.Series("real_ns", np.diff(upto, prepend=0)))

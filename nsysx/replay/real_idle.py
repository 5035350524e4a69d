"""The idle pieces of the busiest device, with what remains of each without a profiler, in one place so that all figures agree."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from nsysx.catalogue import Cause
from nsysx.events.profile import Profile
from nsysx.model import Unprofiled


def recorded(profile: Profile) -> pl.DataFrame:
    """Return the ledger's idle pieces of the busiest device in the steady steps, with ``ns``, the length inside those steps."""
    start, end = profile.window
    pieces = profile.ledgers.idle_of(profile.steps.process, profile.device)
    idle = pieces.filter((pl.col("end_ns") > start) & (pl.col("start_ns") < end))
    ns = pl.min_horizontal("end_ns", pl.lit(end)) - pl.max_horizontal("start_ns", pl.lit(start))
    return idle.with_columns(ns.alias("ns"))


def without_tracing(
    idle: pl.DataFrame,
    before: Mapping[int, int],
    span: tuple[int, int],
    real: Unprofiled,
    steps: int,
    loading_ns: int = 0,
) -> pl.DataFrame:
    """Return the idle pieces of ``steps`` steps with ``real_ns``: their shares of the idle time of these steps without a profiler.

    ``before`` is op -> idle time before it in the replay (ns), ``span`` the time of the replayed steps on the device. A gap inside
    the span counts with what the replay leaves of it, at most its recorded length, and a gap elsewhere with the same share on
    average. All are then scaled so that they sum to the idle time of ``real``. Of that, ``loading_ns`` per step is waiting for batches
    that no recorded step has (`bare_loading`): a piece of its own, of no recorded length.
    """
    left = pl.DataFrame(
        {"op": list(before), "_left": list(before.values())}, schema={"op": pl.Int64, "_left": pl.Int64}
    )
    # A gap that the replay no longer has is gone. A gap before an op that is not replayed, such as the first one after the
    # replayed steps, gets the average share.
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
    loading = loading_ns * max(steps, 1)
    whole = real.step_ns * max(steps, 1) * (1 - real.gpu_busy) - loading
    # The running sum is rounded, so that the pieces add up to the whole.
    upto = np.rint(np.cumsum(part_left) * (whole / max(float(part_left.sum()), 1.0))).astype(np.int64)
    pieces = idle.with_columns(pl.Series("real_ns", np.diff(upto, prepend=0)))
    return pieces if not loading else pl.concat([pieces, _unrecorded(pieces, start + 1, loading)])


def _unrecorded(pieces: pl.DataFrame, at_ns: int, real_ns: int) -> pl.DataFrame:
    """Return one more piece, in which the host waits for batches: at a point of the steps, because it was not recorded."""
    made = {"start_ns": at_ns, "end_ns": at_ns, "cause": Cause.DATA_LOADER.number, "ns": 0, "real_ns": real_ns}
    row = {name: made.get(name) for name in pieces.columns}
    row |= pieces.select("process", "device", pl.col("gap").max() + 1).row(0, named=True) if pieces.height else {}
    return pl.DataFrame([row], schema=pieces.schema)

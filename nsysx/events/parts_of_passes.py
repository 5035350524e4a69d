"""Parts of a network that some passes of a step use and its last pass does not, as the heads of several tasks."""

from __future__ import annotations

import polars as pl

from nsysx.events.event_bounds import ALIKE_ROUNDS_SHARE
from nsysx.events.profile import Profile


def parts_of_passes(profile: Profile) -> frozenset[str]:
    """Return the modules that a forward of a step computes with, but its last forward does not, in most steps that have several."""
    return profile.once(_parts)


def _parts(profile: Profile) -> frozenset[str]:
    ops = profile.steady_ops.select(pl.col("phase").cast(pl.String), pl.col("module").cast(pl.String), "call_start_ns")
    ops = ops.filter(pl.col("phase").is_in(["forward", "backward"]) & pl.col("call_start_ns").is_not_null())
    starts = profile.steps.cpu.filter(profile.steps.cpu["process"] == profile.process)["start_ns"].sort()
    ops = ops.sort("call_start_ns").with_columns(
        step=pl.Series(starts.search_sorted(ops["call_start_ns"].sort(), side="right"), dtype=pl.Int64),
        forward=(pl.col("phase") == "forward"),
    )
    begins = pl.col("forward") & ~pl.col("forward").shift(1, fill_value=False).over("step")
    ops = ops.with_columns(number=begins.cast(pl.Int64).cum_sum().over("step"))
    ops = ops.with_columns(last=pl.col("number") == pl.col("number").max().over("step"))
    steps = ops.filter(ops["number"] > 1)["step"].n_unique()
    of_passes = ops.filter(pl.col("forward") & pl.col("module").is_not_null())
    left_out = of_passes.group_by("step", "module").agg(pl.col("last").any()).filter(~pl.col("last"))
    often = left_out.group_by("module").len().filter(pl.col("len") >= max(1.0, ALIKE_ROUNDS_SHARE * steps))
    return frozenset(often["module"].to_list())

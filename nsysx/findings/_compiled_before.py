"""What a function's GPU work took while torch.compile still compiled it, in steps before its limit was reached.

Inductor names its kernels itself, and they are gone from the steady steps. In the steps that compile, it also runs each new kernel
many times to choose how to launch it, and fills the GPU's cache before each of these runs. A launch without a fill before it is the
program's own, or the first try of such a choice.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.profile import Profile
from nsysx.frames import lookup

_OF_INDUCTOR = r"^triton_(poi|red|per|tem|for|split_scan|mm)_"
_FILLS = r"FillFunctor|(?i:memset)"


class CompiledWork(NamedTuple):
    """What kernels of Inductor took in a step (ns): usually, at least and at most; and how many it launched."""

    ns: int
    least_ns: int
    most_ns: int
    kernels: int


def compiled_before(profile: Profile) -> CompiledWork | None:
    """Return the work of the kernels of Inductor that ran in early steps and no steady one; None where too few steps hold such."""
    ops = profile.ops.filter(
        (profile.ops["process"] == profile.process) & (profile.ops["device"] == profile.device)
    ).sort("start_ns")
    steady = profile.steady_ops["name"].unique()
    compiled = lookup.matching(ops["name"], _OF_INDUCTOR) & ~ops["name"].is_in(steady.to_list()).to_numpy()
    fills = np.cumsum(lookup.matching(ops["name"], _FILLS))[compiled]
    steps = profile.steps.cpu.filter(profile.steps.cpu["process"] == profile.process).sort("start_ns")
    launches = ops.filter(pl.Series(compiled, dtype=pl.Boolean)).select(
        "name", "call_start_ns", ns=pl.col("end_ns") - pl.col("start_ns"), tried=np.diff(fills, prepend=0) > 0
    )
    if not launches.height or not steps.height:
        return None
    begun = launches["call_start_ns"].fill_null(-1).to_numpy()
    step = np.searchsorted(steps["start_ns"].to_numpy(), begun, side="right") - 1
    inside = (step >= 0) & (begun < steps["end_ns"].to_numpy()[step])
    tried = pl.col("tried")
    # Each choice among launches begins with one that no fill precedes.
    of_kernel = (
        launches.with_columns(step=pl.Series(step))
        .filter(pl.Series(inside, dtype=pl.Boolean))
        .group_by("step", "name", maintain_order=True)
        .agg(
            (~tried).sum().cast(pl.Int64).alias("own"),
            (tried & ~tried.shift(1).fill_null(value=False)).sum().cast(pl.Int64).alias("choices"),
            pl.col("ns").last(),
        )
    )
    if of_kernel["step"].n_unique() <= 1:  # what one step alone compiled may have run in no other
        return None
    often, usual = (pl.col("own") - pl.col("choices")).clip(1), pl.col("ns").median().over("name")
    of_step = of_kernel.with_columns(
        kernels=often, usual=usual * often, least=pl.col("ns").min().over("name") * often,
        most=pl.col("ns").max().over("name") * pl.col("own").clip(1),
    ).group_by("step").agg(pl.col("kernels", "usual", "least", "most").sum())  # fmt: skip
    median = of_step.select(pl.all().median()).row(0, named=True)
    return CompiledWork(*(round(median[key]) for key in ("usual", "least", "most", "kernels")))

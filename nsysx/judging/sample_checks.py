"""How much the samples of Python's stack can explain."""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.events.profile import Profile
from nsysx.events.sampled_lines import known_lines
from nsysx.judging.judging_bounds import MUCH_UNSAMPLED_SHARE
from nsysx.model import Check


def python_samples(profile: Profile) -> list[Check]:
    """Return how much of the idle time in host code has a line; nothing if no stack was sampled."""
    lines = known_lines(profile)
    if lines is None:
        return []
    whole, sampled, seen = lines.rows.select(
        pl.col("idle_ns").sum(),
        pl.col("idle_ns").filter(pl.col("place").is_not_null()).sum().alias("sampled"),
        pl.col("samples").sum(),
    ).row(0)
    samples = profile.trace.samples.filter(pl.col("process") == profile.process)
    threads = samples["thread"].n_unique()
    detail = (
        f"{units.count(samples.height)} samples of Python's stack on {threads} thread{'s' if threads != 1 else ''}, one every "
        f"{units.duration(lines.period_ns)}"
    )
    if not whole:
        return [Check("python samples", "ok", f"{detail}; the GPU waits for no host code")]
    detail += f"; {units.count(seen)} are in host code that the GPU waits for, and {units.share(sampled, whole)} of its time has a line"
    few = sampled < (1 - MUCH_UNSAMPLED_SHARE) * whole
    return [Check("python samples", "warn" if few else "ok", detail, "profile more steps" if few else "")]

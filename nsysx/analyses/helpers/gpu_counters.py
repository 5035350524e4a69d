"""Means of the GPU's counters over samples taken while an op ran alone."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from nsysx.events import gpu_samples
from nsysx.events.event_bounds import FEWEST_GPU_SAMPLES
from nsysx.events.profile import NotRecorded, Profile

_FIX = "nsysx run --gpu-metrics -- CMD"
#: The columns of the samples whose means are given.
MEANS = ("sm_active", "tensor_active", "dram", "dram_read", "dram_write")


def samples(profile: Profile) -> pl.DataFrame:
    """Return the samples of the ops of the steady steps of the shown process, see ``gpu_samples.of_ops``. Raises NotRecorded."""
    trace = profile.trace
    if trace.gpu_metrics is None:
        raise NotRecorded(_why_not(profile), _FIX)
    sampled = gpu_samples.of_ops(trace, profile.attributed.gpu_ops)
    numbers = {limits.gpu for device, limits in trace.limits.items() if device[0] == profile.process}
    if not numbers - {None}:
        raise NotRecorded(
            "the report does not say which GPU the process used, so no sample can be given to its kernels"
        )
    if not {n & 0xFF for n in numbers if n is not None} & set(trace.gpu_metrics["gpu"].unique().to_list()):
        raise NotRecorded("the GPU metrics of the report are of other GPUs", _FIX)
    return sampled.join(profile.steady_ops.select("op"), on="op", how="semi")


def _why_not(profile: Profile) -> str:
    told = profile.trace.run.get("gpu_metrics")
    refused = told.get("refused") if isinstance(told, dict) else None
    if isinstance(refused, str):
        return f"no GPU metric was recorded: nsys refused ({refused[:200]})"
    return "no GPU metric was recorded"


def means(frame: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return samples, the means of MEANS (0 to 1) and clock_mhz by these columns; null for fewer samples than ``LEAST``."""
    enough = pl.len() >= FEWEST_GPU_SAMPLES
    columns = {c: pl.col(c).cast(pl.Float64).mean() for c in MEANS}
    columns["clock_mhz"] = pl.col("clock_hz").mean() / 1e6
    return frame.group_by(by).agg(
        pl.len().cast(pl.Int64).alias("samples"), *(pl.when(enough).then(e).alias(c) for c, e in columns.items())
    )

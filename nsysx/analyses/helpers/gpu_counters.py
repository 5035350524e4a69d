"""Shares of the GPU's counters that kinds of GPU work have, or why there are none."""

from __future__ import annotations

import polars as pl

from nsysx.events import gpu_samples
from nsysx.events.profile import NotRecorded, Profile

_FIX = "nsysx run --gpu-metrics -- CMD"


def of_kernels(profile: Profile) -> pl.DataFrame:
    """Return the shares by name, grid and block. Raises NotRecorded."""
    _check(profile)
    return profile.once(gpu_samples.of_kernels)


def _check(profile: Profile) -> None:
    trace = profile.trace
    if trace.gpu_metrics is None:
        raise NotRecorded(_why_not(profile), _FIX)
    numbers = {limits.gpu for device, limits in trace.limits.items() if device[0] == profile.process}
    if not numbers - {None}:
        raise NotRecorded(
            "the report does not say which GPU the process used, so no sample can be given to its kernels"
        )
    if not {n & 0xFF for n in numbers if n is not None} & set(trace.gpu_metrics["gpu"].unique().to_list()):
        raise NotRecorded("the GPU metrics of the report are of other GPUs", _FIX)


def _why_not(profile: Profile) -> str:
    record = profile.trace.run.get("gpu_metrics")
    refused = record.get("refused") if isinstance(record, dict) else None
    if isinstance(refused, str):
        return f"no GPU metric was recorded: {refused[:300]}"
    return "no GPU metric was recorded"

"""What Nsight Compute measured of the report's kernels, read from an ``.ncu-rep`` with NVIDIA's package ``ncu-report``."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsysx import units
from nsysx.errors import EXIT_INPUT, EXIT_USAGE, NsysxError
from nsysx.export.nsight_compute import ChosenKernel
from nsysx.rows import names

_TIME, _READ, _WRITTEN = "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum"
_MEMORY = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
_TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
_OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
#: Cycles that a warp waits for a reason, between two of its instructions.
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
#: Reasons in words; the others go by their own name. Nsight Compute's kernel profiling guide, warp stall reasons.
_STALLS = {
    "long_scoreboard": "for the memory",
    "short_scoreboard": "for shared memory or special functions",
    "math_pipe_throttle": "for a busy pipe",
    "lg_throttle": "for the queue of memory instructions",
    "mio_throttle": "for the queue of shared memory",
    "barrier": "at a barrier",
    "wait": "for a fixed latency",
    "not_selected": "for its turn",
}


@dataclass(frozen=True)
class MeasuredLaunch:
    """One profiled launch: times in ns, bytes of the memory, shares 0 to 1; None for what the report does not hold."""

    name: str
    mangled: str
    ns: float | None
    dram_bytes: float | None
    memory: float | None
    tensor: float | None
    occupancy: float | None
    stall: str | None


def launches(path: Path) -> list[MeasuredLaunch]:
    """Return the profiled launches in their order. Raises NsysxError without the package or for a file that cannot be read."""
    try:
        reader: Any = importlib.import_module("ncu_report")
    except ImportError:
        hint = "pip install 'nsysx[ncu]'"
        what = f"{path}: the package ncu-report reads it, and is not installed"
        raise NsysxError(what, slug="ncu-package", hint=hint, exit_code=EXIT_USAGE) from None
    if not path.is_file():
        raise NsysxError(f"{path}: no such file", slug="input-missing", exit_code=EXIT_INPUT)
    try:
        loaded = reader.load_report(str(path))
        return [_launch(reader, action) for part in _each_item(loaded) for action in _each_item(part)]
    except (RuntimeError, ValueError, TypeError, OSError) as error:
        what = f"{path}: cannot be read as a report of Nsight Compute ({error})"
        raise NsysxError(what, slug="ncu-unreadable", exit_code=EXIT_INPUT) from None


def _each_item(holder: Any) -> Iterator[Any]:
    """Yield the ranges of a report, or the launches of a range."""
    count = holder.num_ranges() if hasattr(holder, "num_ranges") else holder.num_actions()
    at_index = holder.range_by_idx if hasattr(holder, "range_by_idx") else holder.action_by_idx
    return (at_index(index) for index in range(count))


def _launch(reader: Any, action: Any) -> MeasuredLaunch:
    def value(metric: str) -> float | None:
        of_metric = action.metric_by_name(metric)
        number = None if of_metric is None else of_metric.as_double()
        return float(number) if number is not None and math.isfinite(number) else None

    def share(metric: str) -> float | None:
        number = value(metric)
        return None if number is None else number / 100

    read, written = value(_READ), value(_WRITTEN)
    stalls = {m[1]: value(name) or 0.0 for name in action.metric_names() if (m := _STALL.fullmatch(name))}
    longest = max(stalls, key=lambda reason: (stalls[reason], reason)) if stalls else None
    kind = reader.IAction
    return MeasuredLaunch(
        action.name(kind.NameBase_DEMANGLED),
        action.name(kind.NameBase_MANGLED),
        ns=value(_TIME),
        dram_bytes=None if read is None or written is None else read + written,
        memory=share(_MEMORY),
        tensor=share(_TENSOR),
        occupancy=share(_OCCUPANCY),
        stall=None if longest is None else _STALLS.get(longest, longest.replace("_", " ")),
    )


def lines(kernels: Sequence[ChosenKernel], measured: Sequence[MeasuredLaunch]) -> list[str]:
    """Return what was measured of each kernel, in lines. Raises NsysxError if none of them is a kernel of the report."""
    text = []
    for kernel in kernels:
        like = [m for m in measured if kernel.mangled in (m.mangled, m.name) or kernel.name == m.name]
        if like:
            text += [kernel.name[:120], f"  {_sentence(kernel, like)}"]
    if not text:
        what = "none of its kernels is one of the report's: it is of another program"
        raise NsysxError(what, slug="ncu-other-program", exit_code=EXIT_INPUT)
    return text


def _mean(values: Sequence[float | None]) -> float | None:
    there = [v for v in values if v is not None]
    return sum(there) / len(there) if there else None


def _sentence(kernel: ChosenKernel, like: Sequence[MeasuredLaunch]) -> str:
    parts = [f"{units.several(len(like), 'launch', 'launches')} of {kernel.per_step} a step"]
    ns, moved = _mean([m.ns for m in like]), _mean([m.dram_bytes for m in like])
    if ns is not None:
        parts.append(
            f"{units.duration(round(ns))} each at Nsight Compute's clocks, {units.duration(round(kernel.gpu_ns / kernel.per_step))} here"
        )
    if moved is not None:
        parts.append(f"{units.size(moved)} of memory")
    for name in names("memory tensor occupancy"):
        share = _mean([getattr(m, name) for m in like])
        if share is not None:
            parts.append(f"{_WORDS[name]} {units.share(share, 1)}")
    stalls = [m.stall for m in like if m.stall]
    if stalls:
        parts.append(f"warps wait mostly {max(sorted(set(stalls)), key=stalls.count)}")
    return "; ".join(parts)


_WORDS = {"memory": "memory bandwidth", "tensor": "tensor pipe", "occupancy": "achieved occupancy"}

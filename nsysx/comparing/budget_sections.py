"""The sections of a budget: what each measures in a capture, in which unit, and which names it has."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nsysx.analyses import first_calls, memory, modules
from nsysx.catalogue import Call, Cause, DeviceActivity
from nsysx.comparing import difference_intervals, rank_budget
from nsysx.comparing.comparing_bounds import (
    GPU_DRIFT_SHARE,
    STEP_LEVEL,
)
from nsysx.comparing.side import BlockSeries, Captured
from nsysx.events import families
from nsysx.findings import rules
from nsysx.frames.frame_bounds import PROCESS_DRIFT
from nsysx.frames.statistics import block_length, mean_error

#: Kinds of API calls that a count sums.
API_COUNTS = {
    "launches": (Call.LAUNCH, Call.GRAPH_LAUNCH),
    "syncs": (Call.SYNC,),
    "copies": (Call.COPY,),
    "allocations": (Call.ALLOC, Call.FREE),
}


def _noise(capture: Captured, series: BlockSeries, drift: float) -> float:
    """Return how far a mean per step may be off (ns): the scatter of steps, and the drift between processes."""
    rows = (series.ns / series.steps)[None, :]
    error, df = mean_error(rows, block_length(rows[0]))
    half = difference_intervals.Doubt(float(error[0]), df, 0.0).half(STEP_LEVEL)
    return (0.0 if half == float("inf") else half) + drift * series.mean_ns


Measured = tuple[float, float] | None


def api_count(capture: Captured, name: str) -> Measured:
    """Return how many calls of a kind of ``API_COUNTS`` a usual step makes, with no noise; None where none were recorded."""
    kinds = API_COUNTS.get(name)
    if kinds is None or not capture.series("api"):
        return None
    counted = [s for s in capture.series("api").values() if s.cls in kinds and s.count is not None]
    return float(sum(_usual_count(s) for s in counted)), 0.0


def _usual_count(series: BlockSeries) -> int:
    """Return how often something happens in a usual step: what only some steps do (logging) moves no limit.

    It is the median over the blocks of steps; so a capture of fewer steps of the same program has the same figure.
    """
    assert series.count is not None
    return math.floor(float(np.median(series.count / series.steps)) + 0.5)


def _series(part: str, drift: float) -> Callable[[Captured, str], Measured]:
    def get(capture: Captured, name: str) -> Measured:
        if not capture.series(part):
            return None
        series = capture.series(part).get(name)
        return (0.0, 0.0) if series is None else (series.mean_ns / 1e6, _noise(capture, series, drift) / 1e6)

    return get


#: Times that are a part of the step: part of step_parts, and its name there.
_OF_PARTS: Mapping[str, tuple[str, str]] = {
    "step": ("step", "gpu"),
    "gpu_idle": ("ledger", DeviceActivity.IDLE),
    "exposed_comm": ("ledger", DeviceActivity.COMM),
    "exposed_copy": ("ledger", DeviceActivity.COPY),
    "compute": ("ledger", DeviceActivity.COMPUTE),
}


def part_time(capture: Captured, name: str) -> Measured:
    """Return a time of the step and its noise (ms); None where it was not recorded."""
    if name == "real_step":
        real = capture.summary.step.estimate
        if real is None:
            return None
        return real.step_ns / 1e6, max(abs(end - real.step_ns) for end in (real.low_ns, real.high_ns)) / 1e6
    if name == "first_calls":
        rows = capture.summary.recorded(first_calls.ROWS)
        return None if rows is None else (sum(r.get("one_time_ns") or 0 for r in rows) / 1e6, 0.0)
    part, key = _OF_PARTS.get(name, ("", ""))
    series = capture.series(part).get(key) if part else None
    if series is None:
        return None
    noise = _noise(capture, series, GPU_DRIFT_SHARE)
    if name in ("step", "gpu_idle"):
        noise += PROCESS_DRIFT * capture.series("work")["rest"].mean_ns
    return series.mean_ns / 1e6, noise / 1e6


def _busy(capture: Captured, _: str) -> Measured:
    step, idle = capture.series("step")["gpu"], capture.series("ledger").get(DeviceActivity.IDLE)
    return None if idle is None else (1 - idle.mean_ns / step.mean_ns, 0.0)


def _peak(capture: Captured, _: str) -> Measured:
    rows = capture.summary.recorded(memory.ROWS)
    return None if rows is None else (float(max((r.get("peak_bytes") or 0 for r in rows), default=0)), 0.0)


def _finding_count(capture: Captured, code: str) -> Measured:
    findings = capture.summary.findings
    return None if findings is None else (sum(f.code == code and f.verdict == "found" for f in findings), 0.0)


def _causes(_: Captured) -> list[str]:
    return [cause.value for cause in Cause]


def _families(_: Captured) -> list[str]:
    return [*dict.fromkeys(name for name, _ in families.patterns()), families.OTHER]


def _codes(_: Captured) -> list[str]:
    return [str(rule.RULE.code) for rule in rules()]


def _modules(capture: Captured) -> list[str]:
    """Return the modules that a capture knows, those whose steady steps hold no GPU work included."""
    return [*map(str, capture.series("module")), *(str(r["path"]) for r in capture.summary.typed_rows(modules.ROWS))]


@dataclass(frozen=True)
class _Section:
    """A section of a budget: how its figures are measured, their unit, and their names, if those are not from the report.

    ``known`` gives the names that exist in a capture where ``names`` are not fixed: a limit for any other is a typo, or for
    something that was renamed, and would hold for ever. ``single``: it is one figure. ``least``: the figure has to be at least its
    limit.
    """

    measure: Callable[[Captured, str], Measured]
    unit: str
    names: tuple[str, ...] = ()
    single: bool = False
    least: bool = False
    known: Callable[[Captured], Sequence[str]] | None = None


SECTIONS: Mapping[str, _Section] = {
    "counts": _Section(api_count, "per step", tuple(API_COUNTS)),
    "times_ms": _Section(part_time, "ms", (*_OF_PARTS, "real_step", "first_calls")),
    "idle_ms": _Section(_series("idle", PROCESS_DRIFT), "ms", known=_causes),
    "modules_ms": _Section(_series("module", GPU_DRIFT_SHARE), "ms", known=_modules),
    "families_ms": _Section(_series("family", GPU_DRIFT_SHARE), "ms", known=_families),
    "gpu_busy_min": _Section(_busy, "share", single=True, least=True),
    "peak_memory_bytes": _Section(_peak, "bytes", single=True),
    "ranks_ms": _Section(rank_budget.times, "ms", rank_budget.TIMES),
    "ranks_share": _Section(rank_budget.shares, "share", rank_budget.SHARES),
    "findings": _Section(_finding_count, "found", known=_codes),
}

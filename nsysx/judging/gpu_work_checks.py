"""Whether the report holds the GPU's work, and the launch of each piece of it."""

from __future__ import annotations

from typing import Any

import polars as pl

from nsysx import units
from nsysx.catalogue import Call
from nsysx.events import lost_kernels
from nsysx.events.profile import Profile
from nsysx.judging import nothing_recorded, tracing_checks, window_checks
from nsysx.judging.idle_parts import MIGRATIONS
from nsysx.judging.judging_bounds import MOST_SKEW_NS
from nsysx.model import Check, Doubt
from nsysx.reading.trace import Trace

#: Names of checks that mean missing events if they are not ok.
GPU_WORK, IDLE_LAUNCHES = "gpu work", "launches without kernel"

_RECORD = "nsysx run -- CMD, or nsys profile -t cuda,nvtx --cuda-graph-trace=node"


def _without_gpu(trace: Trace) -> str:
    """Return what to do if `nsysx run` recorded a program that made no CUDA call, "" if it was not `nsysx run`."""
    if not trace.capture.probe:
        return ""
    torch = next((str(p["torch"]) for p in trace.capture.probe if p.get("torch")), "")
    why = f", and its PyTorch ({torch}) is built for CPUs" if torch.endswith("+cpu") else ""
    return f"run the program where it finds a CUDA GPU; it made no CUDA call{why}"


def checks(profile: Profile) -> list[Check]:
    """Check that no GPU work is missing, or apart from the call that launched it."""
    ops, calls, trace = profile.attributed.gpu_ops, profile.attributed.api_calls, profile.trace
    listed = []
    launch, graph_launch, idle = (
        pl.col("kind") == Call.LAUNCH,
        pl.col("kind") == Call.GRAPH_LAUNCH,
        pl.col("gpu_ops") == 0,
    )
    launches, graphs = calls.select(
        (launch | graph_launch).sum().alias("all"),
        (graph_launch & idle).sum().alias("graphs"),
    ).row(0)
    if not ops.height:
        detail = "no kernel, copy or memset is in the report"
        if launches:
            detail += f", but {units.several(launches, 'launch', 'launches')}: the GPU side was not recorded"
        why = tracing_checks.causes(trace)
        if launches or why:
            detail += "".join(f"; {each.cause}" for each in why[:1])
            return [Check(GPU_WORK, "missing", detail, tracing_checks.remedy(trace), doubt="numbers")]
        empty = tracing_checks.why_empty(trace)
        if nothing_recorded.only_set_up(profile):
            return [Check(GPU_WORK, "missing", detail, nothing_recorded.REACH_WORK, doubt="numbers")]
        fix = _RECORD if calls.height else _without_gpu(trace) or (empty.remedy if empty else _RECORD)
        return [Check(GPU_WORK, "missing", detail, fix, doubt="numbers")]
    opaque = pl.col("op_kind") == "graph"
    early = pl.col("call_start_ns") - pl.col("start_ns")
    bars, bars_ns, ahead, skew = ops.select(
        opaque.sum().alias("bars"),
        (pl.col("end_ns") - pl.col("start_ns")).filter(opaque).sum().alias("bars_ns"),
        (early > 0).sum().alias("ahead"),
        early.max().alias("skew"),
    ).row(0)
    # Pages of unified memory move when they are touched: no call asks for it.
    moves = ops["copy_kind"].is_in(list(MIGRATIONS)).fill_null(False)
    if orphans := int((ops["call"].is_null() & ~moves).sum()):
        share = units.share(orphans, ops.height)
        detail = (
            f"the launch of {units.several(orphans, 'kernel, copy or memset', 'kernels, copies and memsets')} ({share}) is not in the "
            "capture: when and from where it came is unknown"
        )
        fix = "start the capture before the launches, and do not cut it short with --duration"
        listed.append(Check("gpu ops without call", "warn", detail, fix, doubt="cause"))
    else:
        but = (
            f", except for {units.several(int(moves.sum()), 'page migration')}, which no call asks for"
            if moves.any()
            else ""
        )
        listed.append(Check("gpu ops without call", "ok", f"the launch of all GPU work is in the capture{but}"))
    captured = trace.graph_node.height > 0
    single = int(lost_kernels.lost(calls).sum())
    if profile.steps.lost:
        listed.append(_lost_work_check(profile, single + graphs, launches))
    elif single:
        cut = _cut_at_limit(trace, calls)
        if cut or not captured:  # what was captured into graphs has no kernels either, but is not the end of a queue
            listed += _without_kernel(trace, cut, single, launches)
    listed += _graphs(bars, bars_ns, 0 if profile.steps.lost else graphs)
    if ahead:
        detail = f"GPU work starts up to {units.duration(skew)} before its call ({units.several(ahead, 'time')}): clamped to 0"
        listed.append(Check("clock skew", "warn" if skew > MOST_SKEW_NS else "ok", detail))
    return listed


def _device_waits(trace: Trace) -> list[dict[str, Any]]:
    """Return how long processes waited for their GPU before a recording ended, and whether it came to rest."""
    return [w for p in trace.capture.probe for w in p.get("device_waits") or () if isinstance(w, dict)]


def _cut_at_limit(trace: Trace, calls: pl.DataFrame) -> bool:
    """Return whether the limit ended a recording before the GPU was done, so that the last launches have no kernels."""
    tired = any(w.get("rested") is False for w in _device_waits(trace)) and bool(window_checks.limit(trace.run))
    return (tired or window_checks.stopped_at_limit(trace.run)) and lost_kernels.at_the_end(calls)


def _without_kernel(trace: Trace, cut: bool, single: int, launches: int) -> list[Check]:
    """Say how many launches have no kernel in the report; ``cut``: the limit ended it before the GPU was done."""
    many = single > max(10, launches // 50)
    if not (many or cut):
        return []
    detail = f"the kernels of {units.count(single)} of {units.count(launches)} launches are not in the report"
    fix = tracing_checks.remedy(trace)
    if cut:
        detail += ", because nsys dropped what the GPU had not done when the limit of the recording was reached"
        fix = "record a window of steps (nsysx run --steps A:B -- CMD), which waits for the GPU before it ends, or use --limit none"
    elif not tracing_checks.dropped(trace):
        detail += ": lost, or captured into a graph"
    doubt: Doubt = "" if not many else "everything" if 2 * single >= launches else "numbers"
    return [Check(IDLE_LAUNCHES, "warn", detail, fix, doubt=doubt)]


def _lost_work_check(profile: Profile, missing: int, launches: int) -> Check:
    """Say how many launches have no work in the report because a recording ended before the GPU had done it, and what that costs."""
    steps = profile.steps.lost
    detail = f"the work of {units.count(missing)} of {units.count(launches)} launches is not in the report, because nsys dropped what "
    detail += "the GPU had not done when a recording ended"
    waits = _device_waits(profile.trace)
    if tired := [w["ns"] for w in waits if w.get("rested") is False and isinstance(w.get("ns"), int)]:
        detail += f", after {units.duration(max(tired))} of waiting for it"
    detail += f": {units.several(steps, 'step')} with such launches {'is' if steps == 1 else 'are'} left out"
    launching = profile.steady_calls["call"].filter(profile.steady_calls["kind"].is_in(Call.LAUNCHES))
    used = launching.len() and launching.is_in(profile.steady_ops["call"].drop_nulls().implode()).all()
    fix = "nsysx run -- CMD, which waits for the GPU before a recording ends"
    if waits or tracing_checks.by_hardware(profile.trace):
        fix = (
            tracing_checks.REMEDY
            if tracing_checks.by_hardware(profile.trace)
            else "record fewer steps: nsysx run --steps A:B -- CMD"
        )
    return Check(IDLE_LAUNCHES, "warn", detail, fix, doubt="numbers" if used else "everything")


def _graphs(bars: int, bars_ns: int, empty: int) -> list[Check]:
    """Say which graph launches hide their kernels: ``bars`` have only a length, ``empty`` ones nothing at all."""
    checks = []
    if bars:
        which = units.several(bars, "CUDA graph launch", "CUDA graph launches")
        detail = f"the kernels inside {which} ({units.duration(bars_ns)}) were not recorded"
        fix = "nsysx run --graphs node -- CMD, or nsys profile --cuda-graph-trace=node"
        checks.append(Check("opaque graphs", "warn", detail, fix, doubt="findings"))
    if empty:
        detail = f"the work of {units.several(empty, 'CUDA graph launch', 'CUDA graph launches')} is not in the report"
        checks.append(Check("graphs without work", "warn", detail, "--cuda-graph-trace=node, with nsys 2024 or newer"))
    return checks

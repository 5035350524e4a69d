"""How far the capture can be trusted, before anything is concluded from it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

import polars as pl

from nsysx import nsys_messages, units
from nsysx.catalogue import Call
from nsysx.events import lost_kernels
from nsysx.events.profile import Profile
from nsysx.judging import (
    nothing_recorded,
    probe_checks,
    sample_checks,
    step_checks,
    tracing_checks,
    unprofiled_checks,
    window_checks,
)
from nsysx.judging.idle_parts import MIGRATIONS
from nsysx.judging.judging_bounds import MOST_SKEW_NS, NEWEST_READ_SCHEMA
from nsysx.judging.other_work import shared_gpu
from nsysx.judging.probe_checks import LOST_RANGES
from nsysx.model import Check, Doubt, Table, in_order
from nsysx.reading.trace import REVERSED, LeftOut, Trace
from nsysx.replay.engine import Withheld, replay_of

#: Names of checks that other rooms ask for, and those that mean missing events if they are not ok.
GPU_WORK = "gpu work"
_IDLE_LAUNCHES, _BAD_TIMES, _DIAGNOSTICS = "launches without kernel", "bad times", "diagnostics"
_EXIT_CODE = "exit code"
EVENTS_MISSING = (GPU_WORK, _IDLE_LAUNCHES, _DIAGNOSTICS, LOST_RANGES, _BAD_TIMES, _EXIT_CODE)

_RECORD = "nsysx run -- CMD, or nsys profile -t cuda,nvtx --cuda-graph-trace=node"

_GRADES = {
    "thread": "by the range open on the launching thread",
    "seq": "by autograd's sequence numbers",
    "sequence": "by repeating the calls of a step whose modules were marked",
    "time": "by what the calling thread did at that time",
    "none": "to none",
}


def _without_gpu(trace: Trace) -> str:
    """Return what to do if `nsysx run` recorded a program that made no CUDA call, "" if it was not `nsysx run`."""
    if not trace.capture.probe:
        return ""
    torch = next((str(p["torch"]) for p in trace.capture.probe if p.get("torch")), "")
    why = f", and its PyTorch ({torch}) is built for CPUs" if torch.endswith("+cpu") else ""
    return f"run the program where it finds a CUDA GPU; it made no CUDA call{why}"


def _gpu_work(profile: Profile) -> list[Check]:
    ops, calls, trace = profile.attributed.gpu_ops, profile.attributed.api_calls, profile.trace
    checks = []
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
        checks.append(Check("gpu ops without call", "warn", detail, fix, doubt="cause"))
    else:
        but = (
            f", except for {units.several(int(moves.sum()), 'page migration')}, which no call asks for"
            if moves.any()
            else ""
        )
        checks.append(Check("gpu ops without call", "ok", f"the launch of all GPU work is in the capture{but}"))
    captured = trace.graph_node.height > 0
    single = int(lost_kernels.lost(calls).sum())
    if profile.steps.lost:
        checks.append(_lost_work_check(profile, single + graphs, launches))
    elif single:
        cut = _cut_at_limit(trace, calls)
        if cut or not captured:  # what was captured into graphs has no kernels either, but is not the end of a queue
            checks += _without_kernel(trace, cut, single, launches)
    checks += _graphs(bars, bars_ns, 0 if profile.steps.lost else graphs)
    if ahead:
        detail = f"GPU work starts up to {units.duration(skew)} before its call ({units.several(ahead, 'time')}): clamped to 0"
        checks.append(Check("clock skew", "warn" if skew > MOST_SKEW_NS else "ok", detail))
    return checks


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
    return [Check(_IDLE_LAUNCHES, "warn", detail, fix, doubt=doubt)]


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
    return Check(_IDLE_LAUNCHES, "warn", detail, fix, doubt="numbers" if used else "everything")


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


#: Rows that are not used as they are in the report: the check, its status, what happened to them, what to do.
_EFFECTS: dict[str, tuple[str, Literal["ok", "warn"], str, str]] = {
    "left out": ("bad rows", "warn", "left out because they cannot be placed", "export the report again"),
    "kept": ("mended rows", "warn", "kept without their wrong values", "export the report again"),
    "merged": (
        "merged rows",
        "ok",
        "merged: copies of others, or rows whose missing value can only be one",
        "",
    ),
}


def _left_out(trace: Trace) -> list[Check]:
    """Count by table the rows that the report holds and the figures leave out or change."""
    checks = []
    if bad := [n for n in trace.left_out if n.reason == REVERSED]:
        detail = f"{_rows_in_words(bad)} left out because they end before they begin: {_by_table(bad, reasons=False)}"
        checks.append(Check(_BAD_TIMES, "warn", detail, "export the report again", doubt="numbers"))
    for effect, (check, status, effect_words, fix) in _EFFECTS.items():
        if notes := [n for n in trace.left_out if n.effect == effect and n.reason != REVERSED]:
            checks.append(
                Check(check, status, f"{_rows_in_words(notes)} {effect_words}: {_by_table(notes, reasons=True)}", fix)
            )
    return checks


def _rows_in_words(notes: list[LeftOut]) -> str:
    return units.several(sum(n.rows for n in notes), "row")


def _by_table(notes: list[LeftOut], *, reasons: bool) -> str:
    return "; ".join(f"{units.count(n.rows)} of {n.table}" + (f" with {n.reason}" if reasons else "") for n in notes)


#: What nsys says of every process without ranges, and of every process without CUDA calls: a launcher, a loader's worker.
_NO_RANGES, _NO_CUDA = re.compile(r"No NVTX events", re.IGNORECASE), re.compile(r"No CUDA events", re.IGNORECASE)


def _of_others(profile: Profile, text: str) -> bool:
    """Return whether a message from nsys is about other processes: the shown one has the events that it says are missing."""
    if _NO_CUDA.search(text):
        return profile.steady_ops.height > 0
    return bool(_NO_RANGES.search(text)) and profile.ranges.ranges.height > 0


def _settled(profile: Profile, text: str) -> str:
    """Return how the report shows that the events nsys calls possibly missing are there; "" if it does not show that.

    The probe counts the ranges that it pushes; each launch of a steady step has its work on the device.
    """
    explained = nsys_messages.recognized(text)
    if explained is None or explained.message.certain:
        return ""
    if explained.message.hides == "ranges":
        complete = any(c.check == "probe ranges" and c.status == "ok" for c in probe_checks.probe_ranges(profile))
        return "it holds every range that the probe pushed" if complete and profile.trace.capture.probe else ""
    launches = profile.steady_calls["call"].filter(profile.steady_calls["kind"].is_in(Call.LAUNCHES))
    complete = bool(launches.len()) and bool(launches.is_in(profile.steady_ops["call"].drop_nulls().implode()).all())
    return "it holds the work of every launch in the steady steps" if complete else ""


def _rows(profile: Profile) -> list[Check]:
    trace = profile.trace
    checks = []
    if trace.window is not None:
        start, end = (f"{t / 1e9:g}" for t in trace.window)
        detail = f"only {start} s to {end} s of the session were read, with the GPU work launched then"
        checks.append(Check("time range", "ok", detail))
    checks += _left_out(trace)
    messages = [d["text"] for d in trace.capture.diagnostics if not tracing_checks.is_explained(d["text"])]
    messages = [text for text in messages if not _of_others(profile, text)]
    settled = {text: why for text in messages if (why := _settled(profile, text))}
    if settled:
        whys = " and ".join(dict.fromkeys(settled.values()))
        checks.append(
            Check("nsys warnings", "ok", f"nsys says: {next(iter(settled))} But the report is complete: {whys}")
        )
    if lost := [text for text in messages if text not in settled]:
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        detail = f"nsys says: {lost[0]}{more}"
        explained = nsys_messages.recognized(lost[0])
        fix = explained.remedy if explained else "profile a shorter window: --steps A:B"
        checks.append(Check(_DIAGNOSTICS, "warn", detail, fix, doubt="cause"))
    open_ = int(profile.ranges.ranges["open"].sum())
    if open_:
        detail = f"{units.several(open_, 'range')} without an end, counted up to the end of the capture"
        checks.append(Check("open ranges", "warn", detail))
    return checks


def _attribution(profile: Profile) -> list[Check]:
    ops = profile.steady_ops
    if not ops.height or not profile.ranges.ranges.height:
        return []
    ns = pl.col("end_ns") - pl.col("start_ns")
    whole, *parts = ops.select(ns.sum(), *(ns.filter(pl.col("grade") == g).sum().alias(g) for g in _GRADES)).row(0)
    by_grade = dict(zip(_GRADES, parts, strict=True))
    grades = ", ".join(f"{units.share(ns, whole)} {_GRADES[g]}" for g, ns in by_grade.items() if ns)
    weak = by_grade["none"] > 0.01 * whole
    detail = f"GPU time tied to the code that launched it: {grades}"
    if not weak:
        return [Check("attribution", "ok", detail)]
    short = f"{units.share(by_grade['none'], whole)} of the GPU time is not matched to code."
    return [Check("attribution", "warn", detail, "nsysx run -- CMD", doubt="cause", short=short)]


def _replayed(profile: Profile) -> list[Check]:
    replay = replay_of(profile)
    if isinstance(replay, Withheld):
        detail = f"no savings are given: {replay.reason}"
        fix = "profile a script with steps: nsysx run -- CMD"
        return [Check("replay", "missing", detail, fix)]
    lengths = f"the unchanged replay takes {units.duration(replay.unchanged_ns)}, the recording {units.duration(replay.recorded_ns)}"
    if not replay.trusted:
        detail = (
            f"{lengths}: off by {units.share(replay.error, 1)}, so no savings are given but what recorded times tell"
        )
        return [Check("replay", "warn", detail, doubt="cause")]
    detail = f"{lengths} ({units.share(replay.error, 1)} off); over 22 measured changes, savings were off by a median 3.3 % of the step"
    return [Check("replay", "ok", detail)]


#: How nsys names an instance of a divided card: "NVIDIA A30 MIG 2g.12gb".
_INSTANCE = re.compile(r"\bMIG (\d{1,2}g\.[\w.]{1,12})")


def _instances(trace: Trace) -> list[Check]:
    """Return a warning if a GPU is only part of a card, so that the whole card's limits do not fit."""
    parts = sorted({match[1] for g in trace.capture.gpus if (match := _INSTANCE.search(g.name))})
    if not parts:
        return []
    detail = (
        f"the GPU is an instance of a divided card (MIG {', '.join(parts)}): work of other instances is not in the capture, and "
        "shares of the card's limits come out too small where the report gives those of the whole card"
    )
    return [Check("divided card", "warn", detail)]


def _newer(trace: Trace) -> list[Check]:
    """Return a warning if the export's schema is newer than any that was known when this was written."""
    version = trace.capture.schema_version or ""
    major = re.match(r"(\d{1,9})\.", version)
    if major is None or int(major[1]) <= NEWEST_READ_SCHEMA:
        return []
    detail = f"schema {version[:20]} of nsys is newer than any that was tried ({NEWEST_READ_SCHEMA}.x): a column may mean something else"
    return [Check("export schema", "warn", detail, "look for a newer nsysx")]


def checks(profile: Profile, tables: Iterable[Table] = ()) -> tuple[Check, ...]:
    """Return every check, trouble first, and one line per table of ``tables`` that the capture does not hold."""
    return in_order([*profile.once(_of_profile), *(Check.no_table(t) for t in tables if t.rows is None)])


def _of_profile(profile: Profile) -> list[Check]:
    every_check = [
        *_gpu_work(profile),
        *tracing_checks.checks(profile.trace),
        *_instances(profile.trace),
        *shared_gpu(profile),
        *_newer(profile.trace),
        *_rows(profile),
        *probe_checks.probe_ranges(profile),
        *probe_checks.probe_cost(profile),
        *probe_checks.operator_cost(profile),
        *probe_checks.profiling_cost(profile),
        *_attribution(profile),
        *sample_checks.python_samples(profile),
        *probe_checks.modules_by_sequence(profile),
        *step_checks.steps(profile),
        *window_checks.windows(profile),
        *_replayed(profile),
        *unprofiled_checks.unprofiled(profile),
    ]
    code = profile.trace.capture.exit_code
    if code:
        detail = f"the profiled command ended with exit code {code}: its last part may be missing"
        every_check.append(Check(_EXIT_CODE, "warn", detail, doubt="numbers"))
    return every_check

"""How far the capture can be trusted, before anything is concluded from it."""

from __future__ import annotations

import re
from typing import Any, Literal

import polars as pl

from nsysx import ids, units
from nsysx.events.profile import Profile
from nsysx.judging.limits import MIGRATIONS
from nsysx.model import Check, Row, Table
from nsysx.reading.trace import REVERSED, LeftOut, Trace
from nsysx.replay.engine import Withheld, replay_of, unprofiled_of

_RECORD = "nsysx run -- CMD, or nsys profile -t cuda,nvtx --cuda-graph-trace=node"

_GRADES = {
    "thread": "by the range open on the launching thread",
    "seq": "by autograd's sequence numbers",
    "sequence": "by repeating the calls of a step whose modules were marked",
    "time": "by what the calling thread did at that time",
    "none": "not at all",
}


def _gpu_work(profile: Profile) -> list[Check]:
    ops, calls, trace = profile.attributed.gpu_ops, profile.attributed.api_calls, profile.trace
    checks = []
    launch, graph_launch, idle = pl.col("kind") == "launch", pl.col("kind") == "graph_launch", pl.col("gpu_ops") == 0
    launches, single, graphs = calls.select(
        (launch | graph_launch).sum().alias("all"),
        (launch & idle).sum().alias("single"),
        (graph_launch & idle).sum().alias("graphs"),
    ).row(0)
    if not ops.height:
        detail = "no kernel, copy or memset is in the report"
        if launches:
            detail += f", although {units.count(launches)} launches are: the GPU side was not recorded"
        return [Check("gpu work", "missing", detail, _RECORD)]
    opaque = pl.col("op_kind") == "graph"
    early = pl.col("call_start_ns") - pl.col("start_ns")
    bars, bars_ns, ahead, skew = ops.select(
        opaque.sum().alias("bars"),
        (pl.col("end_ns") - pl.col("start_ns")).filter(opaque).sum().alias("bars_ns"),
        (early > 0).sum().alias("ahead"),
        early.max().alias("skew"),
    ).row(0)
    # Pages of unified memory move because somebody touches them: no call asks for it.
    moves = ops["copy_kind"].is_in(list(MIGRATIONS)).fill_null(False)
    if orphans := int((ops["call"].is_null() & ~moves).sum()):
        share = units.share(orphans, ops.height)
        detail = (
            f"the launches of {units.count(orphans)} kernels, copies and memsets ({share}) are not in the capture: "
            "when and from where these were launched is unknown"
        )
        fix = "start the capture before the launches, and do not cut it with --duration"
        checks.append(Check("gpu ops without call", "warn", detail, fix))
    else:
        but = f", except for {units.count(int(moves.sum()))} page migrations, which no call asks for" * bool(
            moves.any()
        )
        checks.append(Check("gpu ops without call", "ok", f"the launch of all GPU work is in the capture{but}"))
    captured = trace.graph_node.height > 0
    if single > max(10, launches // 50) and not captured:
        detail = f"the kernels of {units.count(single)} of {units.count(launches)} launches are not in the report"
        checks.append(Check("launches without kernel", "warn", detail, "kernels were lost or captured into a graph"))
    if bars:
        detail = (
            f"{units.count(bars)} CUDA graph launches are opaque bars ({units.duration(bars_ns)}): no kernels inside"
        )
        checks.append(Check("opaque graphs", "warn", detail, "--cuda-graph-trace=node"))
    if graphs:
        detail = f"the work of {units.count(graphs)} CUDA graph launches is not in the report"
        checks.append(Check("graphs without work", "warn", detail, "--cuda-graph-trace=node, with nsys 2024 or newer"))
    if ahead:
        detail = f"{units.count(ahead)} GPU ops start up to {units.duration(skew)} before their call: clamped at 0"
        checks.append(Check("clock skew", "warn" if skew > 1_000_000 else "ok", detail))
    return checks


#: Rows that are not handed on as the report has them: the check, its status, what is said of them all, what to do.
_EFFECTS: dict[str, tuple[str, Literal["ok", "warn"], str, str]] = {
    "left out": ("bad rows", "warn", "rows have no possible place and are left out", "export the report again"),
    "kept": ("mended rows", "warn", "rows are kept without what is wrong with them", "export the report again"),
    "merged": ("merged rows", "ok", "rows say what other rows say too, or leave out what can only be one thing", ""),
}


def _left_out(trace: Trace) -> list[Check]:
    """Count by table what the report holds and no figure does, or not as the report has it."""
    checks = []
    if bad := [n for n in trace.left_out if n.reason == REVERSED]:
        detail = f"{_counted(bad)} rows end before they begin and are left out: {_by_table(bad, reasons=False)}"
        checks.append(Check("bad times", "warn", detail, "export the report again"))
    for effect, (check, status, said, fix) in _EFFECTS.items():
        if notes := [n for n in trace.left_out if n.effect == effect and n.reason != REVERSED]:
            checks.append(Check(check, status, f"{_counted(notes)} {said}: {_by_table(notes, reasons=True)}", fix))
    return checks


def _counted(notes: list[LeftOut]) -> str:
    return units.count(sum(n.rows for n in notes))


def _by_table(notes: list[LeftOut], *, reasons: bool) -> str:
    return "; ".join(f"{units.count(n.rows)} of {n.table}" + (f" with {n.reason}" if reasons else "") for n in notes)


def _of_others(profile: Profile, text: str) -> bool:
    """Return whether a message of nsys is about a process that is not shown: a loader's worker marks no ranges."""
    return bool(_NO_RANGES.search(text)) and profile.ranges.ranges.height > 0


def _rows(profile: Profile) -> list[Check]:
    trace = profile.trace
    checks = []
    if trace.window is not None:
        start, end = (f"{t / 1e9:g}" for t in trace.window)
        detail = f"only {start} s to {end} s of the session were read, with the GPU work that was launched then"
        checks.append(Check("time range", "ok", detail))
    checks += _left_out(trace)
    if lost := [d["text"] for d in trace.capture.diagnostics if not _of_others(profile, d["text"])]:
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        checks.append(
            Check("diagnostics", "warn", f"nsys says: {lost[0]}{more}", "profile a shorter window: --steps A:B")
        )
    open_ = int(profile.ranges.ranges["open"].sum())
    if open_:
        checks.append(
            Check(
                "open ranges", "warn", f"{units.count(open_)} ranges never end; they count up to the end of the capture"
            )
        )
    return checks


def _probe(profile: Profile) -> list[Check]:
    """Compare the ranges that the probe pushed with those that arrived: some nvtx and nsys versions lose all of them."""
    trace = profile.trace
    if isinstance(off := trace.run.get("probe_off"), dict):  # recorded by `nsysx run`, which knows why
        why = f"`nsysx run` recorded this without ranges of the probe: {off.get('reason', '')}"
        return [Check("probe ranges", "missing", why, str(off.get("fix", "")))]
    sent = pl.col("own") & ~pl.col("repeated")
    own = sum(int(frame.select(sent.sum()).item()) for frame in (profile.ranges.ranges, profile.ranges.marks))
    if not trace.recorded & {"nvtx"}:
        return [
            Check(
                "nvtx", "missing", "no NVTX range was recorded: no modules, no phases", "nsysx run -- CMD, or -t nvtx"
            )
        ]
    if not trace.capture.probe:
        if own:
            return [
                Check(
                    "probe ranges",
                    "ok",
                    f"{units.count(own)} ranges of the probe are in the report; its own count is not at hand",
                )
            ]
        return [
            Check(
                "probe ranges",
                "missing",
                "the report was not made by `nsysx run`: modules and phases come from the user's own ranges",
                "nsysx run -- CMD",
            )
        ]
    # Profile about the probe itself travel as marks too; they are no ranges of the program.
    pushed = sum(
        sum(_whole(n) for kind, n in p["ranges"].items() if kind != "info")
        for p in trace.capture.probe
        if isinstance(p.get("ranges"), dict)
    )
    off = [str(p.get("reason") or "no reason given") for p in trace.capture.probe if p.get("backend") == "off"]
    if pushed and not own:
        detail = f"the probe pushed {units.count(pushed)} ranges and none is in the report: this nsys does not record this nvtx"
        return [
            Check(
                "lost ranges", "missing", detail, "pip install 'nvtx<0.2.12', or a newer nsys; `nsysx doctor` tests it"
            )
        ]
    if any(p.get("ended") is False for p in trace.capture.probe if p.get("backend") != "off"):
        what = f"a process ended without Python's exit, so its count is not final; {units.count(own)} ranges are in the report"
        return [Check("probe ranges", "ok", what)]
    if not pushed and not off:
        return [Check("probe ranges", "warn", "the probe was on and saw no module, optimizer or data loader")]
    if not pushed:
        return [Check("probe ranges", "missing", f"the probe was off: {off[0]}", "nsysx doctor")]
    missing = pushed - own
    if abs(missing) > max(2, pushed // 1000):
        detail = f"the probe pushed {units.count(pushed)} ranges, the report holds {units.count(own)}"
        fix = "the process died before it could flush, or the capture window is shorter than the run"
        return [Check("probe ranges", "warn", detail, fix)]
    return [Check("probe ranges", "ok", f"pushed {units.count(pushed)}, in the report {units.count(own)}")]


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


#: What nsys says of each process that marks no range.
_NO_RANGES = re.compile(r"No NVTX events", re.IGNORECASE)

#: From this share of a step on, what profiling adds is a distortion worth a warning.
_COSTLY = 0.05


def _cost(profile: Profile) -> list[Check]:
    """Say what the probe itself cost in the steady steps: its calls times their cost, which it measured at its start."""
    window = profile.steps.cpu_windows.filter(pl.col("process") == profile.steps.process)
    probes = [p for p in profile.trace.capture.probe if _whole(p.get("pair_cost_ns"))]
    pid = ids.pid_of(profile.steps.process)
    probe = next((p for p in probes if p.get("pid") == pid), max(probes, key=_pushed, default=None))
    if probe is None or not window.height:
        return []
    start, end = window.select("start_ns", "end_ns").row(0)
    pair = _whole(probe["pair_cost_ns"])
    module, mark = _whole(probe.get("module_cost_ns")) or pair, _whole(probe.get("backward_mark_cost_ns")) or pair
    inside = pl.col("own") & ~pl.col("repeated") & (pl.col("process") == profile.steps.process)
    inside &= pl.col("start_ns").is_between(start, end)
    is_module = pl.col("kind") == "module"
    modules, others = profile.ranges.ranges.select(
        (inside & is_module).sum().alias("modules"), (inside & ~is_module).sum().alias("others")
    ).row(0)
    marks = profile.ranges.marks.select(inside.sum()).item()
    share = (modules * module + marks * mark + others * pair) / max(end - start, 1)
    detail = (
        f"{units.count(modules)} module calls at {units.duration(module)}, {units.count(marks)} backward marks at "
        f"{units.duration(mark)}, {units.count(others)} other ranges at {units.duration(pair)} are {share:.1%} of the "
        "steady CPU time at least; nsys itself comes on top"
    )
    costly = share > _COSTLY
    fix = "--marks few marks the modules of few steps, --depth N fewer modules" if costly else ""
    return [Check("probe cost", "warn" if costly else "ok", detail + _marks_cost(probe), fix), *_thinned(probe)]


def _marks_cost(probe: Row) -> str:
    """Return what the marks of a step cost where they stood, as the probe measured it; empty where it could not."""
    cost = probe.get("marks_cost_ns_per_step")
    median = cost.get("median_ns") if isinstance(cost, dict) else None
    if not isinstance(cost, dict) or not isinstance(median, int):
        return ""
    count = _whole(cost.get("marked_steps"))
    return f"; a step with marks took {units.duration(abs(median))} {'more' if median >= 0 else 'less'} ({count} steps)"


def _repeated(profile: Profile) -> list[Check]:
    """Say how the modules of steps without marks are known."""
    repeats = profile.ranges.repeats
    if repeats is None:
        return []
    matched = repeats.launches - repeats.unmatched
    weak = repeats.unmatched > _UNMATCHED * repeats.launches
    detail = (
        f"modules were marked in {repeats.marked} steps; {repeats.steps} others ({repeats.exact} of them whole) repeat their "
        f"calls: {units.count(matched)} of {units.count(repeats.launches)} launches, copies and memsets"
    )
    fix = "--marks all marks every step, at its cost" if weak else ""
    return [Check("modules by sequence", "warn" if weak else "ok", detail, fix)]


#: From this share of launches on that repeat none of a marked step, modules miss something worth a warning.
_UNMATCHED = 0.03


def _pushed(probe: Row) -> int:
    return _whole(probe.get("ranges_pushed"))


def _thinned(probe: Row) -> list[Check]:
    """Say what the probe left out by itself, to stay cheap."""
    thinned = probe.get("thinned")
    if not isinstance(thinned, dict):
        return []
    what = "no ranges" if thinned.get("level") == "ranges" else "no marks in backward"
    detail = (
        f"from step {_whole(thinned.get('from_step'))} on, modules without children have {what}, which would have cost too "
        "much of these short steps: their time counts for the module that holds them"
    )
    return [Check("cheap modules", "ok", detail, "--backward marks follows all of them, at their cost")]


def _calibration(profile: Profile) -> list[Check]:
    """Hold the profiled step against the same step without a profiler (``nsysx run --calibrate``)."""
    timing = profile.trace.run.get("calibration")
    if not isinstance(timing, dict):
        return []
    if timing.get("error"):
        return [Check("profiling cost", "missing", f"the run without profiler gave no times: {timing['error']}")]
    mine = profile.steps.cpu.filter((pl.col("process") == profile.steps.process) & pl.col("steady"))
    gpu = profile.steps.gpu.filter(pl.col("process") == profile.steps.process)
    profiled = gpu if timing.get("clock") == "gpu" else mine
    lengths = profiled.group_by("index").agg((pl.col("end_ns") - pl.col("start_ns")).max().alias("ns"))
    spent = dict(lengths.iter_rows())
    listed = timing.get("steps_ns")
    bare = {n: _whole(listed.get(str(n))) for n in mine["number"].to_list()} if isinstance(listed, dict) else {}
    # The same steps, by their numbers: a program may do other work in others.
    both = [(bare[n], spent[i]) for i, n in mine.select("index", "number").iter_rows() if bare.get(n) and spent.get(i)]
    if not both:
        return [
            Check("profiling cost", "missing", "the run without profiler has no step in common with the steady ones")
        ]
    without, with_ = (sorted(column)[len(both) // 2] for column in zip(*both, strict=True))
    share = (with_ - without) / without
    detail = (
        f"an un-profiled step took {units.duration(without)}, the profiled one {units.duration(with_)}: profiling cost "
        f"{share:.1%} of a step (medians of the same {len(both)} steps)"
    )
    fix = "waits for launches are overstated by about that much" if share > _COSTLY else ""
    return [Check("profiling cost", "warn" if share > _COSTLY else "ok", detail, fix)]


def _attribution(profile: Profile) -> list[Check]:
    ops = profile.steady_ops
    if not ops.height or not profile.ranges.ranges.height:
        return []
    ns = pl.col("end_ns") - pl.col("start_ns")
    whole, *parts = ops.select(ns.sum(), *(ns.filter(pl.col("grade") == g).sum().alias(g) for g in _GRADES)).row(0)
    by_grade = dict(zip(_GRADES, parts, strict=True))
    said = ", ".join(f"{_GRADES[g]} {units.share(ns, whole)}" for g, ns in by_grade.items() if ns)
    weak = by_grade["none"] > 0.01 * whole
    detail = f"how GPU time was tied to the code that asked for it: {said}"
    return [Check("attribution", "warn" if weak else "ok", detail, "nsysx run -- CMD" if weak else "")]


def _steps(profile: Profile) -> list[Check]:
    steps = profile.steps
    if steps.source == "capture":
        fix = "nsysx run -- CMD, or mark steps with NVTX ranges and --step-range"
        return [Check("steps", "warn", f"{steps.rule}: averages are over everything, warm-up included", fix)]
    few = profile.scope.steps < 5
    detail = f"{profile.scope.steps} steady steps of {steps.cpu.filter(pl.col('process') == steps.process).height}, from {steps.rule}"
    return [Check("steps", "warn" if few else "ok", detail, "profile more steps" if few else "")]


def _replayed(profile: Profile) -> list[Check]:
    replay = replay_of(profile)
    if isinstance(replay, Withheld):
        return [
            Check(
                "replay",
                "missing",
                f"no savings are given: {replay.reason}",
                "profile a script with steps: nsysx run -- CMD",
            )
        ]
    said = f"the unchanged replay gives {units.duration(replay.unchanged_ns)}, recorded were {units.duration(replay.recorded_ns)}"
    if not replay.trusted:
        return [Check("replay", "warn", f"{said}: off by {replay.error:.1%}, so no savings are given")]
    return [
        Check(
            "replay",
            "ok",
            f"{said}, {replay.error:.2%} off; against measured changes savings were off by 1 % of the step in the median",
        )
    ]


#: Where the step without a profiler is from, for people.
_SOURCES = {
    "in_process": "measured in the same process, before the capture window",
    "second_run": "measured in a second run, without profiler",
    "modelled": "modelled, with what tracing costs on this machine (nsysx calibrate)",
    "assumed": "assumed, with what tracing cost on another machine",
}
#: A step whose bounds are further apart than this part of it is only roughly known.
_WIDE = 0.2


def _unprofiled(profile: Profile) -> list[Check]:
    known = unprofiled_of(profile)
    better = "nsysx run --calibrate -- CMD measures it, nsysx calibrate makes it surer for every run on the machine"
    if isinstance(known, Withheld):
        return [Check("unprofiled", "missing", f"the step without a profiler is not known: {known.reason}", better)]
    detail = (
        f"a step takes {units.duration(known.step_ns)} without a profiler ({units.duration(known.low_ns)} to "
        f"{units.duration(known.high_ns)}), {units.duration(known.recorded_ns)} as recorded: {_SOURCES[known.source]}"
    )
    wide = known.high_ns - known.low_ns > _WIDE * known.step_ns
    return [Check("unprofiled", "warn" if wide else "ok", detail, better if wide else "")]


def checks(profile: Profile, tables: dict[str, Table]) -> tuple[Check, ...]:
    """Return every check, trouble first, and one line per table that the capture does not hold."""
    found = [
        *_gpu_work(profile),
        *_rows(profile),
        *_probe(profile),
        *_cost(profile),
        *_calibration(profile),
        *_attribution(profile),
        *_repeated(profile),
        *_steps(profile),
        *_replayed(profile),
        *_unprofiled(profile),
    ]
    code = profile.trace.capture.exit_code
    if code:
        found.append(
            Check(
                "exit code", "warn", f"the profiled command ended with exit code {code}: its last part may be missing"
            )
        )
    found += [Check(f"table {t.key}", "missing", t.reason) for t in tables.values() if t.rows is None]
    order = {"missing": 0, "warn": 1, "ok": 2}
    named = [c for c in found if not c.check.startswith("table ")]
    return tuple(sorted(named, key=lambda c: order[c.status]) + [c for c in found if c.check.startswith("table ")])

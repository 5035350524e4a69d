"""What the probe pushed, how much of it arrived, and what it and the profiler cost the program."""

from __future__ import annotations

import statistics

import polars as pl

from nsysx import ids, units
from nsysx.events.profile import Profile
from nsysx.inject.nsysx_probe import ranges as vocabulary
from nsysx.judging import window_checks
from nsysx.judging.judging_bounds import ACROSS_WINDOWS_SHARE, COSTLY_PROFILING_SHARE, UNMATCHED_LAUNCHES_SHARE
from nsysx.model import Check, Row
from nsysx.records import count_or_zero

#: The name of a check.
LOST_RANGES = "lost ranges"


def probe_ranges(profile: Profile) -> list[Check]:
    """Compare the ranges that the probe pushed with those that arrived: some pairs of nvtx and nsys versions lose them all."""
    trace = profile.trace
    if isinstance(off := trace.run.get("probe_off"), dict):  # recorded by `nsysx run`, which knows why
        why = f"`nsysx run` recorded this without the probe's ranges: {off.get('reason', '')}"
        return [Check("probe ranges", "missing", why, str(off.get("fix", "")))]
    sent = pl.col("own") & ~pl.col("repeated")
    recorded = sum(int(frame.select(sent.sum()).item()) for frame in (profile.ranges.ranges, profile.ranges.marks))
    if not trace.recorded & {"nvtx"}:
        detail = "no NVTX range was recorded: no modules, no phases"
        return [Check("nvtx", "missing", detail, "nsysx run -- CMD, or -t nvtx")]
    if not trace.capture.probe:
        if recorded:
            detail = f"{units.several(recorded, 'range')} of the probe in the report; the probe's own count is missing"
            return [Check("probe ranges", "ok", detail)]
        detail = "the report was not made by `nsysx run`: modules and phases come from the user's own ranges"
        return [Check("probe ranges", "missing", detail, "nsysx run -- CMD")]
    return _against_count(profile, recorded)


def _against_count(profile: Profile, recorded: int) -> list[Check]:
    """Hold the number of ranges that arrived against what the probe of each process counted."""
    trace = profile.trace
    # The probe's own notes travel as marks too; they are not ranges of the program.
    pushed = sum(
        sum(count_or_zero(n) for kind, n in p["ranges"].items() if kind not in ("info", *vocabulary.PAUSES))
        for p in trace.capture.probe
        if isinstance(p.get("ranges"), dict)
    )
    off = [str(p.get("reason") or "no reason given") for p in trace.capture.probe if p.get("backend") == "off"]
    if window_checks.limit(trace.run):
        detail = (
            f"the report holds {units.several(recorded, 'range')}; what the probe pushed after the limit is not in it"
        )
        return [Check("probe ranges", "ok", detail)]
    if trace.cold_missing and (recorded or window_checks.steps_elsewhere(profile)):
        detail = f"pushed {units.count(pushed)}, in this report {units.count(recorded)}: others lie in that of the first window"
        return [Check("probe ranges", "ok", detail)]
    if pushed and not recorded:
        detail = f"the probe pushed {units.several(pushed, 'range')} and none is in the report: this nsys cannot record this nvtx"
        fix = "pip install 'nvtx<0.2.12', or a newer nsys; `nsysx doctor` tests it"
        return [Check(LOST_RANGES, "missing", detail, fix, doubt="numbers")]
    if any(p.get("ended") is False for p in trace.capture.probe if p.get("backend") != "off"):
        detail = f"a process did not exit through Python, so its count is not final; the report holds {units.several(recorded, 'range')}"
        return [Check("probe ranges", "ok", detail)]
    if not pushed and not off:
        detail = "the probe saw no module, optimizer or data loader, so work has no names of them"
        return [Check("probe ranges", "warn", detail, doubt="cause")]
    if not pushed:
        return [Check("probe ranges", "missing", f"the probe was off: {off[0]}", "nsysx doctor")]
    if trace.sampled is not None:
        detail = f"pushed {units.count(pushed)}, {units.count(recorded)} in the parts that were read"
        return [Check("probe ranges", "ok", detail)]
    missing = pushed - recorded
    several = sum(isinstance(p.get("window_pauses_ns"), list) for p in trace.capture.probe) > 1
    if several and 0 <= missing <= pushed * ACROSS_WINDOWS_SHARE:
        detail = f"pushed {units.count(pushed)}, in the report {units.count(recorded)}: a window ends in the middle of other ranks' steps"
        return [Check("probe ranges", "ok", detail)]
    if missing > 0 and any(p.get("windows_of") for p in trace.capture.probe):
        detail = f"pushed {units.count(pushed)}, in the report {units.count(recorded)}: other processes went on while no window was open"
        return [Check("probe ranges", "ok", detail)]
    if abs(missing) > max(2, pushed // 1000):
        detail = f"the probe pushed {units.several(pushed, 'range')}, the report holds {units.count(recorded)}"
        fix = "let the process exit by itself: one that dies cannot flush; a capture window shorter than the run has fewer too"
        return [Check("probe ranges", "warn", detail, fix, doubt="cause")]
    return [Check("probe ranges", "ok", f"pushed {units.count(pushed)}, in the report {units.count(recorded)}")]


def probe_cost(profile: Profile) -> list[Check]:
    """Say what the probe itself cost in the steady steps: its calls times their cost, which it measured at startup."""
    window = profile.steps.cpu_windows.filter(pl.col("process") == profile.steps.process)
    probes = [p for p in profile.trace.capture.probe if count_or_zero(p.get("pair_cost_ns"))]
    probe = next(iter(ids.records_of(probes, profile.steps.process)), max(probes, key=_pushed, default=None))
    if probe is None or not window.height:
        return []
    start, end = window["start_ns", "end_ns"].row(0)
    pair = count_or_zero(probe["pair_cost_ns"])
    module, mark = (
        count_or_zero(probe.get("module_cost_ns")) or pair,
        count_or_zero(probe.get("backward_mark_cost_ns")) or pair,
    )
    inside = pl.col("own") & ~pl.col("repeated") & (pl.col("process") == profile.steps.process)
    inside &= pl.col("start_ns").is_between(start, end)
    is_module = pl.col("kind") == "module"
    modules, others = profile.ranges.ranges.select(
        (inside & is_module).sum().alias("modules"), (inside & ~is_module).sum().alias("others")
    ).row(0)
    marks = profile.ranges.marks.select(inside.sum()).item()
    share = (modules * module + marks * mark + others * pair) / max(end - start, 1)
    detail = (
        f"{units.several(modules, 'module call')} at {units.duration(module)}, {units.several(marks, 'backward mark')} at "
        f"{units.duration(mark)} and {units.several(others, 'other range')} at {units.duration(pair)} take at least "
        f"{units.share(share, 1)} of the steady CPU time; nsys itself comes on top"
    )
    costly = share > COSTLY_PROFILING_SHARE
    fix = "--depth N marks fewer modules" if costly else ""
    return [Check("probe cost", "warn" if costly else "ok", detail + _marks_cost(probe), fix), *_thinned(probe)]


def _marks_cost(probe: Row) -> str:
    """Return how much longer marked steps took, as the probe measured it; "" if it could not."""
    cost = probe.get("marks_cost_ns_per_step")
    median = cost.get("median_ns") if isinstance(cost, dict) else None
    if not isinstance(cost, dict) or not isinstance(median, int):
        return ""
    count = count_or_zero(cost.get("marked_steps"))
    return f"; a step with marks took {units.duration(abs(median))} {'more' if median >= 0 else 'less'} ({units.several(count, 'step')})"


def operator_cost(profile: Profile) -> list[Check]:
    """Warn if operators were recorded in the steady steps: each costs microseconds, which no model takes out."""
    window = profile.steps.cpu_windows.filter(pl.col("process") == profile.steps.process)
    if not window.height:
        return []
    start, end = window["start_ns", "end_ns"].row(0)
    operators = (pl.col("process") == profile.steps.process) & (pl.col("kind") == "op") & ~pl.col("repeated")
    count = profile.ranges.ranges.select((operators & pl.col("start_ns").is_between(start, end)).sum()).item()
    if not count:
        return []
    detail = f"{units.count(count)} operators were recorded in the steady steps; each costs the host microseconds, which all times include"
    fix = "nsysx run --xray lines records no operators; in a window of a dozen steps or more, other steps repeat the recorded ones"
    return [Check("operator cost", "warn", detail, fix)]


def modules_by_sequence(profile: Profile) -> list[Check]:
    """Say how well the modules of unmarked steps are known."""
    repeats = profile.ranges.repeats
    if repeats is None:
        return []
    matched = repeats.launches - repeats.unmatched
    weak = repeats.unmatched > UNMATCHED_LAUNCHES_SHARE * repeats.launches
    calls = units.several(repeats.launches, "launch, copy or memset", "launches, copies and memsets")
    detail = (
        f"modules were marked in {units.several(repeats.marked, 'step')}; {repeats.steps} others ({repeats.exact} of them exactly) "
        f"repeat their calls: {units.count(matched)} of {calls}"
    )
    fix = "a longer window (--steps A:B) meets more of the shapes that the steps have" if weak else ""
    return [Check("modules by sequence", "warn" if weak else "ok", detail, fix)]


def lines_left_out(profile: Profile) -> list[Check]:
    """Say where an X-ray step had more lines than are noted."""
    records = ids.records_of(profile.trace.capture.probe, profile.steps.process)
    noted = [xray for record in records if isinstance(xray := record.get("xray"), dict)]
    checks = []
    if any(count_or_zero(xray.get("folds")) for xray in noted):
        detail = (
            "a step has more lines than are noted: the time of a function that goes on is divided among its lines as before that, "
            "which is certain for the function and likely for its lines"
        )
        checks.append(Check("lines", "ok", detail))
    stopped = next((str(xray["stopped"]) for xray in noted if xray.get("stopped")), "")
    if stopped:
        detail = f"noting them ended within an X-ray step ({stopped}): what followed has none, and the longest may not be among them"
        checks.append(Check("lines", "warn", detail))
    return checks


def _pushed(probe: Row) -> int:
    return count_or_zero(probe.get("ranges_pushed"))


def _thinned(probe: Row) -> list[Check]:
    """Say what the probe left out on its own, to stay cheap."""
    thinned = probe.get("thinned")
    if not isinstance(thinned, dict):
        return []
    missing = "no ranges" if thinned.get("level") == "ranges" else "no marks in backward"
    detail = (
        f"from step {count_or_zero(thinned.get('from_step'))} on, modules without children have {missing}, which would have cost too "
        "much of these short steps: their time counts toward the module that holds them"
    )
    return [Check("cheap modules", "ok", detail, "nsysx run of this version follows all of them, in the X-ray steps")]


def profiling_cost(profile: Profile) -> list[Check]:
    """Compare the profiled step with the same step without a profiler (``nsysx run --calibrate``)."""
    timing = profile.trace.run.get("calibration")
    if not isinstance(timing, dict) or profile.steps.parts > 1:  # it knows the parts of a step only
        return []
    if timing.get("error"):
        return [Check("profiling cost", "missing", f"the run without the profiler gave no times: {timing['error']}")]
    steps = profile.steps.cpu.filter(
        (profile.steps.cpu["process"] == profile.steps.process) & profile.steps.cpu["steady"]
    )
    gpu = profile.steps.gpu.filter(profile.steps.gpu["process"] == profile.steps.process)
    profiled = gpu if timing.get("clock") == "gpu" else steps
    lengths = profiled.group_by("index").agg((pl.col("end_ns") - pl.col("start_ns")).max().alias("ns"))
    spent = dict(lengths.iter_rows())
    listed = timing.get("steps_ns")
    bare = {n: count_or_zero(listed.get(str(n))) for n in steps["number"].to_list()} if isinstance(listed, dict) else {}
    # The same steps, by number: other steps may do other work.
    both = [(bare[n], spent[i]) for i, n in steps["index", "number"].iter_rows() if bare.get(n) and spent.get(i)]
    if not both:
        detail = "the run without the profiler has no step in common with the steady ones"
        return [Check("profiling cost", "missing", detail)]
    without, with_ = (statistics.median(column) for column in zip(*both, strict=True))
    share = (with_ - without) / without
    detail = (
        f"a step took {units.duration(without)} without the profiler and {units.duration(with_)} with it: profiling cost "
        f"{units.share(share, 1)} of a step (medians of the same {len(both)} steps)"
    )
    fix = "waits for launches are overstated by about that much" if share > COSTLY_PROFILING_SHARE else ""
    return [Check("profiling cost", "warn" if share > COSTLY_PROFILING_SHARE else "ok", detail, fix)]

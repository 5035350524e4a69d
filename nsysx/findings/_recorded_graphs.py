"""CUDA graphs that are recorded in the steps: a graph holds one shape, and each new one is recorded while the step waits for it."""

from __future__ import annotations

import numpy as np

from nsysx import units
from nsysx.events.nvtx_ranges import Flags
from nsysx.findings._case import Case, Fix, Rule, Saving, way
from nsysx.findings._finding_bounds import (
    FEWEST_RECORDING_STEPS,
    LINE_MAY_STAY_SHARE,
    REPORTED_SHARE,
    STEPS_WITHOUT_RECORDING_SHARE,
)
from nsysx.findings._found import Found
from nsysx.findings._needs import steady_steps, step_of
from nsysx.findings._once import Takes
from nsysx.frames import lookup
from nsysx.model import Finding

_BEGINS, _MADE = r"^cu(da)?StreamBeginCapture", r"^cu(da)?GraphInstantiate"
_REMEDY = "graphs-for-few-shapes"


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding where graphs are recorded in several steady steps, which take longer for it by 5 % of all steps or more.

    What it costs is by how much these steps are longer than the others, as recorded; where all record there is nothing to compare with.
    """
    begins = case.calls.filter(lookup.matching(case.calls["name"], _BEGINS))
    if case.stepless or not begins.height:
        return []
    windows, recording = steady_steps(case.profile), np.unique(step_of(case.profile, begins["start_ns"]))
    starts = windows["start_ns"].to_numpy()
    ns = np.diff(np.append(starts, windows["end_ns"].to_numpy()[-1]))
    records = np.isin(np.arange(1, len(ns) + 1), recording)
    count = int(records.sum())
    if count < FEWEST_RECORDING_STEPS:
        return []
    compared = (~records).sum() >= STEPS_WITHOUT_RECORDING_SHARE * len(ns)
    usual = float(np.median(ns[~records])) if compared else 0.0
    within = np.searchsorted(starts, case.idle["start_ns"].to_numpy(), side="right")
    idle = np.isin(within, recording) if compared else _while_recording(case)
    excess = float(np.maximum(ns[records] - usual, 0).sum()) / len(ns)
    cost = round(excess) if compared else case.per_step(float(case.idle["real_ns"].to_numpy()[idle].sum()))
    if not case.notable(cost, REPORTED_SHARE):
        return []
    of_steps = f"{count} of {len(ns)} steps"
    others = f", the others {units.duration(usual)}" if compared else ""
    longer = f"they take {units.duration(float(ns[records].mean()))}{others}"
    text = (
        f"Round the lengths of each batch up to a few, and run each of these once before the loop: a CUDA graph holds one shape, and "
        f"{of_steps} still record new ones. Or compile without graphs (not mode='reduce-overhead')"
    )
    code = case.profile.code()
    where = {} if code is None else code.where_most(code.places_of(code.call[begins["call"].to_numpy()]))
    spread = float(np.maximum(ns[~records] - ns[~records].min(), 0).sum()) / len(ns) if compared else 0.0
    why = (
        "by how much the steps that record graphs are longer than the others"
        if compared
        else "the time the GPU idles for it"
    )
    worth = Saving(cost, why, error_ns=round(LINE_MAY_STAY_SHARE * cost), most_ns=cost + round(spread), source="time")
    begun = case.often(begins.height, "recording begins", "recordings begin")
    detail = f"{begun} (cudaStreamBeginCapture), in {of_steps}: {longer}."
    title = f"{of_steps} record CUDA graphs, as for shapes that are new to them: {longer}"
    fix, takes = Fix.by_name(way(_REMEDY, text)), Takes(idle=idle.astype(np.float64))
    return [Found(rule, title, detail, worth=worth, cost_ns=cost, where=where, fix=fix, takes=takes).as_finding(case)]


def _while_recording(case: Case) -> Flags:
    """Return of each piece of idle time whether it begins between the call that begins a recording and the one that makes the graph."""
    marks = case.calls.filter(lookup.matching(case.calls["name"], f"{_BEGINS}|{_MADE}")).sort("start_ns")
    begins = lookup.matching(marks["name"], _BEGINS)
    last = np.searchsorted(marks["start_ns"].to_numpy(), case.idle["start_ns"].to_numpy(), side="right") - 1
    begun: Flags = (last >= 0) & begins[np.maximum(last, 0)]
    return begun

"""What is kept of the weights by one rank alone, on its CPU: that it is, by its copies; in some of the steps, what goes with it on all.

The others do not only wait for what that rank's host does. Whole weights are gathered for it by all, and copied, before its host begins:
all that these steps have more than the usual ones is for it, and how much that is the steps tell that ran while nothing recorded.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nsysx import units
from nsysx.events import bare
from nsysx.events.profile import Profile
from nsysx.findings import _copied_weights, _late_rank_lines
from nsysx.findings._case import Case, Saving
from nsysx.findings._finding_bounds import MOST_SHARE
from nsysx.findings._rank_rows import profile_of, straggler_of
from nsysx.model import Finding, Row


def with_all_that_goes(case: Case, finding: Finding) -> Finding:
    """Return the finding about a rank that keeps something of the weights, with what the steps save in which it does; others as they are.

    It is told so only where the steps that copy weights come as often as steps are long while nothing records.
    """
    late, told = straggler_of(case), finding.saving
    by_name = [way.name for way in finding.remedies] == [way.name for way in _copied_weights.ON_GPU.ways]
    if finding.verdict != "found" or not by_name or late is None or told.likely_ns is None:
        return finding
    shown = profile_of(case, late["process"])
    capture, process = case.profile.trace.capture, late["process"]
    more_ns = 0.0 if case.profile.steps.in_rounds else bare.excess_ns(capture, process)
    copying = None if shown is None else _copying_steps(shown)
    if copying is None or not more_ns:
        return finding
    count, steps, moved_bytes = copying
    timed = np.asarray(bare.of_process(capture, process), np.int64)
    long = bare.long_steps(timed)
    often = float(long.mean())
    if not (count - 1) / steps < often < (count + 1) / steps:
        return finding
    stays = _copied_weights.update_ns(case, moved_bytes) * often
    likely, error = more_ns - stays, float(timed[long].std()) * often
    if likely <= told.likely_ns:
        return finding
    why = (
        f"from step lengths: {units.share(often, 1)} of the steps that ran while nothing recorded are longer, by "
        f"{units.duration(more_ns / often)}, as many as copy weights; gathers, copies and the wait of all ranks go with them"
    )
    worth = Saving(round(likely), why, error_ns=round(error), most_ns=round(likely + error), source="steps")
    detail = (
        f"{finding.detail} Weights are copied in {count} of {units.several(steps, 'recorded step')}, for which all ranks gather or wait: "
        f"while nothing recorded such steps made the mean one {units.duration(more_ns)} longer."
    )
    return replace(finding, saving=worth, detail=detail)


def kept_on_gpu(case: Case, finding: Finding) -> Finding:
    """Return the finding about a rank held by a function that copies all weights to its host, by their number and bytes, with advice to
    keep on the GPU what it keeps of them, whatever its lines call weights and devices; others as they are.
    """
    late = straggler_of(case)
    line = None if late is None or finding.verdict != "found" else _late_rank_lines.holds(late)
    if late is None or line is None or any(way.name for way in finding.remedies):
        return finding
    shown = profile_of(case, late["process"])
    copies = None if shown is None else _to_host_of(shown, line)
    if copies is None:
        return finding
    count, moved = (round(number * case.steps) for number in copies)
    if not _copied_weights.of_weights(case, count, moved):
        return finding
    return _late_rank_lines.kept_on_gpu(line, late).into(finding)


def _to_host_of(profile: Profile, line: Row) -> tuple[float, float] | None:
    """Return how many copies to its host the function of a line makes in one step of the shown process, and their bytes; None without."""
    code, ops = profile.code(), profile.steady_ops
    ops = ops.filter((ops["process"] == profile.process) & (ops["op_kind"] == "memcpy") & (ops["name"] == "DtoH"))
    if code is None or not profile.scope.steps or not ops.height:
        return None
    function = line["file"], line["function"]
    rows = [n for n, (file, _, name) in enumerate(code.places.iter_rows()) if (file, name) == function]
    copies = ops.filter(np.isin(code.places_of(code.op[ops["op"].to_numpy()]), rows))
    return profile.scope.per_step(copies.height), profile.scope.per_step(int(copies["bytes"].fill_null(0).sum()))


def _copying_steps(profile: Profile) -> tuple[int, int, int] | None:
    """Return in how many of the steps of the shown process most of what it copies to its host is copied, how many steps there are, and
    the bytes of one that copies; None where all do, or none.
    """
    steps = profile.steps.gpu.filter(profile.steps.gpu["process"] == profile.process).sort("start_ns")
    ops = profile.attributed.gpu_ops
    copies = ops.filter((ops["process"] == profile.process) & (ops["op_kind"] == "memcpy") & (ops["name"] == "DtoH"))
    if not steps.height or not copies.height:
        return None
    begins, ends = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    step = np.searchsorted(begins, copies["start_ns"].to_numpy(), side="right") - 1
    inside = (step >= 0) & (copies["start_ns"].to_numpy() < ends[step])
    moved = np.zeros(steps.height, np.int64)
    np.add.at(moved, step[inside], copies["bytes"].fill_null(0).to_numpy()[inside])
    many = moved > MOST_SHARE * moved.max()
    count = int(many.sum())
    return (count, steps.height, int(moved[many].mean())) if 0 < count < steps.height and moved.max() else None

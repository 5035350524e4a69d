"""What is kept of the weights by one rank alone, on its CPU, in some of the steps: what goes with it on all ranks.

The others do not only wait for what that rank's host does. Whole weights are gathered for it by all, and copied, before its host begins:
all that these steps have more than the usual ones is for it, and how much that is the steps tell that ran while nothing recorded.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nsysx import units
from nsysx.events import bare
from nsysx.events.profile import Profile
from nsysx.findings import _copied_weights
from nsysx.findings._case import Case, Saving
from nsysx.findings._finding_bounds import MOST_SHARE
from nsysx.findings._rank_rows import profile_of, straggler_of
from nsysx.model import Finding


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

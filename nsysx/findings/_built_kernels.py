"""Kernels that a library builds anew in each step, below a line that calls much else: a plan for each new shape, while the GPU waits.

What is built is loaded right before its first launch: the GPU idles from the end of its work until then. Where one line does nothing else
the line's own rule tells it (`_noted`).
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from nsysx import units
from nsysx.findings._case import Case, Fix, Rule, Saving
from nsysx.findings._costly_jobs import on_all_ranks
from nsysx.findings._finding_bounds import (
    BUILT_IN_STEPS_SHARE,
    LINE_MAY_STAY_SHARE,
    LOADED_FOR_OPS,
    NEARLY_ALL_STEPS_SHARE,
    REPORTED_SHARE,
)
from nsysx.findings._found import Found
from nsysx.findings._needs import step_of
from nsysx.findings._once import Takes
from nsysx.model import Finding
from nsysx.replay.job_changes import BUILT_NO_MORE, LOADS_KERNEL

_ATTENTION = Fix.by_name("one-length-for-attention")
_ANY = Fix.by_name(BUILT_NO_MORE)
#: Remedies of lines that say the same.
SAME = frozenset((*_ATTENTION.ways, *_ANY.ways))
_OF_ATTENTION = re.compile(r"(?i)sdpa|fmha|flash|attention")


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding where kernels are loaded in many steps, and the GPU idles before their launches for 5 % of the step or more.

    Of a job each rank builds for its own batches, and the others wait for it: of all steps a rank builds in fewer than are long.
    """
    ops, calls = case.ops.filter(case.ops["call"].is_not_null()).sort("call"), case.calls
    loads = calls.filter(LOADS_KERNEL)
    steps = 0 if case.stepless else len(np.unique(step_of(case.profile, loads["start_ns"])))
    if not loads.height or steps < BUILT_IN_STEPS_SHARE * case.steps:
        return []
    thread, launched = case.profile.attributed.api_calls["thread"].to_numpy(), ops["call"].to_numpy()
    behind = (np.flatnonzero((launched > call) & (thread[launched] == thread[call]))[:1] for call in loads["call"])
    first = np.unique(np.concatenate([np.empty(0, np.int64), *behind]))
    idle = case.idle["op"].is_in(ops["op"][first].to_list()).fill_null(value=False)
    cost = min(case.per_step(float(case.idle.filter(idle)["real_ns"].sum())), case.taken_by(rule.cause))
    if not case.notable(cost, REPORTED_SHARE):
        return []
    near = np.unique(np.minimum(first[:, None] + np.arange(LOADED_FOR_OPS), ops.height - 1))
    attention = any(_OF_ATTENTION.search(name) for name in ops["name"].cast(pl.String).gather(near).to_list())
    module = ops["module"].cast(pl.String).gather(first).drop_nulls().mode().sort()
    often = "each step" if steps >= NEARLY_ALL_STEPS_SHARE * case.steps else f"{steps} of {case.steps} steps"
    title = (
        f"A library builds {'attention ' * attention}kernels in {often}: the GPU idles {units.duration(cost)} for it"
    )
    detail = (
        f"{case.often(loads.height, 'kernel is', 'kernels are')} loaded, in {steps} of {case.steps} steps, right before a launch for which "
        "the GPU waits: a plan is made for each new shape."
    )
    why, error = "the time the GPU idles before what was built is launched", round(LINE_MAY_STAY_SHARE * cost)
    worth = Saving(cost, why, error_ns=error, most_ns=cost, source="time")
    worth = max(worth, on_all_ranks(case, BUILT_NO_MORE) or worth, key=lambda each: each.likely_ns or 0)
    where: dict[str, object] = {"module": module[0] if len(module) else None}
    code = case.profile.code()
    if code is not None:
        where |= code.where_most(code.places_of(code.call[launched[first]]))
    share = np.asarray(idle.to_numpy(), np.float64)
    fix = _ATTENTION if attention else _ANY
    return [
        Found(rule, title, detail, worth=worth, cost_ns=cost, where=where, fix=fix, takes=Takes(idle=share)).as_finding(
            case
        )
    ]

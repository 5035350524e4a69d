"""NSX135 weights-in-calls: each call computes its weights anew, from tensors that no step changes.

What it means
    Weights that are normalized, converted, dequantized or put together in forward are needed so while they are trained. A program that
    only answers computes the same each time: weight normalization that was left in, autocast over float32 weights, stored vectors that
    a search normalizes for each question. Once, after loading, is enough.

In the trace
    Operators of an X-ray step whose arguments are all older than the step, and whose result is the second factor of a product or the
    weight of a convolution. Nothing of the step goes into them.

Bad
    scores = F.normalize(question) @ F.normalize(stored).T       # for each question

Good
    stored = F.normalize(stored)                                 # once
    scores = F.normalize(question) @ stored.T

Harmless when
    The weights change between the calls.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import StepLimit, StepPart
from nsysx.events.operator_flow import OperatorFlow, flow_of, made_weights
from nsysx.events.profile import Profile
from nsysx.findings._case import Case, Fix, Rule, calls_of, ops_of
from nsysx.findings._finding_bounds import WEIGHT_OPERATORS_NAMED, WEIGHTS_ANEW_SHARE
from nsysx.findings._found import Found
from nsysx.findings._once import Takes, edits_without
from nsysx.model import Finding

RULE = Rule(
    "NSX135",
    "weights-in-calls",
    "Weights that each call computes anew",
    cause=(StepPart.WORK, StepPart.HOST, StepPart.LAUNCH),
    about=StepLimit.GPU,
    leads=True,
)
REQUIRES = ("steps", "gpu")
_NORMALIZED = "aten::_weight_norm"


def check(case: Case) -> list[Finding]:
    """Return one finding where a program that trains nothing makes weights for 5 % of the step or more."""
    flow = flow_of(case.profile)
    if flow is None:
        return case.cannot_tell(RULE, "operators were not recorded with what made their arguments", "nsysx run -- CMD")
    # Transposed convolutions run kernels of a backward.
    if case.ops["phase"].cast(pl.String).is_in(["backward", "optimizer"]).any():
        return case.clear(RULE, "the program trains its weights")
    rows = made_weights(flow, _copied(case.profile, flow))
    made = _calls(case, flow, rows)
    calls = calls_of(made)
    theirs = case.ops.filter(case.ops["call"].is_in(list(calls)).fill_null(value=False))
    worth = case.worth(*edits_without(made, case.ops), cause=RULE.cause) if calls else None
    if worth is None or not case.notable(worth.likely_ns or 0, WEIGHTS_ANEW_SHARE):
        return case.clear(RULE, "computing weights anew takes less than 5 % of the step")
    outer = _outermost(flow, rows)
    names = Counter(flow.names[row].removeprefix("aten::") for row in outer)
    told = ", ".join(
        f"{name} ({units.several(often, 'time')})" for name, often in names.most_common(WEIGHT_OPERATORS_NAMED)
    )
    cost = case.per_step(int((theirs["end_ns"] - theirs["start_ns"]).sum()))
    detail = (
        f"{told} compute weights from tensors that no step changes: {units.duration(cost)} of the GPU's time and "
        f"{len(calls) / case.steps:.0f} calls {case.per}."
    )
    fix = Fix.by_name(
        "weights-folded" if any(flow.names[row].startswith(_NORMALIZED) for row in rows) else "computed-once"
    )
    title = f"Weights are computed anew in each call: up to {units.duration(worth.likely_ns or 0)} {case.per}"
    return [
        Found(
            RULE, title, detail, worth=worth, cost_ns=worth.likely_ns, fix=fix, calls=calls, takes=Takes(ops_of(theirs))
        ).as_finding(case)
    ]


def _copied(profile: Profile, flow: OperatorFlow) -> list[bool]:
    """Return whether each operator copies something from the host."""
    ops, calls = profile.attributed.gpu_ops, profile.attributed.api_calls
    copies = (
        ops["call"]
        .filter((ops["op_kind"] == "memcpy") & (ops["name"].cast(pl.String) == "HtoD"))
        .drop_nulls()
        .to_numpy()
    )
    copies = copies[calls["thread"].to_numpy()[copies] == flow.thread]
    when = np.sort(calls["start_ns"].to_numpy()[copies])
    inside = np.searchsorted(when, flow.end_ns) > np.searchsorted(when, flow.start_ns)
    return [bool(each) for each in inside]


def _outermost(flow: OperatorFlow, rows: list[int]) -> list[int]:
    """Return those of some operators, in order of time, that lie in no other of them."""
    outer: list[int] = []
    for row in rows:
        if not outer or flow.start_ns[row] >= flow.end_ns[outer[-1]]:
            outer.append(row)
    return outer


def _calls(case: Case, flow: OperatorFlow, rows: list[int]) -> pl.DataFrame:
    """Return the rows of ``case.calls`` that these operators make, by the step in which they were recorded."""
    outer, calls = _outermost(flow, rows), case.profile.attributed.api_calls
    if not outer:
        return case.calls.clear()
    start, end = flow.start_ns[outer], flow.end_ns[outer]
    when = calls["start_ns"].to_numpy()
    last = np.searchsorted(start, when, side="right") - 1
    inside = (last >= 0) & (when < end[np.maximum(last, 0)]) & (calls["thread"].to_numpy() == flow.thread)
    like = np.arange(calls.height)
    if case.profile.ranges.repeats is not None:
        like = np.where(case.profile.ranges.repeats.of >= 0, case.profile.ranges.repeats.of, like)
    steady = case.calls["call"].to_numpy()
    return case.calls.filter(pl.Series(inside[like[steady]], dtype=pl.Boolean))

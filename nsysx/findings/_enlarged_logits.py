"""Auxiliary logits that are enlarged to the size of the labels for their loss: labels can be made smaller instead, which costs nothing.

Outputs of several sizes are compared with one set of labels (deep supervision). The least enlarged one is the network's answer, which the
labels are for; of each of the others all classes are resampled, normalized and differentiated at places that know nothing new.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.operator_flow import OperatorFlow, flow_of, handed_from
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import FEWEST_TIMES_ENLARGED
from nsysx.model import Finding
from nsysx.replay.engine import RemoveOps, ScaleOps

_RESAMPLES = re.compile(r"^aten::upsample_\w+$")
#: Operators that hand logits on to a loss as they are, number by number.
_HANDS_ON = re.compile(r"^aten::(to|_to_copy|contiguous|clone|(un)?squeeze|sigmoid|(log_)?softmax)$")
_LOSSES = re.compile(r"^aten::(cross_entropy_loss|nll_loss(2d|_nd)?|binary_cross_entropy(_with_logits)?)$")


def _hands_on(name: str) -> bool:
    return _HANDS_ON.match(name) is not None


class _LossOfPlaces(NamedTuple):
    """A loss on logits (row of the flow, of the operators from the logits to it, of the resampling, -1 for none), their places before
    they were enlarged and now, and the size of the labels.
    """

    row: int
    between: tuple[int, ...]
    resampled: int
    before: int
    places: int
    labels: tuple[int, ...]


def _losses(flow: OperatorFlow) -> list[_LossOfPlaces]:
    losses = []
    for row in flow.outermost:
        sizes, made = sizes_of(flow.size[row]), flow.made[row]
        if not _LOSSES.match(flow.names[row]) or len(sizes) < 2 or len(made) < 2 or len(sizes[0]) < 3:
            continue
        maker, between = handed_from(flow, made[0], _hands_on)
        places = math.prod(sizes[0][2:])
        if maker >= 0 and _RESAMPLES.match(flow.names[maker]):
            before = math.prod(sizes_of(flow.size[maker])[0][2:])
            losses.append(_LossOfPlaces(row, between, maker, before, places, sizes[1]))
        else:
            losses.append(_LossOfPlaces(row, between, -1, places, places, sizes[1]))
    return losses


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return one finding about such losses where smaller labels save 5 % of the step or more."""
    flow, code = flow_of(case.profile), case.profile.code()
    if flow is None or code is None or case.program.compiled:
        return []
    losses = _losses(flow)
    finest = {labels: max(each.before for each in losses if each.labels == labels) for _, *_, labels in losses}
    auxiliary = [
        each
        for each in losses
        if each.resampled >= 0
        and each.before < finest[each.labels]
        and each.before * FEWEST_TIMES_ENLARGED <= each.places
    ]
    if not auxiliary:
        return []
    work = work_of_operators(case, flow)
    edits = list[RemoveOps | ScaleOps]()
    for each in auxiliary:
        edits.append(RemoveOps(ops_of(work.filter(work["row"] == each.resampled))))
        rest = ops_of(work.filter(pl.col("row").is_in([each.row, *each.between])))
        edits.append(ScaleOps(rest, each.before / each.places, less_work=True))
    edits = [edit for edit in edits if edit.ops]
    ops = frozenset[int]().union(*(edit.ops for edit in edits))
    worth = case.worth_or_freed(*edits, cause=(StepPart.WORK,), bound=True)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return []
    taken = case.per_step(int(work.filter(pl.col("op").is_in(list(ops)))["ns"].sum()))
    smallest = min(auxiliary, key=lambda each: each.before)
    where = place_of_operator(code, flow, flow.start_ns[[smallest.resampled]])
    title = (
        f"{in_short(where) or 'One line'} enlarges auxiliary logits up to {smallest.places // smallest.before} times for a loss: smaller "
        "labels would do"
    )
    detail = (
        f"{len(auxiliary)} of {len(losses)} losses {case.per} compare logits that were resampled to the size of the labels; with their "
        f"gradients that takes {units.duration(taken)} {case.per}, {case.share(taken)} of the step."
    )
    return [
        Found(
            rule, title, detail, worth=worth, cost_ns=taken, fix=Fix.by_name("labels-made-smaller"), where=where or None,
            takes=Takes(ops),
        ).as_finding(case)
    ]  # fmt: skip

"""Operators that compare more than their result needs, by their name and sizes: rows that `unique` sorts, boxes that are suppressed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import operator_work
from nsysx.catalogue import StepPart
from nsysx.events.code_lines import CodeLines
from nsysx.events.narrowed_operators import Size, sizes_of
from nsysx.events.profile import NotRecorded
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import (
    FEWEST_SUPPRESSED_BOXES,
    FEWEST_UNIQUE_ROWS,
    SUPPRESSED_BOXES,
    UNIQUE_NUMBERS_SHARE,
)
from nsysx.model import Finding
from nsysx.replay.engine import ScaleOps


class _Form(NamedTuple):
    """An operator and its lighter form: which share of its time stays by the size of its first argument, None where it is as it should be.

    ``does``: what a line does, in words, with the rows of that argument.
    """

    remedy: str
    left: Callable[[Size], float | None]
    does: str


def _of_rows(size: Size) -> float | None:
    if len(size) < 2 or size[0] < FEWEST_UNIQUE_ROWS or size[1] < 2:
        return None
    return UNIQUE_NUMBERS_SHARE


def _of_boxes(size: Size) -> float | None:
    if len(size) != 2 or size[0] < FEWEST_SUPPRESSED_BOXES:
        return None
    return (SUPPRESSED_BOXES / size[0]) ** 2


_FORMS = {
    "aten::unique_dim": _Form("rows-as-numbers", _of_rows, "sorts {} rows by a comparison, to make them unique"),
    "torchvision::nms": _Form("best-before-suppression", _of_boxes, "compares {} boxes with each other, to suppress those that overlap"),
}  # fmt: skip


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding for each such operator whose lighter form saves 5 % of the step or more."""
    code = case.profile.code()
    if code is None:
        return []
    try:
        operators = operator_work.numbered_operators(case.profile)
    except NotRecorded:
        return []
    names = pl.col("name").cast(pl.String)
    return [
        finding
        for name, form in _FORMS.items()
        if (theirs := operators.filter(names == name)).height
        and (finding := _found(case, rule, code, form, theirs)) is not None
    ]


def _found(case: Case, rule: Rule, code: CodeLines, form: _Form, operators: pl.DataFrame) -> Finding | None:
    work = operator_work.work_of(case.profile, operators, "shapes")
    edits, heaviest = list[ScaleOps](), (0, 0)
    for (shapes,), part in work.group_by("shapes", maintain_order=True):
        size = next(iter(sizes_of(str(shapes or ""))), ())
        left = form.left(size)
        if left is not None:
            edits.append(ScaleOps(ops_of(part), left, less_work=True))
            heaviest = max(heaviest, (int(part["ns"].sum()), size[0]))
    ops = frozenset[int]().union(*(edit.ops for edit in edits))
    worth = case.worth_or_freed(*edits, cause=(StepPart.WORK,), bound=True)
    if not edits or not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    gone = work.filter(pl.col("op").is_in(list(ops)))
    taken = case.per_step(int(gone["ns"].sum()))
    where = code.where_most(code.places_of(code.op[gone["op"].to_numpy()]), gone["ns"].to_numpy())
    does = form.does.format(units.count(heaviest[1]))
    detail = f"Calls of this kind take {units.duration(taken)} {case.per}, {case.share(taken)} of the step."
    return Found(
        rule, f"{in_short(where) or 'One line'} {does}", detail, worth=worth, cost_ns=taken, fix=Fix.by_name(form.remedy),
        where=where or None, takes=Takes(ops),
    ).as_finding(case)  # fmt: skip

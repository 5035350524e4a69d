"""Networks that compute a sequence anew for each row that it becomes longer by (``events.growing_calls``), in programs that train.

Where a program only infers, what is asked for its tokens tells the same (`_grown_inputs`).
"""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.events.growing_calls import GrowingCalls, growing_calls
from nsysx.events.operator_flow import flow_of
from nsysx.events.trained_operators import trained_of
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, left_of_new, place_of_operator, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import FEW_ROWS_NS
from nsysx.model import Finding
from nsysx.replay.engine import ScaleOps

_CACHED, _AT_ONCE, _CROPPED = "kept-keys", "rows-at-once", "cache-cropped"


def rows_within(case: Case) -> frozenset[int]:
    """Return the operators (rows of the flow) of such calls."""
    grown = growing_calls(case.profile) if case.program.trains else []
    return frozenset(row for each in grown for call in each.calls for row in range(call.first, call.last))


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding for each network whose calls need not take 5 % of the step or more."""
    flow = flow_of(case.profile)
    if flow is None or not case.program.trains or not growing_calls(case.profile):
        return []
    work = work_of_operators(case, flow)
    return [f for each in growing_calls(case.profile) if (f := _found(case, rule, each, work)) is not None]


def _found(case: Case, rule: Rule, grown: GrowingCalls, work: pl.DataFrame) -> Finding | None:
    flow, code = flow_of(case.profile), case.profile.code()
    share = {
        row: grown.new / rows if nth else 1.0
        for nth, (call, rows) in enumerate(zip(grown.calls, grown.rows, strict=True))
        for row in range(call.first, call.last)
    }
    theirs = work.filter(pl.col("row").is_in(list(share)))
    ns = theirs["ns"].to_numpy()
    new = ns * theirs["row"].replace_strict(share, return_dtype=pl.Float64).to_numpy()
    taken, left = int(ns.sum()), left_of_new(ns, new, FEW_ROWS_NS)
    if flow is None or not taken:
        return None
    # Each row still reads the weights, and attention all keys.
    edit = ScaleOps(ops_of(theirs), left / taken, less_work=True)
    worth = case.worth_or_freed(edit, cause=(StepPart.WORK,), bound=True)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    cost, first = case.per_step(taken), grown.calls[0]
    where = {} if code is None else place_of_operator(code, flow, flow.start_ns[[first.first]])
    title = (
        f"{f'{in_short(where)}: ' if where else ''}{first.cls or first.path} computes a sequence anew for each row that it becomes longer "
        f"by: {units.duration(cost)} {case.per}"
    )
    detail = (
        f"{units.count(len(grown.calls))} calls of a step compute {grown.rows[0]}, {grown.rows[1]}, ... {grown.rows[-1]} rows, each "
        f"{'up to ' if grown.with_cache else ''}{grown.new} more than the one before: {case.share(cost)} of the step with their backward."
    )
    trained = bool(trained_of(case.profile)[first.first : first.last].any())
    return Found(
        rule, title, detail, worth=worth, cost_ns=cost, where=where or None, takes=Takes(ops_of(theirs)),
        fix=Fix.by_name(_CROPPED if grown.with_cache else _AT_ONCE if trained else _CACHED),
    ).as_finding(case)  # fmt: skip

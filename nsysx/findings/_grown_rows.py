"""Layers that compute each row by itself and are called anew on all rows of a tensor that grows: only the new ones have other results."""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.events.grown_tensors import grown_tensors
from nsysx.events.operator_flow import flow_of
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, left_of_new, place_of_operator, time_of_operators, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._grown_sequences import rows_within
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import FEW_ROWS_NS, MOST_LINES_NAMED
from nsysx.model import Finding
from nsysx.replay.engine import ScaleOps


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding for such layers of a step, if they need not take 5 % of it or more."""
    flow, code = flow_of(case.profile), case.profile.code()
    again = {row: share for tensor in grown_tensors(case.profile) for row, share in tensor.computed_again.items()}
    of_sequences = rows_within(case)
    again = {row: share for row, share in again.items() if row not in of_sequences}
    if flow is None or not again:
        return []
    work = work_of_operators(case, flow).filter(pl.col("row").is_in(list(again)))
    taken, ns = int(work["ns"].sum()), work["ns"].to_numpy()
    new = ns * (1 - work["row"].replace_strict(again, return_dtype=pl.Float64).to_numpy())
    left = left_of_new(ns, new, FEW_ROWS_NS)
    # A product of few rows still reads all weights: how long that takes is not seen.
    edit = ScaleOps(ops_of(work), left / max(taken, 1), less_work=True)
    worth = case.worth_or_freed(edit, cause=(StepPart.WORK,), bound=True)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return []
    of_rows = time_of_operators(work)
    ranked = sorted(again, key=lambda row: -of_rows.get(row, 0))
    places = [] if code is None else [place_of_operator(code, flow, flow.start_ns[[row]]) for row in ranked]
    lines = list(dict.fromkeys(filter(None, map(in_short, places))))
    where, cost = places[0] if places else {}, case.per_step(taken)
    old = 1 - float(new.sum()) / max(taken, 1)
    for_ns = units.duration(case.per_step(taken - round(left)))
    there = f" in {', '.join(lines[:MOST_LINES_NAMED])}" if len(lines) > 1 else ""
    title = f"{f'{lines[0]}: ' if lines else ''}rows of a tensor that grows are computed again for {for_ns} {case.per}"
    detail = (
        f"{units.count(len(again))} calls of a step{there} compute each row by itself, with the same weights each time, "
        f"{units.duration(cost)} {case.per}, {case.share(cost)} of the step with their backward. "
        f"{units.share(old, 1)} of their rows had the same result in the call before."
    )
    fix = Fix.by_name("rows-computed-once")
    return [
        Found(rule, title, detail, worth=worth, cost_ns=cost, where=where or None, fix=fix, takes=Takes(ops_of(work))).as_finding(case)
    ]  # fmt: skip

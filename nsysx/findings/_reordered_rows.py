"""Caches that a beam search puts in another order for each token (``events.reordered_rows``): what it takes for rows that are the same."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.reordered_rows import ReorderedRows, reordered_rows
from nsysx.events.trained_operators import trained_of
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, left_of_new, place_of_operator, time_of_operators, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import ORDERED_IN_PLACE_TIMES, ROWS_WRITTEN_NS
from nsysx.model import Finding
from nsysx.replay.engine import ScaleOps


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return the finding about what orders of rows copy in vain, where it is 5 % of the step or more."""
    flow = flow_of(case.profile)
    reordered = [] if flow is None else reordered_rows(flow)
    trained = trained_of(case.profile)
    reordered = [each for each in reordered if not any(trained[row] for row in each.orders)]
    finding = _found(case, rule, flow, reordered) if flow is not None and reordered else None
    return [] if finding is None else [finding]


def _found(case: Case, rule: Rule, flow: OperatorFlow, reordered: Sequence[ReorderedRows]) -> Finding | None:
    """Return the finding about tensors that are put in another order, None where little of that is in vain."""
    work = work_of_operators(case, flow, gradients=False)
    share = {row: part * ORDERED_IN_PLACE_TIMES for each in reordered for row, part in each.orders.items()}
    share |= {row: part for each in reordered for row, part in each.cats.items()}
    gone = work.filter(pl.col("row").is_in(list(share)))
    ns, taken = gone["ns"].to_numpy(), int(gone["ns"].sum())
    if not case.notable(case.per_step(taken), REPORTED_SHARE):
        return None
    parts = gone["row"].replace_strict(share, return_dtype=pl.Float64).clip(upper_bound=1.0).to_numpy()
    left = left_of_new(ns, ns * parts, ROWS_WRITTEN_NS)
    edit = ScaleOps(ops_of(gone), left / max(taken, 1), less_work=True)
    worth = case.worth_or_freed(edit, cause=(StepPart.WORK,), bound=True)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    orders = [row for each in reordered for row in each.orders]
    times = time_of_operators(work)
    longest = max(orders, key=lambda row: times.get(row, 0))
    code = case.profile.code()
    where = {} if code is None else place_of_operator(code, flow, flow.start_ns[[longest]])
    there, cost = f"{in_short(where)}: " if where else "", case.per_step(taken)
    return Found(
        rule,
        f"{there}a search puts all rows of its caches in another order in each round: {units.duration(cost)} {case.per}",
        f"{_in_words(case, reordered, orders)} {units.duration(cost)} {case.per}, {case.share(cost)} of the step; for what rounds wrote "
        f"themselves alone it would be {units.duration(case.per_step(round(left)))}.",
        worth=worth,
        cost_ns=cost,
        fix=_fix(reordered),
        where=where or None,
        takes=Takes(ops_of(gone)),
    ).as_finding(case)


def _in_words(case: Case, reordered: Sequence[ReorderedRows], orders: Sequence[int]) -> str:
    largest = max(reordered, key=lambda each: (not each.read_only, max(each.orders.values())))
    read_only = sum(each.read_only for each in reordered)
    unwritten = f"; nothing is written into {units.count(read_only)} of them" if read_only else ""
    new = max(largest.orders.values())
    return (
        f"{units.count(len(orders))} times {case.per} a copy of {units.several(len(reordered), 'tensor')} (one of "
        f"{' x '.join(map(str, largest.size))}) is made in the order that a search gives. At most {units.share(new, 1)} of one was written "
        f"since the first order{unwritten}: what stood there before is the same in all beams of one input."
    )


def _fix(reordered: Sequence[ReorderedRows]) -> Fix:
    """Return the remedy, for the dimensions of these caches."""
    read_only = [each.read_only for each in reordered]
    if all(read_only):
        return Fix.by_name("shared-rows-kept")
    fix = Fix.by_name("own-rows-ordered")
    return fix if any(read_only) else fix.but(paste="\n".join(fix.paste.splitlines()[:-1]))

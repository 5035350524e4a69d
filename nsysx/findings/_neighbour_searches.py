"""Neighbours of moving points that are searched among all pairs in each round (``events.neighbour_searches``): one list serves several."""

from __future__ import annotations

import re

import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import StepPart
from nsysx.events.neighbour_searches import searches_of_moved
from nsysx.events.operator_flow import flow_of
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import ROUNDS_OF_ONE_LIST
from nsysx.model import Finding, Row
from nsysx.replay.engine import ScaleOps

_PAIR_OF_NAMES = re.compile(r"^\s*(?P<first>[A-Za-z_]\w*)\s*,\s*(?P<second>[A-Za-z_]\w*)\s*=(?!=)")


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return one finding about such searches where they take 5 % of the step or more."""
    flow, code = flow_of(case.profile), case.profile.code()
    if flow is None or code is None or case.program.compiled:
        return []
    searches = searches_of_moved(flow)
    rows = [row for search in searches for row in search.rows]
    if not rows:
        return []
    ops = ops_of(work := work_of_operators(case, flow).filter(pl.col("row").is_in(rows)))
    worth = case.worth_or_freed(
        ScaleOps(ops, 1 / ROUNDS_OF_ONE_LIST, less_work=True), cause=(StepPart.WORK,), bound=True
    )
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return []
    taken = case.per_step(int(work["ns"].sum()))
    where = place_of_operator(code, flow, flow.start_ns[[searches[0].rows[-1]]])
    times = "once" if len(searches) == 1 else f"{len(searches)} times"
    title = (
        f"{in_short(where) or 'One line'} searches neighbours among {units.count(searches[0].pairs)} pairs {times} {case.per}, of points "
        "that have only moved since"
    )
    detail = (
        f"Distances of all pairs, their comparison and the choice by it take {units.duration(taken)} {case.per}, {case.share(taken)} of "
        "the step, and the host waits for the number of neighbours each time."
    )
    return [
        Found(
            rule, title, detail, worth=worth, cost_ns=taken, fix=_fix(case, where), where=where or None, takes=Takes(ops)
        ).as_finding(case)
    ]  # fmt: skip


def _fix(case: Case, where: Row) -> Fix:
    """Return the advice, with the names to which the line gives the two numbers of each pair."""
    fix = Fix.by_name("list-for-rounds")
    file, line = where.get("file"), where.get("line")
    text = text_of(texts(case.profile), str(file), line) if isinstance(line, int) else None
    named = _PAIR_OF_NAMES.match(text or "")
    if named is None or not fix.ways:
        return fix
    paste = re.sub(r"\bsrc, dst = ", f"{named['first']}, {named['second']} = ", fix.ways[0].paste)
    return fix.but(paste=paste)

"""Cubes of all triples of samples, of which a mask keeps few (``events.triple_cubes``): positives as a list leave n x k x n numbers."""

from __future__ import annotations

import re

import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import StepPart
from nsysx.events.operator_flow import flow_of
from nsysx.events.triple_cubes import triple_cubes
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import TRIPLES_LEFT
from nsysx.model import Finding, Row
from nsysx.replay.engine import ScaleOps

#: t = d.unsqueeze(2) - d.unsqueeze(1) + margin
_DIFFERENCES = re.compile(
    r"^(?P<made>[A-Za-z_]\w*)\s*=\s*(?P<distances>[A-Za-z_]\w*)(?:\.unsqueeze\(-?\d\)|\[[^\]]*\])\s*-\s*(?P=distances)"
    r"(?:\.unsqueeze\(-?\d\)|\[[^\]]*\])(?:\s*\+\s*(?P<margin>[\w.]+))?\s*$"
)


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return the finding about such a cube, where a list of positives saves 5 % of the step or more."""
    flow = flow_of(case.profile)
    cubes = [] if flow is None or case.program.compiled else list(triple_cubes(flow))
    if flow is None or not cubes:
        return []
    rows = frozenset().union(*(each.rows for each in cubes))
    work = work_of_operators(case, flow).filter(pl.col("row").is_in(list(rows)))
    ops, cost = ops_of(work), case.per_step(int(work["ns"].sum()))
    worth = case.worth_or_freed(ScaleOps(ops, TRIPLES_LEFT, less_work=True), cause=(StepPart.WORK,), bound=True)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return []
    code, largest = case.profile.code(), max(cubes, key=lambda each: each.side)
    where = {} if code is None else place_of_operator(code, flow, flow.start_ns[[largest.at]])
    side = units.count(largest.side)
    title = (
        f"{f'{in_short(where)}: ' if where else ''}differences of distances are written out for all triples of {side} samples, and masked: "
        f"{units.duration(cost)} {case.per}"
    )
    detail = (
        f"{len(largest.rows)} operations make, mask and sum a cube of {side} x {side} x {side} numbers, and backward goes through as many; "
        f"of an anchor only those beside a sample of its own class count. That takes {case.share(cost)} of the step."
    )
    return [
        Found(
            rule, title, detail, worth=worth, cost_ns=cost, fix=_fix(case, where), where=where or None,
            takes=Takes(ops),
        ).as_finding(case)
    ]  # fmt: skip


def _fix(case: Case, where: Row) -> Fix:
    """Return the advice, with the names that the line has for distances, differences and margin."""
    fix = Fix.by_name("positives-as-list")
    text = (text_of(texts(case.profile), where["file"], where["line"]) or "") if where.get("line") else ""
    line = _DIFFERENCES.match(text.partition("  #")[0].strip())
    if line is None:
        return fix
    paste = fix.paste
    for name, in_program in (("d", line["distances"]), ("t", line["made"]), ("margin", line["margin"] or "margin")):
        paste = re.sub(rf"(?<![\w.]){name}\b(?!\()", in_program, paste)
    return fix.but(paste=paste)

"""Multi-scale deformable attention in operators of torch (``events.sampled_levels``): a library's kernel was not built."""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.events.operator_flow import flow_of
from nsysx.events.sampled_levels import sampled_levels
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.model import Finding
from nsysx.replay.engine import RemoveOps


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return one finding about such attention where what a kernel for all levels makes needless takes 5 % of the step or more."""
    flow, code = flow_of(case.profile), case.profile.code()
    if flow is None or code is None or case.program.compiled:
        return []
    levels = sampled_levels(flow)
    if not levels:
        return []
    work = work_of_operators(case, flow)
    rows = [row for each in levels for row in (*each.samples, *each.around)]
    gone = ops_of(work.filter(pl.col("row").is_in([row for each in levels for row in each.around])))
    worth = case.worth_or_freed(RemoveOps(gone), cause=(StepPart.WORK,), bound=True) if gone else case.worth()
    if not gone or not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return []
    whole = work.filter(pl.col("row").is_in(rows))
    taken = case.per_step(int(whole["ns"].sum()))
    where = place_of_operator(code, flow, flow.start_ns[[levels[0].samples[0]]])
    title = (
        f"{in_short(where) or 'One line'} samples {len(levels[0].samples)} levels one by one, and weighs what it wrote: no kernel for "
        "deformable attention"
    )
    detail = (
        f"{units.several(len(levels), 'call')} {case.per} take {units.duration(taken)}, {case.share(taken)} of the step. One kernel "
        "samples, weighs and sums in one pass; torch's operators write the samples of all levels, put them together and read them twice, "
        "and their gradients do. Libraries fall back to this with no more than a warning where their kernel was not built. What sampling "
        "itself takes is left out of the saving."
    )
    return [
        Found(
            rule, title, detail, worth=worth, cost_ns=taken, fix=Fix.by_name("built-deformable-kernel"), where=where or None,
            takes=Takes(ops_of(whole)),
        ).as_finding(case)
    ]  # fmt: skip

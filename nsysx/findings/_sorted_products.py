"""Sparse products whose matrix each of them puts in order anew: it was never coalesced, or is no CSR matrix."""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import operator_executions
from nsysx.catalogue import StepPart
from nsysx.findings._case import Case, Fix, Rule, Saving
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short
from nsysx.findings._found import Found
from nsysx.findings._once import Takes, edits_without
from nsysx.frames import lookup
from nsysx.model import Finding

#: Operators of such products, forward and backward, as ``executions`` names them.
_PRODUCTS = r"(^|_)(add)?mm$|matmul|sparse"
#: The kernel of torch that adds up entries of one place, and kernels that multiply.
_COALESCES, _MULTIPLIES = r"coalesceValuesKernel", r"cusparse.*(csr|coo|spmm|spmv)\w*mm|csrmm|csrmv|coomm|spmm"

#: What of a step their change can shorten.
_PARTS = (StepPart.WORK, StepPart.HOST, StepPart.LAUNCH, StepPart.SYNC)


def findings_of(case: Case, rule: Rule, done: pl.DataFrame) -> list[Finding]:
    """Return a finding for the lines whose sparse products sort and add up the entries of their matrix; ``done``: as ``executions``."""
    code = case.profile.code()
    assert code is not None
    kernels = case.ops.filter(case.ops["op_kind"] == "kernel")
    coalescing = kernels.filter(lookup.matching(kernels["name"], _COALESCES))
    if not coalescing.height:
        return []
    merged = frozenset(coalescing["op"].to_list())
    products = done.filter(pl.col("operation").str.contains(_PRODUCTS)).unique(
        ["operation", "place"], maintain_order=True
    )
    ops_of_line: dict[int, frozenset[int]] = {}
    for operation, line_row in products["operation", "place"].iter_rows():
        theirs = operator_executions.ops_at(case.profile, operation, line_row)
        if not merged.isdisjoint(theirs):
            ops_of_line[line_row] = ops_of_line.get(line_row, frozenset()) | theirs
    of_lines = (_found(case, rule, line_row, theirs) for line_row, theirs in ops_of_line.items())
    return [each for each in of_lines if each is not None]


def _found(case: Case, rule: Rule, line_row: int, theirs: frozenset[int]) -> Finding | None:
    """Return the finding about the products of a line, whose GPU ops these are; None where little of them only orders."""
    code = case.profile.code()
    assert code is not None
    work = case.ops.filter(pl.col("op").is_in(list(theirs))).with_columns(ns=pl.col("end_ns") - pl.col("start_ns"))
    orders = work.filter(~lookup.matching(work["name"], _MULTIPLIES))
    least, most = (
        case.worth(*edits_without(gone.drop_nulls("call"), gone, leading=True), cause=_PARTS).likely_ns
        for gone in (orders, work)
    )
    if least is None or most is None or not case.notable(least, REPORTED_SHARE):
        return None
    where = code.where(line_row)
    ordered, taken = (case.per_step(int(rows["ns"].sum())) for rows in (orders, work))
    title = f"Sparse products of {in_short(where)} put their matrix in order for {units.duration(ordered)} {case.per}"
    detail = (
        f"They take {units.duration(taken)} {case.per} with their gradients, {units.share(ordered, taken)} of it to sort the entries of a "
        "COO matrix and to add up those of one place: each product does so anew, forward and for the transpose in backward."
    )
    worth = Saving.between(
        least, most, "the kernels that only order go, and products of a CSR matrix may take less time, too"
    )
    fix = Fix.by_name("csr-once")
    return Found(rule, title, detail, worth=worth, cost_ns=taken, fix=fix, where=where, takes=Takes(theirs)).as_finding(
        case
    )

"""Adapters in float32 beside layers of 16 bits (``events.wide_adapters``): activations are converted for small weights, and back."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.events.kernel_math import number_format
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.wide_adapters import WideAdapter, converting_adapters
from nsysx.findings._adapter_lines import converted_weights
from nsysx.findings._case import Case, Fix, Rule
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._rates_in_halves import ITS_OWN, ProductsOfFlow, forward_ns, left_at_own_rates, multiplying
from nsysx.findings._without_autocast import HALVES, WIDE
from nsysx.findings._work_bounds import ADAPTERS_IN_HALVES_LEFT, OTHERS_IN_HALVES_LEFT
from nsysx.model import Finding
from nsysx.replay.engine import RemoveOps, ScaleOps


def findings_of(case: Case, rule: Rule) -> tuple[list[Finding], frozenset[int]]:
    """Return the finding about all such adapters, where it saves 5 % of the step, and the GPU ops of their products."""
    nothing: tuple[list[Finding], frozenset[int]] = ([], frozenset())
    flow = flow_of(case.profile)
    adapters = [] if flow is None else converting_adapters(flow)
    if flow is None or not adapters:
        return nothing
    work = work_of_operators(case, flow).unique("op", maintain_order=True)
    kernels = case.ops.select("op", "name", family=pl.col("family").cast(pl.String))
    work = work.join(kernels, on="op", how="inner", maintain_order="left")
    work = work.with_columns(format=number_format(work["name"], work["family"]))
    wide = set(work.filter(pl.col("format").is_in(WIDE))["row"].to_list())
    adapters = [each for each in adapters if wide.issuperset(each.products)]
    narrow = work.filter(pl.col("format").is_in(HALVES))
    theirs = pl.col("row").is_in([row for each in adapters for row in each.products])
    # Without tensor cores small products take as long as the large ones of the layers: what else multiplies tells the type of the step.
    others = work.filter(pl.col("format").is_not_null() & ~theirs)
    if not adapters or 2 * int(narrow["ns"].sum()) < int(others["ns"].sum()):
        return nothing
    return _found(case, rule, flow, adapters, work)


def _found(
    case: Case, rule: Rule, flow: OperatorFlow, adapters: Sequence[WideAdapter], work: pl.DataFrame
) -> tuple[list[Finding], frozenset[int]]:
    def ops(*rows: int) -> frozenset[int]:
        return frozenset(work.filter(pl.col("row").is_in(list(rows)))["op"].to_list())

    products = ops(*(row for each in adapters for row in each.products))
    conversions = ops(*(row for each in adapters for row in each.conversions))
    others = ops(*(row for each in adapters for row in each.others)) - conversions - products
    whole = products | conversions | others
    cost = case.per_step(int(work.filter(pl.col("op").is_in(list(whole)))["ns"].sum()))
    if not conversions or not case.notable(cost, REPORTED_SHARE):
        return [], frozenset()
    gone = RemoveOps(conversions)
    multiplied = multiplying(case, flow)
    in_halves, of_adapters = multiplied["format"].is_in(HALVES), multiplied["op"].is_in(list(products))
    left = left_at_own_rates(
        case, ProductsOfFlow(flow), forward_ns(multiplied.filter(of_adapters)), forward_ns(multiplied.filter(in_halves))
    )
    low, likely, high = (
        (gone, ScaleOps(products, of_products, less_work=True), ScaleOps(others, of_others, less_work=True))
        for of_products, of_others in zip(left or ADAPTERS_IN_HALVES_LEFT, OTHERS_IN_HALVES_LEFT, strict=True)
    )
    why = "with half of the bytes the rest takes half to all of its time"
    if left is not None:
        why = f"if the products are as fast as {ITS_OWN}, and no activation is converted"
    worth = case.worth_between(low, likely, high, why, cause=(StepPart.WORK,))
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return [], frozenset()
    code = case.profile.code()
    where = {} if code is None else place_of_operator(code, flow, flow.start_ns[[adapters[0].at]])
    rank, width = adapters[0].rank, adapters[0].width
    title = (
        f"{f'{in_short(where)}: ' if where else ''}{units.several(len(adapters), 'adapter')} of rank {rank} compute in float32 beside "
        "layers of 16 bits"
    )
    detail = (
        f"Rows of {units.count(width)} numbers are converted to float32 for weights of {rank} x {units.count(width)}, and what comes of it "
        f"is converted back: {units.duration(cost)} {case.per} with their gradients, {case.share(cost)} of the step. "
        "Converted weights are small, and keep float32 for the optimizer."
    )
    fix = Fix.by_name("adapters-converted")
    if code is not None and (lines := converted_weights(case, code, flow, adapters)):
        fix = fix.but(paste=lines)
    finding = Found(
        rule, title, detail, worth=worth, cost_ns=cost, fix=fix, where=where or None, takes=Takes(whole)
    )  # fmt: skip
    return [finding.as_finding(case)], products

"""Sums over neighbours on the wider side of a linear layer (``events.neighbour_orders``): what they take, and what shorter rows leave."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from nsysx import units
from nsysx.events.neighbour_orders import NeighbourOrder, neighbour_orders
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.trained_operators import trained_of
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_with_gradients
from nsysx.findings._found import Found
from nsysx.findings._instead import Instead
from nsysx.findings._once import Takes
from nsysx.model import Finding
from nsysx.roofline.roofline_bounds import SHORTER_ROWS_AT_MOST_TIMES


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding for the layers that come first then, and one for those that come behind, of 5 % of the step or more each."""
    flow = flow_of(case.profile)
    orders = [] if flow is None or case.program.compiled else neighbour_orders(flow)
    if flow is None or not orders:
        return []
    work = work_with_gradients(case, flow)
    parts = ([order for order in orders if order.layer_first == first] for first in (True, False))
    findings = (_found(case, rule, flow, work, orders=part) for part in parts if part)
    return [finding for finding in findings if finding is not None]


def _left_ns(order: NeighbourOrder, work: pl.DataFrame, *, trained: bool) -> float:
    """Return what the sum takes in the other order where time follows the width of its rows, over all steps.

    Behind a trained layer it has a gradient, too, whether it had one before or not.
    """
    of_sum, of_layer = (work.filter(pl.col("row").is_in(list(rows))) for rows in (order.rows, {order.layer}))
    forward, backward = (int(of_sum.filter(of_sum["backward"] == back)["ns"].sum()) for back in (False, True))
    if order.layer_first and trained:
        backward = max(backward, forward)
    more_rows = max(0.0, order.grows - 1) * int(of_layer["ns"].sum())
    return order.narrow / order.wide * (forward + backward) + more_rows


def _found(
    case: Case, rule: Rule, flow: OperatorFlow, work: pl.DataFrame, *, orders: Sequence[NeighbourOrder]
) -> Finding | None:
    """Return the finding about sums that are to change sides in one direction, None where they save too little."""
    gone = work.filter(pl.col("row").is_in(list(frozenset().union(*(order.rows for order in orders)))))
    taken, trained = int(gone["ns"].sum()), trained_of(case.profile)
    if not case.notable(case.per_step(taken), REPORTED_SHARE):
        return None
    least = sum(_left_ns(order, work, trained=bool(trained[order.layer])) for order in orders)
    worth = Instead(gone["op", "ns"], least, SHORTER_ROWS_AT_MOST_TIMES * least).worth(case)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    dearest = max(orders, key=lambda order: (order.edges * (order.wide - order.narrow), -order.layer))
    code = case.profile.code()
    where = {} if code is None else place_of_operator(code, flow, flow.start_ns[[dearest.layer]])
    there, cost = f"{in_short(where)}: " if where else "", case.per_step(taken)
    title = (
        f"{there}Rows of {dearest.wide} numbers are summed over neighbours, and a linear layer leaves {dearest.narrow} of them"
        if dearest.layer_first
        else f"{there}A linear layer makes rows of {dearest.wide} numbers out of {dearest.narrow}, which are summed over neighbours"
    )
    edges = f"of {units.count(dearest.edges)} edges" if dearest.edges else "edge"
    layer = "as many as now" if dearest.grows <= 1 else f"{dearest.grows:.1f} times as many"
    detail = (
        f"{units.duration(cost)} {case.per}, {case.share(cost)} of the step. Of each {edges} "
        f"{dearest.wide} numbers are read and added; in the other order {dearest.narrow}, {dearest.wide / dearest.narrow:.1f} times fewer "
        f"bytes and operations, and the layer itself takes {layer}."
    )
    remedy = "layer-before-neighbours" if dearest.layer_first else "neighbours-before-layer"
    return Found(
        rule, title, detail, worth=worth, cost_ns=cost, fix=Fix.by_name(remedy), where=where or None, takes=Takes(ops_of(gone)),
    ).as_finding(case)  # fmt: skip

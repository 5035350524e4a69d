"""Experts that lie apart on the ranks, and one rank's are sent far more tokens: which rank owns which experts decides, not the data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import Late, Surplus
from nsysx.events.flow_messages import FlowMessage, messages_in
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.operator_names import LAYERS
from nsysx.findings._case import Case, Fix
from nsysx.findings._finding_bounds import MOST_SHARE, SENT_ALIKE_SHARE, SENT_MORE_TIMES
from nsysx.findings._flow_work import place_of_operator, work_of_operators
from nsysx.findings._rank_rows import rank_rows, straggler_of
from nsysx.model import Finding, Row
from nsysx.replay import peers

_EXCHANGE = "c10d::alltoall_base_"
#: Products of several experts at once.
_OF_SEVERAL = re.compile(r"^aten::(bmm|baddbmm|_grouped_mm|_scaled_grouped_mm)$")


class _ExpertWork(NamedTuple):
    """What a rank computes of rows that it was sent and sends back: rows that it ``sends`` and ``receives`` in a step, the time on the GPU
    (ns a step), and the line of the first product.
    """

    sends: int
    receives: int
    ns: float
    where: Row


def placed_by_load(case: Case, finding: Finding) -> Finding | None:
    """Return a finding about a rank with more GPU work where that is what it computes of more rows that it is sent; else None.

    All ranks send as much, so a mix of the data does not even that out: which rank owns which experts does.
    """
    late, rows = straggler_of(case), rank_rows(case)
    if finding.verdict != "found" or late is None or late["late_cause"] != Late.COMPUTE:
        return None
    if late["late_spread"] == Surplus.LONE or case.program.compiled:
        return None
    cases = [case, *(replace(case, profile=each) for each in peers.others(case.profile))]
    shown = next((each for each in cases if each.process == late["process"]), None)
    here = None if shown is None else _expert_work(shown)
    others = [work for each in cases if each is not shown and (work := _expert_work(each)) is not None]
    if here is None or not others or len(others) < len(rows) - 1:
        return None
    sends, receives, ns = (float(np.median(each)) for each in list(zip(*others, strict=True))[:3])
    alike = abs(here.sends - sends) <= SENT_ALIKE_SHARE * sends
    if not alike or here.receives < SENT_MORE_TIMES * receives or here.ns - ns < MOST_SHARE * late["late_ns"]:
        return None
    detail = (
        f"{finding.detail} All ranks send as many rows, and rank {late['rank']} is sent {units.count(here.receives)} a step, its peers "
        f"{units.count(receives)} each: what is computed of them takes {units.duration(here.ns)} there and {units.duration(ns)} on its "
        "peers, and the busy experts are its own."
    )
    saving = replace(
        finding.saving, bound=True, confidence=f"experts are not evenly shared to the row; {finding.saving.confidence}"
    )
    where = {**finding.where, **here.where} if here.where else finding.where
    return Fix.by_name("experts-by-load").into(replace(finding, detail=detail, saving=saving, where=where))


def _expert_work(case: Case) -> _ExpertWork | None:
    """Return what the case's rank computes of rows that are sent to it and back, None where it computes nothing of such."""
    flow, code = flow_of(case.profile), case.profile.code()
    if flow is None:
        return None
    spans = list(_sent_and_back(flow, messages_in(flow, case.profile)))
    inside = [row for span in spans for row in _products(flow, span)]
    if not inside:
        return None
    within = [
        row for there, back in spans for row in flow.outermost if there.end_ns <= flow.start_ns[row] < back.start_ns
    ]
    work = work_of_operators(case, flow)
    ns = int(work.filter(pl.col("row").is_in(within))["ns"].sum())
    return _ExpertWork(
        sum(there.sizes[1][0] for there, _ in spans),
        sum(there.sizes[0][0] for there, _ in spans),
        case.profile.scope.per_step(ns),
        {} if code is None else place_of_operator(code, flow, flow.start_ns[[inside[0]]]),
    )


def _sent_and_back(flow: OperatorFlow, messages: list[FlowMessage]) -> Iterator[tuple[FlowMessage, FlowMessage]]:
    """Yield the exchanges of rows with those that send back as many as came, in order."""
    there: FlowMessage | None = None
    for each in messages:
        if each.name != _EXCHANGE or [len(size) for size in each.sizes[:2]] != [2, 2]:
            continue
        if there is not None and each.sizes[:2] == there.sizes[1::-1] and _products(flow, (there, each)):
            yield there, each
            there = None
        else:
            there = each


def _products(flow: OperatorFlow, span: tuple[FlowMessage, FlowMessage]) -> list[int]:
    """Return the layers (rows of the flow) between two messages."""
    first, last = np.searchsorted(flow.start_ns, [span[0].end_ns, span[1].start_ns]).tolist()
    return [row for row in range(first, last) if flow.names[row] in LAYERS or _OF_SEVERAL.match(flow.names[row])]

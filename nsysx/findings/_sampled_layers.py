"""Layers of graph networks that compute all nodes of a sampled subgraph, the seeds of which are read (``events.sampled_layers``)."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import StepPart
from nsysx.events.operator_flow import flow_of
from nsysx.events.sampled_layers import sampled_layers
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.model import Finding, Row
from nsysx.replay.engine import ScaleOps

#: Names of how many seeds there are, where a line takes the first rows: what comes first may be something else, as a node for each graph.
_SEEDS = re.compile(r"(?i)\[\s*:\s*[\w.]*(batch_?size|seeds?|targets?|num_src|n_dst|\bbs\b|\bB\b)[\w.()]*\s*[\],]")
_CALL = re.compile(
    r"^(?P<made>[A-Za-z_]\w*)\s*=\s*(?P<call>.*?\((?P<x>[A-Za-z_]\w*)\s*,\s*(?P<edges>[A-Za-z_]\w*)\s*[,)].*)$"
)
_NUMBER = re.compile(r"\bfor\s+(?P<number>\w+)\s*,\s*\w+\s+in\s+enumerate\(")


def findings_of(case: Case, rule: Rule) -> tuple[list[Finding], frozenset[int]]:
    """Return one finding about such layers where those that are left out save 5 % of the step or more, and the operators (rows) that take
    the seeds of them.
    """
    flow, code = flow_of(case.profile), case.profile.code()
    if flow is None or code is None or case.program.compiled:
        return [], frozenset()
    sampled = [
        each
        for each in sampled_layers(flow)
        if _takes_seeds(case, place_of_operator(code, flow, flow.start_ns[[each.cut]]))
    ]
    if not sampled:
        return [], frozenset()
    work, edits = work_of_operators(case, flow), list[ScaleOps]()
    for each in sampled:
        for layer, call in enumerate(each.calls):
            rows = flow.outermost_of(call.first, call.last)
            if layer and (ops := ops_of(work.filter(pl.col("row").is_in(rows)))):
                edits.append(ScaleOps(ops, each.share(layer), less_work=True))
    ops = frozenset[int]().union(*(edit.ops for edit in edits))
    worth = case.worth_or_freed(*edits, cause=(StepPart.WORK,), bound=True) if ops else case.worth()
    if not ops or not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return [], frozenset()
    first = sampled[0]
    taken = case.per_step(int(work.filter(pl.col("op").is_in(list(ops)))["ns"].sum()))
    where = place_of_operator(code, flow, np.array([first.calls[-1].start_ns]))
    title = (
        f"{in_short(where) or 'A network'}: each of {len(first.calls)} layers computes {units.count(first.nodes)} sampled nodes, and "
        f"{units.count(first.seeds)} are read of the last"
    )
    detail = (
        f"The last layer needs the seeds alone, each one before it one hop more. The layers behind the first take {units.duration(taken)} "
        f"{case.per}, {case.share(taken)} of the step; what stays is estimated by hops that grow alike."
    )
    return [
        Found(
            rule, title, detail, worth=worth, cost_ns=taken, fix=_fix(case, where), where=where or None, takes=Takes(ops)
        ).as_finding(case)
    ], frozenset(each.cut for each in sampled)  # fmt: skip


def _takes_seeds(case: Case, where: Row) -> bool:
    """Return whether a line takes the seeds of what a loader sampled."""
    text = text_of(texts(case.profile), str(where.get("file")), int(where.get("line") or 0)) if where else None
    return _SEEDS.search(text or "") is not None


def _fix(case: Case, where: Row) -> Fix:
    source, file, line = texts(case.profile), str(where.get("file")), int(where.get("line") or 0)
    before = "\n".join(text_of(source, file, number) or "" for number in (line - 1, line))
    return Fix.by_name("trimmed-to-layer", paste=paste_of(text_of(source, file, line) or "", before))


def paste_of(text: str, near: str) -> str | None:
    """Return the lines that take the place of the call of a layer; ``near``: it and the line before it. None where it is no such call."""
    call, number = _CALL.match(text.partition("  #")[0].strip()), _NUMBER.search(near)
    if call is None:
        return None
    x, edges = call["x"], call["edges"]
    return (
        f"{x}, {edges}, _ = trim_to_layer({number['number'] if number else 'i'}, nodes_per_hop, edges_per_hop, {x}, {edges})\n"
        f"{call[0].strip()}"
    )

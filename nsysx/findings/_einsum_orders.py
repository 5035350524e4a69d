"""Calls of ``torch.einsum`` with three or more tensors that another order computes with less work (``events.einsum_orders``)."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.events.einsum_orders import Einsum, einsum_of
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.operator_flow import flow_of
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._instead import Instead
from nsysx.findings._once import Takes
from nsysx.findings._pieces_in_text import with_part
from nsysx.findings._work_bounds import EINSUM_AT_MOST_TIMES, EINSUM_LEFT_SHARE
from nsysx.model import Finding, Row

_REMEDY = "einsum-order"


class _EinsumCall(NamedTuple):
    """A call of einsum: the operator (row of the flow), its line, what it computes, and how the line reads in the other order."""

    row: int
    where: Row
    einsum: Einsum
    paste: str

    @property
    def left(self) -> float:
        """How much of the work is left in the other order: of the numbers moved or of the operations, whichever is more."""
        now, then = (self.einsum.costs(way) for way in (self.einsum.as_written, self.einsum.best))
        return max(then.numbers / now.numbers, then.operations / now.operations)


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding for each line whose calls of einsum save 5 % of the step in another order."""
    flow, lines = flow_of(case.profile), dict[tuple[object, object], list[_EinsumCall]]()
    if flow is None or case.program.compiled:
        return []
    for call in _calls(case):
        lines.setdefault((call.where["file"], call.where["line"]), []).append(call)
    if not lines:
        return []
    work = work_of_operators(case, flow)
    return [f for calls in lines.values() if (f := _found(case, rule, calls, work)) is not None]


def _calls(case: Case) -> list[_EinsumCall]:
    """Return the calls of einsum that another order computes with much less work."""
    flow, code, source = flow_of(case.profile), case.profile.code(), texts(case.profile)
    calls: list[_EinsumCall] = []
    ends = {} if flow is None else dict(flow.outermost_spans)
    for row in flow.outermost if flow is not None and code is not None else ():
        assert flow is not None and code is not None
        if flow.names[row] != "aten::einsum":
            continue
        where = place_of_operator(code, flow, flow.start_ns[[row]])
        text = (text_of(source, where["file"], where["line"]) or "").partition("  #")[0].strip() if where else ""
        sizes = [size for size in sizes_of(flow.size[row]) if size]
        for node in _einsums(text):
            equation, *given = node.args
            assert isinstance(equation, ast.Constant)
            einsum = einsum_of(str(equation.value), sizes) if len(given) == len(sizes) else None
            if einsum is not None:
                new = einsum.best.code([ast.unparse(each) for each in given], ast.unparse(node.func))
                call = _EinsumCall(row, where, einsum, with_part(text, node, new))
                if call.left <= EINSUM_LEFT_SHARE and _goes_left_to_right(call, flow.size[row : ends[row]]):
                    calls.append(call)
                break
    return calls


def _goes_left_to_right(call: _EinsumCall, sizes: Sequence[str]) -> bool:
    """Return whether operators with such arguments handle what only that order makes; opt_einsum finds another one by itself."""
    now, then = (call.einsum.costs(way).largest for way in (call.einsum.as_written, call.einsum.best))
    return now > then and any(math.prod(size) == now for text in sizes for size in sizes_of(text))


def _einsums(text: str) -> list[ast.Call]:
    """Return the calls of einsum of a line that name their equation and their tensors."""
    try:
        tree = ast.parse(text) if text.isascii() else ast.Module([], [])
    except SyntaxError:
        return []
    every = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) > 3 and not node.keywords]
    named = [
        node
        for node in every
        if isinstance(node.func, (ast.Name, ast.Attribute)) and ast.unparse(node.func).endswith("einsum")
    ]
    return [
        node for node in named
        if isinstance(node.args[0], ast.Constant) and not any(isinstance(each, ast.Starred) for each in node.args)
    ]  # fmt: skip


def _found(case: Case, rule: Rule, calls: list[_EinsumCall], work: pl.DataFrame) -> Finding | None:
    gone = work.filter(pl.col("row").is_in([call.row for call in calls]))["op", "ns"]
    taken = int(gone["ns"].sum())
    if not case.notable(case.per_step(taken), REPORTED_SHARE):
        return None
    of_row = dict(work.group_by("row").agg(pl.col("ns").sum()).iter_rows())
    least = math.fsum(of_row.get(call.row, 0) * call.left for call in calls)
    worth = Instead(gone, least, min(EINSUM_AT_MOST_TIMES * least, taken), at_limit=False).worth(case)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    first = calls[0]
    now, then = (first.einsum.costs(way) for way in (first.einsum.as_written, first.einsum.best))
    cost = case.per_step(taken)
    tensors = f"einsum multiplies {len(first.einsum.given)} tensors from left to right"
    title = f"{in_short(first.where)}: {tensors}: {units.duration(cost)} {case.per}"
    detail = (
        f"On the way it writes {units.count(now.largest)} numbers, {units.count(then.largest)} in the best order; it moves "
        f"{now.numbers / then.numbers:.1f} times as many in all, and computes {now.operations / then.operations:.1f} times as much. "
        f"{units.duration(cost)} {case.per} with the gradients, {case.share(cost)} of the step."
    )
    return Found(
        rule, title, detail, worth=worth, cost_ns=cost, fix=Fix.by_name(_REMEDY).but(paste=first.paste), where=first.where,
        takes=Takes(ops_of(gone)),
    ).as_finding(case)  # fmt: skip

"""Matrices that are factorized more than once in a step: one factorization gives solutions, inverse and determinant.

``torch.linalg.inv``, ``solve`` and ``logdet`` each factorize the matrix that they are given, and each has a gradient of its own. Where
an inverse is only multiplied on, a solution in its place leaves the factorization, half of it by Cholesky, and one gradient.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.result_readers import ResultReaders
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import CHOLESKY_SHARE, REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator
from nsysx.findings._found import Found
from nsysx.findings._instead import Instead
from nsysx.findings._once import Takes
from nsysx.findings._solved_systems import inverses_only_multiplied
from nsysx.model import Finding

_FACTORIZES = re.compile(r"^aten::(linalg_lu_factor_ex|linalg_cholesky_ex|cholesky|linalg_ldl_factor_ex)$")


class _Factorized(NamedTuple):
    """An outermost operator (row of the flow) that factorizes a matrix, and the innermost one of it that does."""

    row: int
    factor: int


def shared(flow: OperatorFlow) -> list[list[_Factorized]]:
    """Return the operators that factorize the same matrix, for each matrix of which several do."""
    readers, of_matrix = ResultReaders(flow), dict[int, list[_Factorized]]()
    for row, end in flow.outermost_spans:
        factor = next((i for i in range(row, end) if _FACTORIZES.match(flow.names[i])), None)
        if factor is None or not flow.made[row]:
            continue
        matrix, _ = readers.base_of(flow.made[row][0])
        if matrix >= 0:
            of_matrix.setdefault(matrix, []).append(_Factorized(row, factor))
    return [each for each in of_matrix.values() if len(each) > 1]


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding for each matrix whose factorizations beside the first one take 5 % of the step or more."""
    flow = flow_of(case.profile)
    if flow is None or operator_of_calls(case.profile) is None:
        return []
    return [f for group in shared(flow) if (f := _found(case, rule, flow, group)) is not None]


def _work(case: Case) -> pl.DataFrame:
    """Return the GPU ops of operators: op, ns, forward and backward: the innermost operator that makes it, or whose gradient does."""
    of_calls = operator_of_calls(case.profile)
    assert of_calls is not None
    call = case.ops["call"].fill_null(-1)
    of_op = {
        name: pl.Series([-1, *rows.tolist()], dtype=pl.Int64).gather(call + 1)
        for name, rows in (("forward", of_calls.forward), ("backward", of_calls.backward))
    }
    return case.ops.select("op", ns=pl.col("end_ns") - pl.col("start_ns"), **of_op)


def _rows(flow: OperatorFlow, row: int) -> range:
    """Return the rows of an operator and of all within it."""
    return range(
        row, next((i for i in range(row, len(flow.names)) if flow.start_ns[i] >= flow.end_ns[row]), len(flow.names))
    )


def _found(case: Case, rule: Rule, flow: OperatorFlow, group: list[_Factorized]) -> Finding | None:
    """Return the finding about a matrix that several operators factorize, None where one factorization saves too little."""
    work, only = _work(case), set(inverses_only_multiplied(flow))
    inside = {each.row: list(_rows(flow, each.row)) for each in group}
    factors = [work.filter(pl.col("forward").is_in(list(_rows(flow, each.factor)))) for each in group]
    once = max(int(factor["ns"].sum()) for factor in factors)
    gradients = [
        int(work.filter(pl.col("forward") < 0, pl.col("backward").is_in(rows))["ns"].sum()) for rows in inside.values()
    ]
    if only & inside.keys():
        rows = [row for rows in inside.values() for row in rows]
        gone = work.filter(pl.col("forward").is_in(rows) | ((pl.col("forward") < 0) & pl.col("backward").is_in(rows)))
        least, most = CHOLESKY_SHARE * once + max(gradients), float(once + sum(gradients))
    else:
        gone = pl.concat(factors).unique("op", maintain_order=True)
        least = most = float(once)
    taken = int(gone["ns"].sum())
    if not case.notable(case.per_step(taken), REPORTED_SHARE):
        return None
    worth = Instead(gone["op", "ns"], least, most).worth(case)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    code = case.profile.code()
    places = [{} if code is None else place_of_operator(code, flow, flow.start_ns[[each.row]]) for each in group]
    names = dict.fromkeys(flow.names[each.row].removeprefix("aten::").removesuffix("_ex") for each in group)
    size = " x ".join(map(str, sizes_of(flow.size[group[0].factor])[0][-2:]))
    there = f"{in_short(places[0])}: " if places[0] else ""
    title = f"{there}one matrix of {size} is factorized {units.several(len(group), 'time')}, for {' and '.join(names)}"
    lines = list(dict.fromkeys(in_short(where) for where in places if where))
    detail = (
        f"{units.duration(case.per_step(taken))} {case.per} with the gradients{', in ' + ', '.join(lines) if len(lines) > 1 else ''}. "
        f"One factorization takes {units.duration(case.per_step(once))}, and half of it by Cholesky."
    )
    return Found(
        rule, title, detail, worth=worth, cost_ns=case.per_step(taken), fix=Fix.by_name("factorized-once"), where=places[0] or None,
        takes=Takes(ops_of(gone)),
    ).as_finding(case)  # fmt: skip

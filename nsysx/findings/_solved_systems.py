"""Inverses of square matrices that are only multiplied on: a solver gives the product without them, in fewer and shorter kernels.

A pseudo-inverse takes the singular values of each matrix, an inverse factorizes it and solves for all columns of a unit matrix; either
has a gradient of several products. ``torch.linalg.solve`` factorizes once and solves for the columns that are asked for. Where the
determinant of the same matrix is computed, too, that factorizes it again: the Cholesky factor of a positive matrix gives both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import polars as pl

from nsysx import units
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.operator_flow import OperatorFlow, flow_of, is_view
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.findings._case import Case, Fix, Rule, Saving, calls_of, ops_of
from nsysx.findings._finding_bounds import CHOLESKY_SHARE, REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator
from nsysx.findings._found import Found
from nsysx.findings._once import Takes, began_in, edits_without
from nsysx.model import Finding

_INVERSES = re.compile(r"^aten::(linalg_pinv|pinverse|linalg_inv|linalg_inv_ex|inverse)$")
_DETERMINANTS = re.compile(r"^aten::(logdet|slogdet|_?linalg_slogdet|_?linalg_det|det)$")
_FULL_RANK = "For pinv the matrices must be of full rank, as with a multiple of the unit matrix added; "
_MULTIPLIES = re.compile(r"^aten::(matmul|mm|bmm|linear|einsum|mv)$")
_FACTORIZED_ONCE = Fix.by_name("solved-for-inverse").but(
    text="Factorize once: the Cholesky factor of a positive matrix gives both the solution, without an inverse, and the determinant, which "
    "now factorizes the matrix again",
    paste="factor = torch.linalg.cholesky(a)\nx = torch.cholesky_solve(b, factor)  # not torch.linalg.inv(a) @ b\n"
    "logdet = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)",
    condition="The matrix must be symmetric and positive, as a covariance is; else torch.linalg.lu_factor gives both.",
)


def findings_of(case: Case, rule: Rule, claimed: frozenset[int]) -> list[Finding]:
    """Return the finding about inverses that are only multiplied on, if these with their gradients take 5 % of the step or more.

    ``claimed``: GPU ops of other findings.
    """
    flow, code, of_calls = flow_of(case.profile), case.profile.code(), operator_of_calls(case.profile)
    if flow is None or code is None or of_calls is None:
        return []
    rows = list(inverses_only_multiplied(flow))
    of_call = of_calls.within(flow)[case.calls["call"].to_numpy()]
    made = case.calls.filter(np.isin(of_call, rows))
    launched = case.ops.filter(case.ops["call"].is_in(list(calls_of(made))).fill_null(value=False))
    if not made.height or claimed & ops_of(launched):
        return []
    worth = case.worth(*edits_without(made, case.ops), cause=rule.cause, bound=True)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return []
    again = case.calls.filter(np.isin(of_call, list(_determinants(flow, rows))))
    if again.height:
        made = pl.concat([made, again])
        worth = _factorized_once(worth, case.worth(*edits_without(made, case.ops), cause=rule.cause, bound=True))
    calls = calls_of(made)
    theirs = case.ops.filter(case.ops["call"].is_in(list(calls)).fill_null(value=False))
    where = place_of_operator(code, flow, flow.start_ns[[rows[0]]])
    name, size = flow.names[rows[0]].removeprefix("aten::"), " x ".join(map(str, sizes_of(flow.size[rows[0]])[0][-2:]))
    count = sum(int(np.prod(sizes_of(flow.size[row])[0][:-2])) for row in rows)
    taken = case.per_step(int((theirs["end_ns"] - theirs["start_ns"]).sum()))
    there = f"{in_short(where)}: " if where else ""
    title = f"{there}{name} of {units.several(count, 'matrix', 'matrices')} of {size} that only products read"
    title += ", and a determinant of the same" if again.height else ""
    detail = (
        f"{len(calls) / case.steps:.0f} calls and {units.duration(taken)} of the GPU's time {case.per}, with the gradients. A solver "
        "takes a part of both."
    )
    takes = Takes(ops_of(theirs), idle=began_in(case.idle, calls))
    pseudo = "pinv" in name or name == "pinverse"
    paste = f"x = torch.linalg.solve(a, b)  # not torch.{'linalg.pinv' if pseudo else 'linalg.inv'}(a) @ b"
    condition = f"{_FULL_RANK if pseudo else ''}cholesky_solve for positive definite ones."
    solved = Fix.by_name("solved-for-inverse", paste=paste, condition=units.capitalized(condition))
    fix = _FACTORIZED_ONCE if again.height else solved
    return [
        Found(
            rule, title, detail, worth=worth, cost_ns=worth.likely_ns or 0, fix=fix,
            where=where or None, calls=calls, takes=takes,
        ).as_finding(case)
    ]  # fmt: skip


def _determinants(flow: OperatorFlow, inverses: list[int]) -> Iterator[int]:
    """Yield the outermost operators (rows) that take the determinant of a matrix that one of these inverts."""
    inverted = {flow.made[row][0] for row in inverses if flow.made[row] and flow.made[row][0] >= 0}
    for row in flow.outermost:
        if _DETERMINANTS.match(flow.names[row]) and flow.made[row] and flow.made[row][0] in inverted:
            yield row


def _factorized_once(inverse: Saving, both: Saving) -> Saving:
    """Return what one factorization saves: the inverse goes, of the determinant with its gradient at least nothing and at most all.

    ``inverse`` and ``both``: what is saved without the inverses, and without the determinants, too. Cholesky's factorization has half
    the operations of that by which the determinant is computed (n^3 / 3 and 2 n^3 / 3).
    """
    if inverse.likely_ns is None or both.likely_ns is None:
        return inverse
    more = max(0, both.likely_ns - inverse.likely_ns)
    likely = inverse.likely_ns + round((1 - CHOLESKY_SHARE) * more)
    error = likely - inverse.likely_ns + (inverse.error_ns or 0)
    why = "between the inverse alone and the determinant with it; its factorization stays, in half the operations"
    most = max(both.most_ns or 0, both.likely_ns)
    return replace(
        inverse, likely_ns=likely, error_ns=error, most_ns=most, bound=False, source="limits", confidence=why
    )


def inverses_only_multiplied(flow: OperatorFlow) -> Iterator[int]:
    """Yield the outermost operators (rows) that invert square matrices, of whose results a product is made and nothing else."""
    ends = [*flow.outermost[1:], len(flow.names)]
    read = {
        row: {number for inner in range(row, end) for number in flow.made[inner] if number >= 0}
        for row, end in zip(flow.outermost, ends, strict=True)
    }
    for row in flow.outermost:
        size = [*sizes_of(flow.size[row]), ()][0]
        if not _INVERSES.match(flow.names[row]) or len(size) < 2 or size[-1] != size[-2]:
            continue
        waiting, readers = [flow.number[row]], list[str]()
        while waiting:
            number = waiting.pop()
            for reader in (each for each, numbers in read.items() if number in numbers and each > row):
                if is_view(flow.names[reader]):
                    waiting.append(flow.number[reader])
                else:
                    readers.append(flow.names[reader])
        if readers and all(_MULTIPLIES.match(name) for name in readers) and flow.number[row] not in flow.read_later:
            yield row

"""Inverses of square matrices that are only multiplied on: a solver gives the product without them, in fewer and shorter kernels.

A pseudo-inverse takes the singular values of each matrix, an inverse factorizes it and solves for all columns of a unit matrix; either
has a gradient of several products. ``torch.linalg.solve`` factorizes once and solves for the columns that are asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from nsysx import units
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.operator_flow import OperatorFlow, flow_of, is_view
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.findings._case import Case, Fix, Rule, calls_of, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator
from nsysx.findings._found import Found
from nsysx.findings._once import Takes, began_in, edits_without
from nsysx.model import Finding

_INVERSES = re.compile(r"^aten::(linalg_pinv|pinverse|linalg_inv|linalg_inv_ex|inverse)$")
_FULL_RANK = "For pinv the matrices must be of full rank, as with a multiple of the unit matrix added; "
_MULTIPLIES = re.compile(r"^aten::(matmul|mm|bmm|linear|einsum|mv)$")


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
    calls, theirs = calls_of(made), launched
    where = place_of_operator(code, flow, flow.start_ns[[rows[0]]])
    name, size = flow.names[rows[0]].removeprefix("aten::"), " x ".join(map(str, sizes_of(flow.size[rows[0]])[0][-2:]))
    count = sum(int(np.prod(sizes_of(flow.size[row])[0][:-2])) for row in rows)
    taken = case.per_step(int((theirs["end_ns"] - theirs["start_ns"]).sum()))
    there = f"{in_short(where)}: " if where else ""
    title = f"{there}{name} of {units.several(count, 'matrix', 'matrices')} of {size} that only products read"
    detail = (
        f"{len(calls) / case.steps:.0f} calls and {units.duration(taken)} of the GPU's time {case.per}, with the gradients. A solver "
        "takes a part of both."
    )
    takes = Takes(ops_of(theirs), idle=began_in(case.idle, calls))
    pseudo = "pinv" in name or name == "pinverse"
    paste = f"x = torch.linalg.solve(a, b)  # not torch.{'linalg.pinv' if pseudo else 'linalg.inv'}(a) @ b"
    condition = f"{_FULL_RANK if pseudo else ''}cholesky_solve for positive definite ones."
    fix = Fix.by_name("solved-for-inverse", paste=paste, condition=units.capitalized(condition))
    return [
        Found(
            rule, title, detail, worth=worth, cost_ns=worth.likely_ns or 0, fix=fix,
            where=where or None, calls=calls, takes=takes,
        ).as_finding(case)
    ]  # fmt: skip


def inverses_only_multiplied(flow: OperatorFlow) -> Iterator[int]:
    """Yield the outermost operators (rows) that invert square matrices, of whose results a product is made and nothing else."""
    read = {
        row: {number for inner in range(row, end) for number in flow.made[inner] if number >= 0}
        for row, end in flow.outermost_spans
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

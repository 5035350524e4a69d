"""A sum of what layers reduce one by one, reduced once: in the lines of a program whose layers have an option for their reduction."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from nsysx.analyses import lines
from nsysx.events.added_reductions import AddedReductions, Reduction
from nsysx.events.code_lines import CodeLines
from nsysx.findings._case import Case
from nsysx.findings._layer_options import other_layers, paste_of
from nsysx.findings._pieces_in_text import whole_statement


class _Reduces(NamedTuple):
    """How a layer reduces: the text of it for another tensor's, and whether it only does so in place."""

    of: Callable[[str], str]
    in_place: bool


def reduced_once(case: Case, added: AddedReductions) -> str:
    """Return the lines that reduce a sum once; "" where the layers reduce by no options of theirs."""
    layers = other_layers(case, [(each.thread, each.start_ns) for group in added.groups for each in group])
    code = case.profile.code()
    if not layers or code is None:
        return ""
    texts = {_sum_with_reduction(case, code, *each) for each in zip(added.groups, added.sums, strict=True)}
    summed = texts.pop() if len(texts) == 1 else ""
    return "\n".join(
        (
            paste_of(layers),
            summed or "# where what these return is added: reduce the sum, without what is no part of it",
        )
    )


def _sum_with_reduction(case: Case, code: CodeLines, group: Sequence[Reduction], added_at: tuple[int, int]) -> str:
    """Return the statement that adds up, with one reduction of what a group reduces; "" where its names are not seen."""
    thread, at_ns = added_at
    source = lines.texts(case.profile)

    def chain(on_thread: int, instant_ns: int) -> list[tuple[str, int, str]]:
        return [code.places.row(row) for row in code.own_chain(int(code.at(on_thread, np.array([instant_ns]))[0]))]

    line_of_sum = next(iter(chain(thread, at_ns)), None)
    calls = [chain(each.thread, each.start_ns) for each in group]
    reduces = [_reduces(case, each) for each in calls]
    statement = None if line_of_sum is None else whole_statement(lines.text_of(source, *line_of_sum[:2]) or "")
    if line_of_sum is None or statement is None or reduces[0] is None:
        return ""
    names, within = set[str](), 0
    for each in calls:
        # The line of the same function that calls the layer, which the sum itself may do.
        line = next((row for row in each if row[::2] == line_of_sum[::2]), None)
        made = None if line is None else whole_statement(lines.text_of(source, *line[:2]) or "")
        if line == line_of_sum:
            within += 1
        elif isinstance(made, ast.Assign) and isinstance(made.targets[0], ast.Name):
            names.add(made.targets[0].id)
    first, *more = _with_one(statement, names, within, reduces[0])
    return "\n".join((f"{first}  # line {line_of_sum[1]}" if first else "", *more))


def _reduces(case: Case, chain: Sequence[tuple[str, int, str]]) -> _Reduces | None:
    """Return how the line that runs by an option reduces what the layer has made."""
    line = next((row for row in chain if lines.options_of_layers(case.profile, *row[:2])), None)
    statement = None if line is None else whole_statement(lines.text_of(lines.texts(case.profile), *line[:2]) or "")
    value = getattr(statement, "value", None)
    sides = (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)
    call = next((side for side in sides if isinstance(side, ast.Call) and side.args), None)
    if call is None or not isinstance(call.args[0], ast.Name):
        return None
    function, rest = ast.unparse(call.func), [*map(ast.unparse, (*call.args[1:], *call.keywords))]
    return _Reduces(lambda given: f"{function}({', '.join((given, *rest))})", isinstance(statement, ast.Expr))


def _with_one(statement: ast.stmt, names: set[str], within: int, reduces: _Reduces) -> list[str]:
    """Return lines of a sum of what has these names, and of so many calls ``within`` it, reduced once; [""] where it adds others."""
    value = getattr(statement, "value", None)
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        target = ast.unparse(statement.target)
        if within or {target, ast.unparse(statement.value)} != names or len(names) != 2:
            return [""]
        behind = reduces.of(target)
        return [ast.unparse(statement), behind if reduces.in_place else f"{target} = {behind}"]
    if not isinstance(statement, (ast.Assign, ast.Return)) or value is None:
        return [""]
    terms = list(_terms(value))
    reduced = [
        each for each in terms if (isinstance(each, ast.Name) and each.id in names) or isinstance(each, ast.Call)
    ]
    calls = sum(isinstance(each, ast.Call) for each in reduced)
    if len(reduced) < 2 or calls != within or len(reduced) - calls != len(names):
        return [""]
    summed = " + ".join(ast.unparse(each) for each in reduced)
    others = [ast.unparse(each) for each in terms if each not in reduced]
    left = "return " if isinstance(statement, ast.Return) else f"{ast.unparse(statement.targets[0])} = "
    if reduces.in_place:
        return [f"total = {summed}", reduces.of("total"), left + " + ".join((*others, "total"))]
    return [left + " + ".join((*others, reduces.of(summed)))]


def _terms(value: ast.expr) -> Sequence[ast.expr]:
    """Return what an expression adds up."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return [*_terms(value.left), *_terms(value.right)]
    return [value]

"""Rounds of which the first takes its values from elsewhere, as where the last time step has no next one: ``if t == steps - 1: ... else:``.

For all rounds at once these values are those of the first round, set before those of the others. Nobody notes the line of an ``else``: it
is where one line is missing between two blocks of one indent below an ``if`` that give the same names.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from typing import NamedTuple

from nsysx.findings._loop_texts import depth_of
from nsysx.findings._pieces_in_text import function_of_call, names_in, whole_statement


class ChosenValue(NamedTuple):
    """A name that is given ``first`` in the first round and ``others`` in all others; ``statement`` gives it those of all rounds."""

    first: ast.expr
    others: ast.expr
    statement: ast.Assign


def with_else(source: Mapping[str, object]) -> Mapping[str, object]:
    """Return the texts of lines (number -> text) with the lines ``else:`` that they tell."""
    rows = sorted(
        (int(n), text) for n, text in source.items() if n.isdigit() and isinstance(text, str) and text.strip()
    )
    told = dict(source)
    for row, (number, text) in enumerate(rows):
        if not text.lstrip().startswith("if ") or not text.rstrip().endswith(":"):
            continue
        below = []
        for each in rows[row + 1 :]:
            if depth_of(each[1]) <= depth_of(text):
                break
            below.append(each)
        gaps = [i for i in range(1, len(below)) if below[i][0] == below[i - 1][0] + 2]
        if len(gaps) == 1 and below[0][0] == number + 1:
            names = [_names_given(list(part)) for part in (below[: gaps[0]], below[gaps[0] :])]
            if names[0] and names[0] == names[1]:
                told[str(below[gaps[0]][0] - 1)] = " " * depth_of(text) + "else:"
    return told


def _names_given(rows: list[tuple[int, str]]) -> list[str]:
    """Return the names that lines give a value, sorted; none where one of them does anything else."""
    statements = [whole_statement(text) for _, text in rows]
    names = [name for each in statements if (name := _name_given(each))]
    return sorted(names) if len(names) == len(statements) and len({depth_of(text) for _, text in rows}) == 1 else []


def _name_given(statement: ast.stmt | None) -> str:
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return ""
    target = statement.targets[0]
    return target.id if isinstance(target, ast.Name) else ""


def chosen_in_first(loop: ast.For, statement: ast.stmt) -> list[ChosenValue]:
    """Return the values of a statement that asks for the first round of a loop over a range; [] for any other statement."""
    if not isinstance(statement, ast.If) or not isinstance(loop.target, ast.Name):
        return []
    number = loop.target.id
    first, others = ({_name_given(each): each for each in part} for part in (statement.body, statement.orelse))
    sizes = {len(first), len(others), len(statement.body), len(statement.orelse)}
    if (
        not _asks_for_first(loop, statement.test, number)
        or "" in first
        or first.keys() != others.keys()
        or len(sizes) != 1
    ):
        return []
    chosen = list[ChosenValue]()
    for name, here in first.items():
        there = others[name]
        assert isinstance(here, ast.Assign)
        assert isinstance(there, ast.Assign)
        if number in names_in(here.value) or number not in names_in(there.value):
            return []
        if first.keys() & (names_in(here.value) | names_in(there.value)):
            return []
        behind = ast.unparse(_Behind(number).visit(copy.deepcopy(there.value)))
        alone = ast.unparse(ast.Subscript(here.value, ast.Constant(None), ast.Load()))
        (made,) = ast.parse(f"{name} = torch.cat([{alone}, {behind}])").body
        assert isinstance(made, ast.Assign)
        chosen.append(ChosenValue(here.value, there.value, made))
    return chosen


def _asks_for_first(loop: ast.For, test: ast.expr, number: str) -> bool:
    """Return whether a condition holds in the first round alone: of a range from 0 on, or of one that goes back to 0."""
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    sides, each = {ast.unparse(test.left), ast.unparse(test.comparators[0])}, loop.iter
    turned = function_of_call(each) == "reversed" and isinstance(each, ast.Call) and len(each.args) == 1
    each = each.args[0] if turned and isinstance(each, ast.Call) else each
    if not (isinstance(each, ast.Call) and function_of_call(each) == "range" and len(each.args) == 1):
        return False
    last = ast.unparse(ast.BinOp(each.args[0], ast.Sub(), ast.Constant(1)))
    return sides == {number, last if turned else "0"}


class _Behind(ast.NodeTransformer):
    """The number of a round becomes those of all rounds but the first."""

    def __init__(self, number: str) -> None:
        self.number = number

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.parse(f"{node.id}[1:]", mode="eval").body if node.id == self.number else node

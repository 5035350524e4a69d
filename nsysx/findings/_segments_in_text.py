"""What takes the place of a loop that sums the rows of each group, or takes their mean or maximum, in the names of its lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from nsysx.findings._fix import Fix
from nsysx.findings._pieces_in_text import parsed
from nsysx.findings._work_bounds import MOST_LOOP_LINES

#: What a round makes of its rows -> how ``index_reduce_`` is to do it, "" for a sum.
_BY = {"sum": "", "mean": "mean", "amax": "amax", "max": "amax", "amin": "amin", "min": "amin"}
_COUNTS = re.compile(r"^(?:async\s+)?for\s+(?P<name>\w+)\s+in\s+range\((?P<count>[^(),]+(?:\([^()]*\))?)\):")
_DIMENSION = ("dim", "axis")
SEGMENTS = Fix.by_name("segments-at-once")
_CONDITION = "Each row must be of one of these groups, numbered from 0; a group without rows gets zeros."


class _Segment(NamedTuple):
    """The expression of a round: rows, the group of each, the name of the round's group, and what it makes of them."""

    rows: str
    group: str
    number: str
    by: str


def in_names_of_line(source: Mapping[str, Any], file: str | None, line: int | None, fix: Fix) -> Fix:
    """Return advice, that for segments in the names of a line whose text tells what its rounds make. ``source``: file -> line -> text."""
    paste = _statement(source.get(file or "", {}), line) if fix == SEGMENTS and line is not None else ""
    return fix.but(paste=paste, condition=_CONDITION) if paste else fix


def _statement(source: Mapping[str, object], line: int) -> str:
    lines = {int(n): text.strip() for n, text in source.items() if isinstance(text, str) and n.isdigit()}
    tree = parsed(lines.get(line, ""))
    before = [lines[n] for n in range(line - 1, line - 1 - MOST_LOOP_LINES, -1) if n in lines]
    if tree is None or len(tree.body) != 1:
        return ""
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr):
            continue
        segment = _segment(node, before)
        if segment is None:
            continue
        return _of_list(tree.body[0], segment) or _of_loop(tree.body[0], segment, before)
    return ""


def _of_list(statement: ast.stmt, segment: _Segment) -> str:
    """Return the statement for torch.stack([x[group == g].sum(0) for g in range(n)]) in a statement."""
    for node in ast.walk(statement):
        if not isinstance(node, ast.Call) or ast.unparse(node.func).rpartition(".")[2] != "stack" or not node.args:
            continue
        rounds = node.args[0]
        along = [*map(ast.unparse, node.args[1:]), *(ast.unparse(each.value) for each in node.keywords)]
        if (
            not isinstance(rounds, ast.ListComp | ast.GeneratorExp)
            or len(rounds.generators) > 1
            or along not in ([], ["0"])
        ):
            continue
        (over,) = rounds.generators
        if ast.unparse(over.target) != segment.number or over.ifs or _segment(rounds.elt, []) is None:
            continue
        if not (
            isinstance(over.iter, ast.Call) and ast.unparse(over.iter.func) == "range" and len(over.iter.args) == 1
        ):
            continue
        return ast.unparse(statement).replace(ast.unparse(node), _all(segment, ast.unparse(over.iter.args[0])), 1)
    return ""


def _of_loop(statement: ast.stmt, segment: _Segment, before: list[str]) -> str:
    """Return the statement for out[g] = x[group == g].sum(0), or out.append(...), in place of the loop around it."""
    count = next((m["count"] for text in before if (m := _COUNTS.match(text)) and m["name"] == segment.number), "")
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        (target,) = statement.targets
        by_number = isinstance(target, ast.Subscript) and ast.unparse(target.slice) == segment.number
        if isinstance(target, ast.Subscript) and by_number and count and _segment(statement.value, before) is not None:
            return f"{ast.unparse(target.value)} = {_all(segment, count)}  # in place of the loop"
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and count:
        call = statement.value
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "append"
            and _segment(call.args[0], before) is not None
        ):
            whole = f"{ast.unparse(call.func.value)} = {_all(segment, count)}  # in place of the loop"
            return f"{whole}: stacked already"
    return ""


def _all(segment: _Segment, count: str) -> str:
    rows = segment.rows
    made = f"{rows}.new_zeros({count}, *{rows}.shape[1:])"
    if not segment.by:
        return f"{made}.index_add_(0, {segment.group}, {rows})"
    return f"{made}.index_reduce_(0, {segment.group}, {rows}, '{segment.by}', include_self=False)"


def _segment(node: ast.expr, before: list[str]) -> _Segment | None:
    """Return what x[group == g].sum(0) is, also where a line before names the mask; x[mask].max(0).values and max(0)[0], too."""
    first = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == 0
    values = first or (isinstance(node, ast.Attribute) and node.attr == "values")
    if values and isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _BY):
        return None
    if values != (node.func.attr in ("max", "min")):  # of these two one of the results is taken
        return None
    along = [ast.unparse(each) for each in node.args] + [
        ast.unparse(each.value) for each in node.keywords if each.arg in _DIMENSION
    ]
    taken = node.func.value
    if along != ["0"] or len(node.args) + len(node.keywords) != 1 or not isinstance(taken, ast.Subscript):
        return None
    mask = taken.slice
    if isinstance(mask, ast.Name):
        named = (re.match(rf"{mask.id}\s*=(?!=)\s*(.+)$", text) for text in before)
        text = next((match[1] for match in named if match), "")
        tree = parsed(text)
        mask = tree.body[0].value if tree is not None and tree.body and isinstance(tree.body[0], ast.Expr) else mask
    if not (isinstance(mask, ast.Compare) and len(mask.ops) == 1 and isinstance(mask.ops[0], ast.Eq)):
        return None
    group, number = mask.left, mask.comparators[0]
    if not isinstance(number, ast.Name) or not isinstance(taken.value, ast.Name | ast.Attribute):
        return None
    return _Segment(ast.unparse(taken.value), ast.unparse(group), number.id, _BY[node.func.attr])

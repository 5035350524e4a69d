"""Loops that fill parts of the rows of a tensor one by one, in the program's own names: all parts at once, by a mask of their bounds."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping
from copy import deepcopy

from nsysx.findings._loop_texts import depth_of
from nsysx.findings._pieces_in_text import OtherFormError, names_in


def masked(source: Mapping[str, object], line: int) -> str:
    """Return statements in place of the loop over rows around a line (number -> text with indent), whose inner loops read bounds of a part
    as numbers and fill it; "" for other loops.
    """
    rows = {int(number): text for number, text in source.items() if isinstance(text, str) and number.isdigit()}
    heads = [n for n in rows if n < line and rows[n].lstrip().startswith("for ")]
    for head in sorted(heads, reverse=True):
        block, end = [rows[head]], head + 1
        while end in rows and depth_of(rows[end]) > depth_of(rows[head]):
            block.append(rows[end])
            end += 1
        loop = _loop(block) if end > line else None
        if loop is not None and any(isinstance(each, ast.For) for each in loop.body):
            try:
                return "\n".join(statement for inner in loop.body for statement in _filled(inner, _number(loop)))
            except OtherFormError:
                return ""
    return ""


def _loop(block: list[str]) -> ast.For | None:
    try:
        tree = ast.parse(textwrap.dedent("\n".join(block)))
    except SyntaxError:
        return None
    return tree.body[0] if len(tree.body) == 1 and isinstance(tree.body[0], ast.For) else None


def _number(loop: ast.For) -> str:
    """Return the number that a loop over a range counts."""
    counts = isinstance(loop.iter, ast.Call) and ast.unparse(loop.iter.func) == "range" and len(loop.iter.args) == 1
    if not counts or not isinstance(loop.target, ast.Name) or loop.orelse:
        raise OtherFormError
    return loop.target.id


def _filled(inner: ast.stmt, row: str) -> list[str]:
    """Return the statements in place of a loop over the parts of a row."""
    if not isinstance(inner, ast.For):
        raise OtherFormError
    for_all, statements, names = _ForAll(row, _number(inner)), list[str](), set[str]()
    for each in inner.body:
        if not isinstance(each, ast.Assign) or len(each.targets) != 1:
            raise OtherFormError
        target = each.targets[0]
        if isinstance(target, ast.Name):
            statements.append(f"{target.id} = {for_all.text(each.value)}")
            names.add(target.id)
        else:
            statements += _by_mask(target, each.value, for_all)
    if not names:
        raise OtherFormError
    return statements


def _by_mask(target: ast.expr, value: ast.expr, for_all: _ForAll) -> list[str]:
    """Return what fills x[row, begin:end], or x[row, :, begin:end], of all rows and parts."""
    index = target.slice.elts if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Tuple) else []
    if (
        not isinstance(target, ast.Subscript)
        or not isinstance(target.value, ast.Name)
        or not isinstance(value, ast.Constant)
    ):
        raise OtherFormError
    whole = [isinstance(each, ast.Slice) and not (each.lower or each.upper or each.step) for each in index]
    if len(index) < 2 or ast.unparse(index[0]) != for_all.row or not all(whole[1:-1]):
        raise OtherFormError
    part, x, dim = index[-1], target.value.id, len(index) - 1
    if not isinstance(part, ast.Slice) or part.lower is None or part.upper is None or part.step:
        raise OtherFormError
    first, last = (text if text.isidentifier() else f"({text})" for text in map(for_all.text, (part.lower, part.upper)))
    ones = "1, " * (dim - 1)
    return [
        f"at = torch.arange({x}.size({dim}), device={x}.device)",
        f"mask = ((at >= {first}[..., None]) & (at < {last}[..., None])).any(1)",
        f"{x}.masked_fill_(mask.view(len(mask), {ones}-1, *[1] * ({x}.dim() - {dim + 1})), {ast.unparse(value)})",
    ]


class _ForAll(ast.NodeTransformer):
    """Puts tensors of all rows and parts in place of their numbers."""

    def __init__(self, row: str, part: str) -> None:
        self.row, self._part = row, part

    def text(self, node: ast.expr) -> str:
        """Return an expression of a row and a part for all of them."""
        after = self.visit(deepcopy(node))
        if names_in(after) & {
            self.row,
            self._part,
            "int",
            "at",
            "mask",
        }:
            raise OtherFormError
        return ast.unparse(after)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        index = ast.unparse(node.slice).strip("()").replace(" ", "")
        if index == f"{self.row},{self._part}":
            return node.value
        if index == self.row:
            return ast.parse(f"{ast.unparse(node.value)}[:, None]", mode="eval").body
        raise OtherFormError

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if not isinstance(node.func, ast.Name) or node.func.id != "int" or len(node.args) != 1:
            raise OtherFormError
        inner = self.visit(node.args[0])
        return ast.Call(ast.Attribute(inner, "long", ast.Load()), [], [])

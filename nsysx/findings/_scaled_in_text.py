"""Lines that convert numbers on the CPU, without that: in the program's own words, and what is left to do on the GPU."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from nsysx.findings import _fill_pastes, _segments_in_text
from nsysx.findings._case import Fix
from nsysx.findings._pieces_in_text import whole_statement

_FLOAT32 = re.compile(r"float(32)?\b")
_ARRAYS = re.compile(r"^(np|numpy|torch)\.(as_?array|array|as_?tensor|tensor)$")


def in_names_of_line(source: Mapping[str, Any], file: str | None, line: int | None, fix: Fix) -> Fix:
    """Return advice in the names of a line whose text tells what it makes or converts. ``source``: file -> line -> text."""
    if [way.name for way in fix.ways] == ["converted-on-gpu"]:
        text = source.get(file or "", {}).get(str(line))
        paste = converted_later(text) if isinstance(text, str) else ""
        return fix.but(paste=paste) if paste else fix
    if [way.name for way in fix.ways] == ["filled-by-mask"] and line is not None:
        paste = _fill_pastes.masked(source.get(file or "", {}), line)
        return fix.but(paste=paste) if paste else fix
    return _segments_in_text.in_names_of_line(source, file, line, fix)


def converted_later(text: str) -> str:
    """Return a statement without the division and the conversion that it makes, and the line that makes both on the GPU; "" for another."""
    statement = whole_statement(text)
    if statement is None:
        return ""
    by: list[str] = []

    class Left(ast.NodeTransformer):
        """Leaves of (numbers as float32) / 255 the numbers."""

        def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
            stored = _stored(node.left) if isinstance(node.op, ast.Div) else None
            if (
                stored is None
                or not isinstance(node.right, ast.Constant)
                or not isinstance(node.right.value, int | float)
            ):
                return self.generic_visit(node)
            by.append(f"{node.right.value:g}")
            return stored

    left = Left().visit(statement)
    if len(set(by)) != 1:
        return ""
    return f"{ast.unparse(left)}  # as they are stored\nx = x.float().div_({by[0]})  # on the GPU, before the network takes it"


def _stored(node: ast.expr) -> ast.expr | None:
    """Return the numbers that an expression converts to float32, None where it does not, or does more."""
    if not isinstance(node, ast.Call):
        return None
    given = [*map(ast.unparse, node.args), *(ast.unparse(each.value) for each in node.keywords)]
    if isinstance(node.func, ast.Attribute) and node.func.attr == "astype" and given and _FLOAT32.search(given[0]):
        return node.func.value
    if _ARRAYS.match(ast.unparse(node.func)) and len(given) == 2 and node.args and _FLOAT32.search(given[1]):
        return ast.Call(node.func, [node.args[0]], [])
    return None

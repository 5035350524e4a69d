"""The text of a line with which something begins that goes on over further lines: a call whose arguments stand below each other.

Formatters break lines after 80 or 100 columns. Python runs such a call at its first line, where only ``dist.all_reduce(`` stands; what
a reader, and a rule, must know of it is all of it in one line. Calls that begin on lines of their own below run there, and their line
tells of them: of these only the object stays whose method is called, and ``...`` of all others.
"""

from __future__ import annotations

import ast
import tokenize
from bisect import bisect_left
from collections.abc import Collection, Iterator
from copy import copy, deepcopy
from typing import Any

from .probe_bounds import MOST_PARSED_LETTERS

#: Parts of a statement that are statements of their own, or run when a function is made.
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases", "decorator_list")
#: Python 3.10 has ``match``.
_HEADERS = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, getattr(ast, "Match", ast.If))
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def in_one_line(lines: list[str], numbers: Collection[int]) -> dict[int, str]:
    """Return the texts of those of some lines (numbers from 1 on) with which something begins that goes on below.

    Nothing is parsed for lines that close what they open; a very long text has none, and neither has one that is no Python.
    """
    opening = sorted(n for n in numbers if n <= len(lines) and _opens(lines[n - 1]))
    if not opening or sum(map(len, lines)) > MOST_PARSED_LETTERS:
        return {}
    try:
        tree = ast.parse("\n".join(lines))
        modules = {alias.asname or alias.name.partition(".")[0] for alias in _imported(tree.body)}
        first: dict[int, ast.AST] = {}
        for node in _around(tree, opening):
            line = getattr(node, "lineno", 0)
            if line in opening and line not in first and _last_line(node) > line:
                first[line] = node
        return {line: _text(node, line, modules) for line, node in first.items()}
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deep
        return {}


def of_loop(lines: list[str], number: int) -> list[int]:
    """Return the numbers of the lines on which the innermost loop around a line, and the statements in it, begin; none without a loop."""
    if sum(map(len, lines)) > MOST_PARSED_LETTERS:
        return []
    try:
        nodes = [*ast.walk(ast.parse("\n".join(lines)))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    around = [n for n in nodes if isinstance(n, (ast.For, ast.While)) and n.lineno < number <= (n.end_lineno or 0)]
    if not around:
        return []
    innermost = max(around, key=lambda loop: loop.lineno)
    inside = (node for each in innermost.body for node in ast.walk(each) if isinstance(node, ast.stmt))
    return [innermost.lineno, *sorted({node.lineno for node in inside})]


def without_comment(line: str) -> str:
    """Return a line without what stands behind ``#``: it is no code, and may name any."""
    if "#" not in line:
        return line
    try:
        for token in tokenize.generate_tokens(iter([line]).__next__):
            if token.type == tokenize.COMMENT:
                return line[: token.start[1]].rstrip()
    except (tokenize.TokenError, SyntaxError):  # the rest stands on other lines
        pass
    return line


def _opens(text: str) -> bool:
    """Return whether a line opens more brackets than it closes; those in strings and comments are counted, too."""
    return sum(map(text.count, "([{")) > sum(map(text.count, ")]}"))


def _imported(body: list[ast.stmt]) -> Iterator[ast.alias]:
    """Yield what a module imports, in blocks of ``try`` and ``if``, too."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from node.names
        elif isinstance(node, (ast.Try, ast.If)):
            yield from _imported(node.body)


def _around(node: ast.AST, lines: list[int]) -> Iterator[ast.AST]:
    """Yield the statements and expressions in a node that hold some of the lines (in order), parents first."""
    for child in ast.iter_child_nodes(node):
        begin, end = getattr(child, "lineno", 0), getattr(child, "end_lineno", None) or 0
        if isinstance(child, (ast.stmt, ast.expr)):
            following = bisect_left(lines, begin)
            if following == len(lines) or lines[following] > end:
                continue
            yield child
        yield from _around(child, lines)


def _last_line(node: ast.AST) -> int:
    """Return the last line of a statement or an expression, of one with a block that of its head; 0 of a definition."""
    if isinstance(node, _DEFINITIONS):
        return 0
    if isinstance(node, _HEADERS):
        return max((getattr(part, "end_lineno", 0) for part in _head(node)), default=0)
    if isinstance(node, ast.stmt) and hasattr(node, "body"):  # try
        return 0
    return getattr(node, "end_lineno", 0) or 0


def _head(node: ast.AST) -> list[ast.AST]:
    """Return all nodes of a statement's head."""
    above = [value for name, value in ast.iter_fields(node) if name not in _BLOCKS]
    parts = [part for value in above for part in (value if isinstance(value, list) else [value])]
    return [inner for part in parts if isinstance(part, ast.AST) for inner in ast.walk(part)]


def _text(node: ast.AST, line: int, modules: set[str]) -> str:
    shown: Any = copy(node)
    if isinstance(node, _HEADERS):
        for name in {*_BLOCKS}.intersection(node._fields):
            setattr(shown, name, [ast.Pass()] if name == "body" else [])
    shown = _Below(line, modules).visit(deepcopy(shown))
    text = ast.unparse(shown)
    return text.partition("\n")[0] if isinstance(node, _HEADERS) else text


class _Below(ast.NodeTransformer):
    """Replaces calls that begin below a line."""

    def __init__(self, line: int, modules: set[str]) -> None:
        self.line = line
        self.modules = modules

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if node.lineno <= self.line:
            return self.generic_visit(node)
        return self._object(node) or ast.Constant(...)

    def _object(self, node: ast.expr) -> ast.expr | None:
        """Return the variable or attribute whose methods are called, None for a function's call and for methods of the object itself."""
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        root = node
        while isinstance(root, (ast.Attribute, ast.Subscript)):
            root = root.value
        variable = isinstance(root, ast.Name) and root.id not in {*self.modules, "self"}
        return node if variable else None

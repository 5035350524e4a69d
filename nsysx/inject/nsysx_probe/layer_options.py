"""Options of a program's own layers that decide whether a line runs, and the lines that make such layers: with them the option is changed.

``ColumnParallelLinear(dim, hidden)`` gathers its output, because ``gather_output=True`` is the default that the line leaves out. What costs
runs in the layer's ``forward``, where all such layers do; what is to be changed stands where one of them is made, often in another file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import NamedTuple, Union

from .probe_bounds import MOST_PARSED_LETTERS, MOST_SOURCE_LETTERS

#: Without this no text is parsed.
_TESTS = re.compile(r"\bif (not )?self\.\w+\b")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.Expr, ast.Return, ast.AugAssign)


class LayerOption(NamedTuple):
    """A line that runs only where an option of the layer is as ``when`` says, and a line that makes such a layer with it so.

    ``text``: the statement that makes it; ``changed``: with the other value.
    """

    file: str
    line: int
    option: str
    when: bool
    made_file: str
    made_line: int
    text: str
    changed: str


class _Test(NamedTuple):
    cls: str
    option: str
    when: bool
    first: int
    last: int


class _Parameter(NamedTuple):
    """A parameter of a class: which one of those by place, -1 for a keyword alone, and its default, None without one."""

    which: int
    default: Union[bool, None]  # noqa: UP007 - Python 3.9


def layer_options(texts: Mapping[str, str], ran: Mapping[str, set[int]]) -> list[LayerOption]:
    """Return the options by which lines that ``ran`` did, of files of these ``texts``, and where they are given."""
    small = {file: text for file, text in texts.items() if len(text) <= MOST_PARSED_LETTERS}
    trees = {file: _parsed(text) for file, text in small.items() if _TESTS.search(text)}
    options: dict[LayerOption, None] = {}
    for file, tree in list(trees.items()):
        for cls in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            parameters = _parameters(cls)
            for test in _tests(cls) if parameters else ():
                lines = [line for line in sorted(ran.get(file, ())) if test.first <= line <= test.last]
                if not lines or test.option not in parameters:
                    continue
                for other in (each for each, text in small.items() if f"{test.cls}(" in text):
                    if other not in trees:
                        trees[other] = _parsed(small[other])
                    for made in _made(trees[other], small[other].split("\n"), test, parameters[test.option]):
                        options.update(
                            {LayerOption(file, line, test.option, test.when, other, *made): None for line in lines}
                        )
    return list(options)


def _parsed(text: str) -> ast.Module:
    """Return what a text is parsed to, an empty module for one that is no Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deep
        return ast.Module([], [])


def _parameters(cls: ast.ClassDef) -> dict[str, _Parameter]:
    """Return the parameters of a class's ``__init__`` that it keeps as attributes of their names."""
    made = next((node for node in cls.body if isinstance(node, _FUNCTIONS) and node.name == "__init__"), None)
    if made is None:
        return {}
    kept = {
        target.attr
        for target, value in _assigned(made)
        if isinstance(value, ast.Name)
        and _of_self(target)
        and isinstance(target, ast.Attribute)
        and target.attr == value.id
    }
    args = [*made.args.posonlyargs, *made.args.args][1:]
    defaults = [None] * (len(args) - len(made.args.defaults)) + [_truth(node) for node in made.args.defaults]
    by_place = {arg.arg: _Parameter(n, default) for n, (arg, default) in enumerate(zip(args, defaults))}  # noqa: B905 - Python 3.9
    alone = zip(made.args.kwonlyargs, made.args.kw_defaults)  # noqa: B905
    by_name = {arg.arg: _Parameter(-1, None if node is None else _truth(node)) for arg, node in alone}
    return {name: each for name, each in {**by_place, **by_name}.items() if name in kept}


def _assigned(function: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what a function assigns, one by one where it does several at once, and to what."""
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            yield node.target, node.value
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if not isinstance(target, ast.Tuple) or not isinstance(node.value, ast.Tuple):
                yield target, node.value
            elif len(target.elts) == len(node.value.elts):
                yield from zip(target.elts, node.value.elts)  # noqa: B905 - Python 3.9


def _of_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _truth(node: ast.AST) -> Union[bool, None]:  # noqa: UP007
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, bool) else None


def _tests(cls: ast.ClassDef) -> Iterator[_Test]:
    """Yield what of a class runs by an attribute of it alone: the branch of an expression that calls something, or a block."""
    for node in ast.walk(cls):
        if not isinstance(node, (ast.If, ast.IfExp)):
            continue
        negated = isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
        asked = node.test.operand if isinstance(node.test, ast.UnaryOp) and negated else node.test
        if not _of_self(asked) or not isinstance(asked, ast.Attribute):
            continue
        sides = [(_listed(node.body), not negated), (_listed(node.orelse), negated)]
        if isinstance(node, ast.IfExp):
            calling = [each for each in sides if any(isinstance(n, ast.Call) for n in ast.walk(each[0][0]))]
            sides = calling if len(calling) == 1 else []
        for side, when in sides:
            if side:
                yield _Test(cls.name, asked.attr, when, side[0].lineno, side[-1].end_lineno or 0)


def _listed(side: Union[ast.expr, Sequence[ast.stmt]]) -> list[Union[ast.expr, ast.stmt]]:  # noqa: UP007
    return [side] if isinstance(side, ast.expr) else list(side)


def _made(tree: ast.Module, lines: list[str], test: _Test, parameter: _Parameter) -> Iterator[tuple[int, str, str]]:
    """Yield the statements that make layers which do what a test asks for: line, text, and text with the other value."""
    for node in ast.walk(tree):
        if not isinstance(node, _SIMPLE):
            continue
        changed = _Changing(test, parameter)
        other = changed.visit(deepcopy(node))
        if changed.count:
            first = lines[node.lineno - 1]
            whole = first.strip() if node.lineno == node.end_lineno else ast.unparse(node)
            text = _spliced(first, node, changed.places) or ast.unparse(other)
            yield node.lineno, whole[:MOST_SOURCE_LETTERS], text[:MOST_SOURCE_LETTERS]


class _Changing(ast.NodeTransformer):
    """Gives each call of a class the other value of an option, where it has this one; ``places``: (column, column behind, text)."""

    def __init__(self, test: _Test, parameter: _Parameter) -> None:
        self._test, self._parameter = test, parameter
        self.count = 0
        self.places: list[tuple[int, int, str]] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        open_ended = any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords)
        if name != self._test.cls or open_ended:
            return node
        which = self._parameter.which
        by_name = next((k for k in node.keywords if k.arg == self._test.option), None)
        by_place = node.args[which] if 0 <= which < len(node.args) else None
        value = by_name.value if by_name is not None else by_place
        if (self._parameter.default if value is None else _truth(value)) is not self._test.when:
            return node  # it is not so, or it is not known that it is
        self.count += 1
        other = ast.Constant(value=not self._test.when)
        if value is not None:
            self.places.append((value.col_offset, value.end_col_offset or 0, str(not self._test.when)))
        else:
            end = (node.end_col_offset or 0) - 1
            before = ", " if node.args or node.keywords else ""
            self.places.append((end, end, f"{before}{self._test.option}={not self._test.when}"))
        if by_name is not None:
            by_name.value = other
        elif by_place is not None:
            node.args[which] = other
        else:
            node.keywords.append(ast.keyword(arg=self._test.option, value=other))
        return node


def _spliced(line: str, node: ast.stmt, places: list[tuple[int, int, str]]) -> str:
    """Return a statement of one line with other text at some places, as it is written; "" where it has several lines."""
    if node.lineno != node.end_lineno:
        return ""
    text = line.encode()  # columns are counted in bytes
    end = node.end_col_offset or len(text)
    text = text[:end]
    for begin, behind, other in sorted(places, reverse=True):
        if text[begin - 1 : begin] == b"," and other.startswith(", "):
            other = other[1:]  # behind a comma at the end
        text = text[:begin] + other.encode() + text[behind:]
    return text.decode().strip()

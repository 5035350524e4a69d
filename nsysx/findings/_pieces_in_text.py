"""What a line of the program takes a piece of, by its text: w[e], x[:, t], x[:, a:b], x.narrow(1, a, n), x.chunk(4)[n]."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from nsysx.events.taken_apart import AGAIN

#: Calls that take all pieces, and those that take one: how, and how many arguments say which.
_DIVIDES = ("chunk", "split", "split_with_sizes", "unbind")
_TAKES = {"select": "select", "index_select": "select", "narrow": "slice"}
#: These take slices, each by itself.
_SLICES = ("tensor_split", "hsplit", "vsplit", "dsplit")


class OtherFormError(Exception):
    """Code of a program is of no form that is known: it gets no paste in its own names."""


class PieceInText(NamedTuple):
    """An expression that takes a piece, from a column of the line to another: of what ("" for what has no name), in which dimension (None
    where the text does not tell), how (as in ``TakenTensor``), and from where on. ``then``: the dimension and the number that are taken of
    the piece at once, as by x[:, i, j].
    """

    whole: str
    dimension: int | None
    by: str
    begin: int
    end: int
    start: str
    stepped: bool = False
    then: tuple[int, str] | None = None


def pieces_in(text: str) -> list[PieceInText] | None:
    """Return the expressions of a line that take a piece, in order; None where it is no whole statement."""
    tree = parsed(text)
    if tree is None:
        return None
    nodes = list(ast.walk(tree))
    called = [node.func for node in nodes if isinstance(node, ast.Call)]  # layers[n](x): no tensor
    pieces = list[PieceInText]()
    for node in nodes:
        if isinstance(node, ast.Subscript) and node not in called and isinstance(node.ctx, ast.Load):
            pieces += _of_subscript(node)
        elif isinstance(node, ast.Call):
            pieces += _of_call(node)
    return sorted(pieces, key=lambda each: each.begin)


def parsed(text: str) -> ast.Module | None:
    for statement in (text, f"{text} pass"):  # the second one: the head of a loop
        try:
            return ast.parse(statement) if text.isascii() else None  # columns of the tree are bytes
        except SyntaxError:
            pass
    return None


def only_statement(text: str) -> ast.stmt | None:
    """Return the statement that a line is, None where it is none, or several."""
    tree = parsed(text.strip())
    return tree.body[0] if tree is not None and len(tree.body) == 1 else None


def whole_statement(text: str) -> ast.stmt | None:
    """Return the statement that a line is, None where it is none, several, or the head of one."""
    try:
        (statement,) = ast.parse(text.strip()).body
    except (SyntaxError, ValueError, RecursionError):
        return None
    return statement


def statement_or_head(text: str) -> ast.stmt | None:
    """Return the same, and of a line that begins a block that statement with an empty one."""
    return whole_statement(text) or whole_statement(f"{text.strip()} pass")


def with_part(text: str, node: ast.expr | ast.keyword, other: str) -> str:
    """Return a text with something else in the place of a part of it, all else as it is written; columns of Python count bytes."""
    letters, end = text.encode(), node.end_col_offset
    return (letters[: node.col_offset] + other.encode() + letters[end:]).decode()


def with_keywords(text: str, calls: Iterable[ast.Call], options: Mapping[str, str]) -> str:
    """Return a text with these keywords in these calls of it, in place of what they have under the same names."""
    letters, spans = text.encode(), list[tuple[int, int, str]]()
    for call in calls:
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        spans += [
            (given[name].col_offset, given[name].end_col_offset or 0, value)
            for name, value in options.items()
            if name in given
        ]
        if new := ", ".join(f"{name}={value}" for name, value in options.items() if name not in given):
            end = (call.end_col_offset or 0) - 1
            head = letters[:end].rstrip(b" ,")
            spans.append((len(head), end, new if head.endswith(b"(") else f", {new}"))
    for begin, end, value in sorted(spans, reverse=True):
        letters = letters[:begin] + value.encode() + letters[end:]
    return letters.decode()


def plain_name(node: ast.expr) -> str:
    """Return an expression that is a name, or an attribute of one; "" for another one."""
    plain = isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and plain_name(node.value))
    return ast.unparse(node) if plain else ""


def _of_subscript(node: ast.Subscript) -> Iterator[PieceInText]:
    """Yield what an index takes."""
    begin, end = node.col_offset, node.end_col_offset or 0
    if isinstance(node.value, ast.Call) and function_of_call(node.value) in _DIVIDES:
        base = node.value.func
        whole = ast.unparse(node.value) if isinstance(base, ast.Attribute) and plain_name(base.value) else ""
        yield PieceInText(whole, None, AGAIN, begin, end, ast.unparse(node.slice))
        return
    each = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    chosen = [i for i, index in enumerate(each) if not _is_whole(index)]
    if (cell := _cell(node, each, chosen)) is not None:
        yield cell
        return
    whole = plain_name(node.value) if len(chosen) == 1 else ""
    exact = not any(isinstance(index, ast.Constant) and index.value in (None, ...) for index in each)
    for i in chosen:
        index = each[i]
        sliced = isinstance(index, ast.Slice)
        first = (
            (ast.unparse(index.lower) if index.lower else "0") if isinstance(index, ast.Slice) else ast.unparse(index)
        )
        yield PieceInText(
            "" if sliced and first.startswith("-") else whole,
            i if exact and len(chosen) == 1 else None,
            "slice" if sliced else "select",
            begin,
            end,
            first,
            stepped=isinstance(index, ast.Slice) and index.step is not None,
        )


def _cell(node: ast.Subscript, each: list[ast.expr], chosen: list[int]) -> PieceInText | None:
    """Return what an index takes by two names of numbers, None for another one: the first one's piece, and at once one of that."""
    whole, made = plain_name(node.value), any(isinstance(index, ast.Constant) for index in each)
    numbers = [each[i] for i in chosen]
    if len(numbers) != 2 or not whole or made or not all(map(_is_number_of_loop, numbers)):
        return None
    first, second = chosen
    begin, end, (start, of_piece) = node.col_offset, node.end_col_offset or 0, map(ast.unparse, numbers)
    return PieceInText(whole, first, "select", begin, end, start, then=(second - 1, of_piece))


def _is_number_of_loop(index: ast.expr) -> bool:
    """Return whether an index is computed of names alone, such as a loop's i or i + 1."""
    inner = index.operand if isinstance(index, ast.UnaryOp) else index
    if isinstance(inner, ast.BinOp):
        return _is_number_of_loop(inner.left) and isinstance(inner.right, (ast.Name, ast.Constant))
    return isinstance(inner, ast.Name)


def _is_whole(index: ast.expr) -> bool:
    """Return whether an index takes all of a dimension, or of several, or makes one."""
    everything = isinstance(index, ast.Slice) and not (index.lower or index.upper or index.step)
    return everything or (isinstance(index, ast.Constant) and index.value in (None, ...))


def function_of_call(node: ast.expr) -> str:
    """Return the name of the function or method that an expression calls, "" for no call, or where what it calls has no name."""
    func = node.func if isinstance(node, ast.Call) else None
    return func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""


class _PutsForNames(ast.NodeTransformer):
    def __init__(self, put: Mapping[str, ast.expr]) -> None:
        self._put = put

    def visit_Name(self, name: ast.Name) -> ast.expr:
        return self._put.get(name.id, name)


def with_names_replaced(node: ast.expr, put: Mapping[str, ast.expr]) -> ast.expr:
    """Return a copy of an expression with other expressions in place of names."""
    replaced: ast.expr = _PutsForNames(put).visit(deepcopy(node))
    return replaced


class _PutsForNode(ast.NodeTransformer):
    def __init__(self, node: ast.AST, text: str) -> None:
        self._node, self._text = node, text

    def visit(self, node: ast.AST) -> Any:
        return ast.parse(self._text, mode="eval").body if node is self._node else self.generic_visit(node)


def with_node_replaced(code: ast.AST, node: ast.AST, text: str) -> str:
    """Return the text of a piece of code with an expression in place of a node of it, which it then holds no more."""
    return ast.unparse(_PutsForNode(node, text).visit(code))


def names_in(node: ast.AST) -> set[str]:
    """Return the names that a piece of code reads or gives a value, those of attributes and keywords left out."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _of_call(node: ast.Call) -> Iterator[PieceInText]:
    """Yield what a call takes."""
    name, begin, end = function_of_call(node), node.col_offset, node.end_col_offset or 0
    if name in _SLICES:
        yield PieceInText("", None, "slice", begin, end, "0")
    if name not in _TAKES or not isinstance(node.func, ast.Attribute):
        return
    base = node.func.value
    arguments = [*([] if getattr(base, "id", "") == "torch" else [base]), *node.args]
    d = arguments[1].value if len(arguments) > 2 and isinstance(arguments[1], ast.Constant) else None
    if not isinstance(d, int):
        yield PieceInText("", None, _TAKES[name], begin, end, "0")
        return
    first = ast.unparse(arguments[2])
    whole = "" if first.startswith("-") and name == "narrow" else plain_name(arguments[0])
    yield PieceInText(whole, d if d >= 0 else None, _TAKES[name], begin, end, first)

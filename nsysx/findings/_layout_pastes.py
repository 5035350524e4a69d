"""Statements of the program that split, pad and join pictures in new dimensions, with the channels as the last of them."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from nsysx.findings._pieces_in_text import OtherFormError, function_of_call, names_in, only_statement

_RESHAPES = ("view", "reshape")
#: What takes a dimension: of a list of tensors, of a tensor, or of a tensor behind a size.
_LISTS, _FIRST_OF_ALL = ("cat", "concat"), ("cat", "concat", "narrow")
_ALONG = (*_FIRST_OF_ALL, "split", "chunk", "split_with_sizes", "roll")
#: What makes a tensor of the same size, and what has no tensor.
_ALIKE = ("zeros_like", "empty_like", "clone", "append", "range", "len", "size")


def turned(lines: Mapping[int, str]) -> str:
    """Return statements (line -> text) that view pictures in more dimensions, work on these and view them as pictures again, with the
    channels last in between; "" where one of them does anything else.
    """
    put = _LastDimensions()
    statements = []
    try:
        for number in sorted(lines):
            statement = only_statement(lines[number].partition("  #")[0])
            if statement is None:
                return ""
            before = ast.unparse(statement)
            after = ast.unparse(put.visit(statement))
            if put.rank:
                targets = statement.targets if isinstance(statement, ast.Assign) else []
                put.tensors |= set[str]().union(*map(names_in, targets))
            if after != before or put.rank:
                statements.append(after)
            if put.closed:
                break
    except OtherFormError:
        return ""
    return "\n".join(statements) if put.closed else ""


class _LastDimensions(ast.NodeTransformer):
    """``rank``: how many dimensions the pictures have now, 0 before; ``closed``: they are pictures again. ``tensors``: names that
    may be theirs.
    """

    def __init__(self) -> None:
        self.rank, self.closed, self.tensors = 0, False, set[str]()

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        name = function_of_call(node)
        if name in _RESHAPES and isinstance(node.func, ast.Attribute):
            return self._viewed(node, node.func)
        if not self.rank:
            return node
        if name in _ALONG:
            return self._along(node, name)
        if name == "pad":
            return self._padded(node)
        if name not in _ALIKE:
            raise OtherFormError
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Sums and products of sizes stay as they are; of tensors it is not known how they broadcast."""
        if self.rank and not self.tensors.isdisjoint(names_in(node)):
            raise OtherFormError
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        raise OtherFormError

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        index = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if self.rank and (
            len(index) > self.rank - 3 or any(isinstance(i, ast.Constant) and i.value in (None, ...) for i in index)
        ):
            raise OtherFormError
        return node

    def _viewed(self, node: ast.Call, method: ast.Attribute) -> ast.expr:
        given = list(node.args[0].elts) if len(node.args) == 1 and isinstance(node.args[0], ast.Tuple) else node.args
        if self.closed or node.keywords or any(isinstance(each, ast.Starred) for each in given):
            raise OtherFormError
        last = [*given[:-3], *given[-2:], given[-3]] if len(given) > 3 else []
        if not self.rank and len(given) > 4:
            self.rank = len(given)
            self.tensors |= names_in(method.value)
            pictures = _call(method.value, "permute", _numbers(0, 2, 3, 1))
            return _call(pictures, method.attr, last)
        if self.rank and len(given) == 4:
            self.rank, self.closed = 0, True
            return _call(_call(method.value, method.attr, last), "permute", _numbers(0, 3, 1, 2))
        raise OtherFormError

    def _along(self, node: ast.Call, name: str) -> ast.expr:
        """Put the dimension that a call names where it is then; without one it is the first."""
        named = next((each for each in node.keywords if each.arg == ("dims" if name == "roll" else "dim")), None)
        method = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) != "torch"
        # Joins take a list, others a tensor, which a method has before it, and mostly a size.
        position = (1 if name in _FIRST_OF_ALL else 2) - method
        if name in _LISTS and method:
            raise OtherFormError
        if named is not None:
            named.value = self._dimension(named.value)
        elif len(node.args) > position:
            node.args[position] = self._dimension(node.args[position])
        elif name in ("roll", "narrow"):
            raise OtherFormError
        return node

    def _dimension(self, given: ast.expr) -> ast.expr:
        if isinstance(given, ast.Tuple | ast.List):
            return ast.Tuple([self._dimension(each) for each in given.elts], ast.Load())
        try:
            number = ast.literal_eval(given)
        except ValueError:
            raise OtherFormError from None
        if not isinstance(number, int):
            raise OtherFormError
        where = number % self.rank
        of_picture = where - (self.rank - 3)
        return ast.Constant(where if of_picture < 0 else self.rank - 1 if of_picture == 0 else where - 1)

    def _padded(self, node: ast.Call) -> ast.expr:
        """Put the widths of the channels, two numbers, first: they count from the last dimension on."""
        widths = node.args[1] if len(node.args) > 1 else None
        if not isinstance(widths, ast.Tuple | ast.List) or len(widths.elts) % 2:
            raise OtherFormError
        each = list(widths.elts) + _numbers(*[0] * max(0, 6 - len(widths.elts)))
        widths.elts = [*each[4:6], *each[:4], *each[6:]]
        return node


def _call(base: ast.expr, name: str, args: Sequence[ast.expr]) -> ast.Call:
    return ast.Call(ast.Attribute(base, name, ast.Load()), list(args), [])


def _numbers(*numbers: int) -> list[ast.expr]:
    return [ast.Constant(number) for number in numbers]

"""A loop over tensors, as its lines stand, written anew with torch's operators for lists of tensors (``torch._foreach_*``).

What is written means the same as the loop; where a line does something else than update the tensors of its round, nothing is written.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nsysx.findings._pieces_in_text import names_in

#: In-place methods -> how many tensors they take after the one that they write, at most; none or a number in place of one for the first.
_METHODS = {
    "mul_": 1, "div_": 1, "add_": 1, "sub_": 1, "lerp_": 1, "copy_": 1, "addcmul_": 2, "addcdiv_": 2,
    "zero_": 0, "neg_": 0, "sqrt_": 0, "abs_": 0, "reciprocal_": 0,
}  # fmt: skip
#: Those that take a number in place of a tensor.
_TAKE_NUMBERS = ("mul_", "div_", "add_", "sub_")
_ASSIGNING = {ast.Mult: "mul_", ast.Div: "div_", ast.Add: "add_", ast.Sub: "sub_"}
#: What is taken of a tensor without computing.
_PARTS, _CALLED_PARTS = ("data", "grad"), ("detach", "to_local")


class Listed(NamedTuple):
    """``paste``: the loop with lists. ``lists``: how many are made, of how many operators on each tensor."""

    paste: str
    lists: int
    operators: int


class _Unknown(Exception):  # noqa: N818 - an answer: the loop does something else
    """The loop cannot be written with lists."""


class _Update(NamedTuple):
    """One operator: its method, what it writes, the tensors and the numbers that it is given, and its options as they are written."""

    method: str
    written: ast.expr
    tensors: tuple[ast.expr, ...]
    options: tuple[str, ...]


def in_lists(header: str, bodies: Sequence[str], *, split: bool) -> Listed | None:
    """Return a loop with lists, None where that is not known to mean the same. ``header``: the line with ``for``; ``bodies``: those in it.

    ``split``: the tensors are DTensors, and what is updated are the parts that each rank has.
    """
    inside = [f"    {line}" for line in bodies]
    if inside and bodies[0].startswith("if ") and bodies[0].endswith(":"):
        inside[1:] = [f"    {line}" for line in inside[1:]]
    try:
        (loop,) = ast.parse("\n".join((header, *inside))).body
        if not isinstance(loop, ast.For) or loop.orelse:
            return None
        return _Writer(loop, split=split).written()
    except (SyntaxError, ValueError, _Unknown):
        return None


class _Writer:
    def __init__(self, loop: ast.For, *, split: bool) -> None:
        self._loop, self._split = loop, split
        self._variables = names_in(loop.target)
        self._test: ast.expr | None = None
        self._lists: dict[str, str] = {}  # what is taken of a round -> the name of its list
        self._made: list[tuple[str, str, str]] = []  # name, target, iterable
        self._taken = names_in(loop)

    def written(self) -> Listed:
        body = self._loop.body
        if len(body) == 1 and isinstance(only := body[0], ast.If) and not only.orelse:
            self._test, body = only.test, only.body
        updates = [update for statement in body for update in self._updates(statement)]
        calls = [self._call(update) for update in _averages(updates)]
        if not calls:
            raise _Unknown
        return Listed("\n".join((*self._lines(), *calls)), len(self._lists), len(updates))

    def _lines(self) -> Iterator[str]:
        """Yield the lines that make the lists; what is gone through several times is a list first, unless a call makes it anew."""
        end = ".to_local()" if self._split else ""
        condition = f" if {ast.unparse(self._test)}" if self._test is not None else ""
        several = [iterable for _, _, iterable in self._made]
        again = {i for i in several if several.count(i) > 1 and not i.endswith(")")}
        held = dict[str, str]()
        for iterable in dict.fromkeys(several):
            if iterable in again:
                held[iterable] = self._free("rounds")
                yield f"{held[iterable]} = list({iterable})"
        for (taken, _), (name, target, iterable) in zip(self._lists.items(), self._made, strict=True):
            shown = "" if taken.endswith(".to_local()") else end
            yield f"{name} = [{taken}{shown} for {target} in {held.get(iterable, iterable)}{condition}]"

    def _call(self, update: _Update) -> str:
        tensors = [self._list(each) for each in (update.written, *update.tensors)]
        return f"torch._foreach_{update.method}({', '.join((*tensors, *update.options))})"

    def _list(self, tensor: ast.expr) -> str:
        text = ast.unparse(tensor)
        if text not in self._lists:
            self._lists[text] = self._free(_plural(tensor))
            self._made.append((self._lists[text], *self._round(tensor)))
        return self._lists[text]

    def _round(self, tensor: ast.expr) -> tuple[str, str]:
        """Return target and iterable of the loop, of several in ``zip`` the one that the tensor is of."""
        target, iterable = self._loop.target, self._loop.iter
        zips = isinstance(iterable, ast.Call) and ast.unparse(iterable.func) == "zip" and self._test is None
        if (
            zips
            and isinstance(iterable, ast.Call)
            and isinstance(target, ast.Tuple)
            and len(target.elts) == len(iterable.args)
        ):
            used = names_in(tensor) & self._variables
            for each, of_each in zip(target.elts, iterable.args, strict=True):
                if used <= names_in(each) and not isinstance(of_each, ast.Starred):
                    return ast.unparse(each), ast.unparse(of_each)
        return ast.unparse(target).strip("()"), ast.unparse(iterable)

    def _free(self, name: str) -> str:
        """Return a name that the loop does not use, and take it."""
        while name in self._taken:
            name = f"{name}_"
        self._taken.add(name)
        return name

    def _updates(self, statement: ast.stmt) -> list[_Update]:
        if isinstance(statement, ast.AugAssign) and type(statement.op) in _ASSIGNING:
            method = _ASSIGNING[type(statement.op)]
            return [self._of_value(method, self._tensor(statement.target), statement.value)]
        if not isinstance(statement, ast.Expr):
            raise _Unknown
        return self._chain(statement.value)[1]

    def _chain(self, value: ast.expr) -> tuple[ast.expr, list[_Update]]:
        """Return what a chain of methods begins with, and its updates in order."""
        if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _METHODS):
            return self._tensor(value), []
        written, before = self._chain(value.func.value)
        return written, [*before, *self._of_call(value.func.attr, written, value)]

    def _of_call(self, method: str, written: ast.expr, call: ast.Call) -> list[_Update]:
        if any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords):
            raise _Unknown
        named = [f"{each.arg}={ast.unparse(each.value)}" for each in call.keywords]
        if any(self._of_round(each.value) for each in call.keywords):
            raise _Unknown
        if method == "copy_" and len(call.args) == 1 and isinstance(call.args[0], ast.BinOp):
            return self._weighted(written, call.args[0])
        if method in _TAKE_NUMBERS and len(call.args) == 1:
            if not named:
                return [self._of_value(method, written, call.args[0])]
            if not self._of_round(call.args[0]):
                raise _Unknown
        count = _METHODS[method]
        tensors, rest = call.args[:count], call.args[count:]
        if len(tensors) < count or any(map(self._of_round, rest)) or len(rest) > (method == "lerp_"):
            raise _Unknown
        return [_Update(method, written, tuple(map(self._tensor, tensors)), (*map(ast.unparse, rest), *named))]

    def _of_value(self, method: str, written: ast.expr, value: ast.expr) -> _Update:
        """Return the update with a number, a tensor, or for sums a tensor times a number."""
        if not self._of_round(value):
            return _Update(method, written, (), (ast.unparse(value),))
        if isinstance(value, ast.BinOp) and method in ("add_", "sub_"):
            tensor, times = self._product(value)
            return _Update(method, written, (tensor,), (f"alpha={times}",))
        return _Update(method, written, (self._tensor(value),), ())

    def _weighted(self, written: ast.expr, value: ast.BinOp) -> list[_Update]:
        """Return ``a.copy_(x * a + y * b)`` as two updates."""
        if not isinstance(value.op, ast.Add):
            raise _Unknown
        kept, added = self._product(value.left), self._product(value.right)
        if ast.unparse(kept[0]) != ast.unparse(written):
            kept, added = added, kept
        if ast.unparse(kept[0]) != ast.unparse(written) or ast.unparse(added[0]) == ast.unparse(written):
            raise _Unknown
        return [
            _Update("mul_", written, (), (kept[1],)),
            _Update("add_", written, (added[0],), (f"alpha={added[1]}",)),
        ]

    def _product(self, value: ast.expr) -> tuple[ast.expr, str]:
        """Return tensor and number of their product."""
        if not (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult)):
            raise _Unknown
        first, second = value.left, value.right
        if self._of_round(first):
            first, second = second, first
        if self._of_round(first):
            raise _Unknown
        return self._tensor(second), ast.unparse(first)

    def _of_round(self, value: ast.expr) -> bool:
        return bool(names_in(value) & self._variables)

    def _tensor(self, value: ast.expr) -> ast.expr:
        """Return an expression that is a tensor of a round: a variable, a part of it, or what is kept under its name."""
        inner = value
        while True:
            if isinstance(inner, ast.Attribute) and inner.attr in _PARTS:
                inner = inner.value
            elif (
                isinstance(inner, ast.Call)
                and isinstance(inner.func, ast.Attribute)
                and inner.func.attr in _CALLED_PARTS
                and not (inner.args or inner.keywords)
            ):
                inner = inner.func.value
            else:
                break
        kept = isinstance(inner, ast.Subscript) and isinstance(inner.slice, ast.Name) and self._of_round(inner.slice)
        if not kept and not (isinstance(inner, ast.Name) and inner.id in self._variables):
            raise _Unknown
        return value


def _averages(updates: Sequence[_Update]) -> list[_Update]:
    """Return updates with each ``a.mul_(d).add_(b, alpha=1 - d)`` as the ``a.lerp_(b, 1 - d)`` that it is, up to rounding."""
    told: list[_Update] = []
    for update in updates:
        before = told[-1] if told else None
        weight = _complement(before, update) if before is not None else None
        if before is None or weight is None:
            told.append(update)
        else:
            told[-1] = _Update("lerp_", update.written, update.tensors, (weight,))
    return told


def _complement(scaled: _Update, added: _Update) -> str | None:
    """Return the number by which the second one adds a tensor, if the first scales by what that leaves of 1; else None."""
    same = ast.unparse(scaled.written) == ast.unparse(added.written)
    by_numbers = scaled.method == "mul_" and not scaled.tensors and added.method == "add_" and len(added.tensors) == 1
    if not (same and by_numbers and len(added.options) == 1 and added.options[0].startswith("alpha=")):
        return None
    times, weight = scaled.options[0], added.options[0].removeprefix("alpha=")
    sum_to_one = any(
        a in (f"{whole} - {b}", f"{whole} - ({b})")
        for whole in ("1", "1.0")
        for a, b in ((times, weight), (weight, times))
    )
    return weight if sum_to_one else None


def _plural(tensor: ast.expr) -> str:
    """Return a name for a list of such tensors."""
    while isinstance(tensor, ast.Call | ast.Attribute | ast.Subscript):
        if isinstance(tensor, ast.Attribute) and tensor.attr not in ("data", *_CALLED_PARTS):
            return f"{tensor.attr.strip('_')}s"
        tensor = tensor.func if isinstance(tensor, ast.Call) else tensor.value
    return f"{tensor.id}s" if isinstance(tensor, ast.Name) else "tensors"

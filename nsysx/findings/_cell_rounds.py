"""Rounds of a loop over time in which recurrent cells are called and nothing else is computed, read from the loop's text.

One round is followed with a value for each name: the element of the sequence, what each cell made, and what an earlier round left behind.
A cell takes the place of a layer of ``nn.LSTM`` if its input is the element or what the cell below made, and if the round leaves what it
made where it took its state from. Whatever else is computed in a round (a norm, dropout, attention, an input made of an output) ends it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nsysx.findings._pieces_in_text import function_of_call, names_in


class UnreadError(Exception):
    """What a round does is not known, or is more than calls of cells."""


class Made(NamedTuple):
    """What the cell of a layer made: its output "h", its memory "c", or "both"."""

    layer: int
    what: str


class Earlier(NamedTuple):
    """What stood under a name, or at a place of it, when the round began."""

    text: str


class Element(NamedTuple):
    """The element of a sequence: the tensor as the text names it, and its dimension of time."""

    tensor: str
    dimension: int


Value = object


@dataclass
class RoundsOfCells:
    """What a loop does. ``cells``: the text of each layer's cell; ``states``: where each takes what it made before; ``outputs``: names of
    lists to which each round appends the last layer's output; ``stored``: tensors that it writes it into; ``left``: what names are then.
    """

    sequence: Element
    cells: list[str] = field(default_factory=list)
    states: list[tuple[str, ...]] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    stored: list[str] = field(default_factory=list)
    left: dict[str, Value] = field(default_factory=dict)


def rounds_of_cells(loop: ast.For, groups: Mapping[str, int], *, pairs: bool) -> RoundsOfCells | None:
    """Return what a loop over time does, None if it does more than call cells over a sequence, or if that is not known.

    ``groups``: the text of what holds cells -> how many, 0 for a cell itself; ``pairs``: cells take and make pairs, as LSTMCell does.
    """
    try:
        return _RoundOfCells(loop, groups, pairs=pairs).read()
    except (UnreadError, IndexError, RecursionError):
        return None


class _RoundOfCells:
    def __init__(self, loop: ast.For, groups: Mapping[str, int], *, pairs: bool) -> None:
        self.loop, self.groups, self.pairs = loop, groups, pairs
        self.values = dict[str, Value]()
        self.sequence: Element | None = None
        self.number = ""
        self.cells, self.states = list[str](), list[tuple[str, ...]]()
        self.outputs, self.stored = list[tuple[str, Value]](), list[tuple[str, Value]]()
        self.given = {
            node.id for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }

    def read(self) -> RoundsOfCells:
        self._begin(self.loop.target, self.loop.iter)
        if self.loop.orelse:
            raise UnreadError
        for statement in self.loop.body:
            self._run(statement)
        if self.sequence is None or not self.cells:
            raise UnreadError
        last = Made(len(self.cells) - 1, "h")
        for layer, places in enumerate(self.states):
            made = [Made(layer, what) for what in ("h", "c")[: len(places)]]
            if [self._of_text(text) for text in places] != made:
                raise UnreadError
        if any(value != last for _, value in (*self.outputs, *self.stored)):
            raise UnreadError
        names = [name for name, _ in self.outputs]
        if len(set(names)) != len(names):
            raise UnreadError
        stored = [name for name, _ in self.stored]
        return RoundsOfCells(self.sequence, self.cells, self.states, names, stored, self.values)

    def _begin(self, target: ast.expr, each: ast.expr) -> None:
        if function_of_call(each) == "enumerate" and isinstance(each, ast.Call) and len(each.args) == 1:
            if not (isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name)):
                raise UnreadError
            self.number, target, each = target.elts[0].id, target.elts[1], each.args[0]
        if not isinstance(target, ast.Name):
            raise UnreadError
        if function_of_call(each) == "range":
            if not (isinstance(each, ast.Call) and len(each.args) == 1):
                raise UnreadError
            self.number = target.id
            return
        dimension = 0
        if isinstance(each, ast.Call):
            if not (isinstance(each.func, ast.Attribute) and each.func.attr in ("unbind", "transpose", "permute")):
                raise UnreadError
            if each.func.attr == "unbind":
                dimension = _dimension(each)
                each = each.func.value
        elif not isinstance(each, (ast.Name, ast.Attribute)):
            raise UnreadError
        self.values[target.id] = self._element(ast.unparse(each), dimension)

    def _element(self, tensor: str, dimension: int) -> Element:
        element = Element(tensor, dimension)
        if self.sequence not in (None, element) or names_in(ast.parse(tensor, mode="eval").body) & self.given:
            raise UnreadError
        self.sequence = element
        return element

    def _run(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Assign):
            value = self._value(statement.value)
            for target in statement.targets:
                self._give(target, value)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            self._append(statement.value)
        elif isinstance(statement, ast.For) and not statement.orelse:
            self._run_layers(statement)
        elif isinstance(statement, ast.If):
            for each in statement.body if self._number(statement.test) else statement.orelse:
                self._run(each)
        elif not isinstance(statement, ast.Pass):
            raise UnreadError

    def _run_layers(self, loop: ast.For) -> None:
        """Run a loop over cells with each of them in turn."""
        target, each = loop.target, loop.iter
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        counted = function_of_call(each) == "enumerate"
        if counted and isinstance(each, ast.Call):
            each = each.args[0]
        group, layers = ast.unparse(each), self.groups.get(ast.unparse(each), 0)
        by_number = function_of_call(each) == "range"
        if by_number:
            layers = max(self.groups.values(), default=0)
        if not layers or len(names) != 1 + counted or not all(isinstance(name, ast.Name) for name in names):
            raise UnreadError
        for layer in range(layers):
            if counted or by_number:
                self._give(names[0], layer)
            if not by_number:
                self._give(names[-1], Earlier(f"{group}[{layer}]"))
            for statement in loop.body:
                self._run(statement)

    def _append(self, call: ast.Call) -> None:
        function = call.func
        if not (isinstance(function, ast.Attribute) and function.attr == "append" and len(call.args) == 1):
            raise UnreadError
        value, holder = self._value(call.args[0]), self._value(function.value)
        if isinstance(holder, list):
            holder.append(value)
        elif isinstance(holder, Earlier) and isinstance(function.value, ast.Name):
            self.outputs.append((function.value.id, value))
        else:
            raise UnreadError

    def _give(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for number, each in enumerate(target.elts):
                self._give(each, self._piece(value, number))
            return
        if isinstance(target, ast.Subscript) and self.number and self.number in names_in(target.slice):
            if self.sequence is None or self._place(target) != (ast.unparse(target.value), self.sequence.dimension):
                raise UnreadError
            self.stored.append((ast.unparse(target.value), value))
            return
        text = self._text(target)
        for key in [key for key in self.values if key.startswith((f"{text}[", f"{text}."))]:
            del self.values[key]
        self.values[text] = value

    def _text(self, target: ast.expr) -> str:
        """Return the text of a place with the numbers of layers in it."""
        if isinstance(target, (ast.Name, ast.Attribute)):
            return ast.unparse(target)
        if isinstance(target, ast.Subscript):
            if isinstance(self.values.get(ast.unparse(target.value)), (list, tuple)):
                raise UnreadError
            return f"{self._text(target.value)}[{self._number(target.slice)}]"
        raise UnreadError

    def _of_text(self, text: str) -> Value:
        return self._value(ast.parse(text, mode="eval").body)

    def _value(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, (ast.Name, ast.Attribute)):
            text = ast.unparse(node)
            return self.values[text] if text in self.values else Earlier(text)
        if isinstance(node, ast.Tuple):
            return _pair(tuple(self._value(each) for each in node.elts))
        if isinstance(node, ast.List):
            return [self._value(each) for each in node.elts]
        if isinstance(node, ast.IfExp):
            return self._value(node.body if self._number(node.test) else node.orelse)
        if isinstance(node, (ast.BinOp, ast.Compare, ast.UnaryOp)):
            return self._number(node)
        if isinstance(node, ast.Subscript):
            if self.number and self.number in names_in(node.slice):
                return self._element(*self._place(node))
            return self._at(node)
        if isinstance(node, ast.Call):
            return self._called(node)
        raise UnreadError

    def _at(self, node: ast.Subscript) -> Value:
        number, holder = self._number(node.slice), self._value(node.value)
        if isinstance(holder, Earlier):
            if number < 0:  # the last of those that each layer has
                number += sum(f"{holder.text}[{layer}]" in self.values for layer in range(len(self.cells)))
            text = f"{holder.text}[{number}]"
            return self.values[text] if text in self.values else Earlier(text)
        return self._piece(holder, number)

    def _place(self, node: ast.Subscript) -> tuple[str, int]:
        """Return the tensor and the dimension of which a round's own element is taken."""
        taken = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        whole = [isinstance(each, ast.Slice) and ast.unparse(each) == ":" for each in taken]
        numbers = [
            dimension for dimension, each in enumerate(taken) if isinstance(each, ast.Name) and each.id == self.number
        ]
        if len(numbers) != 1 or numbers[0] > 1 or sum(whole) != len(taken) - 1:
            raise UnreadError
        return ast.unparse(node.value), numbers[0]

    def _number(self, node: ast.expr) -> int:
        """Return a number that is known while the text is read: a layer's, or whether one is the first."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._number(node.operand)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            left, right = self._number(node.left), self._number(node.right)
            return left + right if isinstance(node.op, ast.Add) else left - right
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = self._number(node.left), self._number(node.comparators[0])
            kind = type(node.ops[0])
            known_kinds = {
                ast.Eq: left == right,
                ast.NotEq: left != right,
                ast.Gt: left > right,
                ast.Lt: left < right,
                ast.GtE: left >= right,
                ast.LtE: left <= right,
            }
            if kind in known_kinds:
                return int(known_kinds[kind])
        if isinstance(node, (ast.Constant, ast.Name)):
            value = self._value(node)
            if isinstance(value, int):
                return value
        raise UnreadError

    def _piece(self, value: Value, number: int) -> Value:
        if isinstance(value, Made) and value.what == "both" and number in (0, 1):
            return Made(value.layer, "hc"[number])
        if isinstance(value, Earlier):
            text = f"{value.text}[{number}]"
            return self.values[text] if text in self.values else Earlier(text)
        if isinstance(value, (tuple, list)) and not isinstance(value, (Made, Element)):
            return value[number]
        raise UnreadError

    def _called(self, call: ast.Call) -> Value:
        if isinstance(call.func, ast.Subscript):
            cell = self._at(call.func)
        else:
            cell = self._value(call.func)
        text = cell.text if isinstance(cell, Earlier) else ""
        group = text.partition("[")[0]
        is_cell = self.groups.get(text) == 0 or (self.groups.get(group, 0) > 0 and text.endswith("]"))
        if not is_cell or text in self.cells or len(call.args) != 2 or call.keywords:
            raise UnreadError
        fed, state, layer = self._value(call.args[0]), self._value(call.args[1]), len(self.cells)
        if fed != (Made(layer - 1, "h") if layer else self.sequence) or fed is None:
            raise UnreadError
        pieces = (self._piece(state, 0), self._piece(state, 1)) if self.pairs else (state,)
        if not all(isinstance(piece, Earlier) for piece in pieces):
            raise UnreadError
        self.cells.append(text)
        self.states.append(tuple(piece.text for piece in pieces if isinstance(piece, Earlier)))
        return Made(layer, "both" if self.pairs else "h")


def _pair(values: tuple[Value, ...]) -> Value:
    """Return both that a cell made as one, where two values are those."""
    first = values[0] if len(values) == 2 else None
    if isinstance(first, Made) and values == (Made(first.layer, "h"), Made(first.layer, "c")):
        return Made(first.layer, "both")
    return values


def _dimension(call: ast.Call) -> int:
    """Return the dimension that ``unbind`` goes through."""
    given: Sequence[ast.expr] = [*call.args, *(each.value for each in call.keywords if each.arg == "dim")]
    if not given:
        return 0
    if len(given) == 1 and isinstance(given[0], ast.Constant) and given[0].value in (0, 1):
        return 1 if given[0].value else 0
    raise UnreadError

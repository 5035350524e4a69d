"""Calls of a module that compute once more what a call of it in the same step has computed: the same operators on the same tensors.

Of two calls of one module parameters are the same unless something writes into tensors of their sizes in between. What else
goes in has to have a maker's number that both share. Python's numbers are not recorded: that they are the same, too, and the module's mode,
remains to be seen.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from nsysx.events.narrowed_operators import Size, sizes_of
from nsysx.events.operator_flow import ModuleCall, OperatorFlow, in_place

#: Operators whose result is drawn; a dropout that draws has one of these in it.
_DRAWN = re.compile(r"rand|normal_|uniform|bernoulli|native_dropout|_fused_dropout|multinomial|exponential")
#: Operators that hand on all of what they are given.
_HANDS_ON = re.compile(r"^aten::(_?to(_copy)?|contiguous|clone|detach|alias|view|reshape|flatten|unflatten)$")
#: Operators that put tensors one behind the other.
_JOINS = re.compile(r"^aten::(cat|stack|concat|hstack|vstack|column_stack)$")
#: Operators that cut a tensor into pieces of one size, which its own size and theirs tell.
_CUTS = re.compile(r"^aten::(split|chunk|unbind)$")
#: Which arguments of an operator are weights of a module.
_OF_MODULE = {
    **{f"aten::{name}": frozenset({1, 2}) for name in ("linear", "conv1d", "conv2d", "conv3d", "matmul", "mm")},
    **{f"aten::conv_transpose{kind}d": frozenset({1, 2}) for kind in (1, 2, 3)},
    **{f"aten::{name}": frozenset({0, 2}) for name in ("addmm",)},
    "aten::embedding": frozenset({0}),
    **{f"aten::{name}": frozenset(range(1, 8)) for name in ("layer_norm", "rms_norm", "batch_norm", "group_norm", "instance_norm")},
}  # fmt: skip


class RepeatedCall(NamedTuple):
    """A call that makes what ``first`` made."""

    first: ModuleCall
    again: ModuleCall


def repeated_calls(flow: OperatorFlow) -> list[RepeatedCall]:
    """Return the calls that compute what a call of the same module before them did, the outermost of each."""
    seen: dict[tuple[object, ...], ModuleCall] = {}
    repeated: list[RepeatedCall] = []
    reach = -1
    for call in sorted(flow.calls, key=lambda each: (each.first, -each.last)):
        if call.first < reach:
            continue  # in one that is repeated itself
        inputs = _inputs(flow, call)
        if inputs is None:
            continue
        what = (call.path, call.cls, inputs)
        before = seen.get(what)
        if before is not None and before.last <= call.first and not written_between(flow, before, call):
            repeated.append(RepeatedCall(before, call))
            reach = call.last
        seen[what] = call
    return repeated


def _inputs(flow: OperatorFlow, call: ModuleCall) -> tuple[object, ...] | None:
    """Return what a call computes from what; None where it draws, does little, or is given what has no number and is no parameter."""
    rows = range(call.first, call.last)
    if any(_DRAWN.search(flow.names[row]) for row in rows):
        return None
    made_inside, what, named = dict[int, int](), list[object](), False
    for row in flow.outermost_of(call.first, call.last):
        sizes, made = sizes_of(flow.size[row]), flow.made[row]
        if len(sizes) != len(made):
            return None
        arguments: list[object] = []
        which = flow.which[row] if flow.which else (0,) * len(made)
        for argument, (number, size) in enumerate(zip(made, sizes, strict=True)):
            if number in made_inside:
                arguments.append(made_inside[number])
            elif not size:  # a number; its name may be that of a tensor that lay there before
                arguments.append("number")
            elif number >= 0:
                named = True
                arguments.append(_origin(flow, number, which[argument]))
            elif argument in _OF_MODULE.get(flow.names[row], ()) or size[0] == 1 or len(size) == 1:
                arguments.append("parameter")
            else:
                return None
        what.append((flow.names[row], flow.size[row], tuple(arguments)))
        made_inside[flow.number[row]] = len(made_inside)
    return tuple(what) if named and len(what) > 1 else None


def _origin(flow: OperatorFlow, number: int, which: int = 0) -> object:
    """Return what a tensor is all of, in another shape or type: the number of one, a piece of one that is cut into equal pieces, or
    tensors that are put one behind the other. ``which``: of the results of the operator with this number.
    """
    row = flow.row_of.get(number)
    while row is not None and _HANDS_ON.match(flow.names[row]) and flow.made[row] and flow.made[row][0] >= 0:
        number, which = flow.made[row][0], flow.which[row][0] if flow.which else 0
        row = flow.row_of.get(number)
    if row is not None and _CUTS.match(flow.names[row]) and flow.made[row] and flow.made[row][0] >= 0:
        of_whole = flow.which[row][0] if flow.which else 0
        return flow.names[row], flow.size[row], which, _origin(flow, flow.made[row][0], of_whole)
    if row is None or not _JOINS.match(flow.names[row]):
        return f"tensor {number}" if which <= 0 else f"tensor {number}, result {which}"
    sizes, made = sizes_of(flow.size[row]), flow.made[row]
    joined = [each for each, size in zip(made, sizes, strict=False) if size]
    if len(sizes) != len(made) or any(each < 0 for each in joined):
        return f"tensor {number}"
    return flow.names[row], flow.size[row], tuple(_origin(flow, each) for each in joined)


def _joined_sizes(flow: OperatorFlow, call: ModuleCall) -> set[Size]:
    """Return the sizes of the tensors that are joined to what a call is given."""
    makers = {row for inner in range(call.first, call.last) for row in flow.makers[inner] if row < call.first}
    joins = [row for row in makers if _JOINS.match(flow.names[row])]
    return {size for row in joins for size in sizes_of(flow.size[row])}


def written_between(flow: OperatorFlow, before: ModuleCall, call: ModuleCall) -> bool:
    """Return whether anything between two calls, or the first of them, writes into a tensor of the size of one that they are given."""
    given = {size for row in range(call.first, call.last) for size in sizes_of(flow.size[row])}
    given = {size for size in given | _joined_sizes(flow, call) if math.prod(size) > 1}
    # What an operator writes within itself is its own.
    between = flow.outermost[bisect_left(flow.outermost, before.last) : bisect_left(flow.outermost, call.first)]
    return any(not given.isdisjoint(_written(flow.names[row], flow.size[row])) for row in between)


def _written(name: str, text: str) -> Sequence[Size]:
    """Return the sizes of what an operator may write into: all of a list."""
    if name.startswith(("aten::_foreach_", "aten::_fused_")):
        return sizes_of(text) if name.endswith("_") else ()
    return sizes_of(text)[:1] if in_place(name) else ()

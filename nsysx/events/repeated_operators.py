"""Operators that compute in the call of one module what they have computed in the call of another of its class: from the same tensors.

A tensor that an operator made is the same as long as it bears the operator's number: what writes into it gives it another, but not to its
views. Python's numbers are not recorded. So only operators count that hardly have any, whose result's size tells them, or whose line writes
them out, run by the same line as the same one of the call: a loop over radii runs a line once for each, and does so in each call.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nsysx.events.converted_again import Kernels
from nsysx.events.narrowed_operators import Size, sizes_of
from nsysx.events.operator_flow import OperatorFlow, in_place, is_view
from nsysx.events.operator_names import writes_lists

#: Operators whose result their tensors tell, with its size and their kernels, and which arguments are tensors.
_OF_TENSORS: Mapping[str, tuple[int, ...]] = {
    f"aten::{name}": arguments
    for arguments, names in {
        (
            0,
        ): "topk sort argsort exp expm1 log log1p log2 sqrt rsqrt reciprocal square abs neg sign sin cos tan tanh sigmoid relu silu erf "
        "floor ceil round isnan isfinite logical_not bitwise_not sum mean amax amin max min argmax argmin prod any all linalg_inv "
        "linalg_svd linalg_eigh linalg_qr linalg_cholesky upsample_nearest2d upsample_bilinear2d upsample_bicubic2d",
        (
            0,
            1,
        ): "cdist _euclidean_dist matmul mm bmm linear mul div add sub maximum minimum eq ne lt gt le ge logical_and logical_or "
        "bitwise_and bitwise_or searchsorted",
        (1,): "einsum",
        (0, 2): "gather index_select",
        (0, 1, 2): "where",
    }.items()
    for name in names.split()
}
#: The same of those whose line may write their numbers out; without a tensor they make what their result's size and these tell.
_OF_NUMBERS: Mapping[str, tuple[int, ...]] = {
    "aten::tril": (0,), "aten::triu": (0,), "aten::masked_fill": (0, 1), "aten::zeros": (), "aten::ones": (), "aten::arange": (),
}  # fmt: skip
#: The same of those that are given a list of tensors, and a dimension.
_OF_LISTS = frozenset({"aten::cat", "aten::stack"})
#: Operators whose result is all that they are given, in a shape that its size tells, as a view or a copy.
_WHOLE = re.compile(
    r"^aten::([tT]|numpy_T|mT|adjoint|transpose|permute|view|reshape|(un)?flatten|(un)?squeeze|expand(_as)?|contiguous|_?to(_copy)?)$"
)
#: Operators that may hand on what they are given as it is.
_HANDS_ON = re.compile(r"^aten::(_?to(_copy)?|contiguous|type_as|detach|alias)$")


class RepeatedOperator(NamedTuple):
    """An operator (row of the flow) that launches kernels, and those that make the same again."""

    first: int
    again: Sequence[int]


class _NamedResult(NamedTuple):
    """A result of an operator, or of all that compute the same (``again``): its number, and which of the results."""

    number: int
    which: int
    again: bool = False


def repeated_operators(
    flow: OperatorFlow, kernels: Kernels, lines: Sequence[int], written_out: Sequence[bool] = ()
) -> list[list[RepeatedOperator]]:
    """Return the operators that are run again for another call of a module, in groups that are made of each other.

    ``lines``: of each of the flow's outermost operators the line of the program, -1 for one that is left out; ``written_out``: whether that
    writes out the numbers of what it calls. A group of nothing but conversions is left out, too, and one of nothing but what is made of no
    tensor.
    """
    values = _Values(flow, kernels)
    told = written_out or [False] * len(lines)
    for (row, end), line, numbers in zip(flow.outermost_spans, lines, told, strict=True):
        values.add(row, end, line, written_out=numbers)
    return values.groups()


class _Values:
    """What the results of a step's operators are, read one operator after the other."""

    def __init__(self, flow: OperatorFlow, kernels: Kernels) -> None:
        self._flow, self._kernels = flow, kernels
        self._sizes = [sizes_of(text) for text in flow.size]
        self._size_of = _result_sizes(flow, self._sizes)
        self._whole = dict[int, int]()  # of a view what it is a view of
        self._written = Counter[int]()  # how often something has been written into a tensor or a view of it
        self._lists_written = 0  # who reads what is written into lists is not known
        self._handed_on = dict[_NamedResult, _NamedResult]()
        self._value_of = dict[int, int]()  # of an operator, by its number: those with one value make the same
        self._values = dict[object, int]()
        self._rows = defaultdict[int, list[int]](list)  # of each value those that launch kernels
        self._group = dict[int, int]()  # of each value the one by which its group is named
        self._often = Counter[tuple[object, int]]()
        self._call = np.full(len(flow.names), -1)
        for index, call in enumerate(flow.calls):  # outer ones before inner ones
            self._call[call.first : call.last] = index

    def add(self, row: int, end: int, line: int, *, written_out: bool) -> None:
        """Read an outermost operator and those in it, [``row``, ``end``)."""
        flow = self._flow
        launched = frozenset[str]().union(*(self._kernels.get(inner, ()) for inner in range(row, end)))
        given, key, call = (
            self._arguments(row),
            self._computed(row, launched, written_out=written_out),
            int(self._call[row]),
        )
        if given and given[0].number >= 0 and not launched and _HANDS_ON.match(flow.names[row]):
            self._handed_on[_NamedResult(flow.number[row], 0)] = given[0]
        elif key is not None and line >= 0 and call >= 0:
            key = (key, line, end - row, flow.calls[call].cls)
            self._often[key, call] += 1
            value = self._values.setdefault((key, self._often[key, call]), len(self._values))
            self._value_of[flow.number[row]] = value
            if launched:
                self._rows[value].append(row)
            self._join(value, [each.number for each in given if each.again], alone=bool(launched))
        for inner in range(row, end):
            self._write(inner, outermost=inner == row)

    def groups(self) -> list[list[RepeatedOperator]]:
        """Return what has been repeated so far, of whose results none has been written into."""
        flow, by_group = self._flow, defaultdict[int, list[RepeatedOperator]](list)
        for value, rows in self._rows.items():
            if len(rows) > 1 and not any(self._written[self._root(flow.number[row])] for row in rows):
                by_group[self._group[value]].append(RepeatedOperator(rows[0], rows[1:]))
        return [
            group
            for group in by_group.values()
            if not all(
                _HANDS_ON.match(flow.names[row]) or not _OF_NUMBERS.get(flow.names[row], (0,)) for row, _ in group
            )
        ]

    def _arguments(self, row: int) -> list[_NamedResult]:
        """Return what the arguments of an operator are."""
        made = self._flow.made[row]
        which = self._flow.which[row] if self._flow.which else (0,) * len(made)
        given = [_NamedResult(*each) for each in zip(made, which, strict=True)]
        given = [self._handed_on.get(each, each) for each in given]
        return [
            _NamedResult(self._value_of[each.number], each.which, again=True) if each.number in self._value_of else each
            for each in given
        ]

    def _computed(self, row: int, launched: frozenset[str], *, written_out: bool) -> object:
        """Return what an operator computes from what, None where this is not known."""
        flow, sizes = self._flow, self._sizes[row]
        name, made, result = flow.names[row], flow.made[row], self._size_of.get(flow.number[row])
        tensors: Sequence[int] = range(len(sizes) - 1) if name in _OF_LISTS else _OF_TENSORS.get(name, ())
        if _WHOLE.match(name):
            tensors = (0,)
        elif not launched:
            return None
        by_numbers = written_out and name in _OF_NUMBERS
        tensors = _OF_NUMBERS[name] if by_numbers else tensors
        if not (tensors or by_numbers) or len(made) != len(sizes) or result is None:
            return None
        if any(each >= len(sizes) or not sizes[each] for each in tensors):
            return None  # a number of Python
        if any(size and number < 0 for number, size in zip(made, sizes, strict=True)):
            return None
        given = tuple(
            (each, self._written[self._root(number)]) if size else None
            for each, number, size in zip(self._arguments(row), made, sizes, strict=True)
        )
        return name, given, flow.size[row], result, launched, self._lists_written

    def _write(self, row: int, *, outermost: bool) -> None:
        """Note what an operator is a view of, or writes into."""
        flow = self._flow
        name, number, made, sizes = flow.names[row], flow.number[row], flow.made[row], self._sizes[row]
        root = self._root(made[0]) if made else -1
        if writes_lists(name):
            self._lists_written += 1
        elif in_place(name):
            self._whole[number] = root
            if root >= 0 or (outermost and sizes and math.prod(sizes[0]) > 1):
                self._written[root] += 1
        elif is_view(name) or _HANDS_ON.match(name):
            self._whole[number] = root

    def _root(self, number: int) -> int:
        """Return the tensor that a result is a view of, itself included; -1 for any from before the step: one may be a view of another."""
        return self._whole.get(number, number if number in self._flow.row_of else -1)

    def _join(self, value: int, made_of: Sequence[int], *, alone: bool) -> None:
        """Put a value into the group of those that it is made of; a view of none of them (not ``alone``) into no group."""
        theirs = {self._group[each] for each in made_of if each in self._group}
        if theirs or alone:
            self._group[value] = min(theirs, default=value)
            self._group.update({each: self._group[value] for each, group in self._group.items() if group in theirs})


def _result_sizes(flow: OperatorFlow, sizes: Sequence[Sequence[Size]]) -> dict[int, Size]:
    """Return the size of each operator's result, as the first that is handed it says. A number of Python may bear the name of a result
    that nobody holds any more.
    """
    result = dict[int, Size]()
    for row in flow.outermost:
        if len(sizes[row]) == len(flow.made[row]):
            for number, size in zip(flow.made[row], sizes[row], strict=True):
                if number >= 0 and size:
                    result.setdefault(number, size)
    return result

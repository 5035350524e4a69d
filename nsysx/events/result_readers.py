"""Who reads the results of the operators of an X-ray step, past what only hands them on: for rules about products in another form."""

from __future__ import annotations

import math
import re
from functools import cached_property

from nsysx.events.narrowed_operators import Size, result_sizes, sizes_of
from nsysx.events.operator_flow import OperatorFlow

#: Operators that hand on what they are given, in another shape, type or layout, or times a number.
_HANDS_ON = re.compile(
    r"^aten::(_?(unsafe_)?view|reshape|_reshape_alias|(un)?flatten|(un)?squeeze|transpose|permute|movedim|numpy_T|[tT]|mT|mH|adjoint|"
    r"detach|alias|to|_to_copy|contiguous|clone|type_as|unflatten)$"
)
_TIMES = re.compile(r"^aten::(mul|div)_?$")
_SUMS = re.compile(r"^aten::(sum|mean)$")
#: Operators that read of a tensor its size, type and device alone: of each argument, or of each behind the first.
_LIKE, _AS = re.compile(r"^aten::(new_\w+|\w+_like)$"), re.compile(r"^aten::(expand|view|reshape|type)_as$")


def _values_of(name: str, made: tuple[int, ...]) -> tuple[int, ...]:
    """Return of what made the arguments of an operator that of which it reads numbers."""
    return () if _LIKE.match(name) else made[:1] if _AS.match(name) else made


class ResultReaders:
    """Of the operators of a flow, who reads what they make.

    ``sizes``: of each operator those of its arguments, ``results``: of each result its own.
    """

    def __init__(self, flow: OperatorFlow) -> None:
        self.flow = flow
        self.sizes = [sizes_of(text) for text in flow.size]
        self.results = result_sizes(flow, self.sizes)

    @cached_property
    def readers(self) -> dict[int, set[int]]:
        """Of each operator's number the outermost operators that read its result, -1 for one behind the step."""
        flow, readers = self.flow, dict[int, set[int]]()
        for row, end in flow.outermost_spans:
            for inner in range(row, end):
                for number in _values_of(flow.names[inner], flow.made[inner]):
                    if number >= 0 and flow.row_of.get(number, row) < row:
                        readers.setdefault(number, set()).add(row)
        for number in flow.read_later:
            readers.setdefault(number, set()).add(-1)
        return readers

    def hands_on(self, row: int) -> bool:
        """Return whether an operator only hands on what it is given."""
        name, sizes = self.flow.names[row], self.sizes[row]
        times = _TIMES.match(name) and len(sizes) > 1 and math.prod(sizes[1]) == 1
        # As products of several matrices do with what has the sizes of both.
        whole = name == "aten::expand" and sizes and self.results.get(self.flow.number[row]) == sizes[0]
        return bool(_HANDS_ON.match(name) or times or whole)

    def base_of(self, number: int) -> tuple[int, frozenset[int]]:
        """Return the number of the operator whose result it hands on, and the outermost operators in between."""
        passed, row = set[int](), self.flow.row_of.get(number)
        while row is not None and self.hands_on(row) and self.flow.made[row]:
            passed.add(row)
            number = self.flow.made[row][0]
            row = self.flow.row_of.get(number)
        return number, frozenset(passed)

    def only_reader(self, row: int) -> tuple[int, frozenset[int]] | None:
        """Return the one outermost operator that reads a result, and those that hand it on to that; None where several do, or none."""
        passed = set[int]()
        while True:
            readers = self.readers.get(self.flow.number[row], set())
            if len(readers) != 1 or -1 in readers:
                return None
            (reader,) = readers
            if not self.hands_on(reader):
                return reader, frozenset(passed)
            passed.add(reader)
            row = reader

    def scaled_reader(self, row: int) -> tuple[int, frozenset[int], int] | None:
        """Return what reads the product of matrices at a row, those that hand it on or scale its rows or columns, with sums over these, and
        the number of the last; None where several read it, or none.
        """
        passed = set[int]()
        while True:
            readers = self.readers.get(self.flow.number[row], set())
            sums = {reader for reader in readers if self._sums_lines(reader)}
            if len(readers - sums) != 1 or -1 in readers:
                return None
            (reader,) = readers - sums
            passed |= sums
            if not self.hands_on(reader) and not self.scales_lines(reader, self.flow.number[row]):
                return reader, frozenset(passed), self.flow.number[row]
            passed.add(reader)
            row = reader

    def _sums_lines(self, row: int) -> bool:
        """Return whether an operator sums over whole rows or columns of matrices: from the factors of a product that takes little."""
        result, sizes = self.results.get(self.flow.number[row]), self.sizes[row][:1]
        if not _SUMS.match(self.flow.names[row]) or result is None or not sizes or len(sizes[0]) < 2:
            return False
        return math.prod(result) * min(sizes[0][-2:]) <= math.prod(sizes[0])

    def _expanded_from(self, number: int, size: Size) -> Size:
        """Return the size of what an operator made longer without a copy, else that of its result."""
        row = self.flow.row_of.get(number)
        expanded = row is not None and self.flow.names[row] in ("aten::expand", "aten::expand_as")
        return self.sizes[row][0] if expanded and row is not None else size

    def scales_lines(self, row: int, number: int) -> bool:
        """Return whether an operator multiplies or divides each row, or each column, of a result by a number."""
        name, sizes, made = self.flow.names[row], self.sizes[row][:2], self.flow.made[row][:2]
        if not _TIMES.match(name) or len(sizes) < 2 or number not in made:
            return False
        argument = made.index(number)
        if argument and "div" in name:
            return False
        here, by = sizes[argument], self._expanded_from(made[1 - argument], sizes[1 - argument])
        return (
            len(here) > 1
            and len(by) > 0
            and (by[-1] == 1 or len(by) == 1 or by[-2] == 1)
            and math.prod(by) < math.prod(here)
        )

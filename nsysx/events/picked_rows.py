"""Indexing with numbers (``x[index]``) among the operators of an X-ray step, told from masks, and the rows that it picks.

A mask is made numbers within the index (``nonzero``), or before it: then no row is picked twice. Where more rows are picked than there
are, some are picked several times; how often each is, sizes do not say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.result_readers import ResultReaders

_INDEX, _NONZERO = "aten::index", re.compile(r"^aten::nonzero\w*$")
#: What hands on a column of what `nonzero` gives, beside other shapes of it.
_PARTS = re.compile(r"^aten::(unbind|select|slice|narrow|split\w*|chunk|where|argwhere)$")


class PickedRows(NamedTuple):
    """Rows that an index picks by number: the operator (row of the flow), the size of what it is given, of its numbers, and the dimension
    that they stand for.
    """

    row: int
    size: Size
    numbers: Size
    dimension: int

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return math.prod(self.size[: self.dimension + 1])

    @property
    def picked(self) -> int:
        """How many are picked."""
        return math.prod(self.size[: self.dimension]) * math.prod(self.numbers)

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        return math.prod(self.size[self.dimension + 1 :])


class IndexedByNumber(NamedTuple):
    """The outermost operators that index with numbers (rows of the flow), and the rows that those with one tensor of numbers pick."""

    operators: frozenset[int]
    picks: list[PickedRows]


def indexed_by_number(flow: OperatorFlow) -> IndexedByNumber:
    """Return what an X-ray step indexes with numbers, without masks."""
    readers, operators, picks = ResultReaders(flow), set[int](), list[PickedRows]()
    ends = dict(flow.outermost_spans)
    for row, end in ends.items():
        sizes, made = readers.sizes[row], flow.made[row]
        if flow.names[row] != _INDEX or len(sizes) < 2 or any(map(_NONZERO.match, flow.names[row:end])):
            continue
        given = [i for i in range(1, len(sizes)) if sizes[i]]
        picked = (
            _picked(row, sizes[0], sizes[given[0]], readers.results.get(flow.number[row])) if len(given) == 1 else None
        )
        from_mask = len(made) == len(sizes) and any(_of_mask(readers, ends, made[i]) for i in given)
        if not given or (from_mask and (picked is None or picked.picked <= picked.rows)):
            continue
        operators.add(row)
        if picked is not None:
            picks.append(picked)
    return IndexedByNumber(frozenset(operators), picks)


def _picked(row: int, size: Size, numbers: Size, result: Size | None) -> PickedRows | None:
    """Return the rows that numbers pick, by the sizes of what is given and of the result; None where these do not tell."""
    for dimension in range(len(size)):
        if result is None or size[:dimension] + numbers + size[dimension + 1 :] == result:
            return PickedRows(row, size, numbers, dimension)
    return None


def _of_mask(readers: ResultReaders, ends: Mapping[int, int], number: int) -> bool:
    """Return whether numbers are the places at which a mask is set; ``ends``: outermost operator -> the row behind what lies in it."""
    flow, row = readers.flow, readers.flow.row_of.get(number)
    while row is not None:
        if any(map(_NONZERO.match, flow.names[row : ends.get(row, row + 1)])):
            return True
        if not (readers.hands_on(row) or _PARTS.match(flow.names[row])) or not flow.made[row]:
            return False
        row = flow.row_of.get(flow.made[row][0])
    return False

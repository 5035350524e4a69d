"""Sums over neighbours, and linear layers before or behind them: which order sums shorter rows. From sizes, and what made what.

A sum over neighbours is the product of a sparse matrix A with rows X, or rows that are picked, scaled and added where they belong
(message passing). With the weights W of a linear layer (A X) W and A (X W) are equal. The sum reads and adds a row for each edge, which
is as long as the layer is wide on the side of the sum. So it belongs on the narrower side, unless something else reads what lies in
between, or anything but factors of whole rows stands there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_bounds import FEWER_OPERATIONS_SHARE
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.operator_names import LAYERS
from nsysx.events.result_readers import ResultReaders

_SPARSE_PRODUCT = re.compile(r"^aten::(matmul|mm|_sparse_mm)$")
#: Asked of a sparse factor in each product with it, in any layout.
_EDGES = "aten::_nnz"
_ADDS = re.compile(r"^aten::(index_add|scatter_add)_?$")
_PICKS = re.compile(r"^aten::(index_select|index|gather)$")
_ZEROS = re.compile(r"^aten::(new_)?zeros(_like)?$")


class _Sum(NamedTuple):
    """A sum over neighbours: the outermost operators of it, the first and the last, which argument of the first has the rows, their
    sizes, how many rows it gives, and how many it adds, 0 where no size says so.
    """

    rows: frozenset[int]
    first: int
    last: int
    argument: int
    size: Size
    results: int
    edges: int


@dataclass(frozen=True)
class NeighbourOrder:
    """A sum over neighbours on the wider side of a linear layer. ``rows``: the outermost operators that get narrower (rows of the flow),
    ``layer``: the layer's; ``wide`` and ``narrow``: numbers of a row now and in the other order; ``edges``: rows that are added;
    ``grows``: how many times as many rows the layer multiplies then; ``layer_first``: the layer comes first then.
    """

    rows: frozenset[int]
    layer: int
    wide: int
    narrow: int
    edges: int
    grows: float
    layer_first: bool


def neighbour_orders(flow: OperatorFlow) -> list[NeighbourOrder]:
    """Return the sums over neighbours of an X-ray step that the other order makes less than half as wide."""
    return list(_Sums(flow).orders())


class _Sums(ResultReaders):
    def orders(self) -> Iterator[NeighbourOrder]:
        for each in self._sums():
            behind = self.scaled_reader(each.last)
            order = None if behind is None else self._narrowing_behind(each, *behind[:2])
            order = order or self._widening_before(each)
            if order is not None:
                yield order

    def _sums(self) -> Iterator[_Sum]:
        flow = self.flow
        for row, end in flow.outermost_spans:
            sizes = self.sizes[row]
            if _SPARSE_PRODUCT.match(flow.names[row]):
                factors, inside = sizes[:2], range(row, end)
                sparse = any(flow.names[i] == _EDGES and self.sizes[i][:1] == factors[:1] for i in inside)
                if sparse and len(factors) == 2 and all(len(size) == 2 for size in factors):
                    edges = max((size[0] for i in inside for size in self.sizes[i] if len(size) == 1), default=0)
                    yield _Sum(frozenset({row}), row, row, 1, factors[1], factors[0][0], edges)
            elif _ADDS.match(flow.names[row]) and len(sizes) > 3 and len(sizes[0]) == len(sizes[3]) == 2:
                added = self._of_picked_rows(row)
                if added is not None:
                    yield added

    def _of_picked_rows(self, row: int) -> _Sum | None:
        """Return the sum that ends with rows being added to zeros; None where they were not picked, or are read by anything else."""
        flow, sizes, made = self.flow, self.sizes, self.flow.made[row]
        zeros = flow.row_of.get(self.base_of(made[0])[0]) if made else None
        if zeros is None or not _ZEROS.match(flow.names[zeros]) or len(made) < 4:
            return None
        passed, number = {row, zeros}, made[3]
        before = flow.row_of.get(number)
        while before is not None and not _PICKS.match(flow.names[before]):
            scaled = next((n for n in flow.made[before][:2] if n >= 0 and self.scales_lines(before, n)), None)
            if not self.hands_on(before) and scaled is None:
                return None
            passed.add(before)
            number = flow.made[before][0] if scaled is None else scaled
            before = flow.row_of.get(number)
        if before is None or len(sizes[before][0]) != 2 or sizes[before][0][1] != sizes[row][3][1]:
            return None
        passed.add(before)
        inside = passed - {row}
        alone = all(self.readers.get(flow.number[each], set()) <= passed for each in inside)
        if not alone:
            return None
        return _Sum(frozenset(passed), before, row, 0, sizes[before][0], sizes[row][0][0], sizes[row][3][0])

    def _layer(self, row: int) -> tuple[int, int, int] | None:
        """Return which argument a linear layer multiplies, how many numbers of a row it reads, and how many it gives; None for others."""
        arguments, sizes = LAYERS.get(self.flow.names[row]), self.sizes[row]
        if arguments is None or len(sizes) <= arguments[1] or self._is_sparse(row):
            return None
        rows, weights = (sizes[argument] for argument in arguments)
        if len(rows) != 2 or len(weights) != 2:
            return None
        read, given = weights[::-1] if self.flow.names[row] == "aten::linear" else weights
        return (arguments[0], read, given) if rows[1] == read else None

    def _is_sparse(self, row: int) -> bool:
        around = self.flow.outermost
        following = next((each for each in around if each > row), len(self.flow.names))
        return _EDGES in self.flow.names[row:following]

    def _narrowing_behind(self, sum_of: _Sum, reader: int, passed: frozenset[int]) -> NeighbourOrder | None:
        """Return the order in which the layer that reads a sum comes first."""
        layer, wide = self._layer(reader), sum_of.size[1]
        if layer is None or self.sizes[reader][layer[0]] != (sum_of.results, wide):
            return None
        narrow = layer[2]
        if narrow > FEWER_OPERATIONS_SHARE * wide:
            return None
        grows = sum_of.size[0] / max(sum_of.results, 1)
        return NeighbourOrder(sum_of.rows | passed, reader, wide, narrow, sum_of.edges, grows, layer_first=True)

    def _widening_before(self, sum_of: _Sum) -> NeighbourOrder | None:
        """Return the order in which a layer without bias whose result is only summed comes behind the sum."""
        made = self.flow.made[sum_of.first]
        base, _ = self.base_of(made[sum_of.argument]) if len(made) > sum_of.argument else (-1, frozenset[int]())
        row = self.flow.row_of.get(base)
        layer = None if row is None or row not in self.flow.outermost else self._layer(row)
        if row is None or layer is None or self._has_bias(row):
            return None
        reader, (_, narrow, wide) = self.scaled_reader(row), layer
        alone = reader is not None and reader[0] == sum_of.first
        if not alone or wide != sum_of.size[1] or narrow > FEWER_OPERATIONS_SHARE * wide:
            return None
        grows = sum_of.results / max(sum_of.size[0], 1)
        return NeighbourOrder(sum_of.rows, row, wide, narrow, sum_of.edges, grows, layer_first=False)

    def _has_bias(self, row: int) -> bool:
        name, sizes = self.flow.names[row], self.sizes[row]
        return name == "aten::addmm" or (name == "aten::linear" and len(sizes) > 2 and bool(sizes[2]))

"""Tensors whose rows a loop puts in another order in each round, as a beam search does with its caches: which of it needs that.

The numbers of the rows come from a search of the step (``topk``, ``sort``), and between two orders nothing changes but a part that is
written, or what is put behind. Rows that were there before the first order are the same in all beams of one input, so that an order
leaves them as they are; what the beams wrote themselves has to follow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_bounds import FEWEST_GROWING_CATS, MOST_OPERATORS_TO_SEARCH
from nsysx.events.operator_flow import OperatorFlow, is_view
from nsysx.events.result_readers import ResultReaders
from nsysx.events.tensor_versions import fills, is_part, passes

_PICKS = re.compile(r"^aten::(index_select|index|gather|take_along_dim)$")
_CATS = re.compile(r"^aten::(cat|concat|concatenate)$")
_SEARCHES = re.compile(r"^aten::(topk|sort|argsort|argmax|max)$")


class ReorderedRows(NamedTuple):
    """A tensor that is put in another order again and again.

    ``orders``: of each operator that does so (outermost row of the flow) the share of what it copies that was written since the first;
    ``cats``: of each that puts something behind it, likewise. ``size``: of the last, ``dimension``: that of its rows.
    """

    orders: dict[int, float]
    cats: dict[int, float]
    size: Size
    dimension: int

    @property
    def read_only(self) -> bool:
        """Whether nothing is written between the orders: keys of an encoder."""
        return not any(self.orders.values())


class _Order(NamedTuple):
    """An operator that puts rows in another order: its row, the number of the rows' numbers, the size, and the dimension of rows."""

    row: int
    numbers: int
    size: Size
    dimension: int


class _BetweenOrders(NamedTuple):
    """What lies between two orders: of each operator that writes (row) how many numbers it adds, and of each cat how many it copies."""

    added: dict[int, int]
    cats: dict[int, int]


def reordered_rows(flow: OperatorFlow) -> list[ReorderedRows]:
    """Return the tensors of an X-ray step whose rows many rounds put in another order."""
    if not any(map(_SEARCHES.match, set(flow.names))):
        return []
    return list(_Reorders(flow).found())


class _Reorders(ResultReaders):
    def found(self) -> Iterator[ReorderedRows]:
        orders = {order.row: order for row in self.flow.outermost if (order := self._order(row)) is not None}
        chains, ends = dict[int, list[int]](), dict[int, list[_BetweenOrders]]()  # by the row of their last order
        for row, order in orders.items():
            before, written = self._before(self.flow.made[row][0], order)
            last = orders.get(before)
            goes_on = last is not None and before in chains and last.numbers != order.numbers
            chains[row] = [*chains.pop(before), row] if goes_on else [row]
            ends[row] = [*ends.pop(before), written] if goes_on else [written]
        for row, chain in chains.items():
            if len(chain) >= FEWEST_GROWING_CATS and self._is_searched(orders[row].numbers):
                yield self._reordered([orders[each] for each in chain], ends[row])

    def _order(self, row: int) -> _Order | None:
        """Return the order that an operator makes, None for one that makes none: as many rows as before, of more than numbers."""
        sizes, made = self.sizes[row], self.flow.made[row]
        if not _PICKS.match(self.flow.names[row]) or len(sizes) != len(made) or not sizes or len(sizes[0]) < 3:
            return None
        given = [i for i in range(1, len(sizes)) if sizes[i] and made[i] >= 0]
        if len(given) != 1 or self.results.get(self.flow.number[row], sizes[0]) != sizes[0]:
            return None
        index = self._whole(made[given[0]])
        rows = math.prod(self.results.get(index, sizes[given[0]]))
        dimensions = [d for d, length in enumerate(sizes[0]) if length == rows]
        return _Order(row, index, sizes[0], dimensions[0]) if dimensions else None

    def _whole(self, number: int) -> int:
        """Return what a view shows, repeated or not."""
        row = self.flow.row_of.get(number)
        while row is not None and is_view(self.flow.names[row]) and not is_part(self.flow.names[row]):
            number = self.flow.made[row][0]
            row = self.flow.row_of.get(number)
        return number

    def _before(self, number: int, order: _Order) -> tuple[int, _BetweenOrders]:
        """Return the operator (row) that made a tensor before anything was written into it or put behind it, -1 where that is older."""
        flow, in_part = self.flow, False
        row, written = self._step_back(number, _BetweenOrders({}, {}))
        while row >= 0 and not _PICKS.match(flow.names[row]):
            sizes, made, name = self.sizes[row], flow.made[row], flow.names[row]
            if len(sizes) != len(made) or not made:
                return -1, written
            from_argument = 0
            if fills(name) and len(sizes) > 1:
                written.added[row] = self._numbers_filled(row)
                in_part = True
            elif _CATS.match(name):
                from_argument = max(range(len(sizes)), key=lambda n: math.prod(sizes[n]) if sizes[n] else 0)
                behind = [size for n, size in enumerate(sizes) if n != from_argument and size]
                if not all(_is_behind(size, sizes[from_argument], order) for size in behind):
                    return -1, written
                written.added[row] = sum(map(math.prod, behind))
                written.cats[row] = sum(math.prod(size) for size in sizes if size)
            elif not passes(flow, row) or (is_part(name) and not in_part):
                return -1, written
            row, _ = self._step_back(made[from_argument], written)
        return row, written

    def _step_back(self, number: int, written: _BetweenOrders) -> tuple[int, _BetweenOrders]:
        """Return the operator (row) that made a tensor, -1 where none did, and note what is written into parts of it."""
        written.added.update({row: self._numbers_filled(row) for row in self._filling.get(number, ())})
        return self.flow.row_of.get(number, -1), written

    @cached_property
    def _filling(self) -> dict[int, list[int]]:
        """Of each operator's number the rows of those that write into a part of what it makes."""
        filling, flow = dict[int, list[int]](), self.flow
        for row in flow.outermost:
            if not fills(flow.names[row]) or len(self.sizes[row]) < 2 or len(self.sizes[row]) != len(flow.made[row]):
                continue
            number = flow.made[row][0]
            while (made := flow.row_of.get(number)) is not None and passes(flow, made):
                number = flow.made[made][0]
            filling.setdefault(number, []).append(row)
        return filling

    def _numbers_filled(self, row: int) -> int:
        return min(math.prod(size) for size in self.sizes[row] if size)

    def _is_searched(self, number: int) -> bool:
        """Return whether the numbers of rows come from a search, by a few operators."""
        waiting, seen = [number], set[int]()
        while waiting and len(seen) < MOST_OPERATORS_TO_SEARCH:
            row = self.flow.row_of.get(waiting.pop(0), -1)
            if row < 0 or row in seen:
                continue
            seen.add(row)
            if _SEARCHES.match(self.flow.names[row]):
                return True
            waiting += [each for each in self.flow.made[row] if each >= 0]
        return False

    def _reordered(self, orders: list[_Order], written: list[_BetweenOrders]) -> ReorderedRows:
        written_so_far, of_orders, of_cats = 0, dict[int, float](), dict[int, float]()
        for order, each in zip(orders, written, strict=True):
            new = sum(each.added.values())
            # What is written before the first order all beams of an input may have: of as much as later rounds write it is theirs.
            written_so_far += new if order is not orders[0] else min(new, sum(written[1].added.values()))
            of_orders[order.row] = min(1.0, written_so_far / math.prod(order.size))
            if order is not orders[0]:
                of_cats |= {row: min(1.0, new / many) for row, many in each.cats.items()}
        return ReorderedRows(of_orders, of_cats, orders[-1].size, orders[-1].dimension)


def _is_behind(size: Size, whole: Size, order: _Order) -> bool:
    """Return whether what is put behind a tensor has its rows, and differs in one dimension alone."""
    differing = sum(a != b for a, b in zip(size, whole, strict=False))
    return len(size) == len(whole) and differing < 2 and order.size[order.dimension] in size

"""Who reads what came with a message between layers that are split over the ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

import numpy as np

from nsysx.events.flow_messages import FlowMessage
from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_flow import OperatorFlow, is_view
from nsysx.events.operator_names import LAYERS
from nsysx.events.result_readers import ResultReaders

#: What works on each number by itself.
ELEMENTWISE = re.compile(
    r"^aten::(relu6?|gelu|silu|sigmoid|tanh|elu|leaky_relu|softplus|mish|mul|div|add|sub|square|pow|(native_)?dropout)_?$"
)


def _alike(size: Size, other: Size) -> bool:
    """Return whether a tensor may have both sizes: of one that is split over ranks, the whole and a part have their own.

    Of a tensor that no operator made, such as one in a list of results, PyTorch notes who made an earlier one at its address.
    """
    several, few = sorted((size, other), key=math.prod, reverse=True)
    return len(several) == len(few) and all((b and a % b == 0) or a == b for a, b in zip(several, few, strict=True))


class LayerReaders(ResultReaders):
    """Who reads what came with a message."""

    def __init__(self, flow: OperatorFlow) -> None:
        super().__init__(flow)
        self._reading = dict[int, list[int]]()
        first, unsplit, split = dict[int, Size](), set[int](), set[tuple[int, int]]()
        for row, end in flow.outermost_spans:
            for number in {each for made in flow.made[row:end] for each in made if each >= 0}:
                size = self._size_in(row, number)
                if not _alike(first.setdefault(number, size), size):
                    continue
                self._reading.setdefault(number, []).append(row)
                if self._reads_part(row, end, number, size):
                    split.add((number, row))
                else:
                    unsplit.add(number)
        for number, row in split:
            if number in unsplit:
                self._reading[number].remove(row)

    def _reads_part(self, row: int, end: int, number: int, size: Size) -> bool:
        """Return whether operators in one read, instead of a tensor, what a rank has of it: then it is split over the ranks.

        Of a tensor that is, who made an earlier one at its address is noted: one that is read as it is elsewhere is another.
        """
        last = max(each for each in range(row, end) if number in self.flow.made[each])
        arguments, inside = {number, *self.flow.made[last]}, self._inside(last)
        return any(
            each not in arguments and 0 <= self.flow.row_of.get(each, -1) < last and _alike(size, of_other)
            for other in inside[1:]
            for each, of_other in zip(self.flow.made[other], self.sizes[other], strict=False)
        )

    def _inside(self, row: int) -> range:
        """Return the rows of an operator and of those in it."""
        return range(row, int(np.searchsorted(self.flow.start_ns, self.flow.end_ns[row])))

    def _made(self, row: int) -> set[int]:
        """Return the numbers that results of an operator may have: parts of a tensor have those of what cuts each."""
        return {self.flow.number[each] for each in self._inside(row)}

    def _behind(self, numbers: Collection[int], message: FlowMessage) -> set[int]:
        """Return the outermost operators that read one of some tensors after a message has come."""
        return {row for n in numbers for row in self._reading.get(n, ()) if self.flow.start_ns[row] >= message.end_ns}

    def is_for_product(self, row: int, message: FlowMessage) -> bool:
        """Return whether an operator is a product, or works on each number and what it makes is for products alone."""
        waiting, seen = {row}, set[int]()
        while waiting:
            row = waiting.pop()
            seen.add(row)
            name = self.flow.names[row]
            if name in LAYERS:
                continue
            # What an operator reads of those in it is nothing that it is read by: a copy writes into what was made for it.
            readers = {reader for reader in self._behind(self._made(row), message) if reader > row}
            if not readers or not (is_view(name) or self.hands_on(row) or ELEMENTWISE.match(name)):
                return False
            waiting |= readers - seen
        return True

    def read_behind(self, number: int, row: int) -> list[tuple[int, Size]]:
        """Return the outermost operators behind one that read a tensor, each with the size that it has there.

        A tensor that is split over the ranks has that of all parts for an operator, and that of one for those in it.
        """
        return [(reader, self._size_in(reader, number)) for reader in self._reading.get(number, ()) if reader > row]

    def _size_in(self, row: int, number: int) -> Size:
        sizes = (
            size
            for each in self._inside(row)
            for made, size in zip(self.flow.made[each], self.sizes[each], strict=False)
            if made == number
        )
        return min(sizes, key=math.prod, default=())

    def made_of(self, row: int) -> dict[int, Size]:
        """Return the results of an operator that others read behind it, by their numbers, with their sizes."""
        read = ((number, self.read_behind(number, row)) for number in self._made(row))
        return {number: min((size for _, size in readers), key=math.prod) for number, readers in read if readers}

"""Tensors that come from convolutions in channels_last and reach others in another memory order, by the operator that changed it.

A convolution whose weights are in channels_last copies an input of another order before it computes. What operators make is in the order of
what they are given, as long as each element is computed by itself: it is lost where tensors of five dimensions are joined, where a view of
new dimensions has to be copied, in products, in softmax.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_bounds import MOST_OPERATORS_TO_SEARCH
from nsysx.events.operator_flow import OperatorFlow, is_view
from nsysx.events.result_readers import ResultReaders

_CONVOLUTIONS = re.compile(r"^aten::(conv2d|conv_transpose2d|_?convolution)$")
#: What copies a tensor into another order, if it has that order not yet, and the copy within.
_ORDERS, _COPY = re.compile(r"^aten::contiguous$"), re.compile(r"^aten::(clone|copy_)$")
#: What gives a result an order of its own; of joined and padded tensors only if they have not four dimensions.
_REORDERS = re.compile(
    r"^aten::(contiguous|einsum|(b|baddb|addm|m)m|matmul|linear|roll|pixel_(un)?shuffle|channel_shuffle|repeat|tile|index(_select)?|gather|"
    r"take_along_dim|(_|_log_|log_)?softmax|scaled_dot_product_attention|cumsum)$"
)
_OF_FOUR = re.compile(r"^aten::(cat|concat|concatenate|stack|pad|constant_pad_nd)$")
#: Of these torch has no kernel for channels_last.
_OF_NORMS = re.compile(r"^aten::(group_norm|instance_norm|layer_norm)$")


class LostLayout(NamedTuple):
    """An operator (outermost row of the flow, as all here) whose result is not in channels_last, though what it is made of is.

    ``convolutions``: those that copy what is made of it. ``source``: what it is made of, ``beside``: what lies between that and the
    convolutions, and what else reads that: kernels there work on two orders at once. ``size``: of what the convolutions are given.
    """

    row: int
    convolutions: tuple[int, ...]
    source: int
    beside: frozenset[int]
    size: Size


def lost_layouts(flow: OperatorFlow) -> list[LostLayout]:
    """Return the operators of an X-ray step whose results convolutions in channels_last have to copy."""
    return _Losses(ResultReaders(flow)).all()


class _Losses:
    def __init__(self, readers: ResultReaders) -> None:
        self._readers, self._flow = readers, readers.flow
        self._end = dict(self._flow.outermost_spans)
        self._outer = [row for row, end in self._flow.outermost_spans for _ in range(row, end)]

    def all(self) -> list[LostLayout]:
        losses = dict[int, LostLayout]()
        for row in self._flow.outermost:
            path = self._path(row) if _CONVOLUTIONS.match(self._flow.names[row]) and self._copies_input(row) else None
            source = self._source(path[-1]) if path else None
            if path and source is not None:
                lost, before = path[-1], losses.get(path[-1])
                made_of, between = source
                others = self._readers.readers.get(self._flow.number[made_of], set())
                beside = frozenset(path) | between | {made_of} | {each for each in others if each >= 0}
                convolutions = (*(before.convolutions if before else ()), row)
                beside = (beside | (before.beside if before else frozenset())) - set(convolutions)
                losses[lost] = LostLayout(lost, convolutions, made_of, beside, self._readers.sizes[row][0])
        return list(losses.values())

    def _copies_input(self, row: int) -> bool:
        """Return whether a convolution of pictures copies what it is given first."""
        sizes, made = self._readers.sizes[row], self._flow.made[row]
        if not sizes or len(sizes[0]) != 4 or not made or made[0] < 0:
            return False
        return any(
            _ORDERS.match(self._flow.names[inner]) and self._flow.made[inner][:1] == made[:1] and self._copies(inner)
            for inner in range(row + 1, self._end[row])
        )

    def _copies(self, row: int) -> bool:
        """Return whether an operator has a copy of the first size that it is given within it."""
        size, behind = self._readers.sizes[row][0], row + 1
        while behind < len(self._flow.names) and self._flow.start_ns[behind] < self._flow.end_ns[row]:
            given = self._readers.sizes[behind]
            if _COPY.match(self._flow.names[behind]) and given and math.prod(given[0]) == math.prod(size):
                return True
            behind += 1
        return False

    def _path(self, row: int) -> list[int] | None:
        """Return the operators from a convolution's input back to the one that changed the order, None where none did."""
        path = list[int]()
        maker = self._maker(row, 0)
        while maker is not None and len(path) < MOST_OPERATORS_TO_SEARCH:
            name = self._flow.names[maker]
            if _CONVOLUTIONS.match(name) or _OF_NORMS.match(name):
                return None
            path.append(maker)
            if self._reorders(maker):
                return path
            maker = self._maker(maker, 0 if is_view(name) else self._largest(maker))
        return None

    def _reorders(self, row: int) -> bool:
        name, sizes = self._flow.names[row], self._readers.sizes[row]
        if is_view(name) or name == "aten::contiguous":
            return self._copies(row)
        return bool(_REORDERS.match(name) or (_OF_FOUR.match(name) and sizes and len(sizes[0]) != 4))

    def _source(self, row: int) -> tuple[int, frozenset[int]] | None:
        """Return the nearest operator before one whose result is in channels_last as a convolution's is, and what lies between."""
        waiting, between = [row], set[int]()
        while waiting and len(between) < MOST_OPERATORS_TO_SEARCH:
            each = waiting.pop(0)
            for argument in range(len(self._flow.made[each])):
                maker = self._maker(each, argument)
                if maker is None or maker in between or self._is_weight(each, argument):
                    continue
                if self._of_convolution(maker):
                    return maker, frozenset(between)
                between.add(maker)
                waiting.append(maker)
        return None

    def _of_convolution(self, row: int) -> bool:
        """Return whether a result of four dimensions is one of a convolution, past what keeps its order."""
        for _ in range(MOST_OPERATORS_TO_SEARCH):
            name, sizes = self._flow.names[row], self._readers.sizes[row]
            if _CONVOLUTIONS.match(name):
                return len(sizes[0]) == 4
            if is_view(name) or self._reorders(row) or _OF_NORMS.match(name) or not sizes:
                return False
            argument = self._largest(row)
            maker = self._maker(row, argument)
            if maker is None or len(sizes[argument]) != 4:
                return False
            row = maker
        return False

    def _is_weight(self, row: int, argument: int) -> bool:
        sizes = self._readers.sizes[row]
        return argument > 0 and (argument >= len(sizes) or not sizes[argument])

    def _largest(self, row: int) -> int:
        sizes = self._readers.sizes[row]
        return max(range(len(sizes)), key=lambda n: math.prod(sizes[n]) if sizes[n] else 0, default=0)

    def _maker(self, row: int, argument: int) -> int | None:
        """Return the operator before one that made its argument, None where that is older."""
        made = self._flow.made[row]
        maker = self._flow.row_of.get(made[argument], row) if argument < len(made) else row
        return self._outer[maker] if maker < row else None

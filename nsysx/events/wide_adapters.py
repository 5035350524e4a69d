"""Small layers beside the large ones (adapters) that convert what they are given, and the sum with what they make back again.

An adapter is two products, to a short row and back, whose result is added to that of a layer. Kept in float32 beside a layer of 16 bits it
is given activations that are converted for it, drops out of them and adds in float32, and what comes is converted back, before the sum or
behind it. Only its weights are small.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import NamedTuple

from nsysx.events.matrix_products import Factors, MatrixProducts
from nsysx.events.operator_bounds import ADAPTER_SHARE, HELD_RANK_SHARE
from nsysx.events.operator_flow import OperatorFlow

_CONVERTS = re.compile(r"^aten::(to|_to_copy|type_as|float)$")
_DROPS = re.compile(r"^aten::(native_)?dropout_?$")
_SCALES, _ADDS = re.compile(r"^aten::(mul|div)_?$"), re.compile(r"^aten::(add|sub)_?$")


class WideAdapter(NamedTuple):
    """Outermost operators (rows of a flow) of an adapter: its two ``products``, the conversions of its input and of the sum, the ``others``
    between them; ``at``: the one that converts first; the ``rank``, and how long the rows are that it is given.
    """

    products: tuple[int, int]
    conversions: tuple[int, ...]
    others: tuple[int, ...]
    at: int
    rank: int
    width: int


def converting_adapters(flow: OperatorFlow) -> list[WideAdapter]:
    """Return the adapters of an X-ray step whose input something converts, in order of time; types are not known here."""
    adapters = _Adapters(flow)
    every = (adapters.adapter_of(back) for back in adapters.products.values())
    return [each for each in every if each is not None]


class _Adapters(MatrixProducts):
    @cached_property
    def _outer(self) -> frozenset[int]:
        return frozenset(self.flow.outermost)

    def adapter_of(self, back: Factors) -> WideAdapter | None:
        """Return the adapter whose second product this is, None for another one."""
        number, between = self.base_of(back.made[0])
        there = self.products.get(self.flow.row_of.get(number, -1))
        if there is None or there.columns != back.inner or there.rows * there.batch != back.rows * back.batch:
            return None
        # Keys and values that several heads share have short rows: an adapter's rank is then small beside one of both alone.
        short, long = sorted((there.inner, back.columns))
        if back.inner > ADAPTER_SHARE * long or back.inner > HELD_RANK_SHARE * short:
            return None
        before = self._before(self.flow.made[there.row][0])
        behind, is_added = self._behind(back.row)
        first = [row for row in before if _CONVERTS.match(self.flow.names[row])]
        if not first or not is_added:
            return None
        every = [*before, *sorted(between & self._outer), *behind]
        conversions = tuple(row for row in every if _CONVERTS.match(self.flow.names[row]))
        others = tuple(row for row in every if row not in conversions)
        return WideAdapter((there.row, back.row), conversions, others, first[0], back.inner, there.inner)

    def _before(self, number: int) -> list[int]:
        """Return the outermost operators from the one that converts to what the first product is given."""
        rows, outer = list[int](), self._outer
        row = self.flow.row_of.get(number)
        while row is not None and (self.hands_on(row) or _DROPS.match(self.flow.names[row])) and self.flow.made[row]:
            if row in outer:
                rows.insert(0, row)
                if _CONVERTS.match(self.flow.names[row]):
                    break
            row = self.flow.row_of.get(self.flow.made[row][0])
        return rows

    def _behind(self, row: int) -> tuple[list[int], bool]:
        """Return the outermost operators from the second product to the sum with the layer, and to what converts that, and whether there is
        such a sum. What is converted before the sum is the last of them.
        """
        rows, added = list[int](), False
        while True:
            back = any(_CONVERTS.match(self.flow.names[each]) for each in rows)
            readers = self.readers.get(self.flow.number[row], set())
            converting = {reader for reader in readers if reader >= 0 and _CONVERTS.match(self.flow.names[reader])}
            if added:
                return [*rows, *sorted(converting)[:1]], True
            if len(readers) != 1 or -1 in readers:
                return rows, False
            (row,) = readers
            added = bool(_ADDS.match(self.flow.names[row]))
            if added and back:
                return rows, True  # it adds in 16 bits, as it will
            if not (added or self.hands_on(row) or _SCALES.match(self.flow.names[row])):
                return rows, False
            rows.append(row)

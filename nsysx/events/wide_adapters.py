"""Small layers beside the large ones (adapters) that convert what they are given, and the sum with what they make back again.

An adapter is two products, to a short row and back, whose result is added to that of a layer. Kept in float32 beside a layer of 16 bits it
is given activations that are converted for it, drops out of them and adds in float32, and what comes is converted back. Only its weights
are small.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from nsysx.events.matrix_products import Factors, MatrixProducts
from nsysx.events.operator_bounds import ADAPTER_SHARE
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
    def adapter_of(self, back: Factors) -> WideAdapter | None:
        """Return the adapter whose second product this is, None for another one."""
        number, _ = self.base_of(back.made[0])
        there = self.products.get(self.flow.row_of.get(number, -1))
        if there is None or there.columns != back.inner or there.rows * there.batch != back.rows * back.batch:
            return None
        if back.inner > ADAPTER_SHARE * min(there.inner, back.columns):
            return None
        before = self._before(self.flow.made[there.row][0])
        behind = self._behind(back.row)
        first = [row for row in before if _CONVERTS.match(self.flow.names[row])]
        if not first or not any(_ADDS.match(self.flow.names[row]) for row in behind):
            return None
        every = [*before, *behind]
        conversions = tuple(row for row in every if _CONVERTS.match(self.flow.names[row]))
        others = tuple(row for row in every if row not in conversions)
        return WideAdapter((there.row, back.row), conversions, others, first[0], back.inner, there.inner)

    def _before(self, number: int) -> list[int]:
        """Return the outermost operators from the one that converts to what the first product is given."""
        rows, outer = list[int](), set(self.flow.outermost)
        row = self.flow.row_of.get(number)
        while row is not None and (self.hands_on(row) or _DROPS.match(self.flow.names[row])) and self.flow.made[row]:
            if row in outer:
                rows.insert(0, row)
                if _CONVERTS.match(self.flow.names[row]):
                    break
            row = self.flow.row_of.get(self.flow.made[row][0])
        return rows

    def _behind(self, row: int) -> list[int]:
        """Return the outermost operators from the second product to the sum with the layer, and to what converts that."""
        rows, added = list[int](), False
        while True:
            readers = self.readers.get(self.flow.number[row], set())
            converting = {reader for reader in readers if reader >= 0 and _CONVERTS.match(self.flow.names[reader])}
            if added:
                return [*rows, *sorted(converting)[:1]]
            if len(readers) != 1 or -1 in readers:
                return rows
            (row,) = readers
            added = bool(_ADDS.match(self.flow.names[row]))
            if not (added or self.hands_on(row) or _SCALES.match(self.flow.names[row])):
                return rows
            rows.append(row)

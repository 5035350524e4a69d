"""Weights that are put together of a frozen one and a product of small rank before a layer multiplies by them (LoRA, merged in each call).

``x @ (W + B @ A)`` is ``x @ W + (x @ B) @ A``. Written in the first way, backward makes the gradient of the whole weight, as large as those
of a layer that is trained, to multiply it by the small factors; the second way needs nothing of the size of a weight.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from nsysx.events.matrix_products import Factors, MatrixProducts
from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_bounds import FEWER_OPERATIONS_SHARE
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.operator_names import LAYERS

_ADDS, _PRODUCT = re.compile(r"^aten::(add|sub)_?$"), re.compile(r"^aten::(addmm|b?mm)$")
_TURNS = re.compile(r"^aten::([tT]|numpy_T|mT|transpose|swapaxes)$")


class LowRankWeight(NamedTuple):
    """A product (row of the flow) with such a weight: its ``size``, the ``rank`` of what is added to it, how many ``tokens`` it multiplies.

    ``making``: the outermost operators that put the weight together, ``added``: that which adds; ``turned``: the layer reads the weight
    as [outputs, inputs], as ``F.linear`` does.
    """

    row: int
    size: Size
    rank: int
    tokens: int
    making: frozenset[int]
    added: int
    turned: bool

    @property
    def operations(self) -> int:
        """Those of the two products of small rank that come instead, in the forward."""
        return 2 * self.tokens * self.rank * sum(self.size)

    @property
    def numbers(self) -> float:
        """What these read and write in forward and backward, a third of it: the rows on either side, often enough for their gradients."""
        there, back = self.size
        return self.tokens * (6 * max(there, back) + 4 * min(there, back)) / 3


def low_rank_weights(flow: OperatorFlow) -> list[LowRankWeight]:
    """Return the products of an X-ray step with such weights, where the small products take less than half of the weight's gradient."""
    weights = _Weights(flow)
    return [each for factors in weights.with_biases() if (each := weights.weight_of(factors)) is not None]


class _Weights(MatrixProducts):
    def with_biases(self) -> list[Factors]:
        """Return the products of a flow, also those of layers with a bias, in order of time."""
        biased, flow = list[Factors](), self.flow
        for row, end in flow.outermost_spans:
            held = [i for i in range(row, end) if _PRODUCT.match(flow.names[i])]
            if len(held) == 1 and flow.names[held[0]] == "aten::addmm" and flow.names[row] in LAYERS:
                sizes, made = self.sizes[held[0]][1:3], flow.made[held[0]][1:3]
                if len(sizes) == len(made) == 2 and all(len(size) == 2 for size in sizes):
                    (rows, inner), columns = sizes[0], sizes[1][1]
                    biased.append(Factors(row, 1, rows, inner, columns=columns, made=(made[0], made[1])))
        return sorted([*self.products.values(), *biased], key=lambda factors: factors.row)

    def weight_of(self, factors: Factors) -> LowRankWeight | None:
        """Return the weight of a product, None for one that is not put together so."""
        number, passed = self.base_of(factors.made[1])
        row, size = self.flow.row_of.get(number), (factors.inner, factors.columns)
        if row is None or factors.batch > 1 or sorted(self.results.get(number, ())) != sorted(size):
            return None
        added = self._small(row, size)
        if added is None:
            return None
        small, making = added
        saved = FEWER_OPERATIONS_SHARE * factors.inner * factors.columns
        if 3 * small.inner * (factors.inner + factors.columns) > saved or factors.rows <= small.inner:
            return None
        turns = sum(bool(_TURNS.match(self.flow.names[each])) for each in passed & set(self.flow.outermost))
        turned = self.flow.names[factors.row] == "aten::linear" or turns % 2 == 1
        outer = set(self.flow.outermost)
        return LowRankWeight(
            factors.row, size, small.inner, factors.rows, frozenset({*(making | passed) & outer, row} - {factors.row}), row, turned
        )  # fmt: skip

    def _small(self, row: int, size: Size) -> tuple[Factors, frozenset[int]] | None:
        """Return the product of small rank that an operator adds to something else, and the operators of it; None without one."""
        name, made = self.flow.names[row], self.flow.made[row]
        if name == "aten::addmm" and len(made) > 2:
            sizes = self.sizes[row]
            inner = sizes[1][-1] if len(sizes) > 1 and sizes[1] else 0
            if inner and sorted(sizes[0]) == sorted(size):
                return Factors(row, 1, size[0], inner, columns=size[1], made=(made[1], made[2])), frozenset({row})
        if not _ADDS.match(name) or len(made) < 2 or sorted(self.sizes[row][0]) != sorted(self.sizes[row][1]):
            return None
        terms = [self.base_of(number) for number in made[:2]]
        products = [self.products.get(self.flow.row_of.get(number, -1)) for number, _ in terms]
        if sum(each is not None for each in products) != 1:  # a sum of two products is another network
            return None
        (factors, passed), *_ = [
            (each, way) for each, (_, way) in zip(products, terms, strict=True) if each is not None
        ]
        return (factors, frozenset({factors.row, *passed})) if 2 * factors.inner <= min(size) else None

"""Products with masks that send rows to slots: one-hot rows, multiplied with each other and by weights, of which nearly all is zeros.

A router of a mixture of experts picks an expert and a place there for each token. Written as a mask of [tokens, experts, places] with a
single number for each token, the rows go to the experts and come back by products that multiply them by zeros. How many numbers of a
mask are set follows from what made it: a row of ``one_hot`` holds one of its classes, and what is multiplied holds what both hold.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import cached_property

from nsysx.events.matrix_products import Factors, MatrixProducts
from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_bounds import MOSTLY_ZEROS_SHARE
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.product_forms import ProductForm

#: What makes masks of few numbers, what multiplies, adds up and sums them, and what keeps their zeros.
_SETS = re.compile(r"^aten::(one_hot|eq|index|index_select|scatter_?|index_put_?)$")
_MULTIPLIES = re.compile(r"^aten::(mul|logical_and|bitwise_and|__and__|einsum)_?$")
_ADDS = re.compile(r"^aten::(add|maximum|logical_or|bitwise_or|__or__)_?$")
_SUMS = re.compile(r"^aten::(sum|any|amax)$")
_KEEPS = re.compile(r"^aten::(gt|ne|masked_fill)_?$")
#: What takes some rows of a tensor.
_TAKES = re.compile(r"^aten::(select|slice|narrow|unbind)$")
_ZEROS = ("aten::zeros", "aten::new_zeros", "aten::zeros_like")


def routed_products(flow: OperatorFlow) -> list[ProductForm]:
    """Return the products of an X-ray step with such masks, in order of time: forms of the kind "routed"."""
    masks = _Masks(flow)
    return [masks.form_of(factors) for row, factors in masks.products.items() if row in masks.routing]


def unit_rows(flow: OperatorFlow, rows: Iterable[int]) -> dict[int, int]:
    """Return which of these operators make rows of a unit matrix, and how many numbers such a row has."""
    products = MatrixProducts(flow)
    results = {row: products.results.get(flow.number[row]) for row in rows if _SETS.match(flow.names[row])}
    return {row: result[-1] for row, result in results.items() if result and products.is_unit(row)}


class _Masks(MatrixProducts):
    @cached_property
    def set_share(self) -> dict[int, float]:
        """Of each tensor with zeros which share of it can be set, by the number of what made it."""
        shares = dict[int, float]()
        for row in self.flow.outermost:
            number = self.flow.number[row]
            result = self.results.get(number)
            if row in self.products:
                share = self._share_of_product(self.products[row], shares)
            else:
                share = self._share(row, result, shares) if result else 1.0
            if share < 1:
                shares[number] = share
        return shares

    def _share_of_product(self, factors: Factors, shares: dict[int, float]) -> float:
        """Return which share of a product of two masks can be set: so is a mask of the experts and places of all choices made at once."""
        first, second = (shares.get(self.base_of(number)[0], 1.0) for number in factors.made)
        return min(1.0, factors.inner * first * second) if max(first, second) < 1 else 1.0

    def _share(self, row: int, result: Size, shares: dict[int, float]) -> float:
        """Return which share of a result can be set; ``shares``: those of what was made before."""
        name, sizes, made = self.flow.names[row], self.sizes[row], self.flow.made[row]
        if _SETS.match(name):
            return self._set_by(row, result)
        if name in _ZEROS:
            return 0.0
        if len(sizes) != len(made):
            return 1.0
        given = [
            (size, shares.get(self.base_of(number)[0], 1.0)) for size, number in zip(sizes, made, strict=True) if size
        ]
        if not given or all(share == 1 for _, share in given):
            return 1.0
        numbers, ((first, share), *others) = math.prod(result), given
        if _TAKES.match(name) and first[-1:] == result[-1:]:  # each row holds as many
            return share
        if _MULTIPLIES.match(name) and len(given) == 2:
            return _multiplied(numbers, given[0], given[1])
        if _ADDS.match(name) and len(given) == 2 and all(math.prod(size) == numbers for size, _ in given):
            return min(1.0, share + others[0][1])
        if _ADDS.match(name) and len(given) == 1 and self._begins_a_sum(row, result):
            return share
        if _SUMS.match(name):
            return min(1.0, share * math.prod(first) / max(numbers, 1))
        return share if _KEEPS.match(name) and math.prod(first) == numbers else 1.0

    def _begins_a_sum(self, row: int, result: Size) -> bool:
        """Return whether a number is added to a mask, and then another tensor of its size: so does ``0 + a + b``, or ``sum((a, b))``."""
        reader = self.only_reader(row)
        return (
            reader is not None
            and bool(_ADDS.match(self.flow.names[reader[0]]))
            and self.sizes[reader[0]][:2] == [result] * 2
        )

    def _set_by(self, row: int, result: Size) -> float:
        """Return which share is set of what makes rows of a unit matrix, or writes a few numbers into each row of zeros."""
        sizes, made = self.sizes[row], self.flow.made[row]
        if self.is_unit(row):
            return 1 / max(result[-1], 1)
        source = self.flow.row_of.get(self.base_of(made[0])[0]) if made else None
        zeros = source is not None and self.flow.names[source] in _ZEROS
        if "index_put" in self.flow.names[row]:  # as many as the longest of the indices, each in a tensor of its own
            return min(1.0, max(map(math.prod, sizes[1:]), default=1) / max(math.prod(result), 1)) if zeros else 1.0
        scattered = "scatter" in self.flow.names[row] and len(sizes) > 2 and bool(sizes[2])
        return min(1.0, math.prod(sizes[2]) / max(math.prod(sizes[0]), 1)) if scattered and zeros else 1.0

    @cached_property
    def routing(self) -> dict[int, int]:
        """Of each product with such a mask which factor that is. Rows of a unit matrix alone are told as such (``product_forms``)."""
        routing = dict[int, int]()
        for factors in self.products.values():
            if self.flow.number[factors.row] in self.set_share:  # it makes a mask of two
                continue
            for argument, number in enumerate(factors.made):
                base, _ = self.base_of(number)
                row = self.flow.row_of.get(base)
                few = self.set_share.get(base, 1.0) <= MOSTLY_ZEROS_SHARE and len(self.results.get(base, ())) > 1
                if few and row is not None and not (_SETS.match(self.flow.names[row]) and self.is_unit(row)):
                    routing[factors.row] = argument
                    break
        return routing

    @cached_property
    def only_masks(self) -> frozenset[int]:
        """The operators that make nothing but masks for these products: all that read their results do."""
        gone = set[int]()
        for row in reversed(self.flow.outermost):
            readers = self.readers.get(self.flow.number[row], set())
            mask = self.base_of(self.flow.number[row])[0] in self.set_share
            if mask and readers and row not in self.routing and readers <= self.routing.keys() | gone:
                gone.add(row)
        return frozenset(gone)

    def form_of(self, factors: Factors) -> ProductForm:
        """Return what moves rows by number in place of a product with a mask."""
        argument, row = self.routing[factors.row], factors.row
        base, passed = self.base_of(factors.made[argument])
        mask, free = self.results[base], factors.rows if argument else factors.columns
        summed, left = factors.inner, factors.columns if argument else factors.rows
        batched = factors.batch > 1 and mask[0] == factors.batch
        tokens, numbers_set = math.prod(mask[:2]) if batched else mask[0], self.set_share[base] * math.prod(mask)
        given = [
            self.base_of(number)[0] for number, size in zip(self.flow.made[row], self.sizes[row], strict=False) if size
        ]
        return ProductForm(
            "routed", frozenset({row, *passed, *self.only_masks}), row, operations=0,
            # The rows that are set are read and written, and so are those on either side, once each.
            numbers=round(2 * numbers_set * free + 2 * factors.batch * free * (summed + left)),
            before=" x ".join(map(str, mask)), after=str(max(round(numbers_set / tokens), 1)),
            sums_tokens=summed * factors.batch == tokens, mask_at=given.index(base) if base in given else argument,
        )  # fmt: skip


def _multiplied(numbers: int, first: tuple[Size, float], second: tuple[Size, float]) -> float:
    """Return which share of a product of two tensors (size, share that is set) can be set, ``numbers`` in all."""
    shares = first[1], second[1]
    if numbers <= max(math.prod(first[0]), math.prod(second[0])):
        return min(shares)
    # Of all pairs those are set of which both are; what makes a mask longer has to be one itself.
    return math.prod(shares) if max(shares) < 1 else 1.0

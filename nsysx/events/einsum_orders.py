"""The order in which ``torch.einsum`` multiplies three or more tensors, and one with less work: from the equation and the sizes.

Without the package opt_einsum torch contracts from left to right, as written: a product of the first two tensors that sums over nothing is
written to memory whole, and saved for the backward.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_bounds import MOST_EINSUM_TENSORS


@dataclass(frozen=True)
class EinsumPart:
    """A tensor of a contraction by its letters: one that is given (``number``), or the product of two parts."""

    letters: str
    number: int = -1
    of: tuple[EinsumPart, ...] = ()

    def products(self) -> Iterator[EinsumPart]:
        """Yield the products within it, inner ones first."""
        for part in self.of:
            yield from part.products()
        if self.of:
            yield self

    def code(self, given: Sequence[str], function: str) -> str:
        """Return the code that computes it by calls of two tensors each."""
        if not self.of:
            return given[self.number]
        a, b = self.of
        return f'{function}("{a.letters},{b.letters}->{self.letters}", {a.code(given, function)}, {b.code(given, function)})'


@dataclass(frozen=True)
class EinsumCosts:
    """What contractions take: ``numbers`` read and written, ``operations``, and the largest result on the way."""

    numbers: int
    operations: int
    largest: int


@dataclass(frozen=True)
class Einsum:
    """An equation with the length of each letter."""

    given: tuple[str, ...]
    result: str
    length: Mapping[str, int]

    @cached_property
    def as_written(self) -> EinsumPart:
        """The contraction from left to right."""
        parts = [EinsumPart(letters, n) for n, letters in enumerate(self.given)]
        whole = parts[0]
        for n, part in enumerate(parts[1:], 2):
            whole = self._product(whole, part, parts[n:])
        return whole

    @cached_property
    def best(self) -> EinsumPart:
        """The contraction that moves the fewest numbers, and among these the one with the fewest operations."""
        ways = self._ways(tuple(EinsumPart(letters, n) for n, letters in enumerate(self.given)))
        return min(ways, key=lambda way: (self.costs(way).numbers, self.costs(way).operations))

    def costs(self, way: EinsumPart) -> EinsumCosts:
        """Return what a contraction takes."""
        numbers = operations = largest = 0
        for product in way.products():
            moved = sum(self._numbers(each.letters) for each in (product, *product.of))
            numbers, operations = (
                numbers + moved,
                operations + 2 * self._numbers("".join(p.letters for p in product.of)),
            )
            largest = max(largest, self._numbers(product.letters))
        return EinsumCosts(numbers, operations, largest)

    def _ways(self, parts: tuple[EinsumPart, ...]) -> Iterator[EinsumPart]:
        if len(parts) == 1:
            yield parts[0]
            return
        for a, b in itertools.combinations(parts, 2):
            rest = tuple(part for part in parts if part is not a and part is not b)
            yield from self._ways((self._product(a, b, rest), *rest))

    def _product(self, a: EinsumPart, b: EinsumPart, others: Sequence[EinsumPart]) -> EinsumPart:
        """Return the product of two parts, summed over the letters that nothing else has."""
        if not others:
            return EinsumPart(self.result, of=(a, b))
        kept = set(self.result).union(*(part.letters for part in others))
        letters = "".join(dict.fromkeys(letter for letter in a.letters + b.letters if letter in kept))
        return EinsumPart(letters, of=(a, b))

    def _numbers(self, letters: str) -> int:
        return math.prod(self.length[letter] for letter in set(letters))


def einsum_of(equation: str, sizes: Sequence[Size]) -> Einsum | None:
    """Return an equation with the lengths of its letters; None where it has others than letters, or does not fit."""
    given, arrow, result = equation.replace(" ", "").partition("->")
    tensors = tuple(given.split(","))
    plain = (
        arrow
        and all(each.isalpha() and len(set(each)) == len(each) for each in tensors)
        and (result.isalpha() or not result)
    )
    if not plain or len(tensors) != len(sizes) or not 2 < len(tensors) <= MOST_EINSUM_TENSORS:
        return None
    length = dict[str, int]()
    for letters, size in zip(tensors, sizes, strict=True):
        if len(letters) != len(size):
            return None
        for letter, n in zip(letters, size, strict=True):
            if length.setdefault(letter, n) != n:
                return None
    return Einsum(tensors, result, length) if set(result) <= length.keys() else None

"""Linear layers on rows that are put together from parts, of which some are copies of fewer rows: from sizes, and what made what.

A layer of a concatenation is a sum of layers: W [a, b] = W_a a + W_b b. Where a part is a copy of fewer rows (a state beside all frames, a
time beside all samples, nodes beside their edges), its summand needs these rows alone, and is copied, or broadcast, behind the layer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from nsysx.events.copied_rows import CopyingOf, copies_by_number
from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.operator_names import LAYERS
from nsysx.events.result_readers import ResultReaders

_JOINS = re.compile(r"^aten::(cat|concat|concatenate)$")
_EXPANDS = re.compile(r"^aten::(expand(_as)?|broadcast_to)$")


@dataclass(frozen=True)
class JoinedPart:
    """A part of joined rows: ``width`` numbers of each, of so many different ``rows``; ``copying``: the operator (row of the flow) that
    makes the copies, None for what has as many rows as there are; ``lazy``: an expansion, which a sum broadcasts by itself.
    """

    width: int
    rows: int
    copying: int | None
    lazy: bool


@dataclass(frozen=True)
class JoinedRows:
    """Rows that are put together for a layer alone: the operators (rows of the flow) that join them and that compute the layer, so many
    ``rows``, their ``parts`` in order, how wide the result is, and whether a bias is added.
    """

    joining: int
    layer: int
    rows: int
    parts: tuple[JoinedPart, ...]
    wide: int
    with_bias: bool

    @property
    def inner(self) -> int:
        """How wide the joined rows are."""
        return sum(part.width for part in self.parts)

    @property
    def has_copies(self) -> bool:
        """Whether any part is a copy of fewer rows."""
        return any(part.copying is not None for part in self.parts)


def joined_rows(flow: OperatorFlow) -> list[JoinedRows]:
    """Return the layers of an X-ray step whose rows are put together from parts and read by nothing else."""
    return list(_Joined(flow).all())


class _Joined(ResultReaders):
    def all(self) -> Iterator[JoinedRows]:
        copies: dict[int, CopyingOf] | None = None
        for row in self.flow.outermost:
            if not _JOINS.match(self.flow.names[row]) or len(self.flow.made[row]) != len(self.sizes[row]):
                continue
            result, reader = self.results.get(self.flow.number[row]), self.only_reader(row)
            sizes = [size for size in self.sizes[row] if size]
            if result is None or reader is None or not _by_last(sizes, result):
                continue
            wide = self._width(reader[0], result[-1])
            if wide is None:
                continue
            copies = copies_by_number(self.flow, {}) if copies is None else copies
            made = [number for number, size in zip(self.flow.made[row], self.sizes[row], strict=True) if size]
            rows = math.prod(result[:-1])
            parts = tuple(self._part(number, size, rows, copies) for number, size in zip(made, sizes, strict=True))
            yield JoinedRows(row, reader[0], rows, parts, wide, with_bias=self._with_bias(reader[0]))

    def _with_bias(self, row: int) -> bool:
        sizes = self.sizes[row]
        return self.flow.names[row] == "aten::addmm" or (len(sizes) > 2 and len(sizes[2]) == 1)

    def _width(self, row: int, inner: int) -> int | None:
        """Return how many numbers a layer makes of each row of so many, None for what is no layer with weights of its own."""
        which, sizes = LAYERS.get(self.flow.names[row]), self.sizes[row]
        if which is None or len(sizes) <= which[1] or len(sizes[which[1]]) != 2 or sizes[which[0]][-1:] != (inner,):
            return None
        weights = sizes[which[1]]
        return weights[0] if self.flow.names[row] == "aten::linear" else weights[1]

    def _part(self, number: int, size: Size, rows: int, copies: dict[int, CopyingOf]) -> JoinedPart:
        """Return what a part is of: copies count where nothing but another shape lies between them and the joining."""
        base, _ = self.base_of(number)
        copying = copies.get(base)
        alone = copying is not None and self.flow.row_of.get(base) == copying.row and copying.rows * 2 <= rows
        if copying is None or not alone:
            return JoinedPart(size[-1], rows, None, lazy=False)
        return JoinedPart(size[-1], copying.rows, copying.row, bool(_EXPANDS.match(self.flow.names[copying.row])))


def _by_last(sizes: list[Size], result: Size) -> bool:
    """Return whether tensors are joined in their last dimension."""
    alike = all(len(size) == len(result) and size[:-1] == result[:-1] for size in sizes)
    return len(sizes) > 1 and len(result) > 1 and alike and sum(size[-1] for size in sizes) == result[-1]

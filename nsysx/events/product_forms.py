"""Products of matrices that another form gives with less work: from sizes, and what made the factors of what.

(A B) D takes other operations than A (B D): the order of a chain is free where nothing but a factor stands between. A product with a
matrix that was made of a vector (``torch.diag``) only scales rows or columns, one with rows of a unit matrix picks rows (turned, it adds
them up by number), and one with blocks or a Kronecker product takes the operations of its parts. A multiplication (or difference) of all
pairs whose products (or squares) are only summed is a product of matrices that is written out. A copy of what repeats is needed by
nothing that reads a view as well, and of the whole Fourier transform of real numbers one half mirrors the other. A tensor that is read
elsewhere, too, is needed as it is, and so is one that something else than a view, a copy or a number changes in between.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from nsysx.events.matrix_products import Factors, MatrixProducts
from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_bounds import FEWER_OPERATIONS_SHARE, FEWEST_CLASSES_ADDED, WRITTEN_OUT_TIMES
from nsysx.events.operator_flow import OperatorFlow, is_view

_SUMS = re.compile(r"^aten::(sum|mean)$")
_SQUARES = re.compile(r"^aten::(pow|square)$")
_LENGTHS = re.compile(r"^aten::(norm|linalg_norm|linalg_vector_norm)$")
#: What makes a factor of which most is zeros, or of which every part repeats.
_STRUCTURED = {
    **dict.fromkeys(("aten::diag", "aten::diag_embed", "aten::diagflat"), "diagonal"),
    **dict.fromkeys(
        ("aten::one_hot", "aten::eq", "aten::index", "aten::index_select", "aten::scatter_", "aten::scatter"), "picked"
    ),
    "aten::block_diag": "blocks",
    "aten::kron": "kron",
}
_TURNS = re.compile(r"^aten::([tT]|numpy_T|mT|mH|adjoint|transpose|swapaxes|permute)$")
_COPIES = re.compile(r"^aten::(repeat|repeat_interleave|tile|contiguous|clone|reshape|flatten)$")
_REPEATS = re.compile(r"^aten::(repeat|repeat_interleave|tile)$")
#: What reads a view of few numbers as it reads a copy of many.
_BROADCASTS = re.compile(r"^aten::(mul|add|sub|rsub|div|where|maximum|minimum|scaled_dot_product_attention)_?$")
_TRANSFORMS, _BACK = re.compile(r"^aten::fft_fft[2n]?$"), re.compile(r"^aten::fft_ifft[2n]?$")
_BETWEEN = re.compile(r"^aten::(mul|div|add|sub|conj\w*|exp|where)_?$")


@dataclass(frozen=True)
class ProductForm:
    """A result that less work gives. ``kind``: order, diagonal, picked, added, blocks, kron, products, distances, repeated, transform or
    routed (``routing_masks``); ``rows``: the outermost operators that go (rows of the flow), ``at`` the one to name; ``operations``: those
    of what comes instead in the forward, ``numbers``: what it reads and writes; ``before`` and ``after``: sizes for people.

    ``sums_tokens``: a product with a mask sends the rows of tokens to slots, and does not bring them back; ``mask_at``: which tensor that
    it is given is the mask.
    """

    kind: str
    rows: frozenset[int]
    at: int
    operations: int
    numbers: int
    before: str
    after: str
    sums_tokens: bool = False
    mask_at: int = 0


def product_forms(flow: OperatorFlow) -> list[ProductForm]:
    """Return what of the products of an X-ray step another form gives with less work, in order of time."""
    forms = _Forms(flow)
    kinds = (forms.orders(), forms.structured(), forms.written_out(), forms.repeated(), forms.transforms())
    return sorted(itertools.chain(*kinds), key=lambda form: form.at)


class _Forms(MatrixProducts):
    def orders(self) -> Iterator[ProductForm]:
        """Yield the chains of two products that take less than half of the operations in the other order."""
        for first in self.products.values():
            reader = self.scaled_reader(first.row)
            second = None if reader is None else self.products.get(reader[0])
            if reader is None or second is None:
                continue
            number = self.base_of(reader[2])[0]
            bases = [self.base_of(made)[0] for made in second.made]
            if bases.count(number) != 1:
                continue
            form = _other_order(first, second, bases.index(number))
            if form is None:
                continue
            inner, kept, free, batch = form
            # What would be multiplied first: weights by weights is another network.
            across = first.made[0] if kept else first.made[1]
            if self.base_of(across)[0] < 0 and bases[1 - bases.index(number)] < 0:
                continue
            here, there, other = (first.rows * first.batch // batch), first.columns, free
            now = here * inner * there + here * there * other
            then = inner * other * (here + there)
            if then > FEWER_OPERATIONS_SHARE * now:
                continue
            yield ProductForm(
                "order", frozenset({first.row, second.row, *reader[1]}), second.row, operations=2 * batch * then,
                numbers=batch * (here * inner + inner * there + 2 * inner * other + 2 * max(here, there) * other),
                before=f"{here} x {there}", after=f"{inner} x {other}",
            )  # fmt: skip

    def structured(self) -> Iterator[ProductForm]:
        """Yield the products with a factor that is diagonal, picks rows, or is made of blocks or by a Kronecker product."""
        for factors in self.products.values():
            for argument, number in enumerate(factors.made):
                base, passed = self.base_of(number)
                row = self.flow.row_of.get(base)
                kind = None if row is None else _STRUCTURED.get(self.flow.names[row])
                if row is None or kind is None or (kind == "picked" and not self.is_unit(row)):
                    continue
                free = factors.rows if argument else factors.columns
                results, parts = (
                    factors.batch * factors.rows * factors.columns,
                    [s for s in self.sizes[row] if len(s) > 1],
                )
                operations, read = _of_parts(kind, parts, factors.batch * free)
                if kind == "picked" and self._adds(factors, argument, base, passed):
                    if factors.rows * factors.columns // free < FEWEST_CLASSES_ADDED:
                        continue
                    # Each row is read, and its sum read and written.
                    kind, read = "added", 3 * factors.batch * factors.inner * free
                alone = self.readers.get(base, set()) <= {factors.row, *passed}
                across = factors.inner * (factors.columns if argument else factors.rows)
                yield ProductForm(
                    kind, frozenset({factors.row, *passed, *([row] if alone else [])}), factors.row, operations=operations,
                    numbers=2 * results + read, before=f"{across // factors.inner} x {factors.inner}",
                    after=" and ".join(map(_in_words, parts[:2])),
                )  # fmt: skip
                break

    def _adds(self, factors: Factors, argument: int, base: int, passed: frozenset[int]) -> bool:
        """Return whether a product adds up rows by their number: the classes of the factor that is made of ones are not summed over."""
        made, free = self.results.get(base, ()), factors.columns if argument else factors.rows
        if not made or (made[-1] == factors.inner) == (made[-1] == free):  # both, or neither: as often as it is turned
            turns = sum(bool(_TURNS.match(self.flow.names[row])) for row in passed & set(self.flow.outermost))
            return turns % 2 != argument
        return made[-1] == free

    def written_out(self) -> Iterator[ProductForm]:
        """Yield the multiplications, and differences, of all pairs that are only summed."""
        for row in self.flow.outermost:
            name, tensors = self.flow.names[row], [s for s in self.sizes[row][:2] if math.prod(s) > 1]
            if name not in ("aten::mul", "aten::sub") or len(tensors) != 2:
                continue
            numbers, read = _of_all_pairs(*tensors), sum(map(math.prod, tensors))
            if numbers < WRITTEN_OUT_TIMES * read:
                continue
            chain = self._summed(row, squared=name == "aten::sub")
            if chain is None:
                continue
            kind = "products" if name == "aten::mul" else "distances"
            yield ProductForm(
                kind, chain, row, operations=2 * numbers, numbers=2 * read,
                before=" and ".join(map(_in_words, tensors)), after=f"{numbers:,} numbers",
            )  # fmt: skip

    def repeated(self) -> Iterator[ProductForm]:
        """Yield the copies of what repeats that are read only by what reads a view as well."""
        flow, ends = self.flow, dict(self.flow.outermost_spans)
        for row, end in ends.items():
            name, result = flow.names[row], self.results.get(flow.number[row])
            source = self._repeated_size(row) if _COPIES.match(name) and result is not None else None
            if source is None or result is None or math.prod(result) < 2 * math.prod(source) or math.prod(source) <= 1:
                continue
            copies = _REPEATS.match(name) or any(
                flow.names[i] in ("aten::copy_", "aten::clone") for i in range(row, end)
            )
            if copies and self._read_as_views(row):
                yield ProductForm(
                    "repeated", frozenset({row}), row, operations=0, numbers=math.prod(source),
                    before=_in_words(source), after=_in_words(result),
                )  # fmt: skip

    def _repeated_size(self, row: int) -> Size | None:
        """Return the size of what a copy repeats, None where it repeats nothing, or each row as often as a tensor says."""
        flow, sizes = self.flow, self.sizes
        if _REPEATS.match(flow.names[row]):
            return None if len(sizes[row]) > 1 and math.prod(sizes[row][1]) > 1 else sizes[row][0]
        before: int | None = row
        while before is not None and flow.made[before] and (before == row or is_view(flow.names[before])):
            if flow.names[before] in ("aten::expand", "aten::expand_as"):
                return sizes[before][0]
            before = flow.row_of.get(flow.made[before][0])
        return None

    def _read_as_views(self, row: int) -> bool:
        """Return whether all that reads a result would read a view with fewer numbers as well."""
        waiting, any_reader = [row], False
        while waiting:
            for reader in self.readers.get(self.flow.number[waiting.pop()], {-1}):
                if reader >= 0 and self.hands_on(reader):
                    waiting.append(reader)
                elif reader < 0 or not _BROADCASTS.match(self.flow.names[reader]):
                    return False
                any_reader = True
        return any_reader

    def transforms(self) -> Iterator[ProductForm]:
        """Yield the whole Fourier transforms of real numbers that are transformed back, with what lies between."""
        flow = self.flow
        for row, end in flow.outermost_spans:
            if not _TRANSFORMS.match(flow.names[row]) or "aten::_fft_r2c" not in flow.names[row:end]:
                continue
            gone, reader = {row}, self.only_reader(row)
            while reader is not None and _BETWEEN.match(flow.names[reader[0]]):
                gone |= {reader[0], *reader[1]}
                reader = self.only_reader(reader[0])
            if reader is None or not _BACK.match(flow.names[reader[0]]):
                continue
            size = self.sizes[row][0]
            whole = self.results.get(flow.number[row], size)[-1]  # longer than what it is given where that is padded
            yield ProductForm(
                "transform", frozenset({*gone, *reader[1], reader[0]}), row, operations=0,
                numbers=2 * (len(gone) + 1) * math.prod(size), before=_in_words(size), after=f"{whole // 2 + 1} of {whole} columns",
            )  # fmt: skip

    def _summed(self, row: int, *, squared: bool) -> frozenset[int] | None:
        """Return the operators from a multiplication (or difference) to the sum of its results (or of their squares), None without."""
        gone = {row}
        reader = self.only_reader(row)
        if squared and reader is not None and _SQUARES.match(self.flow.names[reader[0]]):
            gone |= {reader[0], *reader[1]}
            reader = self.only_reader(reader[0])
        elif squared:
            ends = reader is not None and _LENGTHS.match(self.flow.names[reader[0]])
            return frozenset({*gone, reader[0], *reader[1]}) if reader is not None and ends else None
        if reader is None or not _SUMS.match(self.flow.names[reader[0]]):
            return None
        return frozenset({*gone, reader[0], *reader[1]})


def _in_words(size: Size) -> str:
    """Return a size as text: "4096 x 512"."""
    return " x ".join(map(str, size))


def _of_parts(kind: str, parts: list[Size], free: int) -> tuple[int, int]:
    """Return the operations of a product with such a factor, ``free`` rows or columns wide, and the numbers of its parts."""
    read = sum(map(math.prod, parts)) if kind in ("blocks", "kron") else 0
    if kind == "blocks":
        return 2 * free * read, read
    if kind == "kron" and len(parts) == 2:
        (a, b), (c, d) = parts[0][-2:], parts[1][-2:]
        return 2 * free * (b * d * c + b * c * a), read
    return 0, read


def _of_all_pairs(a: Size, b: Size) -> int:
    """Return how many numbers two tensors give together, 0 where they do not fit."""
    rank = max(len(a), len(b))
    pairs = list(zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True))
    return math.prod(max(pair) for pair in pairs) if all(m == n or 1 in (m, n) for m, n in pairs) else 0


def _other_order(first: Factors, second: Factors, argument: int) -> tuple[int, bool, int, int] | None:
    """Return the inner size of the first product, whether its left factor is multiplied first in the other order, the columns (rows) of the
    second product's other factor, and the batch; None where the sizes do not say how the second is given the result of the first.
    """
    batch = max(first.batch, second.batch)
    here, there = first.batch * first.rows // batch, first.columns
    given = (second.rows, second.inner) if argument == 0 else (second.inner, second.columns)
    summed, other = second.inner, second.columns if argument == 0 else second.rows
    if first.batch * first.rows % batch or first.batch not in (1, batch):
        return None
    folded = second.batch == 1 < batch  # its rows are those of all in the batch
    if folded:
        if argument != 0 or given != (batch * here, there):
            return None
        return first.inner, False, other, batch
    if given not in ((here, there), (there, here)):
        return None
    return first.inner, summed == here != there, other, batch

"""Products of matrices that another form gives with less work: from sizes, and what made the factors of what.

Three forms. (A B) D takes other operations than A (B D): the order of a chain is free where nothing but a factor stands between. A
product with a matrix that was made of a vector (``torch.diag``) only scales rows or columns. And a multiplication (or difference) of all
pairs whose products (or squares) are only summed is a product of matrices that is written out. A tensor that is read elsewhere, too, is
needed as it is, and so is one that something else than a view, a copy or a number changes in between.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from nsysx.events.event_bounds import FEWER_OPERATIONS_SHARE, WRITTEN_OUT_TIMES
from nsysx.events.operator_flow import OperatorFlow

Size = tuple[int, ...]
_SIZE = re.compile(r"\[([\d, ]*)\]")
_PRODUCT = re.compile(r"^aten::(addmm|baddbmm|b?mm)$")
#: Operators that hand on what they are given, in another shape, type or layout, or times a number.
_HANDS_ON = re.compile(
    r"^aten::(_?(unsafe_)?view|reshape|_reshape_alias|(un)?flatten|(un)?squeeze|transpose|permute|movedim|numpy_T|[tT]|mT|mH|adjoint|"
    r"detach|alias|to|_to_copy|contiguous|clone|type_as|unflatten)$"
)
_TIMES = re.compile(r"^aten::(mul|div)_?$")
_SUMS = re.compile(r"^aten::(sum|mean)$")
_SQUARES = re.compile(r"^aten::(pow|square)$")
_LENGTHS = re.compile(r"^aten::(norm|linalg_norm|linalg_vector_norm)$")
_DIAGONAL = re.compile(r"^aten::(diag|diag_embed|diagflat)$")


@dataclass(frozen=True)
class ProductForm:
    """A result that less work gives: ``kind`` (order, diagonal, products, distances), the outermost operators that go (rows of the flow),
    the one to name, the operations of what comes instead in the forward, its numbers read and written, and sizes for people.
    """

    kind: str
    rows: frozenset[int]
    at: int
    operations: int
    numbers: int
    before: str
    after: str


@dataclass(frozen=True)
class _Factors:
    """A product of matrices (batch x rows x inner times inner x columns), and the numbers of the operators that made its factors."""

    row: int
    batch: int
    rows: int
    inner: int
    columns: int
    made: tuple[int, int]


def product_forms(flow: OperatorFlow) -> list[ProductForm]:
    """Return what of the products of an X-ray step another form gives with less work, in order of time."""
    forms = _Forms(flow)
    return sorted((*forms.orders(), *forms.diagonals(), *forms.written_out()), key=lambda form: form.at)


class _Forms:
    def __init__(self, flow: OperatorFlow) -> None:
        self._flow = flow
        self._sizes = [
            [tuple(map(int, re.findall(r"\d+", each))) for each in _SIZE.findall(text)] for text in flow.size
        ]

    @cached_property
    def _readers(self) -> dict[int, set[int]]:
        """Of each operator's number the outermost operators that read its result, -1 for one behind the step."""
        flow, readers = self._flow, dict[int, set[int]]()
        ends = [*flow.outermost[1:], len(flow.names)]
        for row, end in zip(flow.outermost, ends, strict=True):
            for inner in range(row, end):
                for number in flow.made[inner]:
                    if number >= 0 and flow.row_of.get(number, row) < row:
                        readers.setdefault(number, set()).add(row)
        for number in flow.read_later:
            readers.setdefault(number, set()).add(-1)
        return readers

    def _hands_on(self, row: int) -> bool:
        name, sizes = self._flow.names[row], self._sizes[row]
        times = _TIMES.match(name) and len(sizes) > 1 and math.prod(sizes[1]) == 1
        return bool(_HANDS_ON.match(name) or times)

    def _base(self, number: int) -> tuple[int, frozenset[int]]:
        """Return the number of the operator whose result it hands on, and the outermost operators in between."""
        passed, row = set[int](), self._flow.row_of.get(number)
        while row is not None and self._hands_on(row) and self._flow.made[row]:
            passed.add(row)
            number = self._flow.made[row][0]
            row = self._flow.row_of.get(number)
        return number, frozenset(passed)

    def _only_reader(self, row: int) -> tuple[int, frozenset[int]] | None:
        """Return the one outermost operator that reads a result, and those that hand it on to that; None where several do, or none."""
        passed = set[int]()
        while True:
            readers = self._readers.get(self._flow.number[row], set())
            if len(readers) != 1 or -1 in readers:
                return None
            (reader,) = readers
            if not self._hands_on(reader):
                return reader, frozenset(passed)
            passed.add(reader)
            row = reader

    @cached_property
    def _products(self) -> dict[int, _Factors]:
        """The outermost operators that hold one product of matrices and nothing else that multiplies, without a bias."""
        flow, found = self._flow, dict[int, _Factors]()
        ends = [*flow.outermost[1:], len(flow.names)]
        for row, end in zip(flow.outermost, ends, strict=True):
            held = [i for i in range(row, end) if _PRODUCT.match(flow.names[i])]
            if len(held) != 1 or "add" in flow.names[held[0]]:
                continue
            sizes, made = self._sizes[held[0]][:2], flow.made[held[0]][:2]
            if len(sizes) < 2 or len(made) < 2 or len(sizes[0]) not in (2, 3) or len(sizes[0]) != len(sizes[1]):
                continue
            batch = sizes[0][0] if len(sizes[0]) == 3 else 1
            (rows, inner), columns = sizes[0][-2:], sizes[1][-1]
            if min(batch, rows, inner, columns) > 0 and sizes[1][-2] == inner:
                found[row] = _Factors(row, batch, rows, inner, columns=columns, made=(made[0], made[1]))
        return found

    def orders(self) -> Iterator[ProductForm]:
        """Yield the chains of two products that take less than half of the operations in the other order."""
        for first in self._products.values():
            reader = self._only_reader(first.row)
            second = None if reader is None else self._products.get(reader[0])
            if reader is None or second is None:
                continue
            bases = [self._base(number)[0] for number in second.made]
            number = self._flow.number[first.row]
            if bases.count(number) != 1:
                continue
            form = _other_order(first, second, bases.index(number))
            if form is None:
                continue
            inner, kept, free, batch = form
            # What would be multiplied first: weights by weights is another network.
            across = first.made[0] if kept else first.made[1]
            if self._base(across)[0] < 0 and bases[1 - bases.index(number)] < 0:
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

    def diagonals(self) -> Iterator[ProductForm]:
        """Yield the products with a diagonal matrix that was made of a vector."""
        for factors in self._products.values():
            for number in factors.made:
                base, passed = self._base(number)
                row = self._flow.row_of.get(base)
                if row is None or not _DIAGONAL.match(self._flow.names[row]) or len(self._sizes[row][0]) < 1:
                    continue
                alone = self._readers.get(base, set()) <= {factors.row, *passed}
                size = max(factors.rows, factors.columns)
                yield ProductForm(
                    "diagonal", frozenset({factors.row, *passed, *([row] if alone else [])}), factors.row, operations=0,
                    numbers=2 * factors.batch * factors.rows * factors.columns,
                    before=f"{factors.inner} x {factors.inner}", after=f"{size} numbers",
                )  # fmt: skip
                break

    def written_out(self) -> Iterator[ProductForm]:
        """Yield the multiplications, and differences, of all pairs that are only summed."""
        for row in self._flow.outermost:
            name, tensors = self._flow.names[row], [s for s in self._sizes[row][:2] if math.prod(s) > 1]
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
                before=" and ".join(str([*s]).replace(",", " x").strip("[]") for s in tensors), after=f"{numbers:,} numbers",
            )  # fmt: skip

    def _summed(self, row: int, *, squared: bool) -> frozenset[int] | None:
        """Return the operators from a multiplication (or difference) to the sum of its results (or of their squares), None without."""
        gone = {row}
        reader = self._only_reader(row)
        if squared and reader is not None and _SQUARES.match(self._flow.names[reader[0]]):
            gone |= {reader[0], *reader[1]}
            reader = self._only_reader(reader[0])
        elif squared:
            ends = reader is not None and _LENGTHS.match(self._flow.names[reader[0]])
            return frozenset({*gone, reader[0], *reader[1]}) if reader is not None and ends else None
        if reader is None or not _SUMS.match(self._flow.names[reader[0]]):
            return None
        return frozenset({*gone, reader[0], *reader[1]})


def _of_all_pairs(a: Size, b: Size) -> int:
    """Return how many numbers two tensors give together, 0 where they do not fit."""
    rank = max(len(a), len(b))
    pairs = list(zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True))
    return math.prod(max(pair) for pair in pairs) if all(m == n or 1 in (m, n) for m, n in pairs) else 0


def _other_order(first: _Factors, second: _Factors, argument: int) -> tuple[int, bool, int, int] | None:
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

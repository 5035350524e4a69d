"""Products of two matrices among the operators of an X-ray step, and what makes rows of a unit matrix: for rules about other forms."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

from nsysx.events.result_readers import ResultReaders

_PRODUCT = re.compile(r"^aten::(addmm|baddbmm|b?mm)$")


@dataclass(frozen=True)
class Factors:
    """A product of matrices (batch x rows x inner times inner x columns), and the numbers of the operators that made its factors."""

    row: int
    batch: int
    rows: int
    inner: int
    columns: int
    made: tuple[int, int]


class MatrixProducts(ResultReaders):
    """Of the operators of a flow, also the ``products`` of two matrices."""

    @cached_property
    def products(self) -> dict[int, Factors]:
        """The outermost operators that hold one product of matrices and nothing else that multiplies, without a bias."""
        flow, products = self.flow, dict[int, Factors]()
        for row, end in flow.outermost_spans:
            held = [i for i in range(row, end) if _PRODUCT.match(flow.names[i])]
            if len(held) != 1 or "add" in flow.names[held[0]]:
                continue
            sizes, made = self.sizes[held[0]][:2], flow.made[held[0]][:2]
            if len(sizes) < 2 or len(made) < 2 or len(sizes[0]) not in (2, 3) or len(sizes[0]) != len(sizes[1]):
                continue
            batch = sizes[0][0] if len(sizes[0]) == 3 else 1
            (rows, inner), columns = sizes[0][-2:], sizes[1][-1]
            if min(batch, rows, inner, columns) > 0 and sizes[1][-2] == inner:
                products[row] = Factors(row, batch, rows, inner, columns=columns, made=(made[0], made[1]))
        return products

    def is_unit(self, row: int) -> bool:
        """Return whether each row that an operator makes is one of a unit matrix."""
        name, made, sizes = self.flow.names[row], self.flow.made[row], self.sizes[row]
        if name == "aten::one_hot":
            return True
        if name == "aten::eq":  # numbers, each beside all classes
            makers = [self.base_of(number)[0] for number in made[:2]]
            named = ["" if (i := self.flow.row_of.get(number)) is None else self.flow.names[i] for number in makers]
            by_one = [size for size, name_of in zip(sizes[:2], named, strict=False) if name_of != "aten::arange"]
            return named.count("aten::arange") == 1 and len(by_one) == 1 and by_one[0][-1:] == (1,)
        source = self.flow.row_of.get(self.base_of(made[0])[0]) if made else None
        of_source = "" if source is None else self.flow.names[source]
        if name.startswith("aten::scatter"):  # a single 1 in each row of zeros
            single = len(sizes) > 3 and bool(sizes[2]) and sizes[2][-1] == 1 and math.prod(sizes[3]) == 1
            return single and of_source in ("aten::zeros", "aten::new_zeros", "aten::zeros_like")
        return of_source == "aten::eye"

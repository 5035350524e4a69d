"""Arithmetic that makes float32 of 16 bits, because a small tensor of float32 takes part in it, until a product converts that back.

Autocast converts what products are given; addition and multiplication keep to torch's rule that the wider type stays. A network whose
products run in 16 bits so computes all between two of them at twice the bytes, for a scale and a shift of a few numbers. Types are not
recorded: the names of the kernels say them (``FlowKernels``).
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from nsysx.events.narrowed_operators import ELEMENTWISE, Size, sizes_of
from nsysx.events.operator_bounds import SMALL_OPERAND_TIMES
from nsysx.events.operator_flow import OperatorFlow, is_view

_ARITHMETIC = re.compile(r"^aten::(add|sub|mul|div)_?$")
_PRODUCTS = re.compile(r"^aten::(conv\d?d|conv_transpose\dd|linear|matmul|bmm|mm|addmm)$")
#: What keeps the type of what it is given, besides elementwise operators and views.
_KEEPS_TYPE = re.compile(
    r"^aten::((adaptive_)?(max|avg)_pool\dd?|upsample_\w+|cat|concat|pad|constant_pad_nd|reflection_pad\dd|pixel_(un)?shuffle)$"
)
_CONVERTS = re.compile(r"^aten::(_?to(_copy)?|type_as)$")


class FlowKernels(NamedTuple):
    """Of the operators (rows of a flow) what the kernels of their forward say: ``promoting`` compute in float32 and convert what they read,
    ``narrow`` compute in 16 bits, ``wide`` in float32; ``multiplying`` are products of 16 bits; ``casting`` write 16 bits of float32.
    """

    promoting: frozenset[int]
    narrow: frozenset[int]
    wide: frozenset[int]
    multiplying: frozenset[int]
    casting: frozenset[int]


class Promoted(NamedTuple):
    """Outermost operators (rows of a flow): ``first`` promote, ``widened`` compute in float32 since then, ``products`` convert it back.

    ``small``: of each operator that a small tensor takes part in, which of its first two arguments that is.
    """

    first: tuple[int, ...]
    widened: tuple[int, ...]
    products: tuple[int, ...]
    small: dict[int, int]


def promoted(flow: OperatorFlow, kernels: FlowKernels) -> Promoted:
    """Return the operators that a step would run in 16 bits, if no small tensor of float32 made float32 of it."""
    narrow, wide = set[int](), set[int]()  # results, by number
    first, widened, products, small = list[int](), list[int](), list[int](), dict[int, int]()
    for row in flow.outermost:
        name, made, sizes, number = flow.names[row], flow.made[row], sizes_of(flow.size[row]), flow.number[row]
        given = [(n, size) for n, size in zip(made, sizes, strict=False) if size]
        largest = max((math.prod(size) for _, size in given), default=0)
        full = [n for n, size in given if math.prod(size) == largest]
        if _PRODUCTS.match(name):
            if given and given[0][0] in wide and row in kernels.casting:
                products.append(row)
            if row in kernels.multiplying:
                narrow.add(number)
        elif is_view(name):
            narrow.update([number] if made and made[0] in narrow else ())
            wide.update([number] if made and made[0] in wide else ())
        elif _CONVERTS.match(name) or not (ELEMENTWISE.match(name) or _KEEPS_TYPE.match(name)):
            continue
        elif (
            full
            and narrow.issuperset(full)
            and row in kernels.promoting
            and (operand := _small(name, sizes)) is not None
        ):
            first.append(row)
            small[row] = operand
            wide.add(number)
        elif full and row in kernels.wide and wide.intersection(full) and narrow.union(wide).issuperset(full):
            widened.append(row)
            if (operand := _small(name, sizes)) is not None:
                small[row] = operand
            wide.add(number)
        elif full and row in kernels.narrow and row not in kernels.wide and narrow.issuperset(full):
            narrow.add(number)
    return Promoted(tuple(first), tuple(widened), tuple(products), small)


def _small(name: str, sizes: list[Size]) -> int | None:
    """Return which of two arguments of arithmetic is a small tensor, none of a single number, which promotes nothing; None for neither."""
    if not _ARITHMETIC.match(name) or len(sizes) < 2 or not sizes[0] or not sizes[1]:
        return None
    numbers = [math.prod(size) for size in sizes[:2]]
    if max(numbers) < SMALL_OPERAND_TIMES * min(numbers):
        return None
    return numbers.index(min(numbers))

"""Pooling with windows that overlap among the operators of an X-ray step, and planes that a comparison of labels with classes made.

The size of a window is no tensor and was not recorded: that of what is pooled and of the result says how far windows are apart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_bounds import MOST_BEHIND_POOL
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.result_readers import ResultReaders

_POOLS = re.compile(r"^aten::(?P<kind>max|avg)_pool(?P<dimensions>[23])d(_with_indices)?$")
_COMPARES = re.compile(r"^aten::eq$")
#: What makes planes of planes, number by number: the complement of a mask, erosion less dilation.
_BY_NUMBER = re.compile(r"^aten::(rsub|sub|add|mul|neg|bitwise_\w+|logical_\w+|ne|gt|lt|maximum|minimum)_?$")
_OVER_CLASSES = re.compile(r"^aten::(amax|any|max)$")


class OverlappingPool(NamedTuple):
    """A pooling (outermost operator, row of the flow), "max" or "avg", over so many dimensions; how many numbers it makes, how far its
    windows are apart, and how many classes labels were compared with to make what it is given, where only the largest of these
    is read; 0 for other planes.
    """

    row: int
    kind: str
    dimensions: int
    numbers: int
    stride: int
    classes: int


def overlapping_pools(flow: OperatorFlow) -> Iterator[OverlappingPool]:
    """Yield what is pooled in windows that may overlap; how large these are is not known here."""
    readers = ResultReaders(flow)
    for row in flow.outermost:
        pools, sizes = _POOLS.match(flow.names[row]), readers.sizes[row]
        result = readers.results.get(flow.number[row])
        if pools is None or not sizes or result is None or len(result) != len(sizes[0]):
            continue
        dimensions = int(pools["dimensions"])
        if len(result) <= dimensions or not all(result):
            continue
        stride = max(round(n / made) for n, made in zip(sizes[0][-dimensions:], result[-dimensions:], strict=True))
        classes = _classes(readers, flow.made[row][0]) if pools["kind"] == "max" else 0
        if classes and not _over_classes(readers, row, result):
            classes = 0
        yield OverlappingPool(row, pools["kind"], dimensions, math.prod(result), max(stride, 1), classes)


def _classes(readers: ResultReaders, number: int) -> int:
    """Return with how many classes labels were compared to make a tensor, through its complement too; 0 for another tensor."""
    flow = readers.flow
    for _ in range(MOST_BEHIND_POOL):
        number, _ = readers.base_of(number)
        row = flow.row_of.get(number)
        if row is None:
            return 0
        sizes = [size for size in readers.sizes[row][:2] if len(size) > 1]
        if _COMPARES.match(flow.names[row]):
            alone = len(sizes) == 2 and len(sizes[0]) == len(sizes[1]) and {sizes[0][1], sizes[1][1]} >= {1}
            return max(sizes[0][1], sizes[1][1]) if alone and max(sizes[0][1], sizes[1][1]) > 1 else 0
        makers = [made for made in flow.made[row] if made >= 0]
        if not _BY_NUMBER.match(flow.names[row]) or len(makers) != 1:
            return 0
        number = makers[0]
    return 0


def _over_classes(readers: ResultReaders, row: int, size: Size) -> bool:
    """Return whether what reads a result number by number ends in its largest over some dimension."""
    behind = [row]
    for _ in range(MOST_BEHIND_POOL):
        following = {reader for each in behind for reader in readers.readers.get(readers.flow.number[each], ())} - {-1}
        if any(
            _OVER_CLASSES.match(readers.flow.names[each]) and readers.sizes[each][:1] == [size] for each in following
        ):
            return True
        behind = [each for each in following if _BY_NUMBER.match(readers.flow.names[each]) or readers.hands_on(each)]
    return False

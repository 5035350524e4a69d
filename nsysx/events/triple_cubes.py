"""Differences of all pairs that are written out for all triples of samples (batch-all triplet losses), and masked: few triples count.

A cube is made of one matrix of distances in two views, [n, n, 1] and [n, 1, n]; a mask of the same size, of labels, keeps what has an
anchor and a sample of its own class; the rest is computed, saved for backward and multiplied by zero.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_bounds import SHORTEST_CUBE_SIDE
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.result_readers import ResultReaders

_LESS = re.compile(r"^aten::(sub|rsub|add)$")
_MASKS = re.compile(r"^aten::(mul|where|masked_fill|index|masked_select|bitwise_and|logical_and|__and__)_?$")
_SUMS = re.compile(r"^aten::(sum|mean)$")


class TripleCube(NamedTuple):
    """One cube: how many samples a side has, the outermost operators (rows of the flow) that make, mask or read it, and the first one."""

    side: int
    rows: frozenset[int]
    at: int


def triple_cubes(flow: OperatorFlow) -> Iterator[TripleCube]:
    """Yield the cubes of all triples of an X-ray step that are masked and summed."""
    readers = ResultReaders(flow)
    for row in flow.outermost:
        sizes, made = readers.sizes[row][:2], flow.made[row][:2]
        if not _LESS.match(flow.names[row]) or len(sizes) < 2 or not _of_pairs(*sizes):
            continue
        if made[0] < 0 or readers.base_of(made[0])[0] != readers.base_of(made[1])[0]:
            continue
        side = sizes[0][0]
        rows = _on_cube(readers, row, (side, side, side))
        if any(_MASKS.match(flow.names[each]) for each in rows) and any(_SUMS.match(flow.names[each]) for each in rows):
            yield TripleCube(side, rows, row)


def _of_pairs(first: Size, second: Size) -> bool:
    """Return whether these are a matrix in two views whose sum or difference is a cube."""
    if len(first) != 3 or len(second) != 3 or math.prod(first) != math.prod(second):
        return False
    side = max(first)
    views = {(side, side, 1), (side, 1, side), (1, side, side)}
    return side >= SHORTEST_CUBE_SIDE and first != second and {first, second} <= views


def _on_cube(readers: ResultReaders, first: int, cube: Size) -> frozenset[int]:
    """Return the outermost operators that read the cube, what is made of it, or masks of its size."""
    flow, numbers = readers.flow, math.prod(cube)
    theirs = {first}
    for row in flow.outermost:
        sizes = [size for size in readers.sizes[row] if size]
        reads = any(math.prod(size) == numbers and len(size) == 3 for size in sizes)
        makes = readers.results.get(flow.number[row]) == cube
        if reads or makes:
            theirs.add(row)
    return frozenset(theirs)

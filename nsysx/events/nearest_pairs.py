"""Distances of all pairs of which only the smallest (or largest) of each row or column is taken: from an X-ray's operators.

The gradient of a minimum is one number of each row. Where the distances have gradients, backward fills a tensor of all pairs with zeros for
it, adds up those of rows and columns, and takes all of it back through what made the distances.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from nsysx.events.narrowed_operators import ELEMENTWISE, Size
from nsysx.events.operator_bounds import MOST_COORDINATES
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.result_readers import ResultReaders

_TAKES_ONE = re.compile(r"^aten::(min|max|amin|amax)$")
_DISTANCES = re.compile(r"^aten::(cdist|pairwise_distance|linalg_vector_norm|norm|sum|baddbmm|bmm|matmul)$")
_SQUARES, _ROOTS = re.compile(r"^aten::(pow|square)_?$"), re.compile(r"^aten::(sqrt|norm|linalg_vector_norm|cdist)_?$")


class NearestPairs(NamedTuple):
    """Operators (rows of the flow) that make the distances, and those that take one of each row or column; the size of all pairs; which
    of the last two dimensions are taken one of; whether the distances are squared.
    """

    makes: Sequence[int]
    takes: Sequence[int]
    size: Size
    over: frozenset[int]
    squared: bool


def nearest_pairs(flow: OperatorFlow) -> list[NearestPairs]:
    """Return such distances of a step, in order of time."""
    readers, told = ResultReaders(flow), set[int]()
    pairs = list[NearestPairs]()
    for row in flow.outermost:
        if row in told or not _takes_one(readers, row):
            continue
        each = _of_pairs(readers, flow.made[row][0])
        if each is not None:
            told.update(each.takes)
            pairs.append(each)
    return pairs


def _takes_one(readers: ResultReaders, row: int) -> bool:
    """Return whether an operator takes one number over a dimension of a tensor of pairs, rather than over all of it, or of two tensors."""
    flow, sizes = readers.flow, readers.sizes[row]
    if not _TAKES_ONE.match(flow.names[row]) or not sizes or len(sizes[0]) < 2 or any(sizes[1:]):
        return False
    result = readers.results.get(flow.number[row])
    return result is None or 1 < math.prod(result) < math.prod(sizes[0])


def _of_pairs(readers: ResultReaders, number: int) -> NearestPairs | None:
    """Return the distances that have this number, None where something else reads them, or they are of something else."""
    flow, made, waiting, coordinates = readers.flow, set[int](), [number], False
    size = readers.results.get(number, ())
    pairs = math.prod(size)
    while waiting:
        row = flow.row_of.get(waiting.pop())
        if row is None or row in made:
            continue
        name, sizes = flow.names[row], readers.sizes[row]
        if not (ELEMENTWISE.match(name) or _DISTANCES.match(name) or readers.hands_on(row)):
            return None
        made.add(row)
        for each, of_it in zip(flow.made[row], sizes, strict=False):
            if of_it and math.prod(of_it) >= pairs:
                waiting.append(each)
            elif of_it:
                coordinates |= any(1 < n <= MOST_COORDINATES for n in of_it[-2:])
    takes = set[int]()
    for row in made:
        behind = readers.readers.get(flow.number[row], set()) - made
        takes |= behind
        if any(reader < 0 or not _takes_one(readers, reader) for reader in behind):
            return None
    if not coordinates or not takes or len(size) < 2:
        return None
    over = frozenset[int]().union(*(_over(size, readers.results.get(flow.number[row]), len(takes)) for row in takes))
    names = [flow.names[row] for row in made]
    times_itself = any(
        flow.names[row] == "aten::mul" and len(set(flow.made[row][:2])) == 1 and readers.sizes[row][0] for row in made
    )
    rooted = any(map(_ROOTS.match, names)) and not (
        ("aten::cdist" in names and any(map(_SQUARES.match, names))) or times_itself
    )
    return NearestPairs(sorted(made), sorted(takes), size, over, squared=not rooted)


def _over(size: Size, result: Size | None, times: int) -> frozenset[int]:
    """Return which of the last two dimensions a minimum is taken over: both where neither the sizes nor what else is taken tells."""
    if times > 1 or result is None:
        return frozenset({-1, -2})
    result = tuple(n for n in result if n > 1)
    full = tuple(n for n in size if n > 1)
    return frozenset(d for d in (-1, -2) if full[: len(full) + d] + full[len(full) + d + 1 :] == result) or frozenset(
        {-1, -2}
    )

"""Searches for neighbours by the distances of all pairs, again for points that have only moved a little: in each round of a simulation.

A search is a choice by number (`nonzero`) of the pairs whose distance a comparison says is short: all that has a number for each pair is
part of it. Its points have moved if they are made of those of the search before it by sums of their own size.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nsysx.events.narrowed_operators import ELEMENTWISE, Size, result_sizes, sizes_of
from nsysx.events.operator_flow import OperatorFlow, in_place, is_view

_CHOOSES = re.compile(r"^aten::(nonzero(_numpy|_static)?|argwhere|where)$")
_COMPARES = re.compile(r"^aten::(lt|le|gt|ge|less|less_equal|greater|greater_equal)$")
_PUT_TOGETHER = re.compile(r"^aten::(cat|concat|concatenate|contiguous|clone|detach|to|_to_copy)$")
#: What may move points within their box, besides sums.
_MOVES = re.compile(r"^aten::(remainder|fmod|where|copy_|clone|detach|contiguous|cat)_?$")
#: Points in a plane or in space: what has more numbers is made by a network, and moves as it likes.
_SPACE = (2, 3)


@dataclass(frozen=True)
class NeighbourSearch:
    """A search of one step: its outermost operators (rows of the flow), the last of which chooses; the points, by number; its pairs."""

    rows: Sequence[int]
    points: frozenset[int]
    pairs: int


def searches_of_moved(flow: OperatorFlow) -> list[NeighbourSearch]:
    """Return the searches of a step whose points come, moved, from another search of it or of the step before; none but these."""
    sizes = [sizes_of(text) for text in flow.size]
    result = result_sizes(flow, sizes)
    searches = list(_searches(flow, sizes, result))
    moved = []
    for before, behind in itertools.pairwise(searches):
        if _come_from(flow, result, behind.points - before.points, before.points):
            moved.append(behind)
    older = frozenset(n for search in searches[:1] for n in search.points if n >= 0 and n not in flow.row_of)
    if moved or (older and _come_from(flow, result, _kept(flow), older)):
        moved = [*searches[:1], *moved]
    return moved


def _kept(flow: OperatorFlow) -> frozenset[int]:
    """Return what a step leaves to the next, by number: what that reads, or, where it was not recorded, what nothing of this one reads."""
    read = {number for row in flow.outermost for number in flow.made[row]}
    made = frozenset(flow.number[row] for row in flow.outermost)
    return flow.read_later & made if flow.read_later else made - read


def _searches(flow: OperatorFlow, sizes: Sequence[list[Size]], result: dict[int, Size]) -> Iterator[NeighbourSearch]:
    outermost = frozenset(flow.outermost)
    for row in flow.outermost:
        if not _CHOOSES.match(flow.names[row]) or not sizes[row] or any(sizes[row][1:]) or len(sizes[row][0]) < 2:
            continue
        pairs = math.prod(sizes[row][0])
        rows, points, waiting, compares = {row}, set[int](), list(flow.made[row][:1]), False
        while waiting:
            maker = flow.row_of.get(waiting.pop(), -1)
            if maker < 0 or maker >= row or maker not in outermost or maker in rows:
                continue
            rows.add(maker)
            compares |= _COMPARES.match(flow.names[maker]) is not None
            for number, size in zip(flow.made[maker], sizes[maker], strict=False):
                if math.prod(size or (0,)) >= pairs:
                    waiting.append(number)
                elif size and size[-1] in _SPACE:
                    points |= _origins(flow, number)
        if compares and points:
            yield NeighbourSearch(sorted(rows), frozenset(points), pairs)


def _origins(flow: OperatorFlow, number: int) -> set[int]:
    """Return what a tensor is a view, a copy or a concatenation of, by number."""
    origins, waiting, seen = set[int](), [number], set[int]()
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        row = flow.row_of.get(each)
        if row is None or max(flow.made[row], default=-1) < 0:
            origins.add(each)
        elif is_view(flow.names[row]):
            waiting.append(flow.made[row][0])
        elif _PUT_TOGETHER.match(flow.names[row]):
            waiting += flow.made[row]
        else:
            origins.add(each)
    return origins - {-1}


def _come_from(flow: OperatorFlow, result: dict[int, Size], later: frozenset[int], earlier: frozenset[int]) -> bool:
    """Return whether some of the later tensors are made of some of the earlier ones by elementwise operators of their own size."""
    waiting, seen = sorted(later), set[int]()
    while waiting:
        number = waiting.pop()
        if number in earlier:
            return True
        row = flow.row_of.get(number)
        if row is None or number in seen:
            continue
        seen.add(number)
        name, made, sizes = flow.names[row], flow.made[row], sizes_of(flow.size[row])
        size = result.get(number) or (sizes[0] if sizes else ())
        if is_view(name):
            waiting += made[:1]
        elif ELEMENTWISE.match(name) or _MOVES.match(name) or in_place(name):
            waiting += [
                n for n, of_it in zip(made, sizes, strict=False) if of_it == size and size[-1:] and size[-1] in _SPACE
            ]
    return False

"""Scores that are compared with each threshold of a grid, and masks of all scores and thresholds that are summed over the scores.

Curves of a metric at fixed thresholds (ROC, precision and recall, calibration), written out: a mask [rows, columns, thresholds], products
of it with labels or weights of the rows, and sums over the rows. A histogram of the scores' intervals holds the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_bounds import FEWEST_COUNTED_THRESHOLDS
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.result_readers import ResultReaders

_COMPARES = re.compile(r"^aten::(ge|gt|le|lt|greater(_equal)?|less(_equal)?)$")
#: What makes a mask of a mask, number by number, or weights it.
_MASKS = re.compile(
    r"^aten::(bitwise_(not|and)|logical_(not|and)|__and__|mul|where|masked_fill|to|_to_copy|contiguous|clone|detach|type_as)_?$"
)
_SUMS = re.compile(r"^aten::(sum|mean|count_nonzero)$")


class ThresholdCount(NamedTuple):
    """Sums of masks of one cube: the outermost operators (rows of the flow) that compare, weight and sum, those that compare and those
    that sum, and how many scores and thresholds there are.
    """

    rows: frozenset[int]
    compares: tuple[int, ...]
    sums: tuple[int, ...]
    scores: int
    thresholds: int


class _Cube:
    """The size of a mask, in which of its dimensions the thresholds lie, and the operators on it so far."""

    def __init__(self, row: int, size: Size, axis: int) -> None:
        self.size, self.axis = size, axis
        self.rows, self.compares, self.sums, self.whole = {row}, [row], list[int](), True


def threshold_counts(flow: OperatorFlow) -> Iterator[ThresholdCount]:
    """Yield such cubes of an X-ray step, of which nothing but sums over scores is read."""
    readers = ResultReaders(flow)
    cube_of, cubes = dict[int, _Cube](), list[_Cube]()
    for row in flow.outermost:
        if (cube := _compared(readers, row)) is not None:
            cubes.append(cube)
            cube_of[flow.number[row]] = cube
            continue
        given = {number: cube_of[number] for number in flow.made[row] if number in cube_of}
        if not given:
            continue
        first, *others = dict.fromkeys(given.values())
        alike = all(each.size == first.size and each.axis == first.axis for each in others)
        for each in others if alike else ():  # masks of two comparisons, as of the intervals of a histogram
            first.rows |= each.rows
            first.compares += each.compares
            first.sums += each.sums
            first.whole &= each.whole
            cubes.remove(each)
            cube_of |= {number: first for number, cube in cube_of.items() if cube is each}
        first.rows.add(row)
        if alike and _SUMS.match(flow.names[row]) and _sums_scores(readers, row, first):
            first.sums.append(row)
        elif alike and _MASKS.match(flow.names[row]) and _weighs_scores(readers, row, first, frozenset(given)):
            cube_of[flow.number[row]] = first
        else:  # somebody reads the mask itself
            for each in (first, *others):
                each.whole = False
    for number in flow.read_later & cube_of.keys():
        cube_of[number].whole = False
    for cube in cubes:
        if cube.whole and cube.sums:
            thresholds = cube.size[cube.axis]
            scores = math.prod(cube.size) // thresholds
            yield ThresholdCount(frozenset(cube.rows), tuple(cube.compares), tuple(cube.sums), scores, thresholds)


def _compared(readers: ResultReaders, row: int) -> _Cube | None:
    """Return the mask that a comparison makes of scores and a grid, None where it compares something else."""
    sizes, made = readers.sizes[row][:2], readers.flow.made[row][:2]
    if not _COMPARES.match(readers.flow.names[row]) or len(sizes) < 2 or not all(sizes):
        return None
    if made[0] >= 0 and readers.base_of(made[0])[0] == readers.base_of(made[-1])[0]:
        return None  # each with each other: what is compared is no grid
    width = max(map(len, sizes))
    first, second = ((1,) * (width - len(size)) + size for size in sizes)
    whole = tuple(max(pair) for pair in zip(first, second, strict=True))
    for scores, grid in ((first, second), (second, first)):
        axes = [axis for axis, length in enumerate(grid) if length > 1]
        if len(axes) != 1 or scores[axes[0]] != 1:
            continue
        (axis,) = axes
        if grid[axis] >= FEWEST_COUNTED_THRESHOLDS and math.prod(scores) > grid[axis]:
            return _Cube(row, whole, axis)
    return None


def _weighs_scores(readers: ResultReaders, row: int, cube: _Cube, masks: frozenset[int]) -> bool:
    """Return whether an operator makes a mask of masks and numbers that are the same at all thresholds."""
    for size, number in zip(readers.sizes[row], readers.flow.made[row], strict=False):
        from_end = len(cube.size) - cube.axis
        if number in masks:
            if size != cube.size:
                return False
        elif len(size) > len(cube.size) or (len(size) >= from_end and size[-from_end] != 1):
            return False
    return True


def _sums_scores(readers: ResultReaders, row: int, cube: _Cube) -> bool:
    """Return whether a sum leaves thresholds, and goes over scores."""
    left = readers.results.get(readers.flow.number[row])
    if left is None or readers.sizes[row][0] != cube.size:
        return False
    left = tuple(length for length in left if length > 1)
    kept = [length for length in cube.size if length > 1]
    others = [length for axis, length in enumerate(cube.size) if axis != cube.axis]
    # Where a dimension of the scores is as long as the grid, sizes do not tell which of the two was summed.
    return cube.size[cube.axis] in left and cube.size[cube.axis] not in others and len(left) < len(kept)

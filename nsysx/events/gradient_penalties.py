"""Penalties on the gradient of a score by its input (R1, WGAN-GP): a pass of autograd with a graph, of which squares are summed.

Nothing but the size of images tells them from energies of physics, whose gradient by coordinates is the loss itself, and is needed always.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from nsysx.events.backward_passes import BackwardPass
from nsysx.events.narrowed_operators import Size, sizes_of
from nsysx.events.operator_bounds import FEWEST_IMAGE_DIMENSIONS
from nsysx.events.operator_flow import OperatorFlow, is_view
from nsysx.events.result_readers import ResultReaders

#: What a norm of each sample, and its mean, are made of.
_OF_NORMS = re.compile(
    r"^aten::(square|pow|mul|sum|mean|sqrt|norm|linalg_vector_norm|view|reshape|flatten|add|sub|rsub|clamp\w*|relu|to)_?$"
)
_LESS_ONE = re.compile(r"^aten::(sub|rsub)_?$")


class GradientPenalty(NamedTuple):
    """The operators (rows of the flow) of which the gradient is taken, and those that make the penalty of it. ``apart``: the score is made
    for the penalty alone. ``centered``: it is how far the norm is from one.
    """

    scored: Sequence[int]
    norms: Sequence[int]
    apart: bool
    centered: bool


def gradient_penalty(flow: OperatorFlow, asked: BackwardPass, end_ns: int) -> GradientPenalty | None:
    """Return the penalty on what a pass with a graph makes, None for others; ``end_ns``: when the next pass begins."""
    readers = ResultReaders(flow)
    before = max(flow.number[row] for row in asked.rows)
    behind = [row for row in flow.outermost if asked.end_ns <= flow.start_ns[row] < end_ns]
    # Numbers of Python, without dimensions, may bear the name of older memory.
    arrays = (
        number for row in behind for number, size in zip(flow.made[row], readers.sizes[row], strict=False) if size
    )
    made = {number for number in arrays if number > before and number not in flow.row_of}
    inputs = {
        size for row in asked.rows for size in sizes_of(flow.size[row])[:1] if len(size) >= FEWEST_IMAGE_DIMENSIONS
    }
    norms = set[int]()
    for number in made:
        size = readers.results.get(number, ())
        if size not in inputs:
            return None
    for row in behind:  # in order: what is made of the gradient, up to single numbers
        given = [(n, s) for n, s in zip(flow.made[row], readers.sizes[row], strict=False) if s and n in made]
        if not given:
            continue
        if not all(_OF_NORMS.match(flow.names[row]) for _ in given):
            return None
        norms.add(row)
        if not _is_number(readers.results.get(flow.number[row])):
            made.add(flow.number[row])
    sums = [row for row in norms if _is_number(readers.results.get(flow.number[row]))]
    if not norms or not sums or not all(_read(readers, row, norms) for row in norms - set(sums)):
        return None
    taken = frozenset(asked.rows)
    inside = _with_views(flow, taken)
    apart = all(readers.readers.get(flow.number[row], set()) <= inside for row in taken)
    return GradientPenalty(sorted(taken), sorted(norms), apart, any(_LESS_ONE.match(flow.names[row]) for row in norms))


def _is_number(size: Size | None) -> bool:
    return size == ()


def _read(readers: ResultReaders, row: int, norms: set[int]) -> bool:
    """Return whether only the penalty reads a result."""
    return readers.readers.get(readers.flow.number[row], set()) <= norms


def _with_views(flow: OperatorFlow, rows: frozenset[int]) -> set[int]:
    """Return operators with the views between them."""
    between = (row for row in flow.outermost if min(rows) <= row <= max(rows))
    return {*rows, *(row for row in between if is_view(flow.names[row]))}

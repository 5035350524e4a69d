"""What networks that nothing trains make of the step's data alone: of a sample that comes again it is the same again.

A network counts if no operator in its calls is trained, and no network of its class is trained anywhere in the step: copies of a trained
network follow its weights. What is drawn on the way to it (noise, augmentation on the GPU), or made of what is trained, comes out anew in
each step; which samples a step takes may be drawn.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import numpy as np

from nsysx.events.narrowed_operators import Size, result_sizes, sizes_of
from nsysx.events.needless_operators import before, behind, outer_operators
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_bounds import MOST_KEPT_NUMBERS
from nsysx.events.operator_flow import ModuleCall, OperatorFlow, is_drawn

#: Operators that draw which rows a step takes.
_CHOOSES = re.compile(r"::(randint|randperm|multinomial)\w*$")


class FrozenOperators(NamedTuple):
    """Outermost operators (rows of the flow) of the ``calls`` of frozen networks, and what is handed on of one sample (numbers)."""

    rows: list[int]
    calls: list[ModuleCall]
    kept: int


def frozen_operators(flow: OperatorFlow, trained: Flags) -> FrozenOperators | None:
    """Return what frozen networks make of the data alone and what is trained reads; None without any, or where too much is handed on."""
    calls = _frozen_calls(flow, trained)
    if not calls or not trained.any():
        return None
    outer, size = outer_operators(flow), len(flow.names)
    inside = np.zeros(size, np.bool_)
    for call in calls:
        inside[call.first : call.last] = True
    learns = outer.within(trained, size)
    drawn = outer.within((is_drawn(name) and not _CHOOSES.search(name) for name in flow.names), size)
    changes = behind(outer.makers, drawn | learns | outer.into_older)
    chosen = outer.within(inside, size) & ~changes & before(outer.makers, learns)
    rows = [outer.rows[i] for i in np.flatnonzero(chosen)]
    kept = _handed_on(flow, chosen, outer.rows, outer.makers)
    return FrozenOperators(rows, calls, kept) if rows and 0 < kept <= MOST_KEPT_NUMBERS else None


def _frozen_calls(flow: OperatorFlow, trained: Flags) -> list[ModuleCall]:
    """Return the outermost calls in which nothing is trained, of networks none of whose class is trained."""
    learning = [bool(trained[call.first : call.last].any()) for call in flow.calls]
    taught = {call.cls for call, learns in zip(flow.calls, learning, strict=True) if learns}
    calls, until = list[ModuleCall](), -1
    for call, learns in zip(flow.calls, learning, strict=True):
        if not learns and call.first >= until and call.cls not in taught:
            calls.append(call)
            until = call.last
    return calls


def _handed_on(flow: OperatorFlow, chosen: Flags, rows: list[int], makers: list[list[int]]) -> int:
    """Return how many numbers of one sample others read of what these operators make; the first dimension is that of the samples."""
    results = result_sizes(flow, [sizes_of(text) for text in flow.size])
    read = {maker for index, theirs in enumerate(makers) if not chosen[index] for maker in theirs if chosen[maker]}
    sizes: list[Size] = [results[flow.number[rows[index]]] for index in read if flow.number[rows[index]] in results]
    return sum(math.prod(size[1:]) for size in sizes if len(size) > 1)

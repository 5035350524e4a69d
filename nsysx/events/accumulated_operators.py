"""Operators of an X-ray step whose results go into nothing but sums over the steps, which a log reads once in a while.

A sum (``total += metrics(logits)``, or an average that moves) is a tensor from before the step that operators write into, and that nothing
reads until the same operators of the next step do. What else reads it is of other steps than those that an X-ray saw, or reads it never.
Averages of weights are such tensors, too, and statistics that an optimizer factorizes in some steps; a log shows few numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence

import numpy as np

from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.needless_operators import (
    OuterOperators,
    before,
    behind,
    joined_operators,
    kept_operators,
    outer_operators,
)
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_bounds import LONGEST_SUM_CHAIN, MOST_SUMMED_NUMBERS
from nsysx.events.operator_flow import OperatorFlow

#: What adds to a sum, or moves an average on.
_ADDS = re.compile(
    r"^aten::(add|sub|mul|(true_)?div|lerp|addcmul|maximum|minimum|logical_or|bitwise_or|index_add|scatter_add)_?$"
)


def accumulated_operators(
    flow: OperatorFlow,
    steps: Callable[[], Sequence[OperatorFlow]],
    trained: Sequence[bool],
    to_host: Sequence[bool],
    elsewhere: Collection[int] = (),
) -> list[list[int]]:
    """Return the outermost operators (rows) that make what is added to sums over the steps alone, these included, in order, in groups of
    those that are made of each other.

    ``steps`` returns, of the step before this one and of that behind it, those that were recorded. ``to_host``, ``elsewhere``: as for
    ``unread_operators``. Nothing in a call of a network that is trained is among them: its buffers may be read when it is used.
    """
    outer, size = outer_operators(flow), len(flow.names)
    inside = np.zeros(size, np.bool_)
    for call in flow.calls:
        inside[call.first : call.last] |= any(trained[call.first : call.last])
    sums = _sums(flow, outer, steps, frozenset(elsewhere)) & ~inside[outer.rows]
    if not sums.any():
        return []
    taken = np.zeros(len(outer.rows), np.bool_)
    taken[[maker for makers in outer.makers for maker in makers]] = True
    learns = outer.within(trained, size)
    # What nothing of the step takes may be kept in a list, or be read at its end.
    kept = (kept_operators(flow, outer, learns, to_host, elsewhere) | ~taken) & ~sums
    alone = before(outer.makers, sums) & ~before(outer.makers, kept) & ~inside[outer.rows]
    called = np.zeros(size, np.bool_)
    for call in flow.calls:
        called[call.first : call.last] = True
    # Averages of weights are made of what is older than the step.
    of_batch = behind(outer.sources, learns | outer.within(called, size))
    of_batch_rows = {outer.rows[index] for index in np.flatnonzero(of_batch)}
    groups = joined_operators(flow, [outer.rows[index] for index in np.flatnonzero(alone)])
    return [group for group in groups if not of_batch_rows.isdisjoint(group)]


def _sums(
    flow: OperatorFlow, outer: OuterOperators, steps: Callable[[], Sequence[OperatorFlow]], elsewhere: frozenset[int]
) -> Flags:
    """Return which outermost operators write sums over the steps, of few numbers, that none of them reads."""
    readers: dict[int, list[int]] = {}
    for index, makers in enumerate(outer.makers):
        for maker in makers:
            readers.setdefault(maker, []).append(index)
    last = (
        index
        for index, row in enumerate(outer.rows)
        if index not in readers and flow.number[row] not in elsewhere and _adds(flow, outer, index)
    )
    chains = [chain for index in last if (chain := _chain(flow, outer, index, readers))]
    sums, beside = np.zeros(len(outer.rows), np.bool_), steps() if chains else ()
    for chain in chains:
        if any(_goes_on(flow, outer, chain, step, elsewhere) for step in beside):
            sums[chain] = True
    return sums


def _adds(flow: OperatorFlow, outer: OuterOperators, index: int) -> bool:
    """Return whether an outermost operator may add few numbers to a sum, and leaves nothing to a backward."""
    row = outer.rows[index]
    if not _ADDS.match(flow.names[row]):
        return False
    size = next(iter(sizes_of(flow.size[row])), ())
    if math.prod(size) > MOST_SUMMED_NUMBERS:
        return False
    number = flow.sequence[row] if row < len(flow.sequence) else -1
    behind_it = (flow.sequence[each] for each in outer.rows[index + 1 :])
    following = next((each for each in behind_it if each >= 0), number)
    return number < 0 or following == number  # else it made a node


def _chain(flow: OperatorFlow, outer: OuterOperators, last: int, readers: dict[int, list[int]]) -> list[int]:
    """Return the operators from the one that is given a tensor from before the step to the last one, in order; none without such a one.

    Each but the first is given what the one before it made, which nothing else reads.
    """
    chain = [last]
    while len(chain) <= LONGEST_SUM_CHAIN:
        if _older(flow, outer, chain[0]):
            return chain
        theirs = [
            maker for maker in outer.makers[chain[0]] if readers[maker] == [chain[0]] and _adds(flow, outer, maker)
        ]
        first = next((maker for maker in theirs if _older(flow, outer, maker)), next(iter(theirs), None))
        if first is None:
            return []
        chain.insert(0, first)
    return []


def _older(flow: OperatorFlow, outer: OuterOperators, index: int) -> list[int]:
    """Return the numbers of the operators before the step that made the first two arguments of an outermost one."""
    first = flow.number[outer.rows[0]]
    return [number for number in flow.made[outer.rows[index]][:2] if 0 <= number < first]


def _goes_on(
    flow: OperatorFlow, outer: OuterOperators, chain: Sequence[int], step: OperatorFlow, elsewhere: frozenset[int]
) -> bool:
    """Return whether a step beside this one shows that the sum goes from one to the other, and that nothing else reads it."""
    if not len(step.names):
        return False
    first, last = outer.rows[chain[0]], outer.rows[chain[-1]]
    earlier, later = (step, flow) if step.start_ns[0] < flow.start_ns[0] else (flow, step)
    numbers = [flow.number[last]] if earlier is flow else _older(flow, outer, chain[0])
    for number in numbers:
        if number in elsewhere or (earlier is step and number not in step.row_of):
            continue
        if earlier is step and step.names[step.row_of[number]] != flow.names[last]:
            continue
        reading = [(each, row) for each in (earlier, later) for row in each.outermost if number in each.made[row]]
        if reading and all(
            each is later and (each.names[row], each.size[row]) == (flow.names[first], flow.size[first])
            for each, row in reading
        ):
            return True
    return False

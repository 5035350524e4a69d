"""Whether the rounds of a loop need one another's results, so that no single operation can take their place.

A round is what runs at one line of an X-ray step without another line in between. What only adds a round's result to those before it, or
puts them together, is no need: a sum or a stack does it for all at once.
"""

from __future__ import annotations

import math
import re

import numpy as np

from nsysx.events.event_bounds import FEWEST_ROUNDS_IN_SEQUENCE, IN_SEQUENCE_SHARE
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import OperatorFlow, is_view
from nsysx.frames.intervals import I64

#: Operators that put a round's result to those of others.
_JOINS = re.compile(
    r"^aten::(add|sub|cat|concat|stack|maximum|minimum|index_put|copy|index_copy|scatter\w*|index_add|logaddexp)_?$"
)


def in_sequence(flow: OperatorFlow, at_line: Flags, begins_ns: I64 | None = None) -> bool:
    """Return whether most of what a line runs in its later rounds needs a result of a round before; ``at_line``: of each operator.

    ``begins_ns``: when each round begins, in order, where what lies between two of them does not tell them apart.
    """
    outer = np.array(flow.outermost, np.int64)
    there = at_line[outer]
    if begins_ns is None:
        number: I64 = np.cumsum(there & ~np.append(False, there[:-1]))
    else:
        number = np.searchsorted(begins_ns, flow.start_ns[outer], side="right")
    before = int(number[there].min()) - 1 if there.any() else 0  # rounds of other steps
    of_round: I64 = np.where(there, number - before, 0)  # 1, 2, ...; 0 elsewhere
    if of_round.max(initial=0) < FEWEST_ROUNDS_IN_SEQUENCE:
        return False
    # What an operator makes in others, as the parts of a chunk, is its result.
    within = np.searchsorted(outer, np.arange(len(flow.names)), side="right") - 1
    index_of: dict[int, int] = dict(zip(flow.number, within.tolist(), strict=True))
    reached = [0] * len(outer)  # of each operator the last round before its own whose result it needs, 0 for none
    needing = counted = 0
    for index, row in enumerate(outer.tolist()):
        here = int(of_round[index])
        for argument in flow.made[row]:
            maker = index_of.get(argument, index)
            if maker < index:
                theirs = int(of_round[maker])
                reached[index] = max(reached[index], reached[maker], theirs if theirs != here else 0)
        if here > 1 and not is_view(flow.names[row]) and not _JOINS.match(flow.names[row]):
            needing, counted = needing + (reached[index] > 0), counted + 1
    return needing > 0 and needing >= IN_SEQUENCE_SHARE * counted


def needed_later(flow: OperatorFlow, at_line: Flags, begins_ns: I64) -> tuple[I64, Flags]:
    """Return the rows of the outermost operators that a line runs in rounds before the last, and which of them a later round needs.

    ``begins_ns``: when each round begins, in order.
    """
    outer = np.array(flow.outermost, np.int64)
    within = np.searchsorted(outer, np.arange(len(flow.names)), side="right") - 1
    index_of: dict[int, int] = dict(zip(flow.number, within.tolist(), strict=True))
    there = at_line[outer]
    of_round = np.where(there, np.searchsorted(begins_ns, flow.start_ns[outer], side="right"), 0)
    needed = np.zeros(len(outer), np.bool_)
    for index in range(len(outer) - 1, -1, -1):
        if not there[index]:
            continue
        for argument in flow.made[int(outer[index])]:
            maker = index_of.get(argument, index)
            if maker < index and there[maker] and (needed[index] or of_round[maker] < of_round[index]):
                needed[maker] = True
    before = there & (of_round < of_round.max(initial=0))
    return outer[before], needed[before]


def grows(flow: OperatorFlow, at_line: Flags) -> bool:
    """Return whether a line puts more together from round to round: one that is called in two loops joins more in one of them, too."""
    joined = np.array(
        [
            sum(map(math.prod, sizes_of(flow.size[row])))
            for row in np.flatnonzero(at_line).tolist()
            if flow.names[row] == "aten::cat"
        ]
    )
    return len(joined) > 1 and 2 * int((np.diff(joined) > 0).sum()) >= len(joined) - 1

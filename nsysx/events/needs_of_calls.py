"""Which calls of modules are alike, and how many of them have to come one after the other: each needs what one before made."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence

from nsysx.events.operator_flow import ModuleCall, OperatorFlow, in_place, is_view

#: Operators that look up rows of a table, and how many rows each of some sizes has.
_LOOKS_UP, _ROWS = re.compile(r"^aten::_?embedding(_bag)?$"), re.compile(r"\[\d+")


def signature(flow: OperatorFlow, call: ModuleCall) -> int:
    """Return a number that calls share which run the same operators on tensors of the same sizes.

    Those that look up rows of tables need not have as many of them: one table holds the rows of all.
    """
    names, sizes = tuple(flow.names[call.first : call.last]), tuple(flow.size[call.first : call.last])
    if looks_up(flow, call):
        sizes = tuple(_ROWS.sub("[", size) for size in sizes)
    return hash((names, sizes))


def looks_up(flow: OperatorFlow, call: ModuleCall) -> bool:
    """Return whether a call looks up rows of a table."""
    return any(_LOOKS_UP.match(name) for name in flow.names[call.first : call.last])


def depth(flow: OperatorFlow, calls: Sequence[ModuleCall]) -> int:
    """Return how many of these calls, none of which lies in another, have to come one after the other: each needs what one before made."""
    reached = _Reached(flow)
    deepest, following = 0, 0
    for call in sorted(calls, key=lambda each: each.first):
        reached.until(following, call.first, 0)
        above = 1 + max((reached.of_arguments(row, call.first) for row in range(call.first, call.last)), default=0)
        reached.until(call.first, call.last, above)
        deepest, following = max(deepest, above), call.last
    return deepest


def _first(sizes: str) -> str:
    """Return the size of the first of several arguments."""
    return sizes.partition("]")[0]


class _Reached:
    """How many calls each tensor needed so far: ``of`` the number of the operator that made it, or the size of one without a name.

    ``viewed``: of a view, by its number, what is viewed.
    """

    def __init__(self, flow: OperatorFlow) -> None:
        self.flow = flow
        self.of: dict[int | str, int] = {}
        self.viewed: dict[int, int | str] = {}

    def of_tensor(self, number: int) -> int:
        """Return what a tensor needed. What no operator of the flow made, as what a collective brings, needs what came right before it."""
        before = bisect_right(self.flow.number, number) - 1
        return self.of.get(number, self.of.get(self.flow.number[before], 0) if before >= 0 else 0)

    def of_arguments(self, row: int, before: int = -1) -> int:
        """Return what the arguments of an operator needed; ``before``: only those made before that row."""
        flow, most = self.flow, 0
        if flow.made[row] and flow.made[row][0] < 0 and is_view(flow.names[row]):
            most = self.of.get(_first(flow.size[row]), 0)
        for number in flow.made[row]:
            if number >= 0 and (before < 0 or number < flow.number[before]):
                viewed = self.viewed.get(number, number)
                of_viewed = self.of.get(viewed, 0) if isinstance(viewed, str) else self.of_tensor(viewed)
                most = max(most, self.of_tensor(number), of_viewed)
        return most

    def until(self, first: int, last: int, least: int) -> None:
        """Go through the operators of these rows, which need ``least`` calls at least."""
        for row in range(first, last):
            name, number, made = self.flow.names[row], self.flow.number[row], self.flow.made[row]
            most = self.of[number] = max(least, self.of_arguments(row))
            if is_view(name) and made:
                self.viewed[number] = _first(self.flow.size[row]) if made[0] < 0 else self.viewed.get(made[0], made[0])
            elif in_place(name) and made and made[0] in self.viewed:
                viewed = self.viewed[made[0]]
                self.of[viewed] = max(self.of.get(viewed, 0), most)

"""Which calls of modules are alike, and how many of them have to come one after the other: each needs what one before made."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Sequence

import numpy as np

from nsysx.events.operator_flow import ModuleCall, OperatorFlow, in_place, is_view

#: Operators that look up rows of a table, and how many rows each of some sizes has.
_LOOKS_UP, _ROWS = re.compile(r"^aten::_?embedding(_bag)?$"), re.compile(r"\[\d+")
#: Operators that hand on a tensor in another type: autocast casts a weight in the first call that needs it, and keeps it for the others.
_CASTS = re.compile(r"^aten::_?to(_copy)?$")
_COPIES = ("aten::contiguous", "aten::clone")


def signature(flow: OperatorFlow, call: ModuleCall) -> int:
    """Return a number that calls share which run the same operators on tensors of the same sizes.

    Those that look up rows of tables need not have as many of them: one table holds the rows of all. Casts of what was there before the
    step count with no call.
    """
    casts = _casts_of_old(flow, call)
    rows = [row for row in range(call.first, call.last) if row not in casts]
    names, sizes = tuple(flow.names[row] for row in rows), tuple(flow.size[row] for row in rows)
    if looks_up(flow, call):
        sizes = tuple(_ROWS.sub("[", size) for size in sizes)
    return hash((names, sizes))


def _casts_of_old(flow: OperatorFlow, call: ModuleCall) -> frozenset[int]:
    """Return the operators in a call (rows) that cast what no operator of the flow has made, with those within."""
    rows, last = set[int](), min(call.last, len(flow.start_ns))
    for row in range(call.first, last):
        if row not in rows and _CASTS.match(flow.names[row]) and flow.made[row] and max(flow.made[row]) < 0:
            rows.update(range(row, min(int(np.searchsorted(flow.start_ns, flow.end_ns[row])), last)))
    return frozenset(rows)


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
        reached.until(call.first, call.last, above, _casts_of_old(flow, call))
        deepest, following = max(deepest, above), call.last
    return deepest


def state_is_touched(flow: OperatorFlow, calls: Sequence[ModuleCall]) -> bool:
    """Return whether calls of a recurrent cell need one another by more than a state that each is handed as the one before made it.

    A state that is masked, normalized or mixed between them is one, and so is an input that is made of what an earlier call made.
    """
    made_in = {row for call in calls for row in range(call.first, call.last)}
    needing = set[int]()
    for row, makers in enumerate(flow.makers):
        if not needing.isdisjoint(makers) or not made_in.isdisjoint(makers):
            needing.add(row)
    for call in calls:
        for row in flow.outermost_of(call.first, call.last):
            given = [flow.row_of.get(number, row) for number in flow.made[row]]
            outer = [maker for maker in given if maker < call.first]
            cell = flow.names[row].endswith("_cell")
            if cell and outer and outer[0] == given[0] and (outer[0] in needing or outer[0] in made_in):
                return True
            if any(maker in needing and _handed(flow, maker) not in made_in for maker in outer):
                return True
    return False


def _handed(flow: OperatorFlow, row: int) -> int:
    """Return the operator that made the numbers of a tensor which views and casts alone have changed since."""
    while is_view(flow.names[row]) or _CASTS.match(flow.names[row]) or flow.names[row] in _COPIES:
        maker = flow.row_of.get(flow.made[row][0], row) if flow.made[row] else row
        if maker >= row:
            break
        row = maker
    return row


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

    def until(self, first: int, last: int, least: int, older: Collection[int] = ()) -> None:
        """Go through the operators of these rows, which need ``least`` calls at least; ``older``: those that need none."""
        for row in range(first, last):
            if row in older:
                self.of[self.flow.number[row]] = 0
                continue
            name, number, made = self.flow.names[row], self.flow.number[row], self.flow.made[row]
            most = self.of[number] = max(least, self.of_arguments(row))
            if is_view(name) and made:
                self.viewed[number] = _first(self.flow.size[row]) if made[0] < 0 else self.viewed.get(made[0], made[0])
            elif in_place(name) and made and made[0] in self.viewed:
                viewed = self.viewed[made[0]]
                self.of[viewed] = max(self.of.get(viewed, 0), most)

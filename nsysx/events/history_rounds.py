"""Rounds over the pairs of vectors that an optimizer keeps (L-BFGS), each of which multiplies one of them by the direction and reads that.

The direction is made of the gradient in two loops over all pairs, newest first and then oldest first: a product of two vectors, a number
read back, an addition of the pair's other vector. The second loop takes the numbers of the first one again, less its own: loops that make
vectors orthogonal, or solve equations, do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.operator_bounds import FEWEST_HISTORY_ROUNDS, MOST_HISTORY_OPERATORS
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.profile import Profile

_PRODUCT, _READ, _ADDS, _LESS = "aten::dot", "aten::item", "aten::add_", "aten::sub"


class Direction(NamedTuple):
    """The rounds of one direction: of each the outermost operators (rows of the flow), first its product; how long the vectors are."""

    rounds: tuple[tuple[int, ...], ...]
    numbers: int

    @property
    def pairs(self) -> int:
        """How many pairs of vectors are kept."""
        return len(self.rounds) // 2

    def beyond(self, pairs: int) -> list[int]:
        """Return the operators (rows) that would not run with so many pairs: of the older ones, which lie in the middle."""
        return [row for each in self.rounds[pairs : len(self.rounds) - pairs] for row in each]


def directions(profile: Profile) -> list[Direction]:
    """Return the directions that the X-ray step of ``flow_of`` makes."""
    return profile.once(_directions)


def reads_of_history(profile: Profile) -> frozenset[int]:
    """Return the calls with which these rounds read their numbers."""
    return profile.once(_reads)


def _directions(profile: Profile) -> list[Direction]:
    flow = flow_of(profile)
    return [] if flow is None else list(_made_of(flow))


def _reads(profile: Profile) -> frozenset[int]:
    flow, of_calls = flow_of(profile), operator_of_calls(profile)
    rows = {row for each in directions(profile) for rounds in each.rounds for row in rounds}
    if flow is None or of_calls is None or not rows:
        return frozenset()
    within = of_calls.within(flow, gradients=False)
    calls = profile.steady_calls["call"]
    return frozenset(call for call in calls.to_list() if int(within[call]) in rows)


def _made_of(flow: OperatorFlow) -> Iterator[Direction]:
    outer = flow.outermost
    products = [index for index, row in enumerate(outer) if flow.names[row] == _PRODUCT]
    run, numbers, first = list[tuple[int, ...]](), 0, 0
    for index, following in zip(products, [*products[1:], len(outer)], strict=False):
        rows = tuple(outer[index : min(following, index + MOST_HISTORY_OPERATORS)])
        size = sizes_of(flow.size[rows[0]])[:1]
        length = size[0][0] if size and size[0] else 0
        begin = first if run and length == numbers else rows[0]
        if length and _is_round(flow, rows, begin):
            run, numbers, first = [*(run if begin == first else []), rows], length, begin
        if not run or run[-1] != rows or following - index > MOST_HISTORY_OPERATORS or following == len(outer):
            run = run[: len(run) // 2 * 2]
            if len(run) >= FEWEST_HISTORY_ROUNDS and _is_twice(flow, run):
                yield Direction(tuple(run), numbers)
            run = []


def _is_round(flow: OperatorFlow, rows: tuple[int, ...], begin: int) -> bool:
    """Return whether these operators read a product of an older vector, and add another older one. ``begin``: what is older, by rows."""
    reads = [row for row in rows if flow.names[row] == _READ]
    adds = next((row for row in rows if flow.names[row] == _ADDS), None)
    if not reads or adds is None or len(flow.made[adds]) < 2:
        return False
    return _is_older(flow, flow.made[adds][1], begin) and any(
        _is_older(flow, number, begin) for number in flow.made[rows[0]]
    )


def _is_older(flow: OperatorFlow, number: int, begin: int) -> bool:
    return flow.row_of.get(number, -1) < begin


def _is_twice(flow: OperatorFlow, rounds: list[tuple[int, ...]]) -> bool:
    """Return whether the later half of some rounds takes numbers of the first half again."""
    half = len(rounds) // 2
    first = {flow.number[row] for each in rounds[:half] for row in each}
    again = [
        any(flow.names[row] == _LESS and first.intersection(flow.made[row]) for row in each) for each in rounds[half:]
    ]
    return 2 * sum(again) >= half

"""Collectives among the operators of an X-ray step: what each is given, and by which numbers operators behind it name what came."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

import polars as pl

from nsysx.events.collective_operators import WAITS, collective_operators
from nsysx.events.narrowed_operators import Size, sizes_of
from nsysx.events.operator_flow import ID, OperatorFlow, is_view, once_of_flow
from nsysx.events.profile import Profile

#: Operators of collectives: those that are given what they write into before what they send, and those that are given the latter first.
_SECOND = re.compile(r"^c10d::(_?all_?gather\w*|_?all_?to_?all_base_|_reduce_scatter_base_)$")
_FIRST = re.compile(
    r"^(c10d::(allreduce_|broadcast_|reduce_|send)|"
    r"_c10d_functional::(all_gather_into_tensor|all_reduce_?|all_to_all_single|reduce_scatter_tensor|broadcast_?))$"
)
#: What a collective of c10d notes of itself: tensors that it writes bear the number of this range.
_WITHIN = "record_param_comms"
_IN_PLACE = re.compile(r"^(c10d::(allreduce|broadcast)_|_c10d_functional::(all_reduce|broadcast)_)$")


class FlowMessage(NamedTuple):
    """A collective that the flow's thread calls: its operator, when, the sizes of its arguments, and what made what it sends (a number).

    ``results``: the numbers that what came may have from then on; what is sent in place keeps its own.
    """

    name: str
    start_ns: int
    end_ns: int
    sizes: tuple[Size, ...]
    sent: int
    results: frozenset[int]


def place_of_sent(name: str) -> int | None:
    """Return which argument of an operator of collectives is what it sends, None for other operators."""
    second = bool(_SECOND.match(name))
    return int(second) if second or _FIRST.match(name) else None


def messages_in(flow: OperatorFlow, profile: Profile) -> list[FlowMessage]:
    """Return the collectives on the flow's thread in the flow's step, in the order of time."""
    return list(once_of_flow(flow, profile, _messages))


def _messages(flow: OperatorFlow, profile: Profile) -> tuple[FlowMessage, ...]:
    return tuple(_read(flow, profile))


def _read(flow: OperatorFlow, profile: Profile) -> Iterator[FlowMessage]:
    named = collective_operators(flow, profile)
    waited = {
        each.given[0]: each.number for each in named if each.name == WAITS and each.given and each.number is not None
    }
    starts, numbers = _within(flow, profile) if named else ([], [])
    for start, end, name, number, sizes, these, _ in named:
        second = place_of_sent(name)
        if number is None or second is None or len(these) <= second:
            continue
        results = {waited.get(number, number)}
        if (second or _IN_PLACE.match(name)) and these[0] >= 0:
            results |= {these[0], waited.get(these[0], number)}
            results |= set(_viewed_whole(flow, these[0], math.prod(sizes[0]) if sizes else 0))
            results |= set(numbers[bisect_left(starts, start) : bisect_left(starts, end)])
        yield FlowMessage(name, start, end, tuple(sizes), these[second], frozenset(results))


def _viewed_whole(flow: OperatorFlow, number: int, numbers: int) -> Iterator[int]:
    """Yield the tensors of which one of so many ``numbers`` is a view of all: what is written into the view is read by their names, too."""
    maker = flow.row_of.get(number)
    while maker is not None and is_view(flow.names[maker]) and flow.made[maker]:
        viewed = next(iter(sizes_of(flow.size[maker])), ())
        if flow.made[maker][0] < 0 or not viewed or math.prod(viewed) != numbers:
            return
        yield flow.made[maker][0]
        maker = flow.row_of.get(flow.made[maker][0])


def _within(flow: OperatorFlow, profile: Profile) -> tuple[list[int], list[int]]:
    """Return when what collectives note of themselves begins on the flow's thread, in order, and the numbers of these."""
    ops = profile.ranges.ranges.filter(
        (pl.col("process") == profile.process) & (pl.col("thread") == flow.thread) & (pl.col("kind") == "op"),
        pl.col("name") == _WITHIN,
    ).sort("start_ns")
    numbered = ops.select(
        "start_ns", number=pl.col("label").cast(pl.String).str.extract(ID, 1).cast(pl.Int64)
    ).drop_nulls()
    return numbered["start_ns"].to_list(), numbered["number"].to_list()

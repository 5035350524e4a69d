"""Messages that bring each rank all rows of a tensor, of which it reads a part: reductions and gathers of rows.

Of a sum over the ranks of which each takes its own rows, a reduction that scatters brings these alone, with half of the bytes. Of gathered
rows of which some are picked, only those have to be sent. What is read of a tensor is read from sizes (``narrowed_operators``).
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import numpy as np

from nsysx.events.flow_messages import FlowMessage, messages_in
from nsysx.events.narrowed_exchanges import cut_exchanges
from nsysx.events.narrowed_operators import kept_of_tensors, sizes_of
from nsysx.events.operator_bounds import MOST_OF_BORDER_SHARE, MOST_OF_SENT_SHARE, NEIGHBOURS, OPERATORS_BEHIND
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.profile import Profile
from nsysx.events.result_readers import ResultReaders

_REDUCES = re.compile(r"^(c10d::allreduce_|_c10d_functional::all_reduce_?)$")
_GATHERS, _INTO_LIST = "c10d::_allgather_base_", "c10d::allgather_"
_EMPTY = re.compile(r"^aten::(new_)?empty(_like|_strided)?$")
#: What takes a part by Python's numbers: its place is known before it is sent.
_BY_PLACE = re.compile(r"^aten::(slice|select|narrow)$")
#: What takes rows by numbers that the sizes do not show, as the edges of a graph name nodes.
_PICKS_BY_NUMBER = re.compile(r"^aten::(index|index_select|gather|embedding|take_along_dim|_?sparse_\w*mm)$")


class NarrowedMessage(NamedTuple):
    """A collective of the flow's thread (``start_ns``, ``end_ns``) that sums, or gathers, and the share of its result that is read.

    ``by``: the operators that pick this part (rows of the flow). ``ranks``: so many are gathered; 0 for sums. ``border``: it is a small
    part at a place that the program's numbers say, as of a field that is split over the ranks. ``exchanged``: every rank sends each other
    one a part of its own (all-to-all), and the share is what has to be sent. ``dimensions``: in which ones this part is less than all.
    """

    start_ns: int
    end_ns: int
    sums: bool
    share: float
    by: frozenset[int]
    ranks: int
    border: bool = False
    exchanged: bool = False
    dimensions: frozenset[int] = frozenset()


def narrowed_messages(flow: OperatorFlow, profile: Profile) -> list[NarrowedMessage]:
    """Return the collectives of whose result no more than a part is read."""
    every = messages_in(flow, profile)
    messages = [each for each in every if each.name in (_GATHERS, _INTO_LIST) or _REDUCES.match(each.name)]
    kept, narrowed = kept_of_tensors(flow) if messages else {}, list[NarrowedMessage]()
    for each in messages:
        sums, listed = bool(_REDUCES.match(each.name)), _list_of(flow, each) if each.name == _INTO_LIST else []
        numbers = listed or each.results
        read = [kept[number] for number in numbers if number in kept]
        if not read or (None in read and not listed) or not (listed or all(each.sizes[:1])):
            continue
        share = sum(1.0 if part is None else part.share for part in read) / max(len(listed), 1)
        by = frozenset[int]().union(*(part.by for part in read if part is not None))
        ranks = 0 if sums else len(listed) or _ranks(each)
        if 0 < share <= MOST_OF_SENT_SHARE and by and (sums or ranks > 1):
            by_place = all(_BY_PLACE.match(flow.names[row]) for row in by)
            border = not sums and by_place and ranks * share <= NEIGHBOURS * MOST_OF_BORDER_SHARE
            less_in = frozenset[int]().union(*(part.dimensions for part in read if part is not None))
            narrowed.append(
                NarrowedMessage(each.start_ns, each.end_ns, sums, share, by, ranks, border, dimensions=less_in)
            )
    exchanges = cut_exchanges(flow, every)
    narrowed += [
        NarrowedMessage(m.start_ns, m.end_ns, sums=False, share=share, by=rows, ranks=0, exchanged=True)
        for m, share, rows in exchanges
    ]
    return narrowed


def _list_of(flow: OperatorFlow, each: FlowMessage) -> list[int]:
    """Return the numbers of the tensors of a list that are gathered into: torch copies each rank's part into its own, or the collective
    writes them, which were empty before.
    """
    part = each.sizes[1] if len(each.sizes) > 1 else ()
    first, last = np.searchsorted(flow.start_ns, (each.start_ns, each.end_ns)).tolist()
    copied = [
        flow.number[row]
        for row in range(first, last)
        if part and flow.names[row] == "aten::copy_" and sizes_of(flow.size[row])[:1] == [part]
    ]
    if copied or not part:
        return copied
    joins = (r for r in range(last, min(last + OPERATORS_BEHIND, len(flow.names))) if flow.names[r] == "aten::cat")
    join = next(joins, None)
    given = () if join is None else zip(flow.made[join], sizes_of(flow.size[join]), strict=False)
    parts = [(number, size) for number, size in given if size]
    makers = [flow.row_of.get(number, -1) for number, _ in parts]
    empty = all(row >= 0 and _EMPTY.match(flow.names[row]) for row in makers)
    return [number for number, _ in parts] if empty and {size for _, size in parts} == {part} else []


def _ranks(each: FlowMessage) -> int:
    """Return of how many ranks a collective gathers, by the sizes of its result and of a rank's part; 0 where these are not noted."""
    whole, part = (math.prod(size) if size else 0 for size in (*each.sizes[:2], (), ())[:2])
    return whole // part if part else 0


def picked_gathers(flow: OperatorFlow, profile: Profile) -> tuple[list[FlowMessage], int]:
    """Return the gathers of rows all of whose readers take rows by number, and of how many gathers in all.

    Which rows are needed is known before they are sent.
    """
    gathers = [each for each in messages_in(flow, profile) if each.name == _GATHERS]
    if not gathers:
        return [], 0
    readers: dict[int, set[int]] = {}
    for row in flow.outermost:
        for number in flow.made[row]:
            readers.setdefault(number, set()).add(row)
    hands_on = ResultReaders(flow).hands_on

    def only_picked(number: int) -> bool:
        rows = readers.get(number, set())
        return bool(rows) and all(
            _PICKS_BY_NUMBER.match(flow.names[row]) or (hands_on(row) and only_picked(flow.number[row])) for row in rows
        )

    rows_of = [each for each in gathers if len(each.sizes) > 1 and len(each.sizes[0]) > 1]
    # The buffer, or the gather, is what readers name.
    return [each for each in rows_of if any(map(only_picked, each.results))], len(gathers)

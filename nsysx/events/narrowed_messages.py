"""Messages that bring each rank all rows of a tensor, of which it reads a part: reductions and gathers of rows.

Of a sum over the ranks of which each takes its own rows, a reduction that scatters brings these alone, with half of the bytes. Of gathered
rows of which some are picked, only those have to be sent. What is read of a tensor is read from sizes (``narrowed_operators``).
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from nsysx.events.event_bounds import MOST_OF_SENT_SHARE
from nsysx.events.flow_messages import FlowMessage, messages_in
from nsysx.events.narrowed_operators import kept_of_tensors
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.profile import Profile
from nsysx.events.result_readers import ResultReaders

_REDUCES = re.compile(r"^(c10d::allreduce_|_c10d_functional::all_reduce_?)$")
_GATHERS = "c10d::_allgather_base_"
#: What takes rows by numbers that the sizes do not show, as the edges of a graph name nodes.
_PICKS_BY_NUMBER = re.compile(r"^aten::(index|index_select|gather|embedding|take_along_dim|_?sparse_\w*mm)$")


class NarrowedMessage(NamedTuple):
    """A collective of the flow's thread (``start_ns``, ``end_ns``) that sums, or gathers, and the share of its result that is read.

    ``by``: the operators that pick this part (rows of the flow). ``ranks``: so many are gathered; 0 for sums.
    """

    start_ns: int
    end_ns: int
    sums: bool
    share: float
    by: frozenset[int]
    ranks: int


def narrowed_messages(flow: OperatorFlow, profile: Profile) -> list[NarrowedMessage]:
    """Return the collectives of whose result no more than a part is read."""
    messages = [each for each in messages_in(flow, profile) if each.name == _GATHERS or _REDUCES.match(each.name)]
    kept, narrowed = kept_of_tensors(flow) if messages else {}, list[NarrowedMessage]()
    for each in messages:
        sums = each.name != _GATHERS
        read = [kept[number] for number in each.results if number in kept]
        share = sum(part.share for part in read if part is not None)
        if not read or None in read or not all(each.sizes[:1]) or not 0 < share <= MOST_OF_SENT_SHARE:
            continue
        by = frozenset[int]().union(*(part.by for part in read if part is not None))
        ranks = 0 if sums else _ranks(each)
        if sums or ranks > 1:
            narrowed.append(NarrowedMessage(each.start_ns, each.end_ns, sums, share, by, ranks))
    return narrowed


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

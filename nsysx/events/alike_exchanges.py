"""Rows that several ranks send alike to experts: what a group of ranks has added up is the same on all of them, and goes to a larger group.

Ranks that share the layers of a network (tensor parallelism) have the same tokens behind each reduction. Where every rank of such a
group takes part in an exchange with experts, and none leaves rows out before it, the experts are given each token as often as the group
has ranks. The experts may be on the ranks of that group alone.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from nsysx.events.flow_messages import FlowMessage, messages_in
from nsysx.events.layer_readers import LayerReaders
from nsysx.events.message_calls import group_sizes
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.outputs_cut_again import CUTS
from nsysx.events.profile import Profile
from nsysx.events.whole_tokens import TokenReaders

_EXCHANGES, _REDUCES = re.compile(r"all_?to_?all"), re.compile(r"all_?reduce")


class AlikeExchange(NamedTuple):
    """An exchange that brings rows to experts, and the one that brings them back: when each begins (``sent_ns``), how many ranks send the
    same (``alike``) ``among`` how many, and the operators (rows of the flow) that work on what came (``between``).
    """

    sent_ns: tuple[int, ...]
    alike: int
    between: frozenset[int]
    among: int


def alike_exchanges(flow: OperatorFlow, profile: Profile, groups: Collection[Collection[int]]) -> list[AlikeExchange]:
    """Return these exchanges of the flow's step; ``groups``: the ranks of the process groups that the rank is in."""
    messages, size_of = messages_in(flow, profile), group_sizes(profile, flow.thread)
    nested = {
        (len(few), len(many)) for few in groups for many in groups if len(few) < len(many) and set(few) <= set(many)
    }
    sets = Counter(len(each) for each in {frozenset(each) for each in groups})
    alone = {(size, size) for size, count in sets.items() if count == 1}  # else they may be groups of other ranks
    exchanges = [each for each in messages if _EXCHANGES.search(each.name)]
    if not exchanges or not nested | alone:
        return []
    readers, alike = TokenReaders(flow), list[AlikeExchange]()
    for message in messages:
        if not _REDUCES.search(message.name):
            continue
        among = size_of(message.start_ns, message.end_ns) or 0
        # What ranks know of other tokens, as statistics of a batch, makes no tokens alike.
        pairs = nested | alone if readers.size_of_layer(message) is not None else nested
        larger = [each for each in exchanges if (among, size_of(each.start_ns, each.end_ns) or 0) in pairs]
        behind = [each for each in larger if each.start_ns > message.end_ns]
        # Before rows, their numbers may be exchanged.
        there = next((each for each in behind if _numbers(each) >= _numbers(message)), None)
        if there is None or any(there.start_ns in each.sent_ns for each in alike):
            continue
        if there.sent not in _same_on_all(readers, messages, message, among, there.start_ns):
            continue
        back = next((each for each in larger if each.start_ns > there.end_ns), None)
        if back is not None:
            between = _made_of(flow, there, back.start_ns)
            alike.append(
                AlikeExchange(
                    (there.start_ns, back.start_ns),
                    among,
                    frozenset(between),
                    size_of(there.start_ns, there.end_ns) or 0,
                )
            )
    return alike


def _numbers(message: FlowMessage) -> int:
    return max((math.prod(size) for size in message.sizes if size), default=0)


def _same_on_all(
    readers: LayerReaders, messages: list[FlowMessage], message: FlowMessage, ranks: int, before_ns: int
) -> set[int]:
    """Return the names of what is made of what came with a reduction, before an instant and the next reduction, where no rank takes its
    part of it.
    """
    flow, names = readers.flow, set(message.results)
    behind = (each.start_ns for each in messages if _REDUCES.search(each.name) and each.start_ns > message.end_ns)
    until = min((*behind, before_ns))
    for row, end in flow.outermost_spans:
        if not message.end_ns <= flow.start_ns[row] < until:
            continue
        if any(number in names for made in flow.made[row:end] for number in made):
            made = {flow.number[each] for each in range(row, end)}
            if CUTS.match(flow.names[row]):
                whole = max((math.prod(size) for size in readers.sizes[row] if size), default=0)
                parts = {math.prod(size) for each in made if (size := readers.results.get(each))}
                if any(part and part * ranks <= whole for part in parts) or not parts:
                    return set()  # a rank may take its part
            names |= made
    return names


def _made_of(flow: OperatorFlow, message: FlowMessage, until_ns: int) -> set[int]:
    """Return the outermost operators up to a time that are given what came with a message, or what is made of it."""
    names, between = set(message.results), set[int]()
    for row, end in flow.outermost_spans:
        if message.end_ns <= flow.start_ns[row] < until_ns and any(
            number in names for made in flow.made[row:end] for number in made
        ):
            names.update(flow.number[row:end])
            between.add(row)
    return between

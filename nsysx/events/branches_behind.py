"""Branches of a layer that are called behind the exchanges of another one, and need nothing of these: shared beside routed experts.

A layer that sends tokens to experts on other ranks waits for what comes back. A module that it calls behind that, of what was there before
the first exchange, could be at work meanwhile.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from nsysx.events.flow_messages import FlowMessage, messages_in
from nsysx.events.operator_flow import ModuleCall, OperatorFlow
from nsysx.events.operator_names import LAYERS
from nsysx.events.profile import Profile

_EXCHANGES = re.compile(r"all_?to_?all")


class BranchBehind(NamedTuple):
    """A call of a module (``branch``) in that of a layer (``layer``), and when its exchanges begin that the branch needs nothing of."""

    branch: ModuleCall
    layer: ModuleCall
    sent_ns: tuple[int, ...]

    @property
    def attribute(self) -> str:
        """By which name the layer has the branch."""
        return self.branch.path.rpartition(".")[2]


def branches_behind(flow: OperatorFlow, profile: Profile) -> list[BranchBehind]:
    """Return such calls of the flow's step."""
    messages = messages_in(flow, profile)
    by_layer = dict[int, list[FlowMessage]]()
    for message in messages:
        around = [n for n, call in enumerate(flow.calls) if call.start_ns <= message.start_ns < call.end_ns]
        if not around or not _EXCHANGES.search(message.name):
            continue
        theirs = by_layer.setdefault(around[-1], [])
        if not theirs or message.start_ns >= theirs[-1].end_ns:  # what runs in a functional one is the same exchange
            theirs.append(message)
    branches = list[BranchBehind]()
    for number, exchanges in by_layer.items():
        layer = flow.calls[number]
        needing = _needing(flow, layer, messages, exchanges[0])
        last_ns, free_until = exchanges[0].end_ns, 0
        for call in flow.calls:
            within = layer.start_ns <= call.start_ns and call.end_ns <= layer.end_ns and call is not layer
            if (
                not within
                or call.start_ns < max(last_ns, free_until)
                or needing.intersection(range(call.first, call.last))
            ):
                continue
            if _of_earlier(flow, call, exchanges[0].start_ns):
                before = tuple(each.start_ns for each in exchanges if each.start_ns < call.start_ns)
                branches.append(BranchBehind(call, layer, before))
                free_until = call.end_ns
    return branches


def _needing(flow: OperatorFlow, layer: ModuleCall, messages: list[FlowMessage], first: FlowMessage) -> set[int]:
    """Return the operators (rows) of a layer's call that are given anything of what came with a message, or is made of that."""
    names, needing = set(first.results), set[int]()
    waiting = [each for each in messages if first.start_ns < each.start_ns < layer.end_ns]
    for row, end in flow.outermost_spans:
        if not first.end_ns <= flow.start_ns[row] < layer.end_ns:
            continue
        while waiting and waiting[0].end_ns <= flow.start_ns[row]:
            message = waiting.pop(0)
            names |= message.results if message.sent in names or message.sent < 0 else set()
        if any(number in names for made in flow.made[row:end] for number in made):
            names.update(flow.number[row:end])
            needing.update(range(row, end))
    return needing


def _of_earlier(flow: OperatorFlow, call: ModuleCall, at_ns: int) -> bool:
    """Return whether the products of a call are made of what was there at an instant, or of what it makes itself."""
    products = [row for row in flow.outermost_of(call.first, call.last) if flow.names[row] in LAYERS]
    makers = [flow.made[row][LAYERS[flow.names[row]][0]] if flow.made[row] else -1 for row in products]
    rows = [flow.row_of.get(number, -1) for number in makers]
    return bool(rows) and all(row >= 0 and (row >= call.first or flow.end_ns[row] <= at_ns) for row in rows)

"""Branches of a network of split layers that every rank computes whole: layers between two sums over the ranks that are not split.

What a sum over the ranks brings is equal on all of them. A branch that is made of it with whole weights (attention and its projections, a
shared expert) and is added to the residual without a sum of its own is equal on all of them, too: each rank computes all of it. A branch of
split layers ends in a sum before it is added.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from nsysx.events.flow_messages import FlowMessage, messages_in
from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.operator_names import LAYERS
from nsysx.events.profile import Profile
from nsysx.events.whole_tokens import ADDED_UP, TokenReaders, WholeTokens

_ADDS = re.compile(r"^aten::(add|addcmul)_?$")
_ATTENTION = re.compile(r"scaled_dot_product|flash_attn|_efficient_attention")


class WholeBranch(NamedTuple):
    """Outermost operators (``rows`` of the flow) of a branch, its first and last products, and the operator that adds it.

    ``heads``: those of its attention, 0 without one.
    """

    rows: frozenset[int]
    first: tuple[int, ...]
    last: tuple[int, ...]
    adds: int
    heads: int


def whole_branches(flow: OperatorFlow, profile: Profile, whole: WholeTokens) -> list[WholeBranch]:
    """Return the branches that every rank computes whole behind the sums of split layers."""
    return _Branches(flow, whole, messages_in(flow, profile)).found()


class _Branches(TokenReaders):
    """What is equal on all ranks, and what is made of that by layers, in the order of time."""

    def __init__(self, flow: OperatorFlow, whole: WholeTokens, messages: Sequence[FlowMessage]) -> None:
        super().__init__(flow)
        self._messages = list(messages)
        sums = set(whole.sent_ns)
        self._size: Size = next((max(each.sizes, key=math.prod) for each in messages if each.start_ns in sums), ())
        self._tokens = whole.tokens
        self._equal = set[int]()  # numbers of what is equal on all ranks, of each token by itself
        self._maker = dict[int, int]()  # of what layers made of that: the outermost operator that did, by number

    def found(self) -> list[WholeBranch]:
        """Return the branches, in order."""
        branches, waiting = list[WholeBranch](), list(self._messages)
        for row, end in self.flow.outermost_spans:
            while waiting and waiting[0].end_ns <= self.flow.start_ns[row]:
                self._comes(waiting.pop(0))
            read = {number for made in self.flow.made[row:end] for number in made if number >= 0}
            theirs, layered = read & self._equal, {number for number in read if number in self._maker}
            if _ADDS.match(self.flow.names[row]) and theirs and layered:
                branches += self._branch(row, layered)
            self._follow(row, theirs, layered)
        return branches

    def _comes(self, message: FlowMessage) -> None:
        """Note what a message brings: no part, as what is sent; what a sum of outputs or embeddings brings is equal on all ranks."""
        for number in message.results:
            self._maker.pop(number, None)
            self._equal.discard(number)
        if ADDED_UP.match(message.name) and self._size in message.sizes:
            self._equal |= message.results

    def _follow(self, row: int, theirs: set[int], layered: set[int]) -> None:
        """Note what an operator makes: equal on all ranks and of each token, or made of that by layers."""
        made = self._made(row)
        if (
            self.flow.names[row] == "aten::embedding"
        ):  # of a whole table; of a part of one, what is equal comes with a sum behind it
            self._equal |= {number for number in made if self.results.get(number) == self._size}
        if not theirs and not layered:
            return
        by_token = self.flow.names[row] not in LAYERS and self._by_token(row, theirs, self._tokens, self._size[-1])
        # What is added to the residual is part of it.
        if theirs and by_token and (not layered or _ADDS.match(self.flow.names[row])):
            self._equal |= made
            for number in made:
                self._maker.pop(number, None)
        else:
            self._maker.update(dict.fromkeys(made, row))
            self._equal -= made

    def _branch(self, adds: int, layered: set[int]) -> list[WholeBranch]:
        """Return the branch that an operator adds to what is equal on all ranks; none where a message is on its way, or no layer."""
        rows, waiting = set[int](), [self._maker[number] for number in layered]
        while waiting:
            row = waiting.pop()
            if row in rows:
                continue
            rows.add(row)
            read = {number for made in self.flow.made[row : self._inside(row).stop] for number in made}
            waiting += [self._maker[n] for n in read if n in self._maker and self._maker[n] < row]
        start, end = int(self.flow.start_ns[min(rows)]), int(self.flow.start_ns[adds])
        products = [row for row in sorted(rows) if self.flow.names[row] in LAYERS]
        if not products or any(start <= message.start_ns < end for message in self._messages):
            return []
        behind = {row: self._products_before(row, rows) for row in products}
        first = tuple(row for row in products if not behind[row])
        last = tuple(row for row in products if not any(row in before for before in behind.values()))
        return [WholeBranch(frozenset(rows), first, last, adds, max(map(self._heads, rows)))]

    def _products_before(self, row: int, rows: set[int]) -> set[int]:
        """Return the products of a branch that one of its operators is made of."""
        before, seen, waiting = set[int](), {row}, [row]
        while waiting:
            inside = self._inside(waiting.pop())
            for number in {n for made in self.flow.made[inside.start : inside.stop] for n in made}:
                maker = self._maker.get(number, -1)
                if maker in rows and maker not in seen and maker < inside.start:
                    seen.add(maker)
                    waiting.append(maker)
                    before |= {maker} if self.flow.names[maker] in LAYERS else set()
        return before

    def _heads(self, row: int) -> int:
        """Return the heads of an attention (batch, heads, tokens, size), 0 for another operator."""
        size = self.sizes[row][0] if self.sizes[row] else ()
        return size[1] if _ATTENTION.search(self.flow.names[row]) and len(size) == 4 else 0

"""What every rank works on all tokens for, between layers that are split over the ranks: norms, dropout, residuals, conversions.

A split layer's output is added up over the ranks, so each of them has all of it. Until the next layer multiplies it by weights, each token
is worked on by itself, alike on every rank: with tokens that are shared out (sequence parallelism) each rank does its part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from nsysx.events.flow_messages import FlowMessage, messages_in
from nsysx.events.layer_readers import LayerReaders
from nsysx.events.message_calls import group_sizes
from nsysx.events.messages_of_layers import outermost_messages
from nsysx.events.narrowed_operators import ELEMENTWISE, Size
from nsysx.events.operator_bounds import FEWEST_SUMS_OF_LAYERS
from nsysx.events.operator_flow import OperatorFlow, is_view
from nsysx.events.operator_names import LAYERS
from nsysx.events.profile import Profile

ADDED_UP = re.compile(r"^(c10d::allreduce_|_c10d_functional::all_reduce_?)$")
_NORMS = re.compile(r"^aten::(native_)?(layer_norm|rms_norm|_fused_rms_norm)$")
#: What adds up over the last dimension, if its result has a number for each token.
_ADDS_UP = re.compile(r"^aten::(mean|sum|amax|amin|norm|linalg_vector_norm|var|std|var_mean)$")
#: What reads no numbers of a tensor.
_LIKE = re.compile(r"^aten::(new_\w+|\w+_like|empty\w*|detach_?)$")


class WholeTokens(NamedTuple):
    """Outermost operators (rows of the flow, ``between``) that work on all tokens behind messages (when each begins, ``sent_ns``) of split
    layers among ``ranks``; the ``tokens`` that each rank has, and the products that are made of them (``products``).
    """

    sent_ns: tuple[int, ...]
    between: frozenset[int]
    products: frozenset[int]
    ranks: int
    tokens: int


def whole_tokens(flow: OperatorFlow, profile: Profile) -> WholeTokens | None:
    """Return the operators on all tokens; None where no layers are added up over the ranks."""
    reductions = [each for each in outermost_messages(messages_in(flow, profile)) if ADDED_UP.match(each.name)]
    if not reductions:
        return None
    search, ranks_of = TokenReaders(flow), group_sizes(profile, flow.thread)
    sums = [(each, size) for each in reductions if (size := search.size_of_layer(each)) is not None]
    tokens = max((math.prod(size[:-1]) for _, size in sums), default=0)
    ranks = [ranks_of(each.start_ns, each.end_ns) or 1 for each, _ in sums]
    sums = [
        each
        for each, among in zip(sums, ranks, strict=True)
        if among == max(ranks) and math.prod(each[1][:-1]) == tokens
    ]
    among = max(ranks, default=1)
    if among < 2 or len(sums) < FEWEST_SUMS_OF_LAYERS or not tokens or tokens % among:
        return None
    between, products = set[int](), set[int]()
    for message, size in sums:
        search.follow(message, size, between, products)
    return WholeTokens(tuple(each.start_ns for each, _ in sums), frozenset(between), frozenset(products), among, tokens)


class TokenReaders(LayerReaders):
    """Who works on each token by itself."""

    def size_of_layer(self, message: FlowMessage) -> Size | None:
        """Return the size of the output of a layer that a message adds up, None where it adds up something else."""
        size = max((each for each in message.sizes if each), key=math.prod, default=())
        row = self.flow.row_of.get(self.base_of(message.sent)[0])
        if row is None or len(size) < 2:
            return None
        outer = max((each for each in self.flow.outermost if each <= row), default=row)
        return size if not LAYERS.keys().isdisjoint((self.flow.names[row], self.flow.names[outer])) else None

    def follow(self, message: FlowMessage, size: Size, between: set[int], products: set[int]) -> None:
        """Add the outermost operators that work on each token of what came, and the products that these are given to."""
        flow, tokens, width = self.flow, math.prod(size[:-1]), size[-1]
        names = set(message.results)
        for row, end in flow.outermost_spans:
            if flow.start_ns[row] < message.end_ns or names.isdisjoint(n for made in flow.made[row:end] for n in made):
                continue
            name = flow.names[row]
            if name in LAYERS:
                products.add(row)
                continue
            if _LIKE.match(name) or not self._by_token(row, names, tokens, width):
                continue
            names |= self._made(row)
            if not is_view(name):
                between.add(row)

    def _by_token(self, row: int, names: set[int], tokens: int, width: int) -> bool:
        """Return whether an operator works on each token by itself: of that many, each of so many numbers or one."""
        name, sizes = self.flow.names[row], self.sizes[row]
        if _NORMS.match(name):  # over the last dimension, as its weights say
            return all(not size or size == (width,) for size in sizes[1:])
        theirs = [size for n, size in zip(self.flow.made[row], sizes, strict=False) if n in names and size]
        if not all(math.prod(size) in (tokens, tokens * width) for size in theirs):
            return False
        if _ADDS_UP.match(name):
            made: Sequence[Size] = [each for n in self._made(row) if (each := self.results.get(n))]
            return any(math.prod(each) == tokens for each in made)
        return is_view(name) or self.hands_on(row) or bool(ELEMENTWISE.match(name))

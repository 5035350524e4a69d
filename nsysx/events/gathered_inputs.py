"""Rows of all ranks that a network works on one by one where nothing is trained: each rank could have given it its own ones.

Of a gather of inputs, a batch or the tokens of a frozen network, the rows are followed through what works on each of them by itself, up
to what reads those of several ranks: there they are needed, and a gather of what was made of them would bring them. Weights that are
older than the step are the same on all ranks unless each has its part of a network, its own experts, or its part of an index: then what
is made of the rows goes to the other ranks.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.flow_messages import FlowMessage, messages_in
from nsysx.events.gathered_losses import RowsInFlow
from nsysx.events.messages_of_layers import LayerSearch, outermost_messages
from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.outputs_cut_again import Needed, Parts
from nsysx.events.profile import Profile

#: What puts samples together, or samples of one into another place, is of each of the first dimension: images and what lies in them.
_OF_SAMPLES = re.compile(
    r"^aten::(conv[123]d|conv_transpose[123]d|(adaptive_)?(max|avg)_pool[123]d|upsample_\w+|_upsample_\w+|group_norm|instance_norm|"
    r"pixel_(un)?shuffle|constant_pad_nd|pad|reflection_pad\w+|im2col)$"
)
_CONVOLVES = re.compile(r"^aten::conv")
#: What returns pieces as a list.
_INTO_PIECES = re.compile(r"^aten::((tensor_)?split\w*|chunk)$")
_LOOKS_UP, _OF_BATCH = "aten::embedding", "aten::batch_norm"
_BATCH_NORM = re.compile(r"BatchNorm[123]d$")
_SUMS = re.compile(r"^aten::(mean|sum|amax|amin)$")
#: Collectives that move, or add up, more than a number of each row; those of parameters and buffers are of no row.
_SENT_ON = re.compile(r"gather|reduce|all_?to_?all")


class GatheredInput(NamedTuple):
    """A gather of the flow's thread (from ``start_ns`` on) among ``ranks``, of so many ``rows``.

    ``between``: the outermost operators (rows of the flow) that work on each of the rows by itself, ``readers``: those that read rows of
    several ranks then. ``made_share``: numbers that these read, of those that were gathered. ``gathers``: the GPU ops that gather.
    """

    start_ns: int
    ranks: int
    rows: int
    between: frozenset[int]
    readers: frozenset[int]
    made_share: float
    gathers: frozenset[int]


def gathered_inputs(profile: Profile) -> tuple[GatheredInput, ...]:
    """Return the gathers of the shown process whose rows are worked on one by one, none where no X-ray says so.

    Gradients may go through what they are worked on by.
    """
    return profile.once(_find)


def _find(profile: Profile) -> tuple[GatheredInput, ...]:
    flow, code = flow_of(profile), profile.code()
    if flow is None or code is None:
        return ()
    search, inputs = LayerSearch(flow), list[GatheredInput]()
    comm = profile.steady_ops.filter(profile.steady_ops["cls"] == DeviceActivity.COMM.value)["op"]
    stacks = code.op[comm.to_numpy()]
    messages = outermost_messages(messages_in(flow, profile))
    for message in messages:
        came = search.came(message) if "gather" in message.name and message.sent in flow.row_of else None
        if came is None:
            continue
        used = _RowsUsed(search, message, came.ranks, came.part).used(came.numbers)
        if used is None or _goes_on(flow, messages, message, used):
            continue
        stack = int(code.at(flow.thread, np.array([message.start_ns]))[0])
        ops = comm.filter(pl.Series(stacks == stack, dtype=pl.Boolean))
        inputs.append(used._replace(gathers=frozenset(ops.to_list())))
    return tuple(inputs)


def _goes_on(flow: OperatorFlow, messages: list[FlowMessage], gather: FlowMessage, used: GatheredInput) -> bool:
    """Return whether what is made of the rows may go to other ranks: each may have a part of what makes it.

    Of what was made before the step begins that is not known.
    """
    made = {flow.number[row] for row in used.between | used.readers}
    for row, given in enumerate(flow.made):
        if not made.isdisjoint(given):
            made.add(flow.number[row])
    large = (
        each
        for each in messages
        if _SENT_ON.search(each.name) and max(map(math.prod, each.sizes), default=0) >= used.rows
    )
    return any(
        each.sent in made if each.start_ns > gather.start_ns else each.sent not in flow.row_of
        for each in large
        if each is not gather
    )


class _RowsUsed(RowsInFlow):
    """Follows the rows of the ranks from what came with a gather to what reads those of several ranks."""

    def used(self, numbers: set[int]) -> GatheredInput | None:
        """Return what works on each row by itself, None where what is made of the rows is no smaller than what came."""
        self._begin()
        self._users = set[int]()
        if not self._all_read(numbers) or self._cuts or not self._users:
            return None
        between = frozenset(self._between - self._users)
        whole = self._ranks * math.prod(self._sent)
        made = sum(math.prod(self._parts[number].shape) for number in self._bases()) / whole
        if not between or not 0 < made < 1 or self._within_a_call(between):
            return None
        return GatheredInput(
            self._message.start_ns,
            self._ranks,
            self._ranks * (self._sent[0] if self._sent else 1),
            between,
            frozenset(self._users),
            made,
            frozenset(),
        )

    def _bases(self) -> set[int]:
        """Return the numbers of what the users read, as it was before it was viewed in other ways."""
        read = {number for row in self._users for number in self._numbers_read(row)}
        bases = set[int]()
        for number in read:
            base, _ = self._search.base_of(number)
            bases.add(base if base in self._parts else number)
        return bases

    def _numbers_read(self, row: int) -> Iterator[int]:
        end = int(np.searchsorted(self._flow.start_ns, self._flow.end_ns[row]))
        return (
            number
            for each in range(row, max(end, row + 1))
            for number in self._flow.made[each]
            if number in self._parts
        )

    def _within_a_call(self, between: frozenset[int]) -> bool:
        """Return whether a network that works on the rows needs those of several ranks itself."""
        calls = [call for call in self._flow.calls if call.start_ns >= self._message.end_ns]
        return any(
            any(call.first <= row < call.last for row in self._users)
            and any(call.first <= row < call.last for row in between)
            for call in calls
        )

    def _read(self, row: int) -> None:
        if not any(number in self._parts for number in self._numbers_read(row)):
            return
        try:
            super()._read(row)
        except Needed:
            self._users.add(row)
        if row in self._losses:
            self._losses.discard(row)
            self._users.add(row)

    def _worked_on(self, row: int, given: list[Parts], size: Size) -> Parts | None:
        name, first, flow = self._flow.names[row], given[0], self._flow
        samples = all(d == 0 for d, _ in first.places) and size[:1] == first.shape[:1]
        if _OF_SAMPLES.match(name):
            weight = flow.made[row][1] if _CONVOLVES.match(name) else -1
            return Parts(size, first.places) if samples and len(given) == 1 and self._is_whole(weight) else None
        if name == _OF_BATCH:
            return Parts(size, first.places) if samples and self._is_evaluated(row) else None
        if name == _LOOKS_UP:
            rows = len(flow.made[row]) > 1 and flow.made[row][1] in self._parts and flow.made[row][0] not in self._parts
            whole = rows and self._is_whole(flow.made[row][0]) and size[:-1] == first.shape
            return Parts(size, first.places) if whole else None
        if _SUMS.match(name) and len(size) < len(first.shape):
            return _kept(first, size)
        if name == "aten::expand_as":
            return self._each_number(given, size)
        return super()._worked_on(row, given, size)

    def _cut_along(
        self, row: int, parts: Parts, dimension: int, number: int, size: Size, *, among: int, alone: bool
    ) -> None:
        """Hold pieces of the rows that an operator returns as a list, if all of them are read."""
        flow = self._flow
        given = ((reader, n, which) for reader in self._readers_of(number, row) for n, which in self._arguments(reader))
        pieces = {which for _, n, which in given if n == number}
        if (
            _INTO_PIECES.match(flow.names[row])
            and among == 1
            and len(pieces) * size[dimension] >= parts.shape[dimension]
        ):
            self._hold(number, Parts(size, frozenset({(dimension, 1)})), row)
            return
        super()._cut_along(row, parts, dimension, number, size, among=among, alone=alone)

    def _arguments(self, row: int) -> Iterator[tuple[int, int]]:
        return zip(self._flow.made[row], self._flow.which[row], strict=False)

    def _is_evaluated(self, row: int) -> bool:
        """Return whether a batch norm uses the statistics that it has: one that is training counts its batches in its module."""
        inside = [call for call in self._flow.calls if call.first <= row < call.last]
        if not inside or not _BATCH_NORM.search(inside[-1].cls):
            return False
        names = self._flow.names[inside[-1].first : inside[-1].last]
        return "aten::add_" not in names


def _kept(parts: Parts, size: Size) -> Parts | None:
    """Return the parts of what is summed over some dimensions, None where these may be those of the rows."""
    shape = parts.shape
    ways = [
        kept
        for kept in itertools.combinations(range(len(shape)), len(size))
        if tuple(shape[d] for d in kept) == tuple(size)
    ]
    places = [frozenset((kept.index(d), length) for d, length in parts.places if d in kept) for kept in ways]
    return Parts(size, places[0]) if len(set(places)) == 1 and places[0] else None

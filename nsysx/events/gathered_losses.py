"""Losses that every rank computes of the rows of all ranks, which it has gathered, with weights that all ranks hold whole.

Rows of a batch or positions of a sequence that a head, a cast and a loss work on one by one need no row of another rank: where gradients
are averaged over the ranks, the mean of the ranks' own rows is that of all of them. A gather whose gradients are added up over the ranks on
the way back says that each rank goes on with its own rows before it.

A weight that is made in the step, or cut of another one, may be another part of it on each rank: then all rows are needed. So are those
that are compared with each other, and what a norm or attention over the rows of several ranks makes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.flow_messages import messages_in
from nsysx.events.message_calls import with_messages
from nsysx.events.messages_of_layers import LayerSearch, outermost_messages
from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_bounds import FEWEST_LEFT_OF_ROWS
from nsysx.events.operator_flow import OperatorFlow, flow_of, is_view
from nsysx.events.operator_names import TURNS
from nsysx.events.outputs_cut_again import CUTS, TOGETHER, Parts, PartsInFlow
from nsysx.events.profile import Profile

#: Products of rows with a weight -> which argument the rows are; the weight is the next one.
_PRODUCTS = {"aten::linear": 0, "aten::matmul": 0, "aten::mm": 0, "aten::addmm": 1}
#: What makes a number of classes, or of what is compared number by number; ``reduction="none"`` leaves one of each row.
_OF_CLASSES = re.compile(r"^aten::(cross_entropy_loss|nll_loss(2d|_nd)?)$")
_OF_NUMBERS = re.compile(
    r"^aten::(mse_loss|l1_loss|smooth_l1_loss|huber_loss|binary_cross_entropy(_with_logits)?|kl_div|soft_margin_loss)$"
)
_SUMS = re.compile(r"^aten::(mean|sum)$")
#: What makes of each row one of as many numbers, or one number.
_SAME_ROWS = re.compile(r"^aten::log_softmax$")
_OF_ROWS = re.compile(r"^aten::(logsumexp|argmax|amax|max|gather|topk|softmax)$")
#: What works on each number, besides what layers do.
_EACH_NUMBER = re.compile(r"^aten::(log|log1p|expm1|abs|rsub|log_sigmoid|maximum|minimum|eq|ne|lt|gt|le|ge|clone)$")
#: What brings rows into another order, as it is given or by numbers.
_REORDERS, _BY_NUMBER = re.compile(r"^aten::(flip|roll)$"), re.compile(r"^aten::(index|index_select)$")
#: What is made of a mean that is no mean of the ranks' means.
_NOT_OF_SUMS = re.compile(r"^aten::(sqrt|rsqrt|log|pow|reciprocal|square)_?$")


class GatheredLoss(NamedTuple):
    """A gather of the flow's thread (from ``start_ns`` on) among ``ranks``, of whose rows nothing but losses is made.

    ``rows``: the outermost operators (rows of the flow) that work on the rows of all ranks, ``joins``: those that put them together.
    ``losses``: those of ``rows`` that make a number of them. ``whole``: the size of what came, in which the ranks' parts lie one behind the
    other along ``dimension``; ``smallest``: numbers of the smallest weight that it is multiplied by, 0 for none.
    ``gathers``: the GPU ops of the steady steps that gather this, and that send its gradient back. ``reordered``: the rows are brought into
    another order before the losses, as of sequences whose chunks are dealt out to the ranks.
    """

    start_ns: int
    ranks: int
    rows: frozenset[int]
    joins: frozenset[int]
    losses: frozenset[int]
    whole: Size
    dimension: int
    smallest: int
    gathers: frozenset[int] = frozenset()
    reordered: bool = False


class _Came(NamedTuple):
    """A message of steady steps: its communicator, and its bytes."""

    communicator: str
    bytes: int


def gathered_losses(profile: Profile) -> tuple[GatheredLoss, ...]:
    """Return the gathers of the shown process of whose rows only losses are made, none where no X-ray or no notes of NCCL say so."""
    return profile.once(_find)


def _find(profile: Profile) -> tuple[GatheredLoss, ...]:
    flow, code = flow_of(profile), profile.code()
    if flow is None or code is None or profile.trace.nccl is None:
        return ()
    search = LayerSearch(flow)
    of_ops = profile.once(with_messages)
    steady = of_ops.filter(of_ops["op"].is_in(profile.steady_ops["op"].implode()) & of_ops["bytes"].is_not_null())
    losses = list[GatheredLoss]()
    for message in outermost_messages(messages_in(flow, profile)):
        came = search.came(message) if "gather" in message.name and message.sent in flow.row_of else None
        if came is None:
            continue
        of_rows = RowsInFlow(search, message, came.ranks, came.part)
        loss = of_rows.to_losses(came.numbers)
        stack = int(code.at(flow.thread, np.array([message.start_ns]))[0])
        here = steady.filter(
            (steady["kind"] == "allgather") & pl.Series(code.op[steady["op"].to_numpy()] == stack, dtype=pl.Boolean)
        )
        sent = {_Came(*row) for row in here["communicator", "bytes"].iter_rows()}
        if loss is None or len(sent) != 1:
            continue
        (each,) = sent
        back, like = _sent_back(steady, each, came.ranks), _like(steady, each)
        if back.height < like.height:
            continue  # each rank has the gradients of its own losses alone
        ops = {*here["op"].to_list(), *(back["op"].to_list() if back.height == here.height else ())}
        losses.append(loss._replace(gathers=frozenset(ops)))
    return tuple(losses)


def _like(steady: pl.DataFrame, sent: _Came) -> pl.DataFrame:
    """Return the gathers of as many bytes among the same ranks, those of backward left out."""
    here = (steady["communicator"] == sent.communicator) & (steady["bytes"] == sent.bytes)
    back = (steady["phase"] == "backward").fill_null(value=False)
    return steady.filter(here & (steady["kind"] == "allgather") & ~back)


def _sent_back(steady: pl.DataFrame, sent: _Came, ranks: int) -> pl.DataFrame:
    """Return the messages of backward that add up the gradients of a gather, and give each rank its own."""
    adds = (steady["kind"] == "reducescatter") & (steady["bytes"] == sent.bytes)
    adds |= (steady["kind"] == "allreduce") & (steady["bytes"] == sent.bytes * ranks)
    among = (steady["communicator"] == sent.communicator) & (steady["phase"] == "backward").fill_null(value=False)
    return steady.filter(adds & among)


class RowsInFlow(PartsInFlow):
    """Follows the rows of the ranks from what came with a gather to the losses that are made of them."""

    def to_losses(self, numbers: set[int]) -> GatheredLoss | None:
        """Return what is made of all rows, None where something needs those of several ranks, or other than losses is made."""
        self._begin()
        if not self._all_read(numbers) or not self._losses or self._cuts or self._came_as is None:
            return None
        rows, joins = frozenset(self._between - self._joins), frozenset(self._joins)
        shape, places = self._came_as.shape, self._came_as.places
        reordered = any(not CUTS.match(self._flow.names[row]) for row in self._orders.values())
        along = min((d for d, length in places if reordered or shape[d] == self._ranks * length), default=0)
        smallest, losses = min(self._weights, default=0), frozenset(self._losses)
        return GatheredLoss(
            self._message.start_ns, self._ranks, rows, joins, losses, shape, along, smallest, reordered=reordered
        )

    def _begin(self) -> None:
        self._losses, self._weights = set[int](), list[int]()
        self._came_as: Parts | None = None
        self._orders = dict[
            int, int
        ]()  # of a tensor whose rows lie in another order than they came: the operator that made it

    def _hold(self, number: int, parts: Parts | None, row: int) -> None:
        orders = {self._orders.get(n, -1) for n in self._flow.made[row] if n in self._parts}
        if parts is not None and self._is_reordered(row, orders):
            self._orders[number] = row
        elif len(orders) > 1:
            self._need()  # rows of other places are put beside each other
        elif orders - {-1}:
            self._orders[number] = orders.pop()
        if parts is not None and not self._weights and math.prod(parts.shape) == self._ranks * math.prod(self._sent):
            self._came_as = parts  # as it is given to the first product
        super()._hold(number, parts, row)

    def _is_reordered(self, row: int, orders: set[int]) -> bool:
        name = self._flow.names[row]
        together = TOGETHER.match(name) and (len(orders) > 1 or self._joins_rows(row))
        return bool(_REORDERS.match(name) or _BY_NUMBER.match(name) or together)

    def _joins_rows(self, row: int) -> bool:
        """Return whether tensors are put together one behind the other in the order of their rows, or of their ranks."""
        given = [self._parts[n] for n in self._flow.made[row] if n in self._parts]
        return row not in self._joins and any(
            math.prod(size) == sum(math.prod(parts.shape) for parts in given)
            and self._lengthened(given, size) is not None
            for size in self._search.made_of(row).values()
        )

    @staticmethod
    def _lengthened(given: list[Parts], size: Size) -> Parts | None:
        """Return the rows of all that is put together along the dimension of rows, None where it is another one, or more is."""
        shape = given[0].shape
        longer = [d for d, (a, b) in enumerate(zip(size, shape, strict=False)) if a != b]
        if len(size) != len(shape) or len(longer) != 1 or len(given) < 2:
            return None
        (along,) = longer
        of_rows = all(along in {d for d, _ in parts.places} for parts in given)
        return (
            Parts(size, frozenset({(along, 1)}))
            if of_rows and size[along] == sum(p.shape[along] for p in given)
            else None
        )

    def _read(self, row: int) -> None:
        name = self._flow.names[row]
        if not (_OF_CLASSES.match(name) or _OF_NUMBERS.match(name) or _SUMS.match(name)):
            super()._read(row)
            return
        made, given = self._search.made_of(row), [parts for parts, _ in self._parts_given(row)]
        if not given or not made or any(math.prod(size) != 1 for size in made.values()):
            super()._read(row)  # a number of each row
            return
        if (_OF_CLASSES.match(name) and self._over_classes(given[0], ()) is None) or self._is_read_otherwise(made):
            self._need()
        self._between.add(row)
        self._losses.add(row)

    def _is_read_otherwise(self, made: Mapping[int, Size]) -> bool:
        readers = (self._flow.names[reader] for n in made for reader, _ in self._search.read_behind(n, -1))
        return any(_NOT_OF_SUMS.match(name) for name in readers)

    def _over_classes(self, parts: Parts, size: Size) -> Parts | None:
        """Return where the rows lie in numbers of each row; the classes are the last dimension of two, else the second one."""
        of_classes = min(1, len(parts.shape) - 1)
        if any(d == of_classes for d, _ in parts.places):
            return None
        return Parts(size, frozenset((d - (d > of_classes), length) for d, length in parts.places))

    def _worked_on(self, row: int, given: list[Parts], size: Size) -> Parts | None:
        name, first, last = self._flow.names[row], given[0], len(given[0].shape) - 1
        if name in _PRODUCTS:
            return self._times_weight(row, first, size)
        if _OF_CLASSES.match(name):
            return self._over_classes(first, size)
        if _OF_NUMBERS.match(name) or _EACH_NUMBER.match(name):
            return self._each_number(given, size)
        if _SAME_ROWS.match(name):
            return first if size == first.shape and all(d < last for d, _ in first.places) else None
        if _OF_ROWS.match(name) or (_SUMS.match(name) and size == first.shape[:-1]):
            apart = size[:last] == first.shape[:last] and all(d < last for d, _ in first.places)
            # Of a square, sizes do not say whether numbers are of its rows or of its columns.
            told = len(size) > last or all(first.shape[d] != first.shape[last] for d, _ in first.places)
            return Parts(size, first.places) if apart and told else None
        if TOGETHER.match(name) and (joined := self._lengthened(given, size)) is not None:
            return joined
        if _REORDERS.match(name) or _BY_NUMBER.match(name):
            return self._in_another_order(row, first, size)
        if is_view(name) and not TURNS.match(name) and self._orders and math.prod(size) == math.prod(first.shape):
            return (
                _merged(first, size)
                if any(n in self._orders for n in self._flow.made[row])
                else super()._worked_on(row, given, size)
            )
        return super()._worked_on(row, given, size)

    def _in_another_order(self, row: int, parts: Parts, size: Size) -> Parts | None:
        """Return the rows in another order; by numbers that are older than the step each comes once."""
        if size != parts.shape:
            return None
        if _BY_NUMBER.match(self._flow.names[row]):
            numbers, of_index = self._flow.made[row], self._search.sizes[row]
            index = next((n for n, each in enumerate(of_index) if n and len(each) == 1), 0)
            rows = {d for d, _ in parts.places if index and of_index[index] == (parts.shape[d],)}
            if len(parts.places) != 1 or len(rows) != 1 or not self._is_whole(numbers[index]):
                return None
        return Parts(size, frozenset((d, 1) for d, _ in parts.places))

    def _times_weight(self, row: int, rows: Parts, size: Size) -> Parts | None:
        """Return the rows that come of a product with a weight that is whole on each rank; None for others."""
        argument, flow = _PRODUCTS[self._flow.names[row]], self._flow
        made, sizes = flow.made[row], self._search.sizes[row]
        alone = [each for each, number in enumerate(made) if number in self._parts] == [argument]
        last = len(rows.shape) - 1
        apart = all(d < last for d, _ in rows.places) and size[:last] == rows.shape[:last]
        if not alone or not apart or len(sizes[argument + 1]) != 2 or not self._is_whole(made[argument + 1]):
            return None
        self._weights.append(math.prod(sizes[argument + 1]))
        return Parts(size, rows.places)

    def _is_whole(self, number: int) -> bool:
        """Return whether a weight is one that is older than the step, converted or turned at most."""
        flow = self._flow
        while number in flow.row_of:
            row = flow.row_of[number]
            if not self._search.hands_on(row) or not flow.made[row]:
                return False
            number = flow.made[row][0]
        return number < 0 or number < min(flow.number)  # not what a collective of the step brings

    def _cut_along(
        self, row: int, parts: Parts, dimension: int, number: int, size: Size, *, among: int, alone: bool
    ) -> None:
        """Hold what is cut between rows: most of them, as without the last position, or all of them one piece after the other."""
        if (
            alone
            and among == self._ranks
            and any(TOGETHER.match(self._flow.names[r]) for r in self._readers_of(number, row))
        ):
            super()._cut_along(row, parts, dimension, number, size, among=among, alone=alone)
            return
        whole, here = parts.shape[dimension], size[dimension]
        most = among == 1 and whole - here <= here / FEWEST_LEFT_OF_ROWS
        if not most and among * here < whole:
            self._need()
        self._hold(number, Parts(size, frozenset({(dimension, 1)})), row)
        if here < whole:
            self._orders.setdefault(number, row)

    def _readers_of(self, number: int, row: int) -> list[int]:
        return [reader for reader, _ in self._search.read_behind(number, row)]


def _merged(parts: Parts, size: Size) -> Parts | None:
    """Return the rows in a view of rows that lie in another order: a dimension of theirs may not be divided."""
    places = set[tuple[int, int]]()
    for dimension, _ in parts.places:
        first = math.prod(parts.shape[dimension + 1 :])
        last = first * parts.shape[dimension]
        behind = [math.prod(size[d + 1 :]) for d in range(len(size))]
        places |= {(d, 1) for d, length in enumerate(size) if behind[d] <= first and last <= behind[d] * length}
    return Parts(size, frozenset(places)) if places else None


def module_at(flow: OperatorFlow, row: int) -> str:
    """Return the path of the innermost module that an operator lies in, "" for none."""
    at_ns = int(flow.start_ns[row])
    around = [call.path for call in flow.calls if call.start_ns <= at_ns < call.end_ns]
    return around[-1] if around else ""


def is_alike(first: OperatorFlow, loss: GatheredLoss, second: OperatorFlow, other: GatheredLoss) -> bool:
    """Return whether two ranks compute a loss with the same operators, sizes and modules."""
    every = (
        [(flow.names[row], flow.size[row], module_at(flow, row)) for row in sorted(each.rows)]
        for flow, each in ((first, loss), (second, other))
    )
    ours, theirs = every
    return ours == theirs

"""Messages of rows that were copied before they are sent: each byte of a copy but the first could be made where it arrives.

What copies rows, and what of it is sent, sizes and what made what of an X-ray step tell: heads that are repeated before a gather, tokens
that are repeated, or picked several times, before an exchange.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

from nsysx.events.collective_operators import collective_operators
from nsysx.events.copied_rows import CopyingOf, copies_by_number
from nsysx.events.flow_messages import FlowMessage, messages_in, place_of_sent
from nsysx.events.message_calls import group_sizes
from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_bounds import FEWEST_COPIES
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.profile import Profile
from nsysx.events.result_readers import ResultReaders

#: Collectives after which each rank can copy what came as the sender did before: those that scatter cut what they are given by place.
_SENDS = re.compile(r"all_?gather|all_?reduce|broadcast|all_?to_?all|::send$")
_EXCHANGES = re.compile(r"all_?to_?all")
_TOGETHER = re.compile(r"^aten::(cat|concat|concatenate|stack)$")
_REPEATS = re.compile(r"^aten::(repeat|tile|repeat_interleave|expand(_as)?|broadcast_to)$")
#: What puts rows in another order, or hands them on in the size of another tensor: as many come as go.
#: What takes a part of a tensor, along one dimension.
_PIECES = re.compile(r"^aten::((tensor_)?split(_with_sizes)?|chunk|narrow|slice)$")
#: Copies of a row that lie side by side, in a dimension of their own or not.
_SIDE_BY_SIDE = re.compile(r"^aten::(repeat_interleave|expand(_as)?|broadcast_to)$")
#: An exchange of lists of tensors: of what comes, and of what goes to each rank.
_OF_LISTS = re.compile(r"^c10d::alltoall_$")
_ORDERS = re.compile(r"^aten::(index|index_select|gather|roll|flip|view_as|reshape_as)$")


class SentCopies(NamedTuple):
    """A collective (from ``start_ns`` on) that sends so many ``numbers``, and which share of them need not be sent.

    ``copying``: the operator (row of the flow) that copies; ``times``: how many copies of a row are sent, on average. ``exchange``: each
    rank is sent other rows. ``back``: it brings back what was made of copies that an exchange sent. ``heads``: what it sends are heads, or
    other rows of several dimensions, that were repeated in their order; ``split``: each rank can be sent as many as any other.
    """

    start_ns: int
    numbers: int
    needless: float
    copying: int
    times: float
    exchange: bool
    back: bool
    heads: bool = False
    split: bool = False


class _Origin(NamedTuple):
    """Of what a tensor is made: so many ``numbers`` before they were copied, and what copied them."""

    numbers: float
    copying: tuple[CopyingOf, ...]


def sent_copies(flow: OperatorFlow, profile: Profile) -> tuple[list[SentCopies], dict[int, int]]:
    """Return the messages of copies, and of each message of the flow (by its start) how many numbers it sends."""
    messages, lists = messages_in(flow, profile), _lists(flow, profile)
    numbers = {each.start_ns: math.prod(_size(each)) for each in messages if _size(each)}
    numbers |= {each.start_ns: sum(math.prod(size) for _, size in each.parts) for each in lists}
    return list(_SentRows(flow, profile, messages, lists).all()) if numbers else [], numbers


class _SentLists(NamedTuple):
    """An exchange of a list: the number and the size of what goes to each rank."""

    start_ns: int
    parts: tuple[tuple[int, Size], ...]


def _lists(flow: OperatorFlow, profile: Profile) -> list[_SentLists]:
    """Return the exchanges of lists, those that begin with what comes from each rank."""
    named = [each for each in collective_operators(flow, profile) if _OF_LISTS.match(each.name)]
    tensors = [(each, [a for a in zip(each.given, each.sizes, strict=False) if a[1]]) for each in named]
    whole = [(each, listed) for each, listed in tensors if listed and len(listed) % 2 == 0]
    return [_SentLists(each.start_ns, tuple(listed[len(listed) // 2 :])) for each, listed in whole]


class _SentRows(ResultReaders):
    def __init__(
        self, flow: OperatorFlow, profile: Profile, messages: list[FlowMessage], lists: list[_SentLists]
    ) -> None:
        super().__init__(flow)
        self._profile = profile
        self._messages, self._lists = messages, lists

    def all(self) -> Iterator[SentCopies]:
        """Yield the messages of copies, and those that bring back what other ranks made of them."""
        yield from filter(None, map(self._copies_in_list, self._lists))
        exchanged = list[tuple[tuple[Size, ...], SentCopies]]()
        for each in self._messages:
            if not _SENDS.search(each.name) or not _size(each):
                continue
            exchange = bool(_EXCHANGES.search(each.name))
            back = next((sent for sizes, sent in exchanged if exchange and sizes == each.sizes[1::-1]), None)
            copies = self._copies_in(each, exchange=exchange)
            if copies is not None:
                yield copies
                if exchange and len(each.sizes) > 1 and _is_of_rows(_size(each)):
                    exchanged.append((each.sizes[:2], copies))
            elif back is not None:
                yield back._replace(start_ns=each.start_ns, numbers=math.prod(_size(each)), back=True)

    def _copies_in(self, each: FlowMessage, *, exchange: bool) -> SentCopies | None:
        size = _size(each)
        origin, whole = self._origin(each.sent, size), math.prod(size)
        if not origin.copying or not origin.numbers or whole < FEWEST_COPIES * origin.numbers:
            return None
        times, ranks = whole / origin.numbers, self._ranks(each) if exchange else 1
        if ranks is None or times < FEWEST_COPIES * ranks:  # each rank may need its own
            return None
        copying = max(origin.copying, key=lambda copies: copies.copies)
        of_heads = self._of_heads(copying, size, ranks)
        return SentCopies(each.start_ns, whole, 1 - ranks / times, copying.row, times, exchange, False, *of_heads)

    def _copies_in_list(self, each: _SentLists) -> SentCopies | None:
        """Return the copies that an exchange of a list sends: of what goes to one rank none need be sent."""
        origins = [self._origin(number, size) for number, size in each.parts]
        whole, needed = sum(math.prod(size) for _, size in each.parts), sum(origin.numbers for origin in origins)
        copying = max((c for origin in origins for c in origin.copying), key=lambda copies: copies.copies, default=None)
        if copying is None or not needed or whole < FEWEST_COPIES * needed:
            return None
        of_heads = self._of_heads(copying, each.parts[0][1], len(each.parts))
        return SentCopies(each.start_ns, whole, 1 - needed / whole, copying.row, whole / needed, True, False, *of_heads)

    def _of_heads(self, copying: CopyingOf, size: Size, ranks: int) -> tuple[bool, bool]:
        """Return whether heads were repeated, and whether they can be shared out over the ranks as they are."""
        source, copies = self.sizes[copying.row][0], self.results.get(self.flow.number[copying.row], ())
        longer = [d for d, (a, b) in enumerate(zip(source, copies, strict=False)) if a != b]
        if not _REPEATS.match(self.flow.names[copying.row]) or len(size) < 3 or len(longer) != 1:
            return False, False
        (dimension,) = longer
        count = source[dimension - 1] if source[dimension] == 1 and len(source) > len(size) else source[dimension]
        return True, count % ranks == 0

    def _origin(self, number: int, size: Size) -> _Origin:
        """Return of what a tensor is made."""
        while True:
            copies, row = self._copies.get(number), self.flow.row_of.get(number)
            if copies is not None:
                return _Origin(math.prod(size) * copies.rows / copies.copies, (copies,))
            made = () if row is None else self.flow.made[row]
            if row is None or not made or len(made) != len(self.sizes[row]):
                break
            name, sizes = self.flow.names[row], self.sizes[row]
            if _TOGETHER.match(name):
                parts = [self._origin(n, part) for n, part in zip(made, sizes, strict=True) if part]
                copying = tuple(copies for part in parts for copies in part.copying)
                return _Origin(sum(part.numbers for part in parts), copying)
            if (
                _REPEATS.match(name) and math.prod(size) >= FEWEST_COPIES * math.prod(sizes[0]) > 0
            ):  # within another operator
                return _Origin(math.prod(sizes[0]), (CopyingOf(row, math.prod(sizes[0]), math.prod(size)),))
            if _PIECES.match(name) and 0 < math.prod(size) < math.prod(sizes[0]):
                return self._origin_of_piece(made[0], sizes[0], size)
            orders = bool(_ORDERS.match(name)) and math.prod(sizes[0]) == math.prod(size)
            if made[0] < 0 or not (orders or self.hands_on(row)):
                break
            number, size = made[0], sizes[0]
        return _Origin(math.prod(size), ())

    def _origin_of_piece(self, number: int, whole: Size, size: Size) -> _Origin:
        """Return of what a part of a tensor is made: of as large a part, where all copies of a row lie in it, or of all."""
        origin = self._origin(number, whole)
        share = math.prod(size) / math.prod(whole)
        if all(self._lie_within(copying, whole, size) for copying in origin.copying):
            return _Origin(origin.numbers * share, origin.copying)
        return _Origin(min(origin.numbers, math.prod(size)), origin.copying)

    def _lie_within(self, copying: CopyingOf, whole: Size, size: Size) -> bool:
        """Return whether a part of copies, which is shorter in one dimension, has all or none of those of a row."""
        source, copies = self.sizes[copying.row][0], self.results.get(self.flow.number[copying.row], ())
        longer = [d for d, (a, b) in enumerate(zip(source, copies, strict=False)) if a != b]
        cut = [d for d, (a, b) in enumerate(zip(whole, size, strict=False)) if a != b]
        if len(source) != len(copies) or len(longer) != 1 or len(whole) != len(size) or len(cut) != 1:
            return False
        (dimension,), times = longer, copies[longer[0]] // max(source[longer[0]], 1)
        merged = (*copies[: dimension - 1], math.prod(copies[dimension - 1 : dimension + 1]), *copies[dimension + 1 :])
        if source[dimension] == 1 and dimension and tuple(whole) == merged:  # made one with the dimension before it
            dimension -= 1
        elif tuple(whole) != tuple(copies):
            return False
        side_by_side = bool(_SIDE_BY_SIDE.match(self.flow.names[copying.row])) and size[cut[0]] % times == 0
        return cut[0] != dimension or side_by_side

    @cached_property
    def _copies(self) -> dict[int, CopyingOf]:
        sent = {each.sent: _size(each) for each in self._messages if _size(each)}
        sent |= {number: size for each in self._lists for number, size in each.parts}
        return copies_by_number(self.flow, sent)

    def _ranks(self, each: FlowMessage) -> int | None:
        """Return among how many ranks a message goes, None where no note says that."""
        return self._size_of_group(each.start_ns, each.end_ns)

    @cached_property
    def _size_of_group(self) -> Callable[[int, int], int | None]:
        return group_sizes(self._profile, self.flow.thread)


def _size(each: FlowMessage) -> Size:
    """Return the size of what a message sends, () where it is not noted."""
    argument = place_of_sent(each.name) or 0
    return each.sizes[argument] if len(each.sizes) > argument else ()


def _is_of_rows(size: Size) -> bool:
    """Return whether a tensor is one of rows: what is made of exchanged rows goes back in the same number, heads of keys do not."""
    rows, *width = size
    return rows > 0 and len(width) == 1

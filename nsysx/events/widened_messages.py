"""Messages between ranks that hold float32 made of numbers of 16 bits: each byte of two says nothing that the receiver could not make.

Before such a message a tensor of 16 bits is converted, or behind it all that reads what came converts it to 16 bits. What the argument of
a collective was made of, and what is made of its result, an X-ray step tells; which types are converted, the names of the kernels do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from nsysx.events.flow_messages import messages_in
from nsysx.events.narrowed_operators import ELEMENTWISE
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.profile import Profile
from nsysx.events.result_readers import ResultReaders

_REDUCES = re.compile(r"reduce")
_CONVERTS, _EXPANDS = re.compile(r"^aten::(to|_to_copy)$"), re.compile(r"^aten::expand(_as)?$")
#: What takes a tensor apart: each part bears the number of an operator in it.
_DIVIDES = re.compile(r"^aten::(chunk|(tensor_)?split\w*|unbind)$")
_TYPES = re.compile(r"^aten::(to|_to_copy|type_as)$")
_EXCHANGES = re.compile(r"all_?to_?all")
_TOGETHER = re.compile(r"^aten::(cat|concat|stack)$")
#: What picks numbers or puts them together as they are.
_MOVES = re.compile(r"^aten::(cat|concat|stack|chunk|split\w*|unbind|slice|select|narrow|index|index_select|gather)$")
#: What moves numbers, or makes each of those of one row: it adds no bits to those of 16.
_KEEPS = re.compile(
    r"^aten::(_?(unsafe_)?view|reshape|(un)?flatten|(un)?squeeze|transpose|permute|[tT]|numpy_T|mT|movedim|detach|alias|contiguous|clone|"
    r"cat|concat|stack|chunk|split\w*|unbind|slice|select|narrow|index|index_select|gather|to|_to_copy|type_as|mul|div|"
    r"((native_)?layer|rms)_norm|_?softmax|relu|gelu|silu|tanh|sigmoid)$"
)


class WidenedMessage(NamedTuple):
    """A collective that the flow's thread calls: when, and how many numbers its largest tensor has.

    ``conversion``: the outermost operator (row of the flow) that makes float32 of 16 bits before it, or (``behind``) 16 bits of what came;
    -1 where neither is seen. ``reduces``: the numbers of the ranks are added. ``exchanges``: each rank is sent other rows.
    ``moves``: operators (outermost) that move the float32 numbers on their way to the message and from it, ``first``: the first of them, -1
    where none does. ``gone``: those that only convert them, and those in these. ``reads``: elementwise ones that then read what came.
    """

    start_ns: int
    numbers: int
    conversion: int
    behind: bool
    reduces: bool
    moves: frozenset[int] = frozenset()
    gone: frozenset[int] = frozenset()
    reads: frozenset[int] = frozenset()
    first: int = -1
    exchanges: bool = False


class OperatorsByBits(NamedTuple):
    """Operators (rows of the flow) by the kernels that they launch: all of them, those whose result has 16 bits, those that convert 16
    bits (or other types) to float32, and float32 to 16 bits.
    """

    launching: frozenset[int]
    halves: frozenset[int]
    widens: frozenset[int]
    narrows: frozenset[int]


def messages(flow: OperatorFlow, profile: Profile, rows: OperatorsByBits) -> list[WidenedMessage]:
    """Return the collectives that the flow's thread calls in its step, by what the kernels of its operators read and write."""
    return list(_MessageSearch(flow, rows).messages(profile)) if len(flow.start_ns) else []


class _WideningWay(NamedTuple):
    """How float32 numbers come to a message, or go on from it: the last operator that converts them, -1 without one (``conversion``), what
    moves them (outermost rows), what only converts them (all rows in it), and what then reads what came.
    """

    conversion: int = -1
    moves: frozenset[int] = frozenset()
    gone: frozenset[int] = frozenset()
    reads: frozenset[int] = frozenset()


class _MessageSearch(ResultReaders):
    def __init__(self, flow: OperatorFlow, rows: OperatorsByBits) -> None:
        super().__init__(flow)
        self._rows = rows

    def messages(self, profile: Profile) -> Iterator[WidenedMessage]:
        """Yield the collectives on the flow's thread in the flow's step."""
        for message in messages_in(self.flow, profile):
            way, behind, reduces = self._before(message.sent), False, bool(_REDUCES.search(message.name))
            results = set(message.results)
            if way.conversion >= 0:
                moved, reads = self._moved_behind(results)
                way = way._replace(moves=way.moves | moved, reads=reads)
            elif not reduces:
                way = self._behind(results)
                behind = way.conversion >= 0
                way = way._replace(moves=way.moves | self._moved_before(message.sent))
            numbers = max((math.prod(size) for size in message.sizes if size), default=0)
            before = [row for row in way.moves if self.flow.start_ns[row] < message.start_ns]
            yield WidenedMessage(
                message.start_ns,
                numbers,
                way.conversion,
                behind,
                reduces,
                way.moves,
                way.gone,
                way.reads,
                min(before, default=-1),
                bool(_EXCHANGES.search(message.name)),
            )

    @cached_property
    def _readers_of_messages(self) -> dict[int, set[int]]:
        """Of each number that no operator of the flow has, such as a collective's, the outermost operators that read that result."""
        readers = dict[int, set[int]]()
        for row, end in self.flow.outermost_spans:
            for number in {each for made in self.flow.made[row:end] for each in made} - self.flow.row_of.keys():
                readers.setdefault(number, set()).add(row)
        return readers

    @cached_property
    def _narrowing(self) -> frozenset[str]:
        """The names of outermost operators in which autocast converts what they are given to 16 bits, for all calls of that name."""
        return frozenset(
            self.flow.names[row] for row in self.flow.outermost if not self._rows.narrows.isdisjoint(self._inside(row))
        )

    def _readers(self, number: int) -> set[int]:
        return self.readers.get(number, set()) | self._readers_of_messages.get(number, set())

    def _inside(self, row: int) -> range:
        """Return the rows of an operator and of those in it."""
        return range(row, int(np.searchsorted(self.flow.start_ns, self.flow.end_ns[row])))

    def _is_half(self, number: int) -> bool:
        """Return whether a tensor has 16 bits, by the last kernel that made it whose name tells the type."""
        row = self.flow.row_of.get(number)
        while row is not None:
            launching = [each for each in self._inside(row) if each in self._rows.launching]
            if launching:
                return launching[-1] in self._rows.halves
            made = self.flow.made[row]
            row = self.flow.row_of.get(made[0]) if made and _KEEPS.match(self.flow.names[row]) else None
        return False

    def _before(self, number: int) -> _WideningWay:
        """Return how a tensor came to be float32 if it is made of nothing but 16 bits."""
        waiting, seen, way = [number], set[int](), _WideningWay()
        while waiting:
            each = waiting.pop()
            row = self.flow.row_of.get(each)
            if each in seen:
                continue
            seen.add(each)
            made = () if row is None else self.flow.made[row]
            if row is None or not made:
                return _WideningWay()
            if _EXPANDS.match(self.flow.names[row]):
                continue  # one number for many, such as a norm
            if not _KEEPS.match(self.flow.names[row]):
                return _WideningWay()
            sources = self._of_full_size(row)
            widens = sources and not self._rows.widens.isdisjoint(self._inside(row))
            if widens and all(map(self._is_half, sources)):
                gone = self._inside(row) if _TYPES.match(self.flow.names[row]) else ()
                way = way._replace(conversion=max(way.conversion, row), gone=way.gone | set(gone))
            else:
                waiting += sources
                way = way._replace(moves=way.moves | {row}) if _MOVES.match(self.flow.names[row]) else way
        return way

    def _of_full_size(self, row: int) -> list[int]:
        """Return what made the arguments of an operator, but for numbers, rows, weights and indices beside the largest."""
        made, sizes = self.flow.made[row], self.sizes[row]
        if _TYPES.match(self.flow.names[row]):  # of another tensor its type alone
            return list(made[:1])
        if len(sizes) != len(made):
            return list(made)
        whole = max(map(math.prod, sizes), default=0)
        together = _TOGETHER.match(self.flow.names[row])
        return [n for n, size in zip(made, sizes, strict=True) if size and (together or math.prod(size) == whole)]

    def _moved_before(self, number: int) -> frozenset[int]:
        """Return the operators that only moved the numbers of a tensor on their way to a message."""
        waiting, moves = [number], set[int]()
        while waiting:
            row = self.flow.row_of.get(waiting.pop())
            moved = row is not None and _MOVES.match(self.flow.names[row])
            if row is None or row in moves or not (moved or self.hands_on(row)):
                continue
            if moved:
                moves.add(row)
            waiting += self.flow.made[row] if _TOGETHER.match(self.flow.names[row]) else self.flow.made[row][:1]
        return frozenset(moves)

    def _moved_behind(self, results: set[int]) -> tuple[frozenset[int], frozenset[int]]:
        """Return the operators that only move what came with a message, and those that read it number by number then."""
        waiting, seen, moves, reads = list(results), set[int](), set[int](), set[int]()
        while waiting:
            number = waiting.pop()
            seen.add(number)
            for reader in self._readers(number) - {-1}:
                if self.hands_on(reader) or _MOVES.match(self.flow.names[reader]):
                    moves |= {reader} if _MOVES.match(self.flow.names[reader]) else set()
                    waiting += self._results(reader) - seen
                elif ELEMENTWISE.match(self.flow.names[reader]):
                    reads.add(reader)
        return frozenset(moves), frozenset(reads)

    def _results(self, row: int) -> set[int]:
        """Return the numbers of what an operator makes: its own, of one that takes a tensor apart those of the parts."""
        whole = self._inside(row) if _DIVIDES.match(self.flow.names[row]) else range(row, row + 1)
        return {self.flow.number[each] for each in whole}

    def _behind(self, results: set[int]) -> _WideningWay:
        """Return how what came with a message becomes 16 bits if nothing else reads it."""
        waiting, seen, way = list(results), set[int](), _WideningWay()
        while waiting:
            number = waiting.pop()
            seen.add(number)
            for reader in self._readers(number):
                narrows = self._narrows(reader, number) if reader >= 0 else ()
                if narrows:
                    way = way._replace(conversion=max(way.conversion, reader), gone=way.gone | set(narrows))
                elif reader >= 0 and (self.hands_on(reader) or _MOVES.match(self.flow.names[reader])):
                    way = way._replace(moves=way.moves | {reader}) if _MOVES.match(self.flow.names[reader]) else way
                    waiting += self._results(reader) - seen
                else:
                    return _WideningWay()
        return way

    def _narrows(self, reader: int, number: int) -> list[int]:
        """Return the rows in an operator that convert a tensor to 16 bits, none where it does not.

        The same kernels may not be known of each call: autocast converts by the name of the operator that it calls.
        """
        name, rows = self.flow.names[reader], list[int]()
        for row in self._inside(reader):
            if not _CONVERTS.match(self.flow.names[row]) or self.flow.made[row][:1] != (number,):
                continue
            inside = self._inside(row)
            unseen = row > reader and name in self._narrowing and self._rows.launching.isdisjoint(inside)
            copies = any(self.flow.names[each] == "aten::_to_copy" for each in inside)
            if not self._rows.narrows.isdisjoint(inside) or (unseen and copies):
                rows += inside
        return rows

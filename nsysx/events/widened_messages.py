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
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.profile import Profile
from nsysx.events.result_readers import ResultReaders

_REDUCES = re.compile(r"reduce")
_CONVERTS, _EXPANDS = re.compile(r"^aten::(to|_to_copy)$"), re.compile(r"^aten::expand(_as)?$")
_TOGETHER = re.compile(r"^aten::(cat|concat|stack)$")
#: What picks numbers or puts them together as they are.
_MOVES = re.compile(r"^aten::(cat|concat|stack|chunk|split\w*|unbind|slice|select|narrow|index|index_select|gather)$")
#: What moves numbers, or makes each of those of one row: it adds no bits to those of 16.
_KEEPS = re.compile(
    r"^aten::(_?(unsafe_)?view|reshape|(un)?flatten|(un)?squeeze|transpose|permute|[tT]|numpy_T|mT|movedim|detach|alias|contiguous|clone|"
    r"cat|concat|stack|chunk|split\w*|unbind|slice|select|narrow|index|index_select|gather|to|_to_copy|mul|div|"
    r"((native_)?layer|rms)_norm|_?softmax|relu|gelu|silu|tanh|sigmoid)$"
)


class WidenedMessage(NamedTuple):
    """A collective that the flow's thread calls: when, and how many numbers its largest tensor has.

    ``conversion``: the outermost operator (row of the flow) that makes float32 of 16 bits before it, or (``behind``) 16 bits of what came;
    -1 where neither is seen. ``reduces``: the numbers of the ranks are added.
    """

    start_ns: int
    numbers: int
    conversion: int
    behind: bool
    reduces: bool


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


class _MessageSearch(ResultReaders):
    def __init__(self, flow: OperatorFlow, rows: OperatorsByBits) -> None:
        super().__init__(flow)
        self._rows = rows

    def messages(self, profile: Profile) -> Iterator[WidenedMessage]:
        """Yield the collectives on the flow's thread in the flow's step."""
        for message in messages_in(self.flow, profile):
            conversion, behind, reduces = self._before(message.sent), -1, bool(_REDUCES.search(message.name))
            if conversion < 0 and not reduces:
                behind = self._behind(set(message.results))
            numbers = max((math.prod(size) for size in message.sizes if size), default=0)
            yield WidenedMessage(message.start_ns, numbers, max(conversion, behind), behind >= 0, reduces)

    @cached_property
    def _readers_of_messages(self) -> dict[int, set[int]]:
        """Of each number that no operator of the flow has, such as a collective's, the outermost operators that read that result."""
        readers = dict[int, set[int]]()
        for row, end in self.flow.outermost_spans:
            for number in {each for made in self.flow.made[row:end] for each in made} - self.flow.row_of.keys():
                readers.setdefault(number, set()).add(row)
        return readers

    def _inside(self, row: int) -> range:
        """Return the rows of an operator and of those in it."""
        return range(row, int(np.searchsorted(self.flow.start_ns, self.flow.end_ns[row])))

    def _is_half(self, number: int) -> bool:
        """Return whether a tensor has 16 bits, by the last kernel that made it."""
        row = self.flow.row_of.get(number)
        while row is not None:
            launching = [each for each in self._inside(row) if each in self._rows.launching]
            if launching:
                return launching[-1] in self._rows.halves
            made = self.flow.made[row]
            row = self.flow.row_of.get(made[0]) if made and _KEEPS.match(self.flow.names[row]) else None
        return False

    def _before(self, number: int) -> int:
        """Return the last operator that makes float32 of 16 bits if a tensor is made of nothing else, -1 otherwise."""
        waiting, seen, conversion = [number], set[int](), -1
        while waiting:
            each = waiting.pop()
            row = self.flow.row_of.get(each)
            if each in seen:
                continue
            seen.add(each)
            made = () if row is None else self.flow.made[row]
            if row is None or not made:
                return -1
            if _EXPANDS.match(self.flow.names[row]):
                continue  # one number for many, such as a norm
            if not _KEEPS.match(self.flow.names[row]):
                return -1
            sources = self._of_full_size(row)
            widens = sources and not self._rows.widens.isdisjoint(self._inside(row))
            if widens and all(map(self._is_half, sources)):
                conversion = max(conversion, row)
            else:
                waiting += sources
        return conversion

    def _of_full_size(self, row: int) -> list[int]:
        """Return what made the arguments of an operator, but for numbers, rows, weights and indices beside the largest."""
        made, sizes = self.flow.made[row], self.sizes[row]
        if len(sizes) != len(made):
            return list(made)
        whole = max(map(math.prod, sizes), default=0)
        together = _TOGETHER.match(self.flow.names[row])
        return [n for n, size in zip(made, sizes, strict=True) if size and (together or math.prod(size) == whole)]

    def _behind(self, results: set[int]) -> int:
        """Return the last operator that makes 16 bits of what came with a message if nothing else reads that, -1 otherwise."""
        waiting, seen, conversion = list(results), set[int](), -1
        while waiting:
            number = waiting.pop()
            seen.add(number)
            for reader in self.readers.get(number, set()) | self._readers_of_messages.get(number, set()):
                if reader >= 0 and self._narrows(reader, number):
                    conversion = max(conversion, reader)
                elif reader >= 0 and (self.hands_on(reader) or _MOVES.match(self.flow.names[reader])):
                    waiting += {self.flow.number[reader]} - seen
                else:
                    return -1
        return conversion

    def _narrows(self, reader: int, number: int) -> bool:
        """Return whether an operator, or one in it, converts a tensor to 16 bits."""
        return any(
            _CONVERTS.match(self.flow.names[row])
            and self.flow.made[row][:1] == (number,)
            and not self._rows.narrows.isdisjoint(self._inside(row))
            for row in self._inside(reader)
        )

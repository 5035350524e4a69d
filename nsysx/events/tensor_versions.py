"""Versions of tensors that a program makes anew, each of the one before it: what operators are given, and the sizes of that, tell which.

Four forms are one: ``x = torch.cat([x, new])`` and a list that is stacked again; ``F.pad(x)``, whose new rows are written behind; a new
tensor, of which ``x`` is copied into a part; and a copy of all of it in which a part is written, ``x.clone()`` or ``x.index_copy(...)``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from nsysx.events.narrowed_operators import Size, result_sizes, sizes_of
from nsysx.events.operator_flow import OperatorFlow, is_view

#: Operators that put tensors together, that make one longer, and that copy one to write a part of it.
_CATS = re.compile(r"^aten::(cat|concat|concatenate|([hvd]|row_|column_)?stack)$")
_PADS = re.compile(r"^aten::(pad|constant_pad_nd)$")
_WRITES = re.compile(r"^aten::((slice|select)_scatter|index_copy|index_put|scatter)$")
_CLONES = "aten::clone"
#: Operators that make room, and those that write into their first argument without reading it.
_ROOMS = re.compile(r"^aten::(new_)?(empty|zeros|ones|full)(_like|_strided)?$")
_FILLS = re.compile(r"^aten::(copy|fill|zero|index_copy|index_put|_index_put_impl|scatter|index_fill)_$")
#: Views that are a part of a tensor, or one of several, and what hands a tensor on if it has nothing to convert.
_PARTS = re.compile(r"^aten::(select|slice|narrow|as_strided|chunk|(tensor_)?split(_with_sizes)?|unbind|diagonal)$")
_HANDS_ON = re.compile(r"^aten::(contiguous|to|type_as|resolve_conj|resolve_neg)$")
#: A result: the number of the operator that made it, and which of its results it is.
Result = tuple[int, int]


class Version(NamedTuple):
    """A tensor made of one before it: the row that makes it (outermost operator), whether in this step, its number, what it is given.

    ``written``: how many numbers it holds, ``new``: how many of these are, where a part of a copy is written. ``beside``: rows of other
    operators that only copy what stood there. ``form``: "cat", "pad", "room" or "written".
    """

    row: int
    here: bool
    number: int
    given: tuple[Result, ...]
    sizes: tuple[Size, ...]
    written: int
    form: str = "cat"
    new: int = 0
    beside: tuple[int, ...] = ()


@lru_cache(maxsize=4096)  # few names, each of thousands of operators
def fills(name: str) -> bool:
    """Return whether an operator writes into its first argument, and reads nothing of it."""
    return _FILLS.match(name) is not None


def is_room(flow: OperatorFlow, number: int) -> bool:
    """Return whether nothing stands in a tensor yet, or one number everywhere: it was made so, or moved or converted after that."""
    row = flow.row_of.get(number)
    if row is not None and flow.names[row] == "aten::to":
        row = flow.row_of.get(flow.made[row][0])
    return row is not None and _ROOMS.match(flow.names[row]) is not None


@lru_cache(maxsize=4096)  # few names, each of thousands of operators
def is_part(name: str) -> bool:
    """Return whether an operator's result is a part of its first argument, in place."""
    return _PARTS.match(name) is not None


def passes(flow: OperatorFlow, row: int) -> bool:
    """Return whether an operator's result lies where its first argument does."""
    return bool(flow.made[row]) and _may_pass(flow.names[row]) and not _copies(flow, row)


def _may_pass(name: str) -> bool:
    return is_view(name) or _HANDS_ON.match(name) is not None


def _copies(flow: OperatorFlow, row: int) -> bool:
    """Return whether an operator that may hand on a tensor holds one that does not."""
    inner, end = row + 1, flow.end_ns[row]
    while inner < len(flow.names) and flow.start_ns[inner] < end:
        if not _may_pass(flow.names[inner]):
            return True
        inner += 1
    return False


def makes_versions(flow: OperatorFlow) -> bool:
    """Return whether a flow has operators that may make such versions."""
    return any(
        name == _CLONES or any(map(re.Pattern.match, (_CATS, _PADS, _WRITES, _ROOMS), [name] * 4))
        for name in set(flow.names)
    )


class VersionsInOrder:
    """The versions that the operators of two steps make, in order of time; ``before``: of the step before."""

    def __init__(self, flow: OperatorFlow, before: OperatorFlow | None) -> None:
        self.flow = flow
        self._flows = [each for each in (before, flow) if each is not None]
        #: Tensors of which no operator is known are told apart by their sizes.
        self._unknown = dict[Size, int]()

    def __iter__(self) -> Iterator[Version]:
        """Return the versions of both steps."""
        for flow in self._flows:
            sizes = [sizes_of(text) for text in flow.size]
            written = _Written(self, flow, sizes)
            for row in flow.outermost:
                name = flow.names[row]
                if len(sizes[row]) != len(flow.made[row]):
                    continue
                if _CATS.match(name):
                    yield from self._cat(flow, row, sizes[row])
                elif _PADS.match(name) or _WRITES.match(name) or name == _CLONES or name == "aten::copy_":
                    yield from written.version(row)

    def operator(self, number: int) -> tuple[OperatorFlow, int] | None:
        """Return the flow of an operator and its row, None for one of neither."""
        return next(
            ((flow, flow.row_of[number]) for flow in self._flows if number in flow.row_of and number >= 0), None
        )

    def maker(self, number: int, which: int, *, parts: bool = False) -> Result:
        """Return what made a tensor, past what hands it on as a whole; ``parts``: or a part of it, too."""
        while (operator := self.operator(number)) is not None:
            flow, row = operator
            if not passes(flow, row) or (is_part(flow.names[row]) and not parts):
                break
            number, which = flow.made[row][0], flow.which[row][0] if flow.which else 0
        return number, which

    def result_given(self, flow: OperatorFlow, row: int, argument: int, size: Size) -> Result:
        """Return what made an argument of an operator, as a whole; one that no operator made has a number of its own."""
        number = flow.made[row][argument]
        if number < 0:
            return -1, self._unknown.setdefault(size, len(self._unknown))
        return self.maker(number, flow.which[row][argument] if flow.which else 0)

    def _cat(self, flow: OperatorFlow, row: int, sizes: Sequence[Size]) -> Iterator[Version]:
        given = [(self.result_given(flow, row, n, size), size) for n, size in enumerate(sizes) if size]
        if len(given) > 1:
            results, tensors = zip(*given, strict=True)
            numbers = sum(map(math.prod, tensors))
            yield Version(row, flow is self.flow, flow.number[row], results, tensors, numbers)


class _Written:
    """Versions that are no concatenations, of one flow."""

    def __init__(self, order: VersionsInOrder, flow: OperatorFlow, sizes: Sequence[Sequence[Size]]) -> None:
        self._order, self._flow, self._sizes = order, flow, sizes

    @cached_property
    def _results(self) -> dict[int, Size]:
        return result_sizes(self._flow, self._sizes)

    @cached_property
    def _parts_written(self) -> dict[int, int]:
        """Of each operator's number how many numbers are written into a part of what it makes."""
        written = dict[int, int]()
        for row in self._flow.outermost:
            if not fills(self._flow.names[row]) or not self._sizes[row] or not self._flow.made[row]:
                continue
            number = self._order.maker(self._flow.made[row][0], 0, parts=True)[0]
            sizes = [math.prod(size) for size in self._sizes[row] if size]
            part = sizes[-1] if len(sizes) > 1 else sum(sizes)
            written[number] = written.get(number, 0) + part
        return written

    def version(self, row: int) -> Iterator[Version]:
        flow, name, sizes = self._flow, self._flow.names[row], self._sizes[row]
        if not sizes or not sizes[0]:
            return
        if name == "aten::copy_":
            yield from self._room(row)
            return
        number, all_numbers, result = flow.number[row], math.prod(sizes[0]), self._results.get(flow.number[row])
        given, here = (self._order.result_given(flow, row, 0, sizes[0]),), flow is self._order.flow
        if _PADS.match(name):
            if result is not None and len(_longer(sizes[0], result)) == 1:
                yield Version(row, here, number, given, tuple(sizes[:1]), math.prod(result), "pad")
            return
        if name == _CLONES:
            new = self._parts_written.get(number, 0)
        else:
            new = next((math.prod(size) for size in reversed(sizes[1:]) if size), 0)
        if 0 < new < all_numbers:
            yield Version(row, here, number, given, tuple(sizes[:1]), all_numbers, "written", new)

    def _room(self, row: int) -> Iterator[Version]:
        """A copy into a part of a tensor that is made for it."""
        flow, sizes = self._flow, self._sizes[row]
        if len(sizes) < 2 or sizes[0] != sizes[1] or flow.made[row][0] < 0 or flow.made[row][1] < 0:
            return
        number = self._order.maker(flow.made[row][0], 0, parts=True)[0]
        room = flow.row_of.get(number)
        size = self._results.get(number)
        if room is None or size is None or not is_room(flow, number) or len(_longer(sizes[1], size)) != 1:
            return
        given = (self._order.result_given(flow, row, 1, sizes[1]),)
        yield Version(
            row, flow is self._order.flow, number, given, tuple(sizes[1:2]), math.prod(size), "room", beside=(room,)
        )


def _longer(size: Size, result: Size) -> list[int]:
    """Return the dimensions in which a result is longer than what was given; none where it is shorter in one, or has more of them."""
    if len(size) != len(result) or any(b < a for a, b in zip(size, result, strict=True)):
        return []
    return [d for d, (a, b) in enumerate(zip(size, result, strict=True)) if b > a]

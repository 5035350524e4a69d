"""Work on copies of rows that the rows themselves need once: from sizes, and what made what.

An index, a repetition or an expansion copies rows. Where each row of a result is made of the same row of the argument alone (linear layers,
functions of each number, norms over the last dimension), f(x[index]) equals f(x)[index]: the rows can go through f before they are copied.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from nsysx.events.narrowed_operators import ELEMENTWISE, Size
from nsysx.events.operator_bounds import FEWEST_COPIES
from nsysx.events.operator_flow import OperatorFlow, is_drawn
from nsysx.events.operator_names import LAYERS, TURNS
from nsysx.events.result_readers import ResultReaders

_EXPANDS = re.compile(r"^aten::(expand(_as)?|broadcast_to)$")
_REPEATS = re.compile(r"^aten::(repeat|tile|repeat_interleave)$")
_PICKS = re.compile(r"^aten::(index_select|index|gather|embedding)$")
_JOINS = re.compile(r"^aten::(cat|concat|concatenate)$")
_DROPS = re.compile(r"^aten::(native_|feature_)?dropout_?$")
_RESHAPES = re.compile(r"^aten::(_?(unsafe_)?view|reshape|_reshape_alias|(un)?flatten|(un)?squeeze)$")
_SAME_SIZE = re.compile(r"^aten::(detach|alias|to|_to_copy|contiguous|clone|type_as)$")
#: Operators that return what they are given, if it is as they need it.
_HANDS_BACK = re.compile(r"^aten::(resolve_(conj|neg)|to|contiguous|reshape|expand|alias|detach)$")
_CONVERTS = re.compile(r"^aten::(to|_to_copy|type_as)$")
#: Each number, or row, of the result is made of the last dimension of the argument, which may get another length.
_OVER_LAST = re.compile(
    r"^aten::(sum|mean|amax|amin|norm|linalg_vector_norm|glu|slice|narrow|(tensor_)?split(_with_sizes)?|chunk)$"
)
#: Each part may be named after an operator in them.
_DIVIDES = re.compile(r"^aten::((tensor_)?split(_with_sizes)?|chunk)$")
#: What takes some rows of a tensor whole, one or a range of them.
_TAKES = re.compile(r"^aten::(select|unbind|slice|narrow)$")
#: Each sample of the result is made of the same sample of all arguments.
_ATTENDS = re.compile(r"^aten::(scaled_dot_product_attention|matmul|bmm)$")
_SOFTMAX = re.compile(r"^aten::_?softmax$")
_NORMS = re.compile(r"^aten::(layer_norm|rms_norm)$")


@dataclass(frozen=True)
class CopiedRows:
    """Rows that are copied before work on each. ``copying``: the operators (rows of the flow) that copy, first the one that says how often;
    ``rows`` of the source and ``copies`` of them; ``size``: of the source; ``lazy``: an expansion copies nothing by itself.

    ``work``: the outermost operators on the copies, in order. ``wide``: for each of them how many times as many numbers as now are copied
    if it is the last one that comes before the copying; ``ends``: of which operators others read the results then.
    """

    copying: tuple[int, ...]
    rows: int
    copies: int
    size: Size
    lazy: bool
    work: tuple[int, ...]
    wide: tuple[float, ...]
    ends: tuple[frozenset[int], ...]

    @property
    def times(self) -> float:
        """How many copies there are of a row, on average."""
        return self.copies / self.rows


@dataclass
class _Copying:
    """What copies rows, how many and of how many, and the work on the copies so far."""

    copying: list[int]
    rows: int
    copies: int
    size: Size
    numbers: int
    lazy: bool
    work: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _CopiedTensor:
    """A tensor of copies: what made them, and in which of its dimensions they lie."""

    of: _Copying
    dimensions: frozenset[int]


class CopyingOf(NamedTuple):
    """What a tensor of copies was made by: the operator (row of the flow), of how many ``rows`` it made how many ``copies``."""

    row: int
    rows: int
    copies: int


def copies_by_number(flow: OperatorFlow, more_results: Mapping[int, Size]) -> dict[int, CopyingOf]:
    """Return the tensors that hold copies of rows, or what was made of each copy by itself, by the number of what made each.

    ``more_results``: sizes of tensors that no operator of the flow reads, by number.
    """
    every = _AllCopies(flow, more_results)
    list(every.all())
    return {n: CopyingOf(each.of.copying[0], each.of.rows, each.of.copies) for n, each in every.copies.items()}


def copied_rows(flow: OperatorFlow) -> list[CopiedRows]:
    """Return the rows of an X-ray step that are copied twice or more, on average, before work on each."""
    return list(_AllCopies(flow).all())


class _AllCopies(ResultReaders):
    def __init__(self, flow: OperatorFlow, more_results: Mapping[int, Size] | None = None) -> None:
        super().__init__(_named_once(flow))
        self.results = {**(more_results or {}), **self.results}
        self.copies = dict[int, _CopiedTensor]()  # by the number of what made the tensor

    def all(self) -> Iterator[CopiedRows]:
        every = list[_Copying]()
        for row, end in self.flow.outermost_spans:
            number = self.flow.number[row]
            given = {i: self.copies[made] for i, made in enumerate(self._makers_of(row)) if made in self.copies}
            followed = [self._follow(row, end, given, each) for each in self._made_by(row)] if given else []
            if any(followed):
                hands_on = self.hands_on(row) and not _CONVERTS.match(self.flow.names[row])
                source = next(iter(given.values())).of
                # What an expansion did not write, the first operator that cannot take it like that does.
                (source.copying if source.lazy and not source.work and hands_on else source.work).append(row)
            elif number in self.results and (copying := self._copied(row, self.results[number])) is not None:
                every.append(copying.of)
                self.copies[number] = copying
        for each in every:
            firsts = range(1, len(each.work) + 1)
            if each.work:
                wide = tuple(self._numbers_copied(each, first) / each.numbers for first in firsts)
                ends = tuple(frozenset(self._read_of(each, first).values()) for first in firsts)
                yield CopiedRows(
                    tuple(each.copying), each.rows, each.copies, each.size, each.lazy, tuple(each.work), wide, ends
                )

    def _makers_of(self, row: int) -> tuple[int, ...]:
        """Return what made the arguments of an operator; none where it is not known which size is whose."""
        made = self.flow.made[row]
        return made if len(made) == len(self.sizes[row]) else ()

    def _numbers_copied(self, each: _Copying, first: int) -> int:
        """Return how many numbers have to be copied if the first so many operators come before the copying: what others read."""
        return sum(math.prod(self.results[number]) for number in self._read_of(each, first))

    def _read_of(self, each: _Copying, first: int) -> dict[int, int]:
        """Return of these what others read: number of the tensor -> row of its operator."""
        before = {*each.copying, *each.work[:first]}
        made = {number: row for row in sorted(before) for number in self._made_by(row)}
        return {number: row for number, row in made.items() if self.readers.get(number, set()) - before}

    def _made_by(self, row: int) -> list[int]:
        """Return the numbers of the tensors of known size that an operator makes."""
        inside = range(row, self._end_of[row] if _DIVIDES.match(self.flow.names[row]) else row + 1)
        return [number for inner in inside if (number := self.flow.number[inner]) in self.results]

    @cached_property
    def _end_of(self) -> dict[int, int]:
        return dict(self.flow.outermost_spans)

    def _follow(self, row: int, end: int, given: Mapping[int, _CopiedTensor], number: int) -> bool:
        """Note a result of an operator on copies, if it is one of copies, too; return whether it is."""
        first, name = next(iter(given.values())), self.flow.names[row]
        if any(each.of is not first.of or each.dimensions != first.dimensions for each in given.values()):
            return False
        drawn = _DROPS.match(name) and any(is_drawn(self.flow.names[inner]) for inner in range(row + 1, end))
        dimensions = None if drawn else self._dimensions(row, given, self.results[number], first.dimensions)
        if dimensions is not None:
            self.copies[number] = _CopiedTensor(first.of, dimensions)
        return dimensions is not None

    def _dimensions(
        self, row: int, given: Mapping[int, _CopiedTensor], result: Size, copied: frozenset[int]
    ) -> frozenset[int] | None:
        """Return in which dimensions of the result copies lie, None where it is made of more than each row by itself."""
        name, sizes = self.flow.names[row], self.sizes[row]
        argument = min(given)
        size, last = sizes[argument], len(sizes[argument]) - 1
        if _SAME_SIZE.match(name) or _DROPS.match(name):
            return copied if result == size and argument == 0 else None
        if _RESHAPES.match(name):
            return _reshaped(size, result, copied)
        if TURNS.match(name):
            return _turned(size, result, copied)
        if _SOFTMAX.match(name) and len(size) > 3:  # scores of an attention, each over its keys
            return copied if result == size and last not in copied else None
        if _TAKES.match(name) and (result == size or (len(result) < len(size) and max(copied) < len(size) - 1)):
            return _taken(size, result, copied)
        if _ATTENDS.match(name) and max(copied) < last - 1 and len(size) == len(result):
            others = [each for i, each in enumerate(sizes) if i not in given and len(each) > 1]
            samples = len(given) > 1 and all(_broadcast(sizes[i], result, copied) for i in given)
            return copied if samples and all(_alike_for_copies(each, result, copied) for each in others) else None
        if ELEMENTWISE.match(name) or _EXPANDS.match(name):
            others = [each for i, each in enumerate(sizes) if i not in given and math.prod(each) > 1]
            alone = _EXPANDS.match(name) or all(_alike_for_copies(each, result, copied) for each in others)
            return copied if alone and _broadcast(size, result, copied) else None
        if name == "aten::embedding":  # equal numbers
            return copied if 1 in given and result[: len(sizes[1])] == sizes[1] else None
        if _JOINS.match(name):
            joined = len(given) == len([each for each in sizes if each]) and _broadcast(size, result, copied)
            return copied if joined else None
        if last in copied or argument != LAYERS.get(name, (0, 0))[0] or len(given) > 1:
            return None
        return copied if self._by_last(row, size, result, copied) else None

    def _by_last(self, row: int, size: Size, result: Size, copied: frozenset[int]) -> bool:
        """Return whether an operator computes over the last dimension of its argument, or others without copies."""
        name, sizes = self.flow.names[row], self.sizes[row]
        product = LAYERS.get(name)
        if product is not None:
            weights = sizes[product[1]] if len(sizes) > product[1] else ()
            return len(weights) == 2 and result[:-1] == size[:-1] and not (name == "aten::addmm" and len(sizes[0]) > 1)
        if _NORMS.match(name):
            normalized = len(sizes[2]) if len(sizes) > 2 else 0
            return normalized > 0 and max(copied) < len(size) - normalized
        if not _OVER_LAST.match(name):
            return False
        if len(result) == len(size):
            return (
                all(a == b for d, (a, b) in enumerate(zip(size, result, strict=True)) if d in copied) and result != size
            )
        return result == size[:-1] and not any(size[:d] + size[d + 1 :] == result for d in copied)

    def _copied(self, row: int, result: Size) -> _CopiedTensor | None:
        """Return the copies that an operator makes of rows, None where it makes none, or less than two of each."""
        name, sizes, given = self.flow.names[row], self.sizes[row], self._makers_of(row)
        lazy, source = bool(_EXPANDS.match(name)), sizes[0] if sizes else ()
        if not given or len(source) < 1 or len(result) < 2:
            return None
        dimensions: frozenset[int] | None = None
        if lazy or _REPEATS.match(name):
            dimensions = _longer(source, result)
        elif _PICKS.match(name):
            dimensions = self._picked(row, source, result)
        elif _JOINS.match(name) and len({made for made, size in zip(given, sizes, strict=True) if size}) == 1:
            several = len([size for size in sizes if size]) > 1 and given[0] >= 0
            dimensions = _longer(source, result) if several and len(source) == len(result) else None
        if not dimensions or len(result) - 1 in dimensions:
            return None
        numbers, width = math.prod(result), max(result[-1], 1)
        if numbers < FEWEST_COPIES * max(math.prod(source), 1):
            return None
        rows = max(math.prod(source) // width, 1)
        return _CopiedTensor(_Copying([row], rows, numbers // width, source, numbers, lazy), dimensions)

    def _picked(self, row: int, source: Size, result: Size) -> frozenset[int] | None:
        """Return the dimensions of picked rows, None where single numbers are picked."""
        name, sizes = self.flow.names[row], self.sizes[row]
        if name == "aten::embedding":
            fits = len(sizes) > 1 and len(source) == 2 and result == (*sizes[1], source[1])
            return frozenset(range(len(sizes[1]))) if fits else None
        if name == "aten::index":
            return _indexed(source, [size for size in sizes[1:] if size], result)
        if len(source) != len(result):
            return None
        if name == "aten::gather":
            maker = self.flow.row_of.get(self.flow.made[row][2]) if len(sizes) > 2 else None
            spread = maker is not None and (
                _EXPANDS.match(self.flow.names[maker]) or _REPEATS.match(self.flow.names[maker])
            )
            if maker is None or not spread or self.sizes[maker][0][-1:] != (1,):
                return None
        changed = frozenset(d for d, (a, b) in enumerate(zip(source, result, strict=True)) if a != b)
        return changed if len(changed) == 1 else None


def _turned(size: Size, result: Size, copied: frozenset[int]) -> frozenset[int]:
    """Return in which dimensions copies lie after dimensions were turned: that of samples stays, where the sizes let it."""
    stays = copied == {0} and len(size) == len(result) > 2 and size[0] == result[0]
    several = frozenset(i for i, n in enumerate(result) if n in {size[d] for d in copied})
    # Heads of an attention keep their last dimension.
    heads = len(result) > 3 and len(size) - 1 not in copied and result[-1:] == size[-1:]
    return copied if stays else several - {len(result) - 1} if heads else several


def _taken(size: Size, result: Size, copied: frozenset[int]) -> frozenset[int] | None:
    """Return in which dimensions copies lie of a part without one other dimension, or of all; None where it is one of copies."""
    if result == size:
        return copied
    gone = [d for d in range(len(size)) if size[:d] + size[d + 1 :] == result]
    return frozenset(d - (d > gone[0]) for d in copied) if gone and copied.isdisjoint(gone) else None


def _named_once(flow: OperatorFlow) -> OperatorFlow:
    """Return the flow with tensors that an operator within another handed back unchanged under the number of what made them."""
    outermost, source_of = set(flow.outermost), dict[int, int]()
    for row, made in enumerate(flow.made):
        if row not in outermost and made and _HANDS_BACK.match(flow.names[row]) and made[0] >= 0:
            source_of[flow.number[row]] = source_of.get(made[0], made[0])
    return (
        replace(flow, made=[tuple(source_of.get(number, number) for number in made) for made in flow.made])
        if source_of
        else flow
    )


def _longer(source: Size, result: Size) -> frozenset[int] | None:
    """Return the dimensions in which a tensor was made longer by copies, None where it cannot have been."""
    if len(source) > len(result):
        return None
    padded = (1,) * (len(result) - len(source)) + source
    longer: Callable[[int, int], bool] = lambda a, b: b > a > 0  # noqa: E731
    if any(a != b and not longer(a, b) for a, b in zip(padded, result, strict=True)):
        return None
    return frozenset(d for d, (a, b) in enumerate(zip(padded, result, strict=True)) if a != b)


def _indexed(source: Size, indices: list[Size], result: Size) -> frozenset[int] | None:
    """Return the dimensions of x[index], x[:, index] or x[a, b] that the index has, None where these sizes do not tell."""
    if not indices:
        return None
    longest = max(map(len, indices))
    padded = [(1,) * (longest - len(size)) + size for size in indices]
    shape = tuple(max(dims) for dims in zip(*padded, strict=True))
    for begin in range(len(source)):
        behind = begin + len(indices)  # one for each dimension
        if behind < len(source) and source[:begin] + shape + source[behind:] == result:
            return frozenset(range(begin, begin + len(shape)))
    return None


def _alike_for_copies(other: Size, result: Size, copied: frozenset[int]) -> bool:
    """Return whether an argument has the same for all copies of a row."""
    shift = len(result) - len(other)
    return shift >= 0 and all(d < shift or other[d - shift] == 1 for d in copied)


def _broadcast(size: Size, result: Size, copied: frozenset[int]) -> bool:
    """Return whether a result has the copies where the argument has them, and may be longer in other dimensions."""
    return len(size) == len(result) and all(size[d] == result[d] for d in copied)


def _reshaped(before: Size, after: Size, copied: frozenset[int]) -> frozenset[int] | None:
    """Return in which dimensions copies lie after a tensor was reshaped, None where the sizes are not those of one tensor."""
    if math.prod(before) != math.prod(after) or not math.prod(after):
        return None
    dimensions, i, j = set[int](), 0, 0
    while i < len(before) and j < len(after):
        first, start, a, b = i, j, before[i], after[j]
        while a != b:  # the smaller one goes on
            if a < b:
                i += 1
                a *= before[i]
            else:
                j += 1
                b *= after[j]
        i, j = i + 1, j + 1
        if any(first <= d < i for d in copied):
            dimensions.update(d for d in range(start, j) if after[d] > 1)
    return frozenset(dimensions)

"""What ranks gather of a split layer and cut apart again before the next one, with what each of them computes of all parts in between.

Of a gather the parts of the ranks lie along a dimension. Views, and what works on each number, each head or each row of features by
itself, keep them apart; a norm or a product over all features needs all of them. Sizes say where the parts lie: of what a view makes the
numbers keep their order, and a dimension that moves keeps its length.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, NoReturn

import numpy as np

from nsysx.events.flow_messages import FlowMessage
from nsysx.events.layer_readers import ELEMENTWISE, LayerReaders
from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_flow import is_view
from nsysx.events.operator_names import TURNS

#: Operators that take parts of a tensor, put parts together, or move dimensions.
CUTS = re.compile(r"^aten::((tensor_)?split\w*|chunk|slice|select|narrow|unbind)$")
TOGETHER = re.compile(r"^aten::(cat|concat|stack)$")
_AS_WELL = re.compile(r"^aten::(rsqrt|sqrt|neg|exp|cos|sin|where|masked_fill|clamp\w*|type_as|expand)_?$")
#: What works on the matrices of the last two dimensions, on rows of the last one, or adds up over a dimension.
_ATTENDS = re.compile(r"^aten::(\w*attention\w*|matmul|bmm|baddbmm)$")
_ATTENTION = re.compile(r"^aten::\w*attention\w*$")
_ROWS, _NORMS = re.compile(r"^aten::_?(safe_)?softmax$"), re.compile(r"^aten::(native_)?(layer_norm|rms_norm)$")
_ADDS_UP = re.compile(r"^aten::(mean|sum|amax|amin|norm|linalg_vector_norm|var)$")
#: What reads no numbers of a tensor.
_LIKE = re.compile(r"^aten::(new_\w+|\w+_like)$")


class CutOutput(NamedTuple):
    """A gather among ``ranks``, at ``gather_ns``: each sends ``sent`` numbers and in the end takes ``taken`` of what is made of them.

    ``cut_ns``: when it is cut off; ``by``: an operator that reads its own part then.
    ``views``: (row of the flow, dimension, how many it has) of the views that make heads of all that came, in which dimension they are
    counted, and of those that put heads together again.
    ``scattered``: dimension along which the sum behind that operator's layer is cut again (sequence parallelism), -1 where it is not.
    ``between``: the outermost operators (rows of the flow) that work on all parts; ``joins``: those that put them together.
    ``attends``: attention is among them. ``packed``: the parts of several tensors lie side by side in a rank's output (query, key, value
    of all heads), so that its own part is no whole heads of each of them.
    """

    gather_ns: int
    ranks: int
    sent: int
    taken: int
    by: int
    between: frozenset[int]
    joins: frozenset[int]
    attends: bool
    packed: bool
    cut_ns: int = 0
    views: frozenset[tuple[int, int, int]] = frozenset()
    scattered: int = -1


class Parts(NamedTuple):
    """Where the parts of the ranks may lie in a tensor: dimensions, and how long a part is in them. ``piece``: it is that of one rank,
    of those that an operator (row) cut.
    """

    shape: Size
    places: frozenset[tuple[int, int]]
    piece: int = -1


def _behind(shape: Size, dimension: int) -> int:
    return math.prod(shape[dimension + 1 :])


def _viewed(parts: Parts, shape: Size, ranks: int) -> tuple[Parts | None, bool]:
    """Return where the parts lie in a view of a shape, None where that does not hold them apart; and whether they are packed there."""
    places, packed = set[tuple[int, int]](), False
    for dimension, length in parts.places:
        numbers = length * _behind(parts.shape, dimension)  # of a part
        for here, size in enumerate(shape):
            each = _behind(shape, here)
            if size * each < ranks * numbers:
                return None, False  # two dimensions share it, or it begins within one
            if numbers % each == 0 and size * each % (ranks * numbers) == 0:
                places.add((here, numbers // each))
                break
            if size * each == ranks * numbers and numbers % size == 0:
                numbers, packed = numbers // size, True  # several tensors side by side
        else:
            return None, False
    return Parts(shape, frozenset(places)), packed


def _selected(shape: Size, size: Size) -> list[int]:
    """Return from which dimensions an operator may have selected."""
    return [each for each in range(len(shape)) if (*shape[:each], *shape[each + 1 :]) == tuple(size)]


def _are_pieces(shape: Size, made: Mapping[int, Size]) -> dict[int, Size]:
    """Return which results of a cut may be parts of a tensor; all where none is."""

    def is_piece(size: Size) -> bool:
        if len(size) == len(shape) - 1:
            return bool(_selected(shape, size))
        return len(size) == len(shape) and [a > b for a, b in zip(shape, size, strict=True) if a != b] == [True]

    return {number: size for number, size in made.items() if is_piece(size)} or dict(made)


class Needed(Exception):  # noqa: N818 - no error
    """An operator needs all parts, or it is not known that it does not."""


class PartsInFlow:
    """Follows the parts of the ranks from what came with a gather (``message``, of ``ranks`` of which each sent as much as ``sent``) to
    where each rank takes its own.
    """

    def __init__(self, search: LayerReaders, message: FlowMessage, ranks: int, sent: Size) -> None:
        self._search, self._flow, self._message = search, search.flow, message
        self._ranks, self._sent = ranks, sent
        self._parts = dict[int, Parts]()
        self._waiting = list[int]()
        self._between, self._joins, self._cuts = set[int](), set[int](), dict[int, int]()
        self._cut_ns, self._views = 0, set[tuple[int, int, int]]()
        self._attends = self._packed = False

    def follow(self, numbers: set[int]) -> CutOutput | None:
        """Return what is computed of all parts until each rank takes its own, None where all of them are needed."""
        if not self._all_read(numbers):
            return None
        taken = set(self._cuts.values())
        if len(taken) != 1 or not all(self._search.is_for_product(row, self._message) for row in self._cuts):
            return None
        between = frozenset(self._between - self._joins)
        return CutOutput(
            self._message.start_ns,
            self._ranks,
            math.prod(self._sent),
            taken.pop(),
            max(self._cuts),
            between,
            frozenset(self._joins),
            self._attends,
            self._packed,
            self._cut_ns,
            frozenset(self._views),
        )

    def _all_read(self, numbers: set[int]) -> bool:
        """Go through all that reads what came with a message; return whether nothing of it needs the parts of several ranks."""
        first_row = int(np.searchsorted(self._flow.start_ns, self._message.end_ns)) - 1
        seen = set[int]()
        try:
            for number in numbers:
                for size in {size for _, size in self._search.read_behind(number, first_row)}:
                    self._hold(number, self._came(size), first_row)
            while self._waiting:
                row = heapq.heappop(self._waiting)
                if row not in seen:
                    seen.add(row)
                    self._read(row)
        except Needed:
            return False
        return True

    def _need(self) -> NoReturn:
        """Say that an operator needs all parts, or that it is not known that it does not."""
        raise Needed

    def _came(self, size: Size) -> Parts | None:
        """Return where the parts lie in what came: one behind the other, or side by side where they were put together."""
        if math.prod(size) != self._ranks * math.prod(self._sent):
            return None
        of_list = [d for d, n in enumerate(self._sent) if len(size) == len(self._sent) and size[d] == self._ranks * n]
        alike = [
            d for d in of_list if all(a == b for e, (a, b) in enumerate(zip(size, self._sent, strict=True)) if e != d)
        ]
        if alike:
            return Parts(size, frozenset({(alike[-1], self._sent[alike[-1]])}))
        flat = Parts((self._ranks, math.prod(self._sent)), frozenset({(0, 1)}))
        return _viewed(flat, size, self._ranks)[0]

    def _hold(self, number: int, parts: Parts | None, row: int) -> None:
        if parts is None:
            raise Needed
        self._parts[number] = parts
        for reader, _ in self._search.read_behind(number, row):
            heapq.heappush(self._waiting, reader)

    def _parts_given(self, row: int) -> Iterator[tuple[Parts, Size]]:
        """Yield of each argument of an operator that holds parts these, and its size."""
        for number, size in zip(self._flow.made[row], self._search.sizes[row], strict=False):
            parts = self._parts.get(number)
            if parts is not None:
                if tuple(size) != tuple(parts.shape):
                    raise Needed
                yield parts, size

    def _read(self, row: int) -> None:
        name, given = self._flow.names[row], [parts for parts, _ in self._parts_given(row)]
        if _LIKE.match(name):
            return
        if not given:
            raise Needed  # what lies in the operator reads it, nobody knows how
        made = self._search.made_of(row)
        if not made and not is_view(name):
            raise Needed  # a collective reads its result, or nobody: it may be a loss
        self._between.add(row)
        if any(parts.piece >= 0 for parts in given):
            self._put_together(row, given, made)
        elif CUTS.match(name):
            self._cut(row, given[0], made)
        else:
            for number, size in made.items():
                self._hold(number, self._worked_on(row, given, size), row)

    def _put_together(self, row: int, given: list[Parts], made: Mapping[int, Size]) -> None:
        pieces, shape = {parts.piece for parts in given}, given[0].shape
        if not TOGETHER.match(self._flow.names[row]) or len(pieces) > 1 or len(given) != self._ranks:
            raise Needed
        self._joins |= {row, *pieces}
        for number, size in made.items():
            longer = [d for d, (a, b) in enumerate(zip(size, shape, strict=False)) if a != b]
            if len(size) != len(shape) or len(longer) != 1:
                raise Needed
            self._hold(number, Parts(size, frozenset({(longer[0], shape[longer[0]])})), row)

    def _cut(self, row: int, parts: Parts, made: Mapping[int, Size]) -> None:
        shape, dimensions = parts.shape, {dimension for dimension, _ in parts.places}
        made = _are_pieces(shape, made)
        if len({tuple(size) for size in made.values()}) > 1:
            raise Needed
        readers = {reader for number in made for reader, _ in self._search.read_behind(number, row)}
        alone = len(readers) == 1 and all(TOGETHER.match(self._flow.names[reader]) for reader in readers)
        for number, size in made.items():
            shorter = [d for d, (a, b) in enumerate(zip(size, shape, strict=False)) if a != b]
            if len(size) == len(shape) - 1 and (selected := _selected(shape, size)):
                gone = next((each for each in selected if each not in dimensions), -1)
                if gone < 0:
                    self._cut_along(row, parts, selected[0], number, size, among=len(made), alone=alone)
                else:
                    places = frozenset((d - (d > gone), length) for d, length in parts.places)
                    self._hold(number, Parts(size, places), row)
            elif len(size) != len(shape) or len(shorter) > 1:
                raise Needed
            elif not shorter or shorter[0] not in dimensions:
                self._hold(number, Parts(size, parts.places), row)
            else:
                self._cut_along(row, parts, shorter[0], number, size, among=len(made), alone=alone)

    def _cut_along(
        self, row: int, parts: Parts, dimension: int, number: int, size: Size, *, among: int, alone: bool
    ) -> None:
        whole, here = parts.shape[dimension], size[dimension] if len(size) == len(parts.shape) else 1  # 1: selected
        length = dict(parts.places)[dimension]
        times, rest = divmod(whole, here)
        if rest or whole != self._ranks * length:
            raise Needed
        if among == times == self._ranks and alone:
            self._parts[number] = Parts(size, frozenset(), piece=row)
            for reader, _ in self._search.read_behind(number, row):
                heapq.heappush(self._waiting, reader)
        elif among == 1 and times == self._ranks:
            self._between.discard(row)
            if len(size) < len(
                parts.shape
            ):  # a view that counts the ranks, for this rank's to be selected, goes with the cut
                self._views = {view for view in self._views if self._flow.number[view[0]] not in self._flow.made[row]}
            self._cut_ns = max(self._cut_ns, int(self._flow.start_ns[row]))
            self._cuts |= {reader: math.prod(size) for reader, _ in self._search.read_behind(number, row)}
        elif among == times and length % times == 0:
            self._packed = True
            self._hold(number, Parts(size, frozenset({(dimension, length // times)})), row)
        else:
            raise Needed

    def _worked_on(self, row: int, given: list[Parts], size: Size) -> Parts | None:
        """Return where the parts lie in a result of such a size; None where the operator needs all of them."""
        name, first = self._flow.names[row], given[0]
        if TURNS.match(name):
            moved = {
                (d, length) for before, length in first.places for d, n in enumerate(size) if n == first.shape[before]
            }
            return Parts(size, frozenset(moved)) if sorted(size) == sorted(first.shape) else None
        if _ATTENDS.match(name):
            return self._attended(name, given, size)
        if _ROWS.match(name):
            return first if all(d < len(size) - 1 for d, _ in first.places) and size == first.shape else None
        if _NORMS.match(name):
            weights = self._search.sizes[row][2:3]
            over = len(weights[0]) if weights else 0
            apart = over and all(d < len(size) - over for d, _ in first.places)
            return first if apart and tuple(size) == tuple(first.shape) else None
        if _ADDS_UP.match(name):
            kept = len(size) == len(first.shape) and all(size[d] == first.shape[d] for d, _ in first.places)
            return Parts(size, first.places) if kept else None
        if ELEMENTWISE.match(name) or _AS_WELL.match(name):
            return self._each_number(given, size)
        if TOGETHER.match(name):  # with others, or of what was cut in another dimension
            apart = len(size) == len(first.shape) and all(size[d] == first.shape[d] for d, _ in first.places)
            return Parts(size, first.places) if apart else None
        if not is_view(name) and not self._search.hands_on(row):
            return None
        if math.prod(size) != math.prod(first.shape):
            return None
        parts, packed = (first, False) if size == first.shape else _viewed(first, size, self._ranks)
        self._packed |= packed
        if parts is not None and len(size) != len(first.shape) and len(parts.places) == 1:
            self._views |= {(row, dimension, len(size)) for dimension, _ in parts.places}
        return parts

    def _attended(self, name: str, given: list[Parts], size: Size) -> Parts | None:
        """Return the parts of matrices, or of heads: those of which each rank has whole ones are computed apart."""
        each = [all(d < len(parts.shape) - 2 for d, _ in parts.places) and len(parts.shape) > 2 for parts in given]
        alike = [parts for parts in given if all(size[d] == parts.shape[d] for d, _ in parts.places)]
        if not all(each) or not alike:
            return None
        self._attends |= bool(_ATTENTION.match(name)) or len(given) > 1
        return Parts(size, alike[0].places)

    def _each_number(self, given: list[Parts], size: Size) -> Parts | None:
        """Return the parts of a result that each number of what is given makes by itself."""
        common: frozenset[tuple[int, int]] | None = None
        for parts in given:
            more = len(size) - len(parts.shape)
            places = frozenset((d + more, length) for d, length in parts.places if size[d + more] == parts.shape[d])
            common = places if common is None else common & places
        return Parts(size, common) if common else None

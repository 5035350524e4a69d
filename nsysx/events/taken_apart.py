"""Tensors whose pieces are taken one by one while gradients run through them: backward then makes a gradient of the whole for each piece.

The node of ``w[e]``, ``x[:, t]`` or ``x[a:b]`` fills zeros of the size of the whole and copies the piece's gradient in; autograd's engine
adds these up where the tensor was made (``InputBuffer::accumulate``). ``unbind``, ``split`` and ``chunk`` join the gradients of all pieces
once. The operators of a backward say which gradients were added to which, so that two tensors of one size are told apart.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.code_lines import are_nodes
from nsysx.events.event_bounds import UNMATCHED
from nsysx.events.layers import Layer, layer_of
from nsysx.events.narrowed_operators import Size, sizes_of
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_bounds import FEWEST_PIECES, LARGEST_PIECE_SHARE, LIKE_WORK_SHARE
from nsysx.events.operator_flow import ID, MADE, SIZES, is_view, results_in
from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64

#: Nodes that make the gradient of a whole of that of a piece, and how the piece is taken.
_NODES = re.compile(r"^(Select|Slice|Index|IndexSelect|Split|SplitWithSizes|Unbind)Backward\d*$")
_TAKEN_BY = {"Select": "select", "Slice": "slice", "Index": "index", "IndexSelect": "index"}
#: All pieces are taken of which one is read.
AGAIN = "again"
_FILLS = re.compile(r"^aten::((new_)?zeros(_like)?|zero_|fill_)$")
_ADDS = re.compile(r"^aten::add_?$")
_EVALUATION = "autograd::engine::evaluate_function"


class PieceWork(IntEnum):
    """What a call does for the gradient of a piece."""

    FILL = 0  # zeros of the size of the whole
    COPY = 1  # the piece's own gradient, written into them; where all pieces are taken for each that is read, one join
    ADD = 2  # the gradients of two pieces, of the size of the whole


class TakenTensor(NamedTuple):
    """A tensor of an X-ray step of which pieces are taken: its size, those of the pieces (in the order in which they are taken), and how.

    ``by``: "select", "slice", "index", or "again", where all pieces are taken for each that is read. ``numbers``: of each piece that of
    its node of autograd. ``inner``: how one piece of each piece is taken at once, as by x[:, i, j]; "" where none is.
    """

    by: str
    size: Size
    pieces: tuple[Size, ...]
    numbers: tuple[int, ...]
    inner: str = ""

    @property
    def covered(self) -> float:
        """How much of it the pieces hold: 1 where they make it up."""
        return sum(map(math.prod, self.pieces)) / max(math.prod(self.size), 1)

    @property
    def dimension(self) -> int | None:
        """In which dimension pieces are shorter, or which one they lack; None where sizes do not tell one."""
        dimensions = {_dimension_of(self.size, piece) for piece in self.pieces}
        return dimensions.pop() if len(dimensions) == 1 else None


class TakenApart(NamedTuple):
    """The tensors, and of each GPU op of the report for which of them (number in the list, -1 for none) it does what."""

    tensors: list[TakenTensor]
    tensor: I64
    work: I64


def taken_apart(profile: Profile) -> TakenApart | None:
    """Return the tensors of which three pieces or more are taken one by one in an X-ray step; None without one."""
    return profile.once(_of_report)


def tensors_in(ops: pl.DataFrame) -> list[TakenTensor]:
    """Return such tensors of the backwards among some operators."""
    return [each.tensor() for each in _Backward(layer_of(ops)).sums() if each.is_large()]


def _of_report(profile: Profile) -> TakenApart | None:
    ops = profile.ranges.ranges.filter(
        (pl.col("kind") == "op") & (pl.col("process") == profile.process) & ~(pl.col("repeated") | pl.col("crossing"))
    )
    pieces = ops.filter(ops["name"].cast(pl.String).str.contains(_NODES.pattern))
    if pieces.height < FEWEST_PIECES:
        return None
    layer = layer_of(ops.filter(pl.col("thread").is_in(pieces["thread"].unique().to_list())))
    backward = _Backward(layer)
    sums = [each for each in backward.sums() if each.is_large()]
    if not sums:
        return None
    tensor, work = backward.marked(sums)
    calls = profile.attributed.api_calls
    thread, start = calls["thread"].to_numpy(), calls["start_ns"].to_numpy()
    row = np.full(calls.height, -1)
    for key in layer.threads:
        a, b = np.searchsorted(thread, [key, key + 1])  # calls are sorted by thread and time
        row[a:b] = layer.at(key, start[a:b])
    tensor, work = np.append(tensor, -1)[row], np.append(work, -1)[row]
    repeats, called = profile.ranges.repeats, profile.attributed.gpu_ops["call"].fill_null(-1).to_numpy()
    if repeats is None:
        return TakenApart([each.tensor() for each in sums], *(np.append(each, -1)[called] for each in (tensor, work)))
    tensor, work = (np.append(np.where(tensor >= 0, each, each[repeats.like]), -1)[called] for each in (tensor, work))
    open_ones = np.append(repeats.calls == UNMATCHED, False)[called]
    return TakenApart([each.tensor() for each in sums], *_with_like(profile, tensor, work, open_ones))


def _with_like(profile: Profile, tensor: I64, work: I64, open_ones: Flags) -> tuple[I64, I64]:
    """Return of each GPU op its tensor and what it does for it, those of unmatched calls (``open_ones``) by what they run.

    Where each step launches other products (tokens of experts), calls of plain steps find none that they correspond to. A kernel of one
    grid, or a copy of one size, which elsewhere works for such tensors alone does so there.
    """
    ops = profile.attributed.gpu_ops.select(
        "process",
        pl.col("name").to_physical(),
        "grid",
        "block",
        "bytes",
        "stream",
        tensor=tensor,
        work=work,
        apart=open_ones,
    ).with_row_index("row")
    alike = ["process", "name", "grid", "block", "bytes", "stream"]
    matched = ops.filter(~ops["apart"]).group_by(alike).agg(
        share=(pl.col("tensor") >= 0).mean(),
        of_kind=pl.struct("tensor", "work").filter(pl.col("tensor") >= 0).mode().sort().first(),
    )  # fmt: skip
    matched = matched.filter(matched["share"] >= LIKE_WORK_SHARE).unnest("of_kind")
    alike_ones = ops.filter("apart").select("row", *alike).join(matched, on=alike, how="inner", nulls_equal=True)
    row = alike_ones["row"].to_numpy()
    tensor[row], work[row] = alike_ones["tensor"].to_numpy(), alike_ones["work"].to_numpy()
    return tensor, work


@dataclass
class _Piece:
    """A node that makes a gradient of a whole: its row, its number, how the piece was taken, its size, that of the whole, and how the one
    piece of it was taken that was read.
    """

    row: int
    number: int
    by: str
    size: Size
    whole: Size = ()
    inner: str = ""


@dataclass
class _GradientSum:
    """The gradients of one tensor that were added up so far: of pieces of it, and the rows of the operators that added."""

    pieces: list[_Piece] = field(default_factory=list)
    adds: list[int] = field(default_factory=list)
    added: Size = ()

    @property
    def by(self) -> str:
        """How most pieces were taken."""
        return Counter(piece.by for piece in self.pieces).most_common(1)[0][0]

    def of_pieces(self) -> list[_Piece]:
        """Return the pieces that were taken as most were, in the order in which they were taken."""
        return sorted((piece for piece in self.pieces if piece.by == self.by), key=lambda piece: piece.number)

    def removable(self) -> list[int]:
        """Return the operators that add the gradients of these pieces to each other: what else the tensor is used for is added anyway."""
        return self.adds[: len(self.of_pieces()) - 1]

    def is_large(self) -> bool:
        """Return whether there are several pieces, each of which is much smaller than the whole."""
        if len(self.pieces) < FEWEST_PIECES:
            return False
        largest = max(math.prod(piece.size) for piece in self.of_pieces())
        whole = math.prod(self.tensor().size)
        return len(self.of_pieces()) >= FEWEST_PIECES and 0 < largest <= LARGEST_PIECE_SHARE * whole

    def tensor(self) -> TakenTensor:
        """Return what is told of it."""
        pieces = self.of_pieces()
        sizes = [piece.whole for piece in pieces if piece.whole and piece.by != AGAIN]
        return TakenTensor(
            self.by,
            sizes[0] if sizes else self.added,
            tuple(piece.size for piece in pieces),
            tuple(piece.number for piece in pieces),
            Counter(piece.inner for piece in pieces).most_common(1)[0][0],
        )


class _Backward:
    """The operators and nodes of the threads of autograd, and which gradients of pieces they add up."""

    def __init__(self, layer: Layer) -> None:
        self._rows = layer.rows
        self._names = layer.rows["name"].cast(pl.String).fill_null("").to_list()
        self._parent = layer.parents().tolist()
        self._is_node = are_nodes(layer.rows["name"]).tolist()
        text = layer.rows["label"].cast(pl.String)
        self._id = text.str.extract(ID, 1).cast(pl.Int64, strict=False).fill_null(-1).to_list()
        self._made = text.str.extract(MADE, 1).fill_null("").to_list()
        self._sizes = text.str.extract(SIZES, 1).fill_null("").to_list()
        self._number = layer.rows["number"].to_list()
        self._current = dict[int, _GradientSum]()  # by the number of the operator that made it

    def sums(self) -> list[_GradientSum]:
        """Return the gradients of tensors that are added up of those of pieces, alone or with others."""
        every, piece_of, node_of = list[_GradientSum](), dict[int, _GradientSum](), self._nodes_around()
        handed = dict[int, dict[int, _GradientSum]]()  # what a node is given of a single piece, by the node's row
        for row in np.argsort(self._rows["start_ns"].to_numpy(), kind="stable").tolist():
            name, node = self._names[row], node_of[row]
            if self._is_node[row]:
                handed[row] = {number: each for number, each in self._completed(row) if not each.adds}
                match = _NODES.match(name)
                piece = None if match is None else self._piece_at(row, match[1])
                if piece is not None:
                    piece.inner = next((each.by for each in handed[row].values()), "")
                    piece_of[row] = _GradientSum([piece])
                    every.append(piece_of[row])
            elif node in piece_of:
                self._inside_piece(row, piece_of[node], outermost=self._parent[row] == node)
            elif is_view(name):
                # A piece of a view of the tensor: what the view's node hands on is the same gradient.
                for number, _ in self._arguments(row)[:1]:
                    if number in handed.get(node, ()):
                        self._current[self._id[row]] = handed[node][number]
            elif _ADDS.match(name) and self._is_evaluation(self._parent[row]):
                self._add(row)
        return [each for each in every if len(each.pieces) > 1]

    def marked(self, sums: Sequence[_GradientSum]) -> tuple[I64, I64]:
        """Return of each row for which of some sums (number, -1 for none) it works, and what it does."""
        tensor, work = [-1] * len(self._names), [-1] * len(self._names)
        for i, each in enumerate(sums):
            for row in each.removable():
                tensor[row], work[row] = i, PieceWork.ADD
            for nth, piece in enumerate(each.of_pieces()):
                again = piece.by == AGAIN and nth > 0  # one of them joins all pieces
                tensor[piece.row], work[piece.row] = i, PieceWork.FILL if again else PieceWork.COPY
        for row, parent in enumerate(self._parent):  # sorted: what lies around a row comes before it
            if tensor[row] < 0 <= parent and tensor[parent] >= 0:
                one_by_one = sums[tensor[parent]].by != AGAIN
                fills = one_by_one and work[parent] == PieceWork.COPY and _FILLS.match(self._names[row])
                tensor[row], work[row] = tensor[parent], PieceWork.FILL if fills else work[parent]
        return np.array(tensor, np.int64), np.array(work, np.int64)

    def _nodes_around(self) -> list[int]:
        """Return the row of the innermost node around each row, -1 for none."""
        around = list[int]()
        for parent in self._parent:
            around.append(-1 if parent < 0 else parent if self._is_node[parent] else around[parent])
        return around

    def _is_evaluation(self, row: int) -> bool:
        return row >= 0 and self._names[row].startswith(_EVALUATION)

    def _arguments(self, row: int) -> list[tuple[int, int]]:
        return results_in(self._made[row])

    def _completed(self, row: int) -> Iterator[tuple[int, _GradientSum]]:
        """Yield the sums that a node is given: they are complete."""
        for number, _ in self._arguments(row):
            if (each := self._current.pop(number, None)) is not None:
                yield number, each

    def _piece_at(self, row: int, kind: str) -> _Piece | None:
        """Return what a node is the gradient of, None for one of several pieces at once."""
        sizes = [size for size in sizes_of(self._sizes[row]) if size]
        by = _TAKEN_BY.get(kind, AGAIN)
        return _Piece(row, self._number[row], by, sizes[0]) if len(sizes) == 1 else None

    def _inside_piece(self, row: int, each: _GradientSum, *, outermost: bool) -> None:
        piece = each.pieces[0]
        if not piece.whole and _FILLS.match(self._names[row]):
            piece.whole = (sizes_of(self._sizes[row])[:1] or [()])[0] if self._names[row].endswith("_") else ()
        if outermost and self._id[row] >= 0:
            self._current[self._id[row]] = each

    def _add(self, row: int) -> None:
        numbers = [number for number, _ in self._arguments(row)[:2]]
        sums = list({id(each): each for number in numbers if (each := self._current.pop(number, None))}.values())
        if not sums:
            return
        first = sums[0]
        for other in sums[1:]:
            first.pieces += other.pieces
            first.adds += other.adds
            other.pieces = []
        first.adds.append(row)
        first.added = (sizes_of(self._sizes[row])[:1] or [()])[0]
        self._current[self._id[row]] = first


def _dimension_of(size: Size, piece: Size) -> int | None:
    """Return the dimension in which a piece is shorter than the whole, or that it lacks: of several that may be, the first."""
    if len(size) == len(piece):
        shorter = [d for d, (a, b) in enumerate(zip(size, piece, strict=True)) if a != b]
        return shorter[0] if len(shorter) == 1 else None
    return next((d for d in range(len(size)) if size[:d] + size[d + 1 :] == piece), None)

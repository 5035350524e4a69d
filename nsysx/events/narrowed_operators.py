"""Operators that compute more rows than anything takes from their results: from sizes, and what made the arguments of what.

A row is an index of some dimensions. Where all that reads a tensor keeps a part of it (`x[:, -1]`, `x[mask]`, `gather`), the operator that
made it needs no more than that part if it computes each row from the same row of its argument, and so does the one before it. Python's
numbers are not recorded: which dimensions were narrowed, and to what, is read from the sizes of what is handed on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from nsysx.events.operator_bounds import MOST_KEPT_SHARE
from nsysx.events.operator_flow import DIMENSIONS, OperatorFlow, in_place, is_view
from nsysx.events.separate_items import before_turning, separate_dimensions

Size = tuple[int, ...]
_PICKS = re.compile(r"^aten::(slice|select|narrow|index|index_select|gather|masked_select|take_along_dim)$")
#: Picks that Python's numbers choose: one that nobody reads may be kept, and says nothing.
_VIEWED_PART = re.compile(r"^aten::(slice|select|narrow)$")
#: Operators that take a tensor apart: each part is made by an operator in them.
_DIVIDES = re.compile(r"^aten::(chunk|split|split_with_sizes|tensor_split|unbind)$")
#: Each element of the result is made of those in its place.
ELEMENTWISE = re.compile(
    r"^aten::(_?to(_copy)?|contiguous|clone|detach|alias|type_as|relu6?|gelu|silu|sigmoid|tanh|elu|leaky_relu|softplus|mish|hardtanh|"
    r"hardswish|(native_)?dropout|add|sub|rsub|mul|div|pow|exp|log|sqrt|rsqrt|square|neg|abs|sin|cos|clamp\w*|where|masked_fill|erf|"
    r"log1p|expm1|reciprocal|addcmul|addcdiv|lerp|maximum|minimum|nan_to_num|log_sigmoid|sign|round|floor)_?$"
)
#: Each row of the result is made of one row of the first argument, if the last dimension is not among those that are narrowed.
_ROW_BY_ROW = re.compile(r"^aten::(layer_norm|rms_norm|linear|matmul|mm)$")
#: Each element of the result says how one is to another, or to a number.
_COMPARES = re.compile(r"^aten::(gt|ge|lt|le|eq|ne|greater(_equal)?|less(_equal)?|logical_\w+)$")
#: Each number of the result is made of its row: over the last dimension where that is known, or if one of each row is picked.
SOFTMAX = re.compile(r"^aten::(log_)?softmax$")
#: Each number of the result is made of a row of the first argument along one dimension, which is gone or one long in it.
_REDUCES = re.compile(r"^aten::(sum|mean|logsumexp|amax|amin|argmax|argmin)$")
#: Losses of each row of the first argument, whose second dimension goes, and of each number. A mean or a sum of them is one number.
_ROW_LOSS = re.compile(r"^aten::(cross_entropy_loss|nll_loss(_nd|2d)?)$")
ELEMENT_LOSS = re.compile(
    r"^aten::(binary_cross_entropy(_with_logits)?|mse_loss|l1_loss|smooth_l1_loss|huber_loss|kl_div|soft_margin_loss)$"
)
_JOINS = re.compile(r"^aten::(cat|concat|concatenate)$")
#: What writes over all of its first argument and reads nothing of it.
_OVERWRITES = re.compile(r"^aten::(zero_|fill_)$")
_RESHAPES = re.compile(r"^aten::(_?(unsafe_)?view|reshape|(un)?flatten|(un)?squeeze)$")


@dataclass(frozen=True)
class Kept:
    """What is read of a tensor: a share of it, by which dimensions it is narrowed, and the operators (rows of the flow) that do so.

    ``of_last``: what of the share is the last dimension's alone; 1 where that is not known. ``gathered``: it is so by numbers that were
    gathered, of each row its own.
    """

    dimensions: frozenset[int]
    share: float
    by: frozenset[int]
    of_last: float = 1.0
    gathered: bool = False

    def of_rows(self, last: int, *, over_last: bool) -> Kept | None:
        """Return what is read where all of each row (of the dimension ``last``) is needed for one of its numbers; None for all.

        ``over_last``: that is known of the operator. Where it is not, numbers that are gathered from the rows tell it.
        """
        rows = self.dimensions - {last}
        told = self.gathered or (over_last and (last not in self.dimensions or self.of_last < 1))
        return Kept(rows, self.share / self.of_last, self.by) if rows and told else None


@dataclass(frozen=True)
class Narrowed:
    """Operators of which a part is enough: row of the flow -> share of its rows that is read; ``by``: what narrows them (rows)."""

    by: frozenset[int]
    share: dict[int, float]


def sizes_of(text: str) -> list[Size]:
    """Return the sizes of the arguments of an operator, () for what is no tensor."""
    return list(_sizes_of(text))


@lru_cache(maxsize=4096)  # many operators have the same
def _sizes_of(text: str) -> tuple[Size, ...]:
    return tuple(tuple(map(int, re.findall(r"\d+", each))) for each in DIMENSIONS.findall(text))


def result_sizes(flow: OperatorFlow, sizes: Sequence[Sequence[Size]]) -> dict[int, Size]:
    """Return the size of each tensor, as the first that is handed it says; ``sizes``: of the arguments of each operator."""
    result = dict[int, Size]()
    for made, of_arguments in zip(flow.made, sizes, strict=True):
        if len(of_arguments) == len(made):
            for number, size in zip(made, of_arguments, strict=True):
                if number >= 0:
                    result.setdefault(number, size)
    for number, size in flow.later_sizes.items():
        result.setdefault(number, size)
    return result


def kept_of_tensors(flow: OperatorFlow) -> dict[int, Kept | None]:
    """Return what is read of the tensors of a step, None for all of one, by the number of the operator that made each."""
    reads = _Reads(flow)
    for row in reversed(flow.outermost):
        reads.backwards(row)
    return reads.kept


def narrowed_operators(flow: OperatorFlow, over_last: frozenset[int] = frozenset()) -> list[Narrowed]:
    """Return the outermost operators that compute more rows than is read of them, by what narrows them.

    ``over_last``: softmaxes (rows of the flow) of which it is known that they are over the last dimension: each row is one of its own.
    """
    reads = _Reads(flow, over_last)
    share_of: dict[frozenset[int], dict[int, float]] = {}
    for row in reversed(flow.outermost):
        kept = reads.backwards(row)
        if kept is not None:
            share_of.setdefault(kept.by, {})[row] = kept.share
    changes = list[Narrowed]()
    for by, share in share_of.items():  # what narrows a result again is a part of the same change
        same = next((each for each in changes if each.by <= by or by <= each.by), None)
        if same is not None:
            changes.remove(same)
        changes.append(Narrowed(by, share) if same is None else Narrowed(by | same.by, share | same.share))
    return changes


def is_row_loss(name: str) -> bool:
    """Return whether an operator is a loss of rows and of what each is compared with."""
    return _ROW_LOSS.match(name) is not None


def narrowing(before: Size, after: Size) -> frozenset[int] | None:
    """Return the dimensions in which a tensor may be narrowed, None where it is not, or not told by these sizes."""
    if math.prod(after) >= math.prod(before):
        return None
    if len(before) == len(after):
        pairs = list(zip(before, after, strict=True))
        return None if any(b < a for b, a in pairs) else frozenset(i for i, (b, a) in enumerate(pairs) if b != a)
    one_less = frozenset(i for i in range(len(before)) if before[:i] + before[i + 1 :] == after)
    if one_less:
        return one_less
    for leading in range(1, len(before)):  # rows by a mask or by numbers
        rest = before[leading:]
        if len(after) > len(rest) and after[len(after) - len(rest) :] == rest:
            return frozenset(range(leading))
    return None


def joined_in(parts: Sequence[Size], whole: Size) -> int | None:
    """Return the dimension in which parts are put together, None where these sizes are no parts of it."""
    for dimension in range(len(whole)):
        others = {(*part[:dimension], *part[dimension + 1 :]) for part in parts if len(part) == len(whole)}
        if others == {(*whole[:dimension], *whole[dimension + 1 :])} and len(parts) > 1:
            together = sum(part[dimension] for part in parts if len(part) == len(whole))
            return dimension if together == whole[dimension] else None
    return None


class _Reads:
    """What is read of each tensor (``kept``), by the number of the operator that made it: None for all of it."""

    def __init__(self, flow: OperatorFlow, over_last: frozenset[int] = frozenset()) -> None:
        self._flow, self._over_last = flow, over_last
        distinct = {text: sizes_of(text) for text in set(flow.size)}
        self._sizes = [distinct[text] for text in flow.size]
        self._result = result_sizes(flow, self._sizes)
        self.kept: dict[int, Kept | None] = dict.fromkeys(flow.read_later)
        self._written: set[int] = set()

    def backwards(self, row: int) -> Kept | None:
        """Note what an operator reads, those behind it first; return what is read of its result where a part of its work is enough."""
        flow = self._flow
        name, made, sizes, number = flow.names[row], flow.made[row], self._sizes[row], flow.number[row]
        aligned, kept = len(sizes) == len(made) > 0, self.kept.get(number)
        if aligned and in_place(name):
            self._written.add(made[0])
        if aligned and _OVERWRITES.match(name):
            return None
        written = is_view(name) and number in self._written  # what is written into a view is no part that is read
        if aligned and written:
            self._written.add(made[0])
        elif aligned and _PICKS.match(name):
            self._pick(row)
            return None
        elif aligned and _DIVIDES.match(name):
            self._divide(row)
            return None
        arguments = self._arguments(row, kept) if aligned and not written and kept is not None else None
        if arguments is None:
            self._whole(made)
            return None
        for each, of_it in zip(made, arguments, strict=True):
            self._read(each, of_it)
        return arguments[0] if SOFTMAX.match(name) or _ROW_BY_ROW.match(name) else kept

    def _pick(self, row: int) -> None:
        flow = self._flow
        name, made, number = flow.names[row], flow.made[row], flow.number[row]
        before, after = self._sizes[row][0], self._result.get(number)
        if after is None and name.endswith("gather"):
            after = self._sizes[row][2]
        behind = self.kept.get(number)
        of_it: Kept | None = None
        if after == before:
            of_it = behind
        elif after is not None and (dimensions := self._narrowed_by(row, after)) and self._is_read(number, name):
            share, by = math.prod(after) / max(math.prod(before), 1), frozenset({row})
            last = len(before) - 1
            of_last, gathered = share if dimensions == {last} else 1.0, name.endswith("gather") and dimensions == {last}
            if behind is not None and len(before) == len(after):
                of_it = Kept(
                    dimensions | behind.dimensions,
                    share * behind.share,
                    behind.by | by,
                    of_last * behind.of_last,
                    gathered or behind.gathered,
                )
            elif behind is not None and len(before) == len(after) + 1 and len(dimensions) == 1:  # x[n][:, :2]
                (gone,) = dimensions
                of_rest = frozenset(d + (d >= gone) for d in behind.dimensions)
                of_it = Kept(
                    dimensions | of_rest,
                    share * behind.share,
                    behind.by | by,
                    of_last if gone == last else behind.of_last,
                )
            else:
                of_it = Kept(dimensions, share, by, of_last, gathered)
        self._read(made[0], of_it if of_it is not None and of_it.share <= MOST_KEPT_SHARE else None)
        self._whole(made[1:])

    def _narrowed_by(self, row: int, after: Size) -> frozenset[int] | None:
        """Return the dimensions in which a pick narrows a tensor: numbers for several of them choose each item by all (`x[rows, i]`)."""
        before, *by = self._sizes[row]
        dimensions = narrowing(before, after)
        several = len(by) > 1 and all(by) and self._flow.names[row] == "aten::index"
        return dimensions | frozenset(range(len(by))) if dimensions and several else dimensions

    def _divide(self, row: int) -> None:
        """Note what is read of a tensor that an operator takes apart: the parts that something reads (`x.chunk(2)[0]`)."""
        flow, before, made = self._flow, self._sizes[row][0], self._flow.made[row]
        behind = int(np.searchsorted(flow.start_ns, flow.end_ns[row]))
        parts = [flow.number[inner] for inner in range(row + 1, behind) if flow.number[inner] in self.kept]
        sizes = [self._result[number] for number in parts if number in self._result]
        dimensions = {narrowing(before, size) for size in sizes}
        share = sum(math.prod(size) for size in sizes) / max(math.prod(before), 1)
        all_read = bool(parts) and len(sizes) == len(parts) and not self._written.intersection(parts)
        narrowed = next(iter(dimensions)) if all_read and len(dimensions) == 1 and share <= MOST_KEPT_SHARE else None
        self._read(made[0], Kept(narrowed, share, frozenset({row})) if narrowed else None)
        self._whole(made[1:])

    def _is_read(self, number: int, name: str) -> bool:
        return number in self.kept or not _VIEWED_PART.match(name)

    def _arguments(self, row: int, kept: Kept) -> list[Kept | None] | None:
        """Return what an operator needs of each argument where a part of its result is read; None where it needs all of them."""
        flow, sizes = self._flow, self._sizes[row]
        name, result = flow.names[row], self._result.get(flow.number[row])
        if result is None:
            return None
        last, others = len(result) - 1, list[Kept | None]([None] * (len(sizes) - 1))
        if ELEMENTWISE.match(name) or _COMPARES.match(name) or (ELEMENT_LOSS.match(name) and result == sizes[0]):
            return [kept if size == result else None for size in sizes]
        if (reduced := _reduced(name, sizes[0], result)) is not None:
            of_rows = Kept(frozenset(reduced[d] for d in kept.dimensions), kept.share, kept.by)
            return [of_rows, *(kept if _ROW_LOSS.match(name) and size == result else None for size in sizes[1:])]
        if name == "aten::embedding" and last not in kept.dimensions:
            return [None, *others]
        if name == "aten::addmm" and last not in kept.dimensions:
            return [None, kept, *others[1:]]
        if _JOINS.match(name):  # of each part as much, in the other dimensions
            apart = joined_in([size for size in sizes if size], result) not in (None, *kept.dimensions)
            return [kept if size else None for size in sizes] if apart else None
        if _ROW_BY_ROW.match(name) and (name.endswith("norm") or (len(sizes) > 1 and len(sizes[1]) == 2)):
            rows = kept if last not in kept.dimensions else kept.of_rows(last, over_last=True)
            return [rows, *others] if rows is not None else None
        if kept.dimensions <= separate_dimensions(name, sizes, result):
            return [kept, *others]
        if SOFTMAX.match(name):
            rows = kept.of_rows(_longer_than_one(result), over_last=row in self._over_last)
            return [rows, *others] if rows is not None else None
        if (turned := before_turning(name, sizes[0], result, kept.dimensions)) is not None:
            return [Kept(turned, kept.share, kept.by), *others]
        return [reshaped, *others] if (reshaped := _reshaped(name, sizes[0], result, kept)) is not None else None

    def _read(self, number: int, kept: Kept | None) -> None:
        """Note that a part of a tensor is read, or all of it."""
        if number < 0:
            return
        before = self.kept.get(number, kept)
        if kept is not None and before is not None and before is not kept:
            share = max(before.share, kept.share) if before.by == kept.by else before.share + kept.share
            same = before.dimensions == kept.dimensions and share <= MOST_KEPT_SHARE
            kept = Kept(kept.dimensions, share, before.by | kept.by) if same else None
        self.kept[number] = None if before is None else kept

    def _whole(self, made: Sequence[int]) -> None:
        for number in made:
            self._read(number, None)


def _longer_than_one(size: Size) -> int:
    """Return the last dimension that is longer than 1: a softmax over one before others of 1 is over the last, too; -1 without one."""
    return max((d for d, length in enumerate(size) if length > 1), default=-1)


def _reduced(name: str, before: Size, after: Size) -> tuple[int, ...] | None:
    """Return which dimension of the argument each of the result is, where an operator makes one number of each row along another.

    None where it does not, or where sizes do not tell which dimension that is.
    """
    dimensions = range(len(before))
    if _ROW_LOSS.match(name):
        gone = [1] if len(before) > 1 and after == (before[0], *before[2:]) else []
    elif _REDUCES.match(name) and len(after) == len(before):
        gone = [d for d in dimensions if before[d] > 1 and after == (*before[:d], 1, *before[d + 1 :])]
        return tuple(dimensions) if len(gone) == 1 else None
    else:
        gone = [d for d in dimensions if after == before[:d] + before[d + 1 :]] if _REDUCES.match(name) else []
    return tuple(d for d in dimensions if d != gone[0]) if len(gone) == 1 else None


def _reshaped(name: str, before: Size, after: Size, kept: Kept) -> Kept | None:
    """Return what is kept of a tensor of which a part is kept after it was reshaped, None where that is no part of its dimensions."""
    if not _RESHAPES.match(name):
        return None
    leading = next(
        (i for i, (b, a) in enumerate(zip(before, after, strict=False)) if b != a), min(len(before), len(after))
    )
    if max(kept.dimensions) < leading:  # the first dimensions stay
        return Kept(kept.dimensions, kept.share, kept.by)
    same = 0  # the last dimensions stay
    while same < min(len(before), len(after)) and before[-1 - same] == after[-1 - same]:
        same += 1
    if max(kept.dimensions) < len(after) - same and len(before) > same:
        return Kept(frozenset(range(len(before) - same)), kept.share, kept.by)
    if min(kept.dimensions) >= len(after) - same:
        return Kept(frozenset(d - len(after) + len(before) for d in kept.dimensions), kept.share, kept.by)
    return None

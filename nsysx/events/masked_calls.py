"""Calls of modules that each compute all rows, of which a mask, or a pick behind them, keeps those of one group: from an X-ray's operators.

``where(group == k, net(x), others)``, ``net(x) * (group == k)[:, None]`` and ``stack([net(x) for net in nets])[group, rows]`` each compute
k times what is kept. Masks that compare one tensor with one number each have no row in common: of k calls all rows are kept once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nsysx.events.narrowed_operators import ELEMENTWISE, Size
from nsysx.events.operator_bounds import MOST_KEPT_SHARE
from nsysx.events.operator_flow import ModuleCall, OperatorFlow, is_view
from nsysx.events.result_readers import ResultReaders

_NOT = re.compile(r"^aten::(bitwise|logical)_not$")
_TIMES, _OVER = re.compile(r"^aten::mul_?$"), re.compile(r"^aten::(any|sum|amax)$")
#: What joins results, and what picks one of them for each row.
_JOINS, _PICKS = re.compile(r"^aten::(stack|cat)$"), re.compile(r"^aten::(index|gather|take_along_dim)$")
#: What takes a column of a mask.
_COLUMN = re.compile(r"^aten::(select|slice|narrow|unbind)$")
#: Each row of the result is made of one row, whatever the other dimensions are.
_OF_ROWS = re.compile(
    r"^aten::(linear|layer_norm|rms_norm|matmul|mm|addmm|(un)?flatten|view|reshape|unsqueeze|squeeze|chunk|split|select|slice)$"
)


class MaskedCalls(NamedTuple):
    """Calls of modules of which ``share`` of the rows is kept, ``keeper``: the operator (row of the flow) that keeps the first one's."""

    calls: Sequence[ModuleCall]
    share: float
    keeper: int


class _Mask(NamedTuple):
    """A comparison (row of the flow) of what (its number, and its size), and its size where it is used."""

    row: int
    of: tuple[int, Size]
    size: Size


def masked_calls(flow: OperatorFlow) -> list[MaskedCalls]:
    """Return such calls, in order of time."""
    kept, last = dict[ModuleCall, tuple[tuple[object, ...], int, int]](), -1
    masks = _GroupMasks(flow)
    for call in flow.calls:
        if call.first >= last and (by := masks.of_call(call)) is not None:
            kept[call], last = by, call.last
    kept_by = list[MaskedCalls]()
    for calls in _series(flow, kept):
        distinct = len({kept[call][1] for call in calls}) if kept[calls[0]][0][0] == "mask" else len(calls)
        each = masks.groups_of_row(kept[calls[0]][0])
        share = each / distinct
        if distinct > 1 and share <= MOST_KEPT_SHARE:
            kept_by.append(MaskedCalls(calls, share, kept[calls[0]][2]))
    return kept_by


def _series(
    flow: OperatorFlow, kept: dict[ModuleCall, tuple[tuple[object, ...], int, int]]
) -> Iterator[list[ModuleCall]]:
    """Yield calls of one class and one mask that follow each other with no call of another module in between, each module once."""
    series = list[ModuleCall]()
    for call in flow.calls:
        if any(each.first <= call.first and call.last <= each.last for each in series):
            continue
        goes_on = call in kept and series and kept[call][0] == kept[series[-1]][0] and call.cls == series[-1].cls
        paths = {each.path for each in series}
        if goes_on and (call.path not in paths or len(paths) == 1 < len(series)):
            series.append(call)
            continue
        if series:
            yield series
        series = [call] if call in kept else []
    if series:
        yield series


class _GroupMasks:
    def __init__(self, flow: OperatorFlow) -> None:
        self.flow, self.readers = flow, ResultReaders(flow)

    def groups_of_row(self, key: tuple[object, ...]) -> float:
        """Return how many groups a row is of: those that are compared with each number."""
        return float(key[-1]) if isinstance(key[-1], int | float) else 1.0

    def of_call(self, call: ModuleCall) -> tuple[tuple[object, ...], int, int] | None:
        """Return what keeps rows of all that is read of a call: what tells masks apart from others, the mask, and the operator."""
        kept_by = list[tuple[tuple[object, ...], int, int]]()
        for row in self.flow.outermost_of(call.first, call.last):
            theirs = self._of_result(row, call)
            if theirs is None:
                return None
            kept_by += theirs
        return kept_by[0] if len({each[:2] for each in kept_by}) == 1 else None

    def _of_result(self, row: int, call: ModuleCall) -> list[tuple[tuple[object, ...], int, int]] | None:
        """Return the same of one result; None where something reads all of it."""
        kept_by = list[tuple[tuple[object, ...], int, int]]()
        number = self.flow.number[row]
        for reader in self.readers.readers.get(number, set()):
            if reader >= 0 and call.first <= reader < call.last:
                continue
            if reader < 0:
                return None
            if self.readers.hands_on(reader):
                theirs = self._of_result(reader, call)
            else:
                kept = self._kept(reader, number, call)
                theirs = None if kept is None else [kept]
            if theirs is None:
                return None
            kept_by += theirs
        return kept_by

    def _kept(self, reader: int, number: int, call: ModuleCall) -> tuple[tuple[object, ...], int, int] | None:
        name, made = self.flow.names[reader], self.flow.made[reader]
        sizes, result = self.readers.sizes[reader], self.readers.results.get(number)
        if not result or len(sizes) != len(made):
            return None
        if _JOINS.match(name):
            return self._picked(reader, result, len([size for size in sizes if size == result]))
        if name == "aten::where" and len(made) == 3 and number in made[1:]:
            by = 0
        elif name == "aten::masked_fill" and made[0] == number:
            by = 1
        elif _TIMES.match(name) and number in made[:2] and len(made) == 2:
            by = 1 - made.index(number)
        else:
            return None
        mask = self._mask(made[by], sizes[by])
        if mask is None or not self._is_of_rows(mask.size, result, call):
            return None
        rows = max(math.prod(mask.size), 1)
        return ("mask", mask.of, math.prod(mask.of[1]) / rows), mask.row, reader

    def _picked(self, joins: int, result: Size, parts: int) -> tuple[tuple[object, ...], int, int] | None:
        """Return what keeps one of the results that are joined for each row."""
        behind = self.readers.only_reader(joins)
        if parts < 2 or behind is None or not _PICKS.match(self.flow.names[behind[0]]):
            return None
        left = self.readers.results.get(self.flow.number[behind[0]])
        if left is None or math.prod(left) != math.prod(result) or left[-1:] != result[-1:]:
            return None
        return ("picked", joins, 1.0), joins, behind[0]

    def _mask(self, number: int, size: Size) -> _Mask | None:
        """Return the comparison that a factor or a condition is zero with, None for others."""
        flow = self.flow
        number, _ = self.readers.base_of(number) if number >= 0 else (number, None)
        row = flow.row_of.get(number) if number >= 0 else None
        if row is None:
            return None
        name, made, sizes = flow.names[row], flow.made[row], self.readers.sizes[row]
        if name == "aten::eq" and len(sizes) > 1 and sizes[0] and not sizes[1]:
            return _Mask(row, (self.readers.base_of(made[0])[0] if made[0] >= 0 else -1, sizes[0]), size)
        if (_NOT.match(name) or _OVER.match(name)) and made:
            return self._mask(made[0], size)
        if _TIMES.match(name) and len(sizes) > 1 and sizes[1]:
            return self._mask(made[0], size) or self._mask(made[1], size)
        if _COLUMN.match(name) and made:
            whole = flow.row_of.get(self.readers.base_of(made[0])[0]) if made[0] >= 0 else None
            if whole is not None and flow.names[whole] == "aten::one_hot":
                return _Mask(row, (flow.number[whole], self.readers.sizes[whole][0]), size)
        return None

    def _is_of_rows(self, mask: Size, result: Size, call: ModuleCall) -> bool:
        """Return whether a mask leaves out whole rows of a result, each of which the call computes by itself."""
        flow = self.flow
        while mask[-1:] == (1,):
            mask = mask[:-1]
        if not mask or mask != result[: len(mask)] or (len(mask) == len(result) > 1):
            return False
        names = [flow.names[row] for row in flow.outermost_of(call.first, call.last)]
        return len(mask) == 1 or all(_OF_ROWS.match(name) or ELEMENTWISE.match(name) or is_view(name) for name in names)

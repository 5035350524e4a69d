"""Exchanges of all ranks with all (all-to-all) that carry what is cut away behind them, or what was only padded before: a spectrum of which
a layer uses few modes.

What lies between may move numbers, or transform some dimension (an FFT): what is cut in another one need not be sent. Which one is
transformed, sizes do not tell: the most that is cut in one dimension does not count there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from nsysx.events.flow_messages import FlowMessage
from nsysx.events.narrowed_operators import Size, narrowing, result_sizes, sizes_of
from nsysx.events.operator_bounds import MOST_OF_SENT_SHARE
from nsysx.events.operator_flow import OperatorFlow

EXCHANGES = re.compile(r"^(c10d::_?all_?to_?all_base_|_c10d_functional::all_to_all_single)$")
_MOVES = re.compile(
    r"^aten::(_?(unsafe_)?view(_as_(real|complex))?|reshape|_reshape_alias|(un)?flatten|(un)?squeeze|transpose|permute|movedim|[tT]|detach|"
    r"alias|contiguous|clone|cat|concat|stack|resolve_conj)$"
)
_TRANSFORMS = re.compile(r"^aten::(fft_i?fft|_fft_c2c)$")
_CUTS, _ZEROS = (
    re.compile(r"^aten::(slice|narrow|select|index|index_select)$"),
    re.compile(r"^aten::(new_)?zeros(_like)?$"),
)
#: What chooses rows by what the step computes: no rank knows the others' choice before it sends.
_CHOOSES = re.compile(
    r"^aten::(arg)?(sort|max|min)$|^aten::(topk|cumsum|one_hot|nonzero|where|multinomial|bincount|searchsorted|gather)$"
)
_PADS, _WRITES = "aten::constant_pad_nd", re.compile(r"^aten::(copy_|index_put_|_index_put_impl_)$")


class _LeftOfCut(NamedTuple):
    """Which share of each dimension is left, and the operators (rows of the flow) that leave it."""

    shares: Mapping[int, float]
    rows: frozenset[int]

    def needed(self, *, transformed: bool) -> float:
        """Return which share of the numbers has to be sent."""
        shares = sorted(self.shares.values())
        return math.prod(shares[1:] if transformed else shares)


class CutExchange(NamedTuple):
    """An exchange, which share of its numbers is needed, and the operators (rows of the flow) that cut or pad the others."""

    message: FlowMessage
    share: float
    rows: frozenset[int]


def cut_exchanges(flow: OperatorFlow, messages: list[FlowMessage]) -> list[CutExchange]:
    """Return the exchanges that carry more than is needed."""
    search = _CutSearch(flow)
    exchanges = []
    for message in messages:
        if not EXCHANGES.match(message.name):
            continue
        needed = search.behind(message) or search.before(message.sent)
        if needed is not None and needed[0] <= MOST_OF_SENT_SHARE:
            exchanges.append(CutExchange(message, *needed))
    return exchanges


class _CutSearch:
    def __init__(self, flow: OperatorFlow) -> None:
        self._flow = flow
        self._sizes = [sizes_of(text) for text in flow.size]
        self._results = result_sizes(flow, self._sizes)
        self._readers = dict[int, set[int]]()
        for row in flow.outermost:
            for number in flow.made[row]:
                self._readers.setdefault(number, set()).add(row)

    def behind(self, message: FlowMessage) -> tuple[float, frozenset[int]] | None:
        """Return which share of what came is read, and what cuts it; None where not all is cut on the way."""
        transformed, in_call = False, message.results - self._flow.row_of.keys()
        later = [row for row in self._flow.outermost if self._flow.start_ns[row] >= message.end_ns]
        # What came may bear the number of a range within the collective's.
        last = self._flow.number[later[0]] if later else 0
        named = {n for n in self._readers if n not in self._flow.row_of and in_call and min(in_call) <= n < last}
        rows = set[int]().union(*(self._readers.get(n, set()) for n in message.results | named)).intersection(later)
        while len(rows) == 1:
            (row,) = rows
            name = self._flow.names[row]
            if _CUTS.match(name):
                cut = None if self._chosen(row) else self._cut(row)
                return None if cut is None or not cut.shares else (cut.needed(transformed=transformed), cut.rows)
            if not _MOVES.match(name) and not _TRANSFORMS.match(name):
                return None
            transformed |= _TRANSFORMS.match(name) is not None
            rows = self._readers.get(self._flow.number[row], set())
        return None

    def _chosen(self, row: int) -> bool:
        """Return whether the step computes which rows an operator takes, or writes into."""
        waiting, seen = [number for number in self._flow.made[row][1:] if number >= 0], set[int]()
        while waiting:
            number = waiting.pop()
            maker = self._flow.row_of.get(number)
            if maker is None or number in seen:
                continue
            seen.add(number)
            if _CHOOSES.match(self._flow.names[maker]):
                return True
            waiting += [each for each in self._flow.made[maker] if each >= 0]
        return False

    def _cut(self, row: int) -> _LeftOfCut | None:
        """Return what is left by an operator and by those behind it that cut the same again."""
        shares, rows = dict[int, float](), set[int]()
        while True:
            before, after = self._sizes[row][0], self._results.get(self._flow.number[row])
            if after is None:
                return None
            for dimension in (narrowing(before, after) or ()) if len(before) == len(after) else ():
                shares[dimension] = shares.get(dimension, 1.0) * after[dimension] / before[dimension]
            rows.add(row)
            behind = self._readers.get(self._flow.number[row], set())
            if len(behind) != 1 or not _CUTS.match(self._flow.names[next(iter(behind))]):
                return _LeftOfCut(shares, frozenset(rows))
            (row,) = behind

    def before(self, number: int) -> tuple[float, frozenset[int]] | None:
        """Return which share of what is sent was written into zeros, and what writes it; None where it is made of anything else."""
        transformed = False
        row = self._flow.row_of.get(number)
        while row is not None and self._flow.made[row]:
            name, result = self._flow.names[row], self._results.get(self._flow.number[row])
            if name == _PADS and result is not None:
                cut = _LeftOfCut(_shares(self._sizes[row][0], result), frozenset({row}))
            elif _ZEROS.match(name) and result is not None:
                cut = self._written(self._flow.number[row], result)
            else:
                if not _MOVES.match(name) and not _TRANSFORMS.match(name):
                    return None
                transformed |= _TRANSFORMS.match(name) is not None
                row = self._flow.row_of.get(self._flow.made[row][0])
                continue
            return (cut.needed(transformed=transformed), cut.rows) if cut.shares else None
        return None

    def _written(self, zeros: int, whole: Size) -> _LeftOfCut:
        """Return what is written into zeros, if one operator does."""
        views, writers = {zeros}, list[int]()
        for row in self._flow.outermost:
            made = self._flow.made[row]
            if not made or made[0] not in views:
                continue
            if _WRITES.match(self._flow.names[row]):
                writers.append(row)
            elif _CUTS.match(self._flow.names[row]):
                views.add(self._flow.number[row])
        if len(writers) != 1:
            return _LeftOfCut({}, frozenset())
        values = [size for size in self._sizes[writers[0]][1:] if len(size) == len(whole)]
        return _LeftOfCut(_shares(values[0], whole) if values else {}, frozenset(writers))


def _shares(part: Size, whole: Size) -> dict[int, float]:
    if len(part) != len(whole):
        return {}
    return {i: p / w for i, (p, w) in enumerate(zip(part, whole, strict=True)) if p < w}

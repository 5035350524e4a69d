"""Gathers whose result is only summed, or averaged, over the ranks: a reduction of each rank's part brings the same with fewer bytes.

Sizes tell over which dimension a sum goes: the parts of the ranks lie one behind the other in memory, so that a sum over the first
dimension of a view of them adds up the ranks if their number divides it. What else reads any of it needs the parts themselves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from nsysx.events.flow_messages import FlowMessage, messages_in
from nsysx.events.gathered_products import put_together
from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.operator_names import TURNS
from nsysx.events.profile import Profile
from nsysx.events.result_readers import ResultReaders

_INTO_ONE = re.compile(r"^(c10d::_allgather_base_|_c10d_functional::all_gather_into_tensor)$")
_INTO_LIST = "c10d::allgather_"
_SUMS = re.compile(r"^aten::(sum|mean)$")
_ADDS = re.compile(r"^aten::add_?$")


class SummedGather(NamedTuple):
    """A gather of the flow's thread (from ``start_ns`` on) among ``ranks``: ``whole`` numbers come, and ``summed`` ones are left of them.

    ``goes``: the outermost operators (rows of the flow) that a reduction makes needless; ``sums``: those that then add up the rows of
    one rank, and not of all (none where each rank has one). ``by``: the operator that adds up the ranks.
    """

    start_ns: int
    ranks: int
    whole: int
    summed: int
    goes: frozenset[int]
    sums: frozenset[int]
    by: int

    @property
    def needless(self) -> float:
        """The share of the gather's bytes that a reduction of what is left does not send: it sends twice, the gather for each rank once."""
        return max(1 - 2 * self.summed / self.whole, 0.0)


class _Summed(NamedTuple):
    """Sums over the ranks (rows of the flow) with what hands on to them, and the numbers that are left by all of them.

    ``by_row``: whether they add up rows of one rank, too.
    """

    sums: frozenset[int]
    passed: frozenset[int]
    numbers: int
    by_row: bool


def summed_gathers(flow: OperatorFlow, profile: Profile) -> list[SummedGather]:
    """Return the gathers of whose result nothing but sums over the ranks is read."""
    gathers = [each for each in messages_in(flow, profile) if _INTO_ONE.match(each.name) or each.name == _INTO_LIST]
    if not gathers:
        return []
    readers = _Readers(flow)
    lists = put_together(flow, profile) if any(each.name == _INTO_LIST for each in gathers) else {}
    only_summed = (
        readers.of_list(each, lists) if each.name == _INTO_LIST else readers.of_one(each) for each in gathers
    )
    return [each for each in only_summed if each is not None]


class _Readers(ResultReaders):
    @cached_property
    def _of_messages(self) -> dict[int, set[int]]:
        """Of the number of each operator that is none of the flow's, such as a collective, the outermost operators that are given it."""
        readers: dict[int, set[int]] = {}
        for row in self.flow.outermost:
            for number in self.flow.made[row]:
                if number >= 0 and number not in self.flow.row_of:
                    readers.setdefault(number, set()).add(row)
        for number in self.flow.read_later:
            readers.setdefault(number, set()).add(-1)
        return readers

    def of_one(self, gather: FlowMessage) -> SummedGather | None:
        """Return a gather into one tensor if its result is only summed over the ranks."""
        functional = gather.name.startswith("_c10d")
        part = math.prod(gather.sizes[0 if functional else 1]) if len(gather.sizes) > 1 else 0
        sizes_read = [math.prod(self.results[number]) for number in gather.results if number in self.results]
        whole = max(sizes_read, default=0) if functional else math.prod(gather.sizes[0])
        ranks, rest = divmod(whole, part) if part else (0, 0)
        if ranks < 2 or rest:
            return None
        return self._found(gather, ranks, whole, gather.results)

    def of_list(self, gather: FlowMessage, lists: dict[int, tuple[Size, int]]) -> SummedGather | None:
        """Return a gather into a list if its tensors are only put together and summed over the ranks; ``lists``: see ``put_together``."""
        flow, part = self.flow, next((size for size in gather.sizes if size), ())
        copies = {
            flow.number[row]
            for row in flow.outermost
            if gather.start_ns <= flow.start_ns[row] < gather.end_ns and flow.names[row] == "aten::copy_"
        }
        readers = frozenset[int]().union(*(self.readers.get(number, set()) for number in copies))
        if not part or not readers or -1 in readers:
            return None
        if all(_ADDS.match(flow.names[row]) for row in readers):
            return self._added(gather, part, copies, readers)
        if len(readers) != 1:
            return None
        (row,) = readers
        number = flow.number[row]
        if number not in lists:
            return None
        ranks, result = lists[number][1], self.results.get(number)
        in_front = result == (ranks * part[0], *part[1:]) or (result == (ranks, *part) and part[0] != ranks)
        if not in_front or len(flow.made[row]) < ranks:
            return None
        only_summed = self._found(gather, ranks, ranks * math.prod(part), (number,))
        rows = {row, *(flow.row_of[each] for each in copies)}
        return only_summed and only_summed._replace(goes=only_summed.goes | rows)

    def _added(self, gather: FlowMessage, part: Size, copies: set[int], adds: frozenset[int]) -> SummedGather | None:
        """Return a gather whose copies are added up one by one (``sum(parts)``), and nothing else with them; None for others."""
        flow, summands = self.flow, copies | {self.flow.number[row] for row in adds}
        alone = all(
            (number in summands) == (size == part)
            for row in adds
            for number, size in zip(flow.made[row], self.sizes[row], strict=False)
            if number >= 0 or size
        )
        read = {flow.number[row]: self.readers.get(flow.number[row], set()) for row in adds}
        last = [number for number, by in read.items() if not by <= adds]
        unread = [number for number, by in read.items() if not by]
        once = all(len(self.readers.get(number, ())) == 1 for number in copies)
        if not alone or not once or len(last) != 1 or unread or len(copies) < 2:
            return None
        rows = adds | {flow.row_of[number] for number in copies}
        numbers, ranks = math.prod(part), len(copies)
        return SummedGather(gather.start_ns, ranks, ranks * numbers, numbers, rows, frozenset(), by=max(adds))

    def _found(self, gather: FlowMessage, ranks: int, whole: int, numbers: Iterable[int]) -> SummedGather | None:
        summed = self._summed(numbers, ranks, whole)
        if summed is None:
            return None
        goes, stays = (frozenset[int](), summed.sums) if summed.by_row else (summed.sums, frozenset[int]())
        return SummedGather(
            gather.start_ns, ranks, whole, summed.numbers, goes | summed.passed, stays, by=min(summed.sums)
        )

    def _summed(self, numbers: Iterable[int], ranks: int, whole: int) -> _Summed | None:
        """Return the sums over the ranks of what these numbers name, None where something else reads it, or nothing."""
        sums, passed, left, by_row = set[int](), set[int](), 0, False
        for reader in self._read_by(numbers):
            if reader >= 0 and self.hands_on(reader) and not TURNS.match(self.flow.names[reader]):
                passed.add(reader)
                continue
            result = None if reader < 0 else self.results.get(self.flow.number[reader])
            before = self.sizes[reader][0] if reader >= 0 and self.sizes[reader] else ()
            if (
                result is None
                or not _SUMS.match(self.flow.names[reader])
                or math.prod(before) != whole
                or not _over_ranks(before, result, ranks)
            ):
                return None
            sums.add(reader)
            left += math.prod(result)
            by_row |= math.prod(result) * ranks < whole
        return _Summed(frozenset(sums), frozenset(passed), left, by_row) if sums else None

    def _read_by(self, numbers: Iterable[int]) -> Iterator[int]:
        """Yield the outermost operators that read what these numbers name, and what reads that past those that hand it on; -1: later."""
        waiting, seen = list(numbers), set[int]()
        while waiting:
            number = waiting.pop()
            readers = self.readers.get(number, set()) | self._of_messages.get(number, set())
            for reader in sorted(readers - seen):
                seen.add(reader)
                yield reader
                if reader >= 0 and self.hands_on(reader):
                    waiting.append(self.flow.number[reader])


def _over_ranks(before: Size, after: Size, ranks: int) -> bool:
    """Return whether sizes say that a sum goes over the first dimension (or all), and that this one holds the ranks."""
    if not before or before[0] % ranks:
        return False
    if not after:
        return True
    without = [before[:i] + before[i + 1 :] for i in range(len(before))]
    return after == (1, *before[1:]) or (after == without[0] and after not in without[1:])

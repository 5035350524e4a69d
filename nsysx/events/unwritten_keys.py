"""Attention of few queries over all of a cache that has room for far more keys than were written: a mask leaves the others out.

A cache of a fixed size (``StaticCache``, gpt-fast) keeps its shape, and attention reads all of it for each token, however few keys there
are. How many were written is read from the operators of an X-ray step that begins the cache anew, with a prompt of several rows: from each
operator that writes rows into it, and the one before. What a step only goes on with is not known.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NamedTuple

from nsysx.events.narrowed_operators import Size, sizes_of
from nsysx.events.operator_bounds import FEWEST_CACHED_ROUNDS, MOST_DECODED_QUERIES
from nsysx.events.operator_flow import OperatorFlow, handed_from

_ATTENDS = re.compile(r"^aten::_?scaled_dot_product_\w*attention\w*$")
#: What hands keys on: views, a part of them, other types, heads that are repeated.
_PASSES = re.compile(
    r"^aten::(repeat_interleave|expand(_as)?|_?(unsafe_)?view|reshape|flatten|unflatten|contiguous|clone|to|_to_copy|slice|narrow|"
    r"(un)?squeeze|transpose|permute|alias|detach)$"
)
#: What makes a cache anew: nothing of earlier steps is in it.
_MAKES = re.compile(r"^aten::((new_)?(zeros|empty|full)(_like)?|zero_|fill_)$")
#: What writes rows into a cache by their numbers, and which of its arguments holds them; into a slice of it something is copied.
WRITES = {"aten::index_put_": 4, "aten::index_copy_": 3}
_COPIES = "aten::copy_"


class UnwrittenKeys(NamedTuple):
    """Attention (row of the flow) over ``keys`` of which ``written`` were; ``passed``: rows of what hands keys and values to it."""

    row: int
    keys: int
    written: int
    passed: frozenset[int]


def unwritten_keys(flow: OperatorFlow) -> list[UnwrittenKeys]:
    """Return the attention of a step that is given a mask, few queries, and more keys than were written; no steps with few rounds."""
    reads = _CacheReads(flow)
    every = [each for row in flow.outermost if (each := reads.of_attention(row)) is not None]
    return every if len(every) >= FEWEST_CACHED_ROUNDS else []


def attends(flow: OperatorFlow, row: int) -> tuple[int, int] | None:
    """Return of how many queries, few, and to how many keys an operator attends that is given a mask; None for another one."""
    sizes = sizes_of(flow.size[row]) if _ATTENDS.match(flow.names[row]) else ()
    if len(sizes) < 4 or any(len(size) != 4 for size in sizes[:3]):
        return None
    queries, keys, mask = sizes[0][2], sizes[1][2], sizes[3]
    return (queries, keys) if queries <= min(MOST_DECODED_QUERIES, keys - 1) and mask and mask[-1] == keys else None


def handed_on(flow: OperatorFlow, number: int) -> frozenset[int]:
    """Return what hands a tensor on: outermost operators (rows of the flow)."""
    _, between = handed_from(flow, number, lambda name: _PASSES.match(name) is not None)
    return frozenset(flow.outermost[bisect_right(flow.outermost, row) - 1] for row in between)


class _CacheReads:
    def __init__(self, flow: OperatorFlow) -> None:
        self.flow = flow
        self.written_by = dict[
            int, int | None
        ]()  # of what writes by numbers: the rows written so far, None where that is not known
        self.outer = dict[int, int]()
        self.copies = dict[
            int, list[tuple[int, int]]
        ]()  # of a cache that the step makes: what is copied into slices, and how many rows
        for row, end in flow.outermost_spans:
            self.outer.update(dict.fromkeys(range(row, end), row))
            cache, _ = self._base(flow.made[row][0]) if flow.names[row] == _COPIES and flow.made[row] else (None, None)
            if cache is not None:
                self.copies.setdefault(cache, []).append((row, self._rows(row, 1) or 0))

    def of_attention(self, row: int) -> UnwrittenKeys | None:
        flow, told = self.flow, attends(self.flow, row)
        if told is None:
            return None
        _, keys = told
        base, passed = self._base(flow.made[row][1])
        _, of_values = self._base(flow.made[row][2])
        written = None if base is None else self._written(base, row)
        if not written or written >= keys:
            return None
        return UnwrittenKeys(row, keys, written, passed | of_values)

    def _base(self, number: int) -> tuple[int | None, frozenset[int]]:
        """Return the operator (row) that made, or wrote into, what hands a tensor on, None for an older one; and those in between."""
        flow, passed = self.flow, set[int]()
        row = flow.row_of.get(number)
        while row is not None and _PASSES.match(flow.names[row]) and flow.made[row]:
            passed.add(self.outer.get(row, row))
            row = flow.row_of.get(flow.made[row][0])
        return row, frozenset(passed)

    def _written(self, base: int, until: int) -> int | None:
        """Return how many rows a cache holds where attention (row ``until``) reads it."""
        if self.flow.names[base] not in WRITES:
            return (
                None
                if not _MAKES.match(self.flow.names[base])
                else sum(rows for row, rows in self.copies.get(base, ()) if row < until)
            )
        chain = [base]
        while (last := chain[-1]) not in self.written_by:
            before, _ = self._base(self.flow.made[last][0])
            if before is not None and self.flow.names[before] in WRITES and before < last:
                chain.append(before)
                continue
            rows = self._rows(last, WRITES[self.flow.names[last]])
            # One row alone may go on with what an earlier step has left.
            anew = before is not None and _MAKES.match(self.flow.names[before])
            begins = rows is not None and (rows > 1 or anew)
            self.written_by[last] = rows if begins else None
        for last, row in zip(reversed(chain), reversed(chain[:-1]), strict=False):
            total, rows = self.written_by[last], self._rows(row, WRITES[self.flow.names[row]])
            self.written_by[row] = None if total is None or rows is None else total + rows
        return self.written_by[base]

    def _rows(self, row: int, which: int) -> int | None:
        """Return how many rows an argument of an operator holds: of (samples, heads, rows, numbers)."""
        sizes = sizes_of(self.flow.size[row])
        size: Size = sizes[which] if len(sizes) > which else ()
        return size[2] if len(size) == 4 else None

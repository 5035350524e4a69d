"""The lines of calls that correspond to none of the X-ray, such as those of a loop that runs another number of times in each step."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.events.attribute import Attributed
from nsysx.events.nvtx_ranges import Flags
from nsysx.frames.intervals import I64


def fill(line: I64, above: I64, attributed: Attributed, like: I64, call: I64) -> I64:
    """Fill in ``call`` where those around a call are of lines of one run of a function; return ``like`` with calls that stand for those.

    How many calls a line makes may depend on its data (a metric that goes through classes, boxes that are matched), so no step has the
    launches of another. ``line``: of each call the innermost stack of the program's own that the X-ray noted, -1 for none; ``above``: of
    each stack the one above it. A run are calls of a thread, one behind the other, with the same
    line of the program's own; between two calls of one run the X-ray saw nothing else. In a loop of several lines those around may be of
    two of them, or of rounds that the X-ray had as one: a call of a kind that its neighbours' lines do not make is the line's beside them
    that does, where there is one. What stands for them are calls of that line and kind in turn, each as often as the others.
    """
    thread = attributed.api_calls["thread"].to_numpy()
    run = np.cumsum(np.append(True, (line[1:] != line[:-1]) | (thread[1:] != thread[:-1])))[: len(line)]
    rows, there = np.arange(len(call)), (call >= 0) & (line[like] >= 0)
    before = np.maximum.accumulate(np.where(there, rows, -1)) if len(rows) else rows
    after = np.minimum.accumulate(np.where(there, rows, len(rows))[::-1])[::-1] if len(rows) else rows
    free = np.flatnonzero((call < 0) & (before >= 0) & (after < len(rows)))
    first, last = before[free], after[free]
    within = (thread[first] == thread[free]) & (thread[last] == thread[free])
    free, first, last = free[within], first[within], last[within]
    if not len(free):
        return like
    of_first, of_last = line[like[first]], line[like[last]]
    in_run = (run[like[first]] == run[like[last]]) & (like[first] < like[last])
    made = _MadeAt(_kinds(attributed), line, np.append(above, -1))
    beside = made.beside(of_first, of_last)
    by_kind = np.where(made.of_kind(free, of_last), of_last, made.only_beside(free, of_first))
    by_kind = np.where(made.of_kind(free, of_first), of_first, by_kind)
    chosen = np.where(beside & (by_kind >= 0), by_kind, np.where(in_run, of_first, -1))
    call[free] = chosen
    stands_for: I64 = like.copy()
    stands_for[free] = made.standing_for(free, chosen)
    return stands_for


def _kinds(attributed: Attributed) -> I64:
    """Return a number of each call, equal where the API and what it starts are: the kernel, the direction of a copy."""
    started = attributed.gpu_ops.select("call", op=pl.col("name").cast(pl.String)).drop_nulls("call")
    started = started.unique("call", keep="first", maintain_order=True)
    made = attributed.api_calls.select("call", api=pl.col("name").cast(pl.String))
    made = made.join(started, on="call", how="left", maintain_order="left")
    kinds: I64 = made.select(pl.struct("api", "op").rank("dense")).to_series().to_numpy().astype(np.int64)
    return kinds


class _MadeAt:
    """Which kinds of calls the X-ray saw which lines make. ``kinds``, ``line``: of each call; ``above``: of each line the one above."""

    def __init__(self, kinds: I64, line: I64, above: I64) -> None:
        self._kinds, self._above, self._size = kinds, above, int(kinds.max(initial=0)) + 1
        noted_calls = np.flatnonzero(line >= 0)
        key = line[noted_calls] * self._size + kinds[noted_calls]
        order = np.argsort(key, kind="stable")
        self._calls = noted_calls[order]
        self._pairs, self._begin, self._often = np.unique(key[order], return_index=True, return_counts=True)
        of_line, kind = np.divmod(self._pairs, self._size)
        of_function, first, often = np.unique(above[of_line] * self._size + kind, return_index=True, return_counts=True)
        self._of_function, self._only = of_function[often == 1], of_line[first[often == 1]]

    def beside(self, line: I64, other: I64) -> Flags:
        """Return whether two lines are of one run of a function."""
        same: Flags = (self._above[line] == self._above[other]) & (self._above[line] >= 0)
        return same

    def of_kind(self, calls: I64, line: I64) -> Flags:
        """Return whether each line makes such calls as the one it stands beside."""
        makes: Flags = np.isin(self._key(calls, line), self._pairs)
        return makes

    def only_beside(self, calls: I64, line: I64) -> I64:
        """Return the only line of the function of ``line`` that makes such calls, -1 for none and for several."""
        if not len(self._only):
            return np.full(len(calls), -1)
        wanted = self._key(calls, self._above[line])
        nearest = np.minimum(np.searchsorted(self._of_function, wanted), len(self._only) - 1)
        return np.where(self._of_function[nearest] == wanted, self._only[nearest], -1)

    def standing_for(self, calls: I64, line: I64) -> I64:
        """Return a call of the X-ray of each line and kind, those that it has in turn; -1 for none."""
        key = self._key(calls, line)
        pair = np.minimum(np.searchsorted(self._pairs, key), len(self._pairs) - 1)
        there = (line >= 0) & (self._pairs[pair] == key)
        order = np.argsort(key, kind="stable")
        ordered = key[order]
        turn = np.empty(len(key), np.int64)
        turn[order] = np.arange(len(key)) - np.searchsorted(ordered, ordered)
        return np.where(there, self._calls[self._begin[pair] + turn % self._often[pair]], -1)

    def _key(self, calls: I64, line: I64) -> I64:
        key: I64 = line * self._size + self._kinds[calls]
        return key

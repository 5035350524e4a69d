"""Calls that are no part of the sequence of launches, copies and waits that steps are compared by (``sequence``): they follow those around.

Allocations, queries of events and the like come as they please.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.events import marked_when
from nsysx.events.event_bounds import MARKED, UNMATCHED
from nsysx.events.nvtx_ranges import Flags
from nsysx.frames import lookup
from nsysx.frames.intervals import I64


def settle(
    states: npt.NDArray[np.int8], calls: pl.DataFrame, marks: dict[int, marked_when.Marks], steps: pl.DataFrame
) -> Flags:
    """Fill in the calls that are not tokens: as the tokens around them are. Return which calls lie in steps without marks."""
    process, thread, start = (calls[c].to_numpy() for c in ("process", "thread", "start_ns"))
    free = np.zeros(calls.height, np.bool_)
    for key, process_marks in marks.items():
        of_process = np.flatnonzero(process == key)
        steps_here = steps.filter(pl.col("process") == key).sort("start_ns")
        begin, end = steps_here["start_ns"].to_numpy(), steps_here["end_ns"].to_numpy()
        last = np.searchsorted(begin, start[of_process], side="right") - 1
        inside = (last >= 0) & (start[of_process] < end[np.maximum(last, 0)]) & ~process_marks.at(start[of_process])
        free[of_process[inside]] = True
    unmarked = states != MARKED
    states[unmarked & ~free] = MARKED  # a stretch of marks inside of a step
    unmarked &= free
    rows = np.arange(len(states))
    before = np.maximum.accumulate(np.where(unmarked, rows, -1)) if len(rows) else rows
    after = np.minimum.accumulate(np.where(unmarked, rows, len(rows))[::-1])[::-1] if len(rows) else rows
    for side, there in ((before, before >= 0), (after, after < len(rows))):
        other = np.where(there, side, 0)
        near = free & ~unmarked & there & (thread[other] == thread)
        states[near] = np.maximum(states[near], states[other[near]])
    states[free & (states == MARKED)] = UNMATCHED  # a thread that no marked step knows
    return free


def lead(like: I64, calls: pl.DataFrame, tokens: Iterable[I64]) -> None:
    """Fill in what the calls that are not tokens correspond to: the same function, as far behind the corresponding token."""
    kept = np.zeros(len(like), np.bool_)
    for of_thread in tokens:
        kept[of_thread] = True
    thread, name = calls["thread"].to_numpy(), lookup.distinct(calls["name"])[1]
    rows = np.arange(len(like))
    last = np.maximum.accumulate(np.where(kept, rows, -1))
    chosen = np.flatnonzero(~kept & (last >= 0) & (like[last] >= 0))
    token = last[chosen]
    theirs = like[token] + chosen - token
    chosen, token, theirs = (x[theirs < len(like)] for x in (chosen, token, theirs))
    same = (name[chosen] == name[theirs]) & (last[theirs] == like[token])
    same &= (thread[chosen] == thread[token]) & (thread[theirs] == thread[like[token]])
    like[chosen[same]] = theirs[same]

"""Calls as tokens: numbers that are equal where two calls launch the same, from which a repeated sequence is found."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.events.correlate import Correlated
from nsysx.events.nvtx_ranges import Ranges
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.inject.nsysx_probe.ranges import PHASES

#: Kinds of calls that a program makes in the same order each time. Allocations and queries of events come as they please.
_KEPT = "^(launch|graph_launch|copy|memset|sync)$"


@dataclass(frozen=True)
class LaunchTokens:
    """What the sequence of one thread is made of, in order of time: calls (``call`` >= 0) and borders of phases."""

    start: I64
    end: I64
    key: I64
    name: I64
    call: I64
    counted: I64  # calls before each token, and in all
    phases: bool  # it has phases of its own

    def cut(self, start: int, end: int) -> slice:
        """Return the tokens that begin in [start, end)."""
        a, b = np.searchsorted(self.start, [start, end]).tolist()
        return slice(a, b)

    def works(self, cut: slice) -> bool:
        """Return whether there is anything to repeat: a call, or phases of the thread's own."""
        return bool(self.counted[cut.stop] > self.counted[cut.start]) or (self.phases and cut.stop > cut.start)


def _hashes(frame: pl.DataFrame, *columns: str) -> I64:
    """Return one number per row that is equal where these columns are."""
    return frame.select(pl.struct(columns).hash()).to_series().to_numpy().view(np.int64)


def tokens_by_process(correlated: Correlated, ranges: Ranges, processes: list[int]) -> dict[int, LaunchTokens]:
    """Return thread -> its tokens, of the processes that have steps without marks."""
    calls = correlated.api_calls
    wanted = calls["process"].is_in(processes).to_numpy() & lookup.matching(calls["kind"], _KEPT)
    thread, start, end = (calls[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    rows = np.flatnonzero(wanted)
    # A driver call inside a runtime call is part of that.
    reach = np.zeros(len(rows), np.int64)
    borders = [0, *(np.flatnonzero(np.diff(thread[rows])) + 1).tolist(), len(rows)]
    for a, b in itertools.pairwise(borders):
        reach[a + 1 : b] = np.maximum.accumulate(end[rows[a:b]])[:-1] if b > a else 0
    rows = rows[start[rows] >= reach]
    first = correlated.gpu_ops.filter(pl.col("call").is_not_null()).unique("call", keep="first", maintain_order=True)
    op = first.select("call", pl.col("name").alias("op"), "grid", "block")
    made = calls.select("call", "name")[rows].join(op, on="call", how="left", maintain_order="left")
    made = made.with_columns(pl.col("name", "op").cast(pl.String))
    key, name = _hashes(made, "name", "op", "grid", "block"), _hashes(made, "name", "op")
    phases = ranges.ranges.filter((pl.col("kind") == "phase") & pl.col("own") & pl.col("process").is_in(processes))
    names, code = lookup.distinct(phases["name"])
    number = 2 * np.array([PHASES.index(n) if n in PHASES else -1 for n in names], np.int64)[code]
    phase_thread, began, ended = (phases[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    backward = number == 2 * PHASES.index("backward")
    by_thread = {}
    for thread_key in np.unique(np.concatenate((thread[rows], phase_thread))).tolist():
        of_thread, phases_here = thread[rows] == thread_key, phase_thread == thread_key
        has_phases = bool(phases_here.any())
        if not has_phases:  # what it does for a backward lies in that
            phases_here = backward & (phase_thread >> 24 == thread_key >> 24)
        times = np.concatenate((start[rows[of_thread]], began[phases_here], ended[phases_here]))
        until = np.concatenate((end[rows[of_thread]], began[phases_here], ended[phases_here]))
        keys = np.concatenate((key[of_thread], number[phases_here], number[phases_here] + 1))
        plain = np.concatenate((name[of_thread], number[phases_here], number[phases_here] + 1))
        order = np.lexsort((until, times))
        call = np.concatenate((rows[of_thread], np.full(2 * int(phases_here.sum()), -1, np.int64)))[order]
        counted = np.concatenate(([0], np.cumsum(call >= 0)))
        by_thread[thread_key] = LaunchTokens(
            times[order],
            until[order],
            key=keys[order],
            name=plain[order],
            call=call,
            counted=counted,
            phases=has_phases,
        )
    return by_thread

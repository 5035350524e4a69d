"""Lines of a program whose own code holds the host for much of a step: what of the host's time goes if they take none.

The GPU of the rank that is shown may have work meanwhile, or wait in a collective for a rank whose host is longer at the same line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.catalogue import Call
from nsysx.events.line_shares import divided
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.frames.statistics import F64
from nsysx.replay.chain_columns import Flags
from nsysx.replay.replay_bounds import HOLDING_FOR_LAUNCH_NS, HOLDING_LINE_SHARE, LONG_PAUSE_NS, MOST_HOLDING_LINES


class Unheld(NamedTuple):
    """What no longer holds a host: of each item the share of the code before it, and whether its call itself."""

    code: F64
    calls: Flags

    @classmethod
    def of_calls(cls, calls: Flags) -> Unheld:
        """Return that calls hold it no more, nor does any code before them."""
        return cls(calls.astype(np.float64), calls)

    def only(self, first: int, last: int) -> Unheld:
        """Return that of items [first, last)."""
        return Unheld(self.code[first:last], self.calls[first:last])


class _HoldingLine(NamedTuple):
    """A line: call -> the share of the pause before it that is the line's own code, and the calls that it makes."""

    name: str
    code: Mapping[int, float]
    calls: frozenset[int]


def pauses(profile: Profile) -> pl.DataFrame:
    """Return call, thread, start_ns, end_ns of the host code before each steady call: the time since the call before on its thread."""
    calls = profile.steady_calls["call", "thread", "start_ns", "end_ns"]
    calls = lookup.ordered(calls, "start_ns", (), group="thread")
    thread, start_ns, end_ns = (calls[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    before_ns = start_ns.copy()  # none before the first of a thread
    borders = np.flatnonzero(np.diff(thread)) + 1
    for first, last in pairwise([0, *borders.tolist(), len(thread)]):
        np.maximum.accumulate(end_ns[first : last - 1], out=before_ns[first + 1 : last])
    late = np.flatnonzero(start_ns > before_ns)
    return calls[late].select("call", "thread", start_ns=pl.Series(before_ns[late]), end_ns="start_ns")


def name_of(file: str, line: int) -> str:
    """Return what the change is called that takes a line's own code, and its calls, from the hosts of all ranks."""
    return f"{PurePath(file).name}:{line}"


def without_lines(profile: Profile, calls: I64) -> dict[str, Unheld]:
    """Return name of a line -> what no longer holds the host without it, of items with these calls; the longest lines alone."""
    made = {}
    for line in profile.once(_holding_lines):
        code = np.array([line.code.get(call, 0.0) for call in calls.tolist()], np.float64)
        if code.any():
            made[line.name] = Unheld(code, np.isin(calls, list(line.calls)))
    return made


def _waits_for_backward(calls: pl.DataFrame, gaps: pl.DataFrame) -> Flags:
    """Return in which pauses another thread makes calls of a backward: a line that starts it only waits for that."""
    there = calls.filter(calls["phase"].cast(pl.String) == "backward").sort("start_ns")
    waits = np.zeros(gaps.height, np.bool_)
    for (thread,), part in there.group_by("thread"):
        begins = part["start_ns"].to_numpy()
        first, behind = (np.searchsorted(begins, gaps[c].to_numpy()) for c in ("start_ns", "end_ns"))
        waits |= (behind > first) & (gaps["thread"] != thread).to_numpy()
    return waits


def _holding_lines(profile: Profile) -> list[_HoldingLine]:
    """Return the lines of the program that hold the host longest, each for a notable share of the steps and not by its launches."""
    code = profile.code()
    steady = profile.steady_calls
    if code is None or not steady.height or not profile.scope.steps:
        return []
    gaps = pauses(profile)
    ns = (gaps["end_ns"] - gaps["start_ns"]).to_numpy()
    long = (ns >= LONG_PAUSE_NS) & ~_waits_for_backward(steady, gaps)
    gaps, ns = gaps[np.flatnonzero(long)], ns[long]
    pieces = gaps.select("thread", "start_ns", "end_ns", group=pl.int_range(pl.len(), dtype=pl.Int64))
    parts = divided(profile, code, pieces)
    row_of, gap, part_ns = code.places_of(parts["stack"].to_numpy()), parts["group"].to_numpy(), parts["ns"].to_numpy()
    size = code.places.height + 1
    host = lookup.totals(row_of, part_ns, size)[:-1]
    launch = steady["call"].filter(steady["kind"].is_in(Call.LAUNCHES)).to_numpy()
    often = lookup.totals(code.places_of(code.call[launch]), np.ones(len(launch), np.int64), size)[:-1]
    begin, end = profile.window
    least = np.maximum(HOLDING_LINE_SHARE * (end - begin), HOLDING_FOR_LAUNCH_NS * often)
    rows = [row for row in np.argsort(-host, kind="stable")[:MOST_HOLDING_LINES].tolist() if host[row] > least[row]]
    sites = [code.places.row(row) for row in rows]
    # A name stands for one line: of two files with the same name and line number it would tell neither.
    every = {(file, line) for file, line, _ in code.places.iter_rows() if file and line is not None}
    names = Counter(name_of(file, line) for file, line in every)
    call_of, made = gaps["call"].to_numpy(), []
    for row, (file, line, _) in zip(rows, sites, strict=True):
        if not file or line is None or names[name_of(file, line)] > 1:
            continue
        theirs = np.flatnonzero(row_of == row)
        # Several stacks end at one line: each has a part of the pause.
        share = part_ns[theirs] / ns[gap[theirs]]
        of_line: dict[int, float] = {}
        for call, part in zip(call_of[gap[theirs]].tolist(), share.tolist(), strict=True):
            of_line[call] = of_line.get(call, 0.0) + part
        made.append(
            _HoldingLine(name_of(file, line), of_line, frozenset(code.made_at(steady, [row])["call"].to_list()))
        )
    return made

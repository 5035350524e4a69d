"""How often each line runs in a step, what runs below it, and below which lines the steps themselves run: what an X-ray counts.

The X-ray's time is its own: each noted line costs some of it. Its counts are the program's, and where the X-ray stopped within a step
they are the least that it runs. Single-line loops and Python's library, of which lines are not noted, count as one run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.events import code_lines
from nsysx.events.event_bounds import LONG_RUN_NS
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.frames.intervals import I64, nesting_by_thread
from nsysx.frames.statistics import F64


@dataclass(frozen=True)
class LineRuns:
    """Of each line, as the rows of ``CodeLines.places``.

    ``runs``: how often it runs in a step, ``below``: how often lines of the program's own files do that it calls (medians over the X-ray's
    steps in which it runs). ``rounds``: how often it runs in one run of the line that calls its function (mean): those of a loop.
    ``long_share``: which part of its own time, without lines below, lies in runs of a millisecond and more: one call of native code or of
    Python's library, or a wait. ``encloses``: whole steps run below it, so the loop of steps is in it and it is in none.
    """

    runs: F64
    below: F64
    rounds: F64
    long_share: F64
    encloses: Flags


def of_lines(profile: Profile) -> LineRuns:
    """Return the counts of each line. Errors: ValueError without an X-ray."""
    code, rows = profile.code(), code_lines.noted(profile.ranges, profile.attributed.roles)
    if code is None:
        raise ValueError("no lines were noted")
    size = code.places.height
    line_row = lookup.distinct(rows["label"])[1]
    thread, start, end = (rows[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    nests = nesting_by_thread(thread, start, end).values()
    parent, self_ns = (np.concatenate(parts) for parts in zip(*((n.parent, n.self_ns) for n in nests), strict=True))
    steps = _own_steps(profile)
    begin, over = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    step = np.searchsorted(begin, start, side="right")
    # A step in which the X-ray stopped early, as in the first window, counts less than there is.
    noted = lookup.totals(step, np.ones(len(step), np.int64), len(begin) + 1)
    much = 2 * noted[step] >= noted.max(initial=0)
    of_program = np.isin(line_row, code.place[code.own == np.arange(len(code.own))])
    below = np.where(_within_itself(parent, line_row), 0, _descendants(parent, of_program))
    runs_of, below_of = (_usual(line_row[much], step[much], n[much], size) for n in (np.ones_like(below), below))
    whole = lookup.totals(line_row, self_ns, size)
    long = self_ns >= LONG_RUN_NS
    share = lookup.totals(line_row[long], self_ns[long], size) / np.maximum(whole, 1)
    encloses = np.zeros(size, np.bool_)
    encloses[line_row[_enclosing(start, end, begin, over)]] = True
    return LineRuns(runs_of, below_of, _rounds(line_row[much], parent[much], step[much], size), share, encloses)


def _descendants(parent: I64, counted: Flags) -> I64:
    """Return how many of the ranges that count lie in each."""
    count = np.zeros(len(parent) + 1, np.int64)
    above = np.where(counted, parent, -1)
    while (above >= 0).any():
        np.add.at(count, above[above >= 0], 1)
        above = np.append(parent, -1)[above]
    return count[:-1]


def _within_itself(parent: I64, line_row: I64) -> Flags:
    """Return which ranges lie in another one of their line: a function that calls itself."""
    within, above = np.zeros(len(parent), np.bool_), parent
    while (above >= 0).any():
        within |= (above >= 0) & (line_row[above] == line_row)
        above = np.append(parent, -1)[above]
    return within


def _usual(line_row: I64, step: I64, count: I64, size: int) -> F64:
    """Return of each line the median over the steps in which it runs of a count that is summed in each step, 0 where it runs in none."""
    rows = pl.DataFrame({"line": line_row, "step": step, "count": count})
    usual = rows.group_by("line", "step").agg(pl.col("count").sum()).group_by("line").agg(pl.col("count").median())
    counts = np.zeros(size)
    counts[usual["line"].to_numpy()] = usual["count"].to_numpy()
    return counts


def begins(profile: Profile, line_row: int, thread: int) -> I64:
    """Return when each run of a line begins on a thread, in order (ns)."""
    rows = code_lines.noted(profile.ranges, profile.attributed.roles)
    theirs = (lookup.distinct(rows["label"])[1] == line_row) & (rows["thread"] == thread).to_numpy()
    return np.sort(rows["start_ns"].to_numpy()[theirs])


def noted_steps(profile: Profile) -> I64:
    """Return when each step of the shown process began in which lines were noted, in order (ns); none where the X-ray stopped early."""
    rows = code_lines.noted(profile.ranges, profile.attributed.roles)
    begin = _own_steps(profile)["start_ns"].to_numpy()
    count = np.bincount(np.searchsorted(begin, rows["start_ns"].to_numpy(), side="right"), minlength=len(begin) + 1)
    return begin[2 * count[1:] >= max(int(count.max(initial=0)), 1)]


def _own_steps(profile: Profile) -> pl.DataFrame:
    steps = profile.ranges.ranges.filter((pl.col("kind") == "step") & pl.col("own")).sort("start_ns")
    return steps.filter(steps["process"] == profile.process)


def _rounds(line_row: I64, parent: I64, step: I64, size: int) -> F64:
    """Return of each line its runs by those of the lines above it, 0 where it has none; in a step without a line above it counts once."""
    within = np.where(parent >= 0, parent, -1 - step)
    line_of = np.unique(np.stack((line_row, within), axis=1), axis=0)[:, 0]
    runs, calls = (np.bincount(rows, minlength=size) for rows in (line_row, line_of))
    return runs / np.maximum(calls, 1)


def _enclosing(start: I64, end: I64, begin: I64, over: I64) -> Flags:
    """Return which ranges hold a whole step: ``begin`` and ``over`` are the steps' borders, in order."""
    first = np.searchsorted(begin, start)  # the first step that begins in the range
    return (first < len(begin)) & (end >= np.append(over, 0)[first])

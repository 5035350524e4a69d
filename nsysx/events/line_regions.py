"""What an X-ray step runs within the ``with`` blocks of a line: Python comes back to the line of a ``with`` when its block ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.events.code_lines import CodeLines
from nsysx.events.line_runs import begins
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64
from nsysx.model import Row


@dataclass(frozen=True)
class Region:
    """The blocks of one ``with`` line in the step of the flow: when each begins and ends (ns), and the stacks at work in them alone.

    ``where``: file and line. ``backward``: rows of ``CodeLines.places`` in the backward of Functions whose forward runs in them.
    """

    where: Row
    start_ns: I64
    end_ns: I64
    stacks: I64
    backward: I64

    def holds(self, t: I64) -> I64:
        """Return for each instant the number of the block that it lies in, -1 for none."""
        block = np.searchsorted(self.start_ns, t, side="right") - 1
        inside: I64 = np.where((block >= 0) & (t < np.append(self.end_ns, 0)[block]), block, -1)
        return inside


def region_of(profile: Profile, code: CodeLines, flow: OperatorFlow, line_row: int) -> Region | None:
    """Return the blocks of a ``with`` line on the flow's thread in its step; None where their borders are not seen."""
    if flow.thread not in code.open or not len(flow.start_ns):
        return None
    begin, over = _step(profile, flow)
    runs = begins(profile, line_row, flow.thread)
    line, enters = code.open[flow.thread], _enters(code, flow.thread, line_row, runs)
    of_step = (runs >= begin) & (runs < over)
    borders = _borders(runs[of_step], None if enters is None else enters[of_step], (begin, over))
    if borders is None:
        return None
    start, end = borders
    stacks, times = line.labels.astype(np.int64), line.times[: len(line.labels)]
    of_step = (stacks >= 0) & (times >= begin) & (times < over)
    stacks, times = stacks[of_step], times[of_step]
    block = np.searchsorted(start, times, side="right") - 1
    inside = (block >= 0) & (times < np.append(end, 0)[block])
    alone = np.setdiff1d(stacks[inside], stacks[~inside])
    return Region(code.where(line_row), start, end, alone, _backward_of(code, alone))


def _borders(runs: I64, enters: Flags | None, step: tuple[int, int]) -> tuple[I64, I64] | None:
    """Return when the blocks of a line begin and end in a step; None where that is not known.

    ``runs`` begin or end a block each; ``enters``: which begin one. A block may begin before the step, or end behind it.
    """
    if not len(runs) or (enters is None and len(runs) % 2):
        return None
    if enters is None:
        return runs[::2], runs[1::2]
    if (enters[1:] == enters[:-1]).any():
        return None
    start = np.append([step[0]], runs[enters]) if not enters[0] else runs[enters]
    end = np.append(runs[~enters], [step[1]]) if enters[-1] else runs[~enters]
    return start, end


def _enters(code: CodeLines, thread: int, line_row: int, runs: I64) -> Flags | None:
    """Return which runs of a ``with`` line begin its block: the block's first line comes next, the nearest below; None if none is seen."""
    number, labels = code.places["line"].to_list(), code.open[thread].labels.tolist()
    after = list[int]()
    for index in np.searchsorted(code.open[thread].times, runs).tolist():
        stack, following = labels[index] if index < len(labels) else -1, -1
        above = int(code.parent[stack])
        for later in range(index + 1, len(labels) if stack >= 0 else 0):
            label = labels[later]
            if label >= 0 and label != stack and code.parent[label] == above:
                following = number[code.place[label]] or -1
            if following >= 0 or (above >= 0 and above not in _with_those_above(code, label)):
                break
        after.append(following)
    below = [each for each in after if each > (number[line_row] or 0)]
    return np.array([each == min(below) for each in after], np.bool_) if below else None


def _with_those_above(code: CodeLines, stack: int) -> Iterator[int]:
    """Yield a stack and those that it lies in."""
    while stack >= 0:
        yield stack
        stack = int(code.parent[stack])


def region_of_function(
    profile: Profile, code: CodeLines, flow: OperatorFlow, function: tuple[str, str], where: Row
) -> Region | None:
    """Return the calls of a function (file, name) likewise, with the place that stands for them; None where none is seen."""
    if flow.thread not in code.open or not len(flow.start_ns):
        return None
    names = zip(code.places["file"].to_list(), code.places["function"].to_list(), strict=True)
    lines = frozenset(row for row, name in enumerate(names) if name == function)
    alone = np.flatnonzero(code.passing(np.arange(len(code.place)), lines)) if lines else np.empty(0, np.int64)
    if not len(alone):
        return None
    begin, over = _step(profile, flow)
    line = code.open[flow.thread]
    inside = np.isin(line.labels.astype(np.int64), alone)
    times, ends = line.times[: len(line.labels)], line.times[1:]
    there = inside & (times >= begin) & (times < over)
    return Region(where, times[there], ends[there], alone, _backward_of(code, alone))


def _backward_of(code: CodeLines, stacks: I64) -> I64:
    """Return the lines (rows) of the backward of Functions whose forward has some stacks."""
    names = code.places["function"].cast(pl.String).to_list()
    owners = {names[row].rpartition(".forward")[0] for row in code.places_of(stacks).tolist() if row >= 0} - {""}
    backward = [row for row, name in enumerate(names) if name in {f"{owner}.backward" for owner in owners}]
    return np.array(backward, np.int64)


def _step(profile: Profile, flow: OperatorFlow) -> tuple[int, int]:
    """Return when the step that holds the flow begins and ends (ns)."""
    first = int(flow.start_ns.min())
    steps = profile.ranges.ranges.filter(
        (pl.col("kind") == "step") & pl.col("own") & (pl.col("process") == profile.process)
    )
    around = steps.filter((steps["start_ns"] <= first) & (steps["end_ns"] > first))
    return int(around["start_ns"][0]), int(around["end_ns"][0])

"""Which operator of the X-ray step of ``flow_of`` makes an API call in each step, itself or through its gradient.

Calls of that step lie in the operators, and on autograd's thread in the nodes that these made, which carry their numbers. A call of
another step has the operator of the call that it corresponds to. That may lie in another X-ray step than the flow: where that step runs
the same operators, they correspond one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.events.code_lines import NodesAtWork, are_nodes
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64, StepFunction, nesting


@dataclass(frozen=True)
class OperatorOfCalls:
    """Of each API call of the report the row of the innermost operator that makes it, and of the one whose gradient does; -1 for none."""

    forward: I64
    backward: I64

    def within(self, flow: OperatorFlow) -> I64:
        """Return of each call the outermost operator that makes it, itself or by its gradient; -1 for none."""
        size = np.diff([*flow.outermost, len(flow.names)])
        outermost = np.append(np.repeat(flow.outermost, size), -1)
        inner = np.where(self.forward < 0, self.backward, self.forward)
        around: I64 = outermost[inner]
        return around


def operator_of_calls(profile: Profile) -> OperatorOfCalls | None:
    """Return the operator of each call of a report, None where no X-ray step holds operators."""
    return profile.once(_find)


def _find(profile: Profile) -> OperatorOfCalls | None:
    flow = flow_of(profile)
    if flow is None:
        return None
    calls, ranges = profile.attributed.api_calls, profile.ranges.ranges
    forward, backward = np.full(calls.height, -1), np.full(calls.height, -1)
    thread, start = calls["thread"].to_numpy(), calls["start_ns"].to_numpy()
    a, b = np.searchsorted(thread, [flow.thread, flow.thread + 1])
    operators = ranges.filter(
        (pl.col("kind") == "op") & (pl.col("process") == profile.process) & ~pl.col("repeated") & ~pl.col("crossing")
    )
    makers = dict[int, int]()
    for step in _steps_like_it(profile, flow, operators):
        nest = nesting(step["start_ns"].to_numpy(), step["end_ns"].to_numpy(), 0)
        row_at = StepFunction(nest.top.times, np.append(np.arange(step.height), -1)[nest.top.labels])
        rows = row_at.at(start[a:b])
        forward[a:b] = np.where(rows >= 0, rows, forward[a:b])
        makers |= _makers_of_nodes(step["number"].to_list(), flow)
    _of_nodes(operators, makers, (thread, start), backward)
    if profile.ranges.repeats is not None:
        repeated = profile.ranges.repeats.of
        like = np.where(repeated >= 0, repeated, np.arange(len(repeated)))
        forward, backward = (np.where(rows >= 0, rows, rows[like]) for rows in (forward, backward))
    return OperatorOfCalls(forward, backward)


def _steps_like_it(profile: Profile, flow: OperatorFlow, operators: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the operators of each X-ray step that runs the same as that of the flow, in its order: start_ns, end_ns, number."""
    steps = profile.ranges.ranges.filter(
        (pl.col("kind") == "step") & pl.col("own") & (pl.col("process") == profile.process)
    )
    name = operators["name"].cast(pl.String)
    theirs = operators.with_columns(name=name).filter(
        (pl.col("thread") == flow.thread) & name.str.starts_with("aten::")
    )
    theirs, names = theirs.sort("start_ns"), pl.Series(flow.names)
    for start, end in steps.select("start_ns", "end_ns").iter_rows():
        inside = theirs.filter((pl.col("start_ns") >= start) & (pl.col("end_ns") <= end))
        if inside.height == len(names) and (inside["name"] == names).all():
            yield inside


def _makers_of_nodes(numbers: list[int], flow: OperatorFlow) -> dict[int, int]:
    """Return number of a node -> the operator that made it: of the outermost operators with one number the last."""
    makers: dict[int, int] = {}
    for row, number in enumerate(numbers):
        if number >= 0 and (number not in makers or flow.start_ns[row] >= flow.end_ns[makers[number]]):
            makers[number] = row
    return makers


def _of_nodes(operators: pl.DataFrame, makers: dict[int, int], calls: tuple[I64, I64], backward: I64) -> None:
    """Fill in the operators whose nodes make calls (thread, start_ns)."""
    numbered = operators.filter(pl.col("number") >= 0)
    nodes = are_nodes(numbered["name"])
    if not makers or not nodes.any():
        return
    at_work, (thread, start) = NodesAtWork(numbered.filter(nodes), operators), calls
    for key in np.unique(thread).tolist():
        a, b = np.searchsorted(thread, [key, key + 1])  # calls are sorted by thread and time
        distinct, index = np.unique(at_work.numbers(key, start[a:b]), return_inverse=True)
        backward[a:b] = np.array([makers.get(number, -1) for number in distinct.tolist()], np.int64)[index]

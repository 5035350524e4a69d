"""Which operator of the X-ray step of ``flow_of`` makes an API call in each step, itself or through its gradient.

Calls of that step lie in the operators, and on autograd's thread in the nodes that these made, which carry their numbers. A call of
another step has the operator of the call that it corresponds to. That may lie in another X-ray step than the flow: where both
steps make as many calls on a thread they correspond one by one.
"""

from __future__ import annotations

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

    def within(self, flow: OperatorFlow, *, gradients: bool = True) -> I64:
        """Return of each call the outermost operator that makes it, by its gradient if ``gradients``; -1 for none."""
        size = np.diff([*flow.outermost, len(flow.names)])
        outermost = np.append(np.repeat(flow.outermost, size), -1)
        inner = np.where((self.forward < 0) & gradients, self.backward, self.forward)
        around: I64 = outermost[inner]
        return around


def operator_of_calls(profile: Profile) -> OperatorOfCalls | None:
    """Return the operator of each call of a report, None where no X-ray step holds operators."""
    return profile.once(_find)


def _find(profile: Profile) -> OperatorOfCalls | None:
    flow = flow_of(profile)
    if flow is None:
        return None
    calls = profile.attributed.api_calls
    forward, backward = np.full(calls.height, -1), np.full(calls.height, -1)
    thread, start = calls["thread"].to_numpy(), calls["start_ns"].to_numpy()
    nest = nesting(flow.start_ns, flow.end_ns, 0)
    row_at = StepFunction(nest.top.times, np.append(np.arange(len(flow.names)), -1)[nest.top.labels])
    a, b = np.searchsorted(thread, [flow.thread, flow.thread + 1])
    forward[a:b] = row_at.at(start[a:b])
    _of_nodes(profile, flow, backward)
    for key in np.unique(thread).tolist():
        _as_in_that_step(profile, flow, key, (forward, backward))
    if profile.ranges.repeats is not None:
        of = profile.ranges.repeats.of
        like = np.where(of >= 0, of, np.arange(len(of)))
        forward, backward = (np.where(rows >= 0, rows, rows[like]) for rows in (forward, backward))
    return OperatorOfCalls(forward, backward)


def _of_nodes(profile: Profile, flow: OperatorFlow, backward: I64) -> None:
    """Fill in the operators whose nodes make calls: of the outermost operators with one number the last made the node."""
    makers: dict[int, int] = {}
    for row, number in enumerate(flow.sequence):
        if number >= 0 and (number not in makers or flow.start_ns[row] >= flow.end_ns[makers[number]]):
            makers[number] = row
    ranges = profile.ranges.ranges
    operators = ranges.filter(
        (pl.col("kind") == "op") & (pl.col("process") == profile.process) & ~pl.col("repeated") & ~pl.col("crossing")
    )
    numbered = operators.filter(pl.col("number") >= 0)
    nodes = are_nodes(numbered["name"])
    if not makers or not nodes.any():
        return
    at_work = NodesAtWork(numbered.filter(nodes), operators)
    thread, start = (profile.attributed.api_calls[column].to_numpy() for column in ("thread", "start_ns"))
    for key in np.unique(thread).tolist():
        a, b = np.searchsorted(thread, [key, key + 1])
        distinct, index = np.unique(at_work.numbers(key, start[a:b]), return_inverse=True)
        backward[a:b] = np.array([makers.get(number, -1) for number in distinct.tolist()], np.int64)[index]


def _as_in_that_step(profile: Profile, flow: OperatorFlow, thread: int, of_calls: tuple[I64, I64]) -> None:
    """Copy the operators of a thread's calls in the step of the flow to those of steps with as many: any of these may stand for others."""
    calls, ranges = profile.attributed.api_calls, profile.ranges.ranges
    steps = ranges.filter((pl.col("kind") == "step") & pl.col("own") & (pl.col("process") == profile.process))
    first, end = np.searchsorted(
        calls["thread"].to_numpy(), [thread, thread + 1]
    )  # calls are sorted by thread and time
    when = calls["start_ns"].to_numpy()[first:end]
    borders = [first + np.searchsorted(when, steps[c].to_numpy()) for c in ("start_ns", "end_ns")]
    start, start_of_flow = steps["start_ns"].to_numpy(), int(flow.start_ns[0])
    of_flow = np.flatnonzero((start <= start_of_flow) & (start_of_flow < steps["end_ns"].to_numpy()))
    if not len(of_flow):
        return
    spans = list(zip(*(border.tolist() for border in borders), strict=True))
    a, b = spans[int(of_flow[0])]
    for c, d in spans:
        if d - c == b - a:
            for rows in of_calls:
                rows[c:d] = rows[a:b]

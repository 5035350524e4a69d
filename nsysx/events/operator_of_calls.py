"""Which operator of the X-ray step of ``flow_of`` makes an API call in each step, itself or through its gradient.

Calls of that step lie in the operators, and on autograd's thread in the nodes that these made, which carry their numbers. A call of
another step has the operator of the call that it corresponds to. That may lie in another X-ray step than the flow: where that step runs
nearly the same operators, they correspond in their order; one may log, or end earlier. The last one may hold the beginning alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.events.alignment import align
from nsysx.events.code_lines import NodesAtWork, are_nodes
from nsysx.events.earlier_nodes import numbers_in_flow
from nsysx.events.event_bounds import CORRESPONDING_OPERATORS_SHARE
from nsysx.events.flow_behind_another import flow_with_collectives
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import SIZES, OperatorFlow, flow_of
from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64, StepFunction, nesting

#: What ``to`` is made of, where it converts.
_CONVERTS = "aten::_to_copy"


@dataclass(frozen=True)
class OperatorOfCalls:
    """Of each API call of the report the row of the innermost operator that makes it, and of the one whose gradient does; -1 for none."""

    forward: I64
    backward: I64

    def within(self, flow: OperatorFlow, *, gradients: bool = True) -> I64:
        """Return of each call the outermost operator that makes it, itself or (``gradients``) by its gradient; -1 for none."""
        size = np.diff([*flow.outermost, len(flow.names)])
        outermost = np.append(np.repeat(flow.outermost, size), -1)
        inner = np.where(self.forward < 0, self.backward, self.forward) if gradients else self.forward
        around: I64 = outermost[inner]
        return around


def operator_of_calls(profile: Profile) -> OperatorOfCalls | None:
    """Return the operator of each call of a report, None where no X-ray step holds operators."""
    return profile.once(_find)


def calls_of_flow_with_collectives(profile: Profile) -> OperatorOfCalls | None:
    """Return the same of the flow that has collectives, too."""
    return profile.once(_with_collectives)


def _find(profile: Profile) -> OperatorOfCalls | None:
    flow = flow_of(profile)
    return None if flow is None else _found(profile, flow)


def _with_collectives(profile: Profile) -> OperatorOfCalls | None:
    flow, without = flow_with_collectives(profile), flow_of(profile)
    if flow is None:
        return operator_of_calls(profile)
    if without is not None and without.operators == flow.operators and without.start_ns[0] == flow.start_ns[0]:
        return operator_of_calls(profile)  # the same step
    return _found(profile, flow)


def _found(profile: Profile, flow: OperatorFlow) -> OperatorOfCalls:
    calls = profile.attributed.api_calls
    forward, backward = np.full(calls.height, -1), np.full(calls.height, -1)
    thread, start = calls["thread"].to_numpy(), calls["start_ns"].to_numpy()
    a, b = np.searchsorted(thread, [flow.thread, flow.thread + 1])
    operators = profile.once(_operators)
    makers = dict[int, int]()
    for step in _steps_like_it(profile, flow, operators):
        nest = nesting(step["start_ns"].to_numpy(), step["end_ns"].to_numpy(), 0)
        row_at = StepFunction(nest.top.times, np.append(step["row"].to_numpy(), -1)[nest.top.labels])
        rows = row_at.at(start[a:b])
        forward[a:b] = np.where(rows >= 0, rows, forward[a:b])
        makers |= _makers_of_nodes(step.filter(step["row"] >= 0), flow)
    numbered = operators.filter(operators["number"] >= 0)
    nodes = numbered.filter(are_nodes(numbered["name"]))
    its_own = pl.DataFrame({"number": pl.Series(flow.sequence, dtype=pl.Int64), "row": range(len(flow.names))})
    of_flow = _makers_of_nodes(its_own, flow)
    for number, later in numbers_in_flow(nodes, flow).items():
        if later in of_flow:
            makers.setdefault(number, of_flow[later])
    _of_nodes(nodes, operators, makers, (thread, start), backward=backward)
    if profile.ranges.repeats is not None:
        like = profile.ranges.repeats.like
        forward, backward = (np.where(rows >= 0, rows, rows[like]) for rows in (forward, backward))
    return OperatorOfCalls(forward, backward)


def changing_sizes(profile: Profile, flow: OperatorFlow) -> Flags:
    """Return which operators of a flow are given other sizes in another X-ray step."""
    changing = np.zeros(len(flow.names), np.bool_)
    for step in _steps_like_it(profile, flow, profile.once(_operators)):
        theirs = step.filter(step["row"] >= 0)
        size = theirs["label"].cast(pl.String).str.extract(SIZES, 1).fill_null("")
        for row, text in zip(theirs["row"].to_list(), size.to_list(), strict=True):
            changing[row] |= text != flow.size[row]
    return changing


def _operators(profile: Profile) -> pl.DataFrame:
    return profile.ranges.ranges.filter(
        (pl.col("kind") == "op") & (pl.col("process") == profile.process) & ~pl.col("repeated") & ~pl.col("crossing")
    )


def _steps_like_it(profile: Profile, flow: OperatorFlow, operators: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the operators of each X-ray step that runs nearly the same as that of the flow: start_ns, end_ns, number, row.

    ``row``: that of the operator of the flow that each corresponds to, -1 for none.
    """
    steps = profile.ranges.ranges.filter(
        (pl.col("kind") == "step") & pl.col("own") & (pl.col("process") == profile.process)
    )
    name = operators["name"].cast(pl.String)
    theirs = operators.with_columns(name=name).filter(
        (pl.col("thread") == flow.thread) & name.str.contains(flow.operators)
    )
    theirs = theirs.sort("start_ns")
    code = {name: number for number, name in enumerate(dict.fromkeys(flow.names))}
    of_flow = np.array([code[name] for name in flow.names], np.int64)
    latest_ns = max(theirs["start_ns"].to_list(), default=0)
    last_ns = max(steps.filter(pl.col("start_ns") <= latest_ns)["end_ns"].to_list(), default=0)
    for start, end in steps["start_ns", "end_ns"].iter_rows():
        inside = theirs.filter((pl.col("start_ns") >= start) & (pl.col("end_ns") <= end))
        names = np.array([code.get(name, -1) for name in inside["name"].to_list()], np.int64)
        here, like = align(names, of_flow)
        # A step that the end of the recording cut short runs the beginning of the flow.
        length = max(len(names), len(of_flow) if end < last_ns or not len(like) else int(like[-1]) + 1)
        if len(like) and len(like) >= CORRESPONDING_OPERATORS_SHARE * length:
            row = np.full(len(names), -1)
            row[here] = like
            yield inside.with_columns(row=pl.Series(row))


def _makers_of_nodes(operators: pl.DataFrame, flow: OperatorFlow) -> dict[int, int]:
    """Return number of a node -> the operator that made it: of the outermost operators with one number the last.

    Where the last of all is a conversion, within an operator that autocast calls, that is the one. ``operators``: number, row.
    """
    makers: dict[int, int] = {}
    for number, row in operators["number", "row"].iter_rows():
        outside = number not in makers or flow.start_ns[row] >= flow.end_ns[makers[number]]
        if number >= 0 and (outside or flow.names[row] == _CONVERTS):
            makers[number] = row
    return makers


def _of_nodes(
    nodes: pl.DataFrame, operators: pl.DataFrame, makers: dict[int, int], calls: tuple[I64, I64], *, backward: I64
) -> None:
    """Fill in the operators whose nodes make calls (thread, start_ns)."""
    if not makers or not nodes.height:
        return
    nodes_at_work, (thread, start) = NodesAtWork(nodes, operators), calls
    for key in np.unique(thread).tolist():
        a, b = np.searchsorted(thread, [key, key + 1])  # calls are sorted by thread and time
        distinct, index = np.unique(nodes_at_work.at_work(key, start[a:b])[0], return_inverse=True)
        backward[a:b] = np.array([makers.get(number, -1) for number in distinct.tolist()], np.int64)[index]

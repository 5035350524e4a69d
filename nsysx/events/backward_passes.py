"""The passes of autograd over the graph of an X-ray step: which nodes ran in which, by the line that asked for gradients.

A node carries the number that the operator of the forward gave it. One that runs again belongs to another pass over the same graph.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.code_lines import CodeLines, are_nodes
from nsysx.events.operator_bounds import FEWEST_NODES_OF_PASS
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.profile import Profile
from nsysx.model import Row


class BackwardPass(NamedTuple):
    """A pass: the outermost operators (rows of the flow) whose nodes ran in it, when, and the line that asked for it.

    ``afresh``: gradients were cleared, clipped or applied since the pass before it.
    """

    rows: frozenset[int]
    start_ns: int
    end_ns: int
    where: Row
    afresh: bool = False


def backward_passes(profile: Profile, flow: OperatorFlow, code: CodeLines) -> list[BackwardPass]:
    """Return the passes over the graph of a flow's step, in order of time; those of a few nodes alone are left out."""
    row_of = _rows_by_number(flow)
    ops = profile.ranges.ranges.filter(
        (pl.col("kind") == "op") & (pl.col("process") == profile.process) & ~(pl.col("repeated") | pl.col("crossing"))
    )
    nodes = ops.filter(pl.col("number") >= 0, are_nodes(ops["name"]), pl.col("start_ns") >= int(flow.start_ns[0])).sort(
        "start_ns"
    )
    nodes = nodes.filter(pl.col("number").is_in(list(row_of)))
    if not nodes.height:
        return []
    start, end, number = (nodes[column].to_numpy() for column in ("start_ns", "end_ns", "number"))
    stacks = code.at(flow.thread, start)
    behind = np.searchsorted(flow.start_ns[flow.outermost], start)  # the program's thread waits while a pass runs
    handled = _handled_at(profile)
    passes, ran, begin = list[BackwardPass](), set[int](), 0
    for n in range(len(start) + 1):
        again = n == len(start) or int(number[n]) in ran or stacks[n] != stacks[begin] or behind[n] != behind[begin]
        if ran and again:
            rows = frozenset(row_of[each] for each in ran)
            if len(rows) >= FEWEST_NODES_OF_PASS:
                last_ns = passes[-1].end_ns if passes else int(start[begin])
                afresh = bool(handled.is_between(last_ns, int(start[begin])).any())
                where = code.where_of(int(stacks[begin]))
                passes.append(BackwardPass(rows, int(start[begin]), int(end[n - 1]), where, afresh))
            ran, begin = set(), n
        if n < len(start):
            ran.add(int(number[n]))
    return passes


def step_end_ns(profile: Profile, flow: OperatorFlow) -> int:
    """Return when the step of a flow ends on the CPU; where that is not known, when its last operator does."""
    ranges, first = profile.ranges.ranges, int(flow.start_ns[0])
    steps = ranges.filter((pl.col("kind") == "step") & pl.col("own") & (pl.col("process") == profile.process))
    ends = steps.filter((pl.col("start_ns") <= first) & (pl.col("end_ns") > first))["end_ns"].to_list()
    return max(max(ends, default=0), int(flow.end_ns.max()))


def _handled_at(profile: Profile) -> pl.Series:
    """Return when phases begin that clear, clip or apply gradients: ``zero_grad(set_to_none=True)`` runs no operator."""
    ranges = profile.ranges.ranges
    phases = ranges.filter((ranges["kind"] == "phase") & ranges["own"] & (ranges["process"] == profile.process))
    return phases.filter(pl.col("name").cast(pl.String).is_in(["zero_grad", "clip", "optimizer"]))["start_ns"]


def _rows_by_number(flow: OperatorFlow) -> dict[int, int]:
    """Return the outermost operator of each node's number: the last one that was to make it."""
    sizes = np.diff([*flow.outermost, len(flow.names)])
    outermost = np.repeat(flow.outermost, sizes).tolist()
    return {number: row for number, row in zip(flow.sequence, outermost, strict=True) if number >= 0}

"""Which operators of an X-ray step are trained: those that made a node which a backward ran.

An operator's range has the number of the node that autograd would make next. Of the outermost operators with one number the last makes
it, and all within have its gradient.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.events.earlier_nodes import numbers_in_flow
from nsysx.events.narrowed_operators import Size, sizes_of
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import OperatorFlow, flow_of, once_of_flow
from nsysx.events.profile import Profile

_ACCUMULATES = "torch::autograd::AccumulateGrad"
#: What is at work under a number of autograd's without being its node.
_NO_NODES = r"^(aten|_?c10d\w*)::"


def trained_of(profile: Profile) -> Flags:
    """Return which operators of the X-ray step of ``flow_of`` are trained, in its order; empty without one."""
    return profile.once(_trained)


def _trained(profile: Profile) -> Flags:
    flow = flow_of(profile)
    return np.empty(0, np.bool_) if flow is None else trained_in(profile, flow)


def trained_in(profile: Profile, flow: OperatorFlow, *, by_operators: bool = False) -> Flags:
    """Return which operators of a flow are trained. ``by_operators``: by nodes that operators make, not by those of functions with a
    gradient of their own (``torch.autograd.Function``), whose number the operator before them has, too.
    """
    trained: Flags = once_of_flow(flow, profile, _trained_by_operators if by_operators else _trained_by_nodes).copy()
    return trained


def _trained_by_operators(flow: OperatorFlow, profile: Profile) -> Flags:
    return _trained_in(profile, flow, by_operators=True)


def _trained_by_nodes(flow: OperatorFlow, profile: Profile) -> Flags:
    return _trained_in(profile, flow, by_operators=False)


def _trained_in(profile: Profile, flow: OperatorFlow, *, by_operators: bool) -> Flags:
    # The numbers of the nodes that a backward ran.
    ranges = profile.ranges.ranges
    chosen = (pl.col("kind") == "op") & (pl.col("process") == profile.process) & (pl.col("number") >= 0)
    backward = ranges.filter(chosen, ~pl.col("name").cast(pl.String).str.contains(_NO_NODES))
    if by_operators:
        backward = backward.filter(backward["name"].cast(pl.String).str.contains(r"\d$"))
    nodes = frozenset([*backward["number"].to_list(), *numbers_in_flow(backward, flow).values()])
    trained, last = np.zeros(len(flow.names), np.bool_), dict[int, int]()
    for row in flow.outermost:
        if flow.sequence[row] in nodes:
            last[flow.sequence[row]] = row
    behind = ranges.filter(
        chosen,
        pl.col("thread") == flow.thread,
        pl.col("start_ns") >= int(flow.end_ns[-1]) if len(flow.end_ns) else False,
    )
    # The next step's first operator makes the node whose number the last operators of this one have.
    behind = behind.filter(behind["name"].cast(pl.String).str.starts_with("aten::"))
    for number in behind["number"].unique().to_list():
        last.pop(number, None)
    for row in last.values():
        trained[row : int(np.searchsorted(flow.start_ns, flow.end_ns[row]))] = True
    return trained


def trained_sizes(profile: Profile) -> frozenset[Size]:
    """Return the sizes of the tensors to which a backward of an X-ray step added gradients: the weights that are trained."""
    chosen = (pl.col("kind") == "op") & (pl.col("process") == profile.process) & ~pl.col("repeated")
    sums = profile.ranges.ranges.filter(chosen, pl.col("name").cast(pl.String) == _ACCUMULATES)
    return frozenset(
        size for text in sums["label"].cast(pl.String).unique().to_list() for size in sizes_of(text or "")[:1]
    )

"""Which operators of an X-ray step are trained: those that made a node which a backward ran.

An operator's range has the number of the node that autograd would make next. Of the outermost operators with one number the last makes
it, and all within have its gradient.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.events.earlier_nodes import numbers_in_flow
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import flow_of
from nsysx.events.profile import Profile


def trained_of(profile: Profile) -> Flags:
    """Return which operators of the X-ray step of ``flow_of`` are trained, in its order; empty without one."""
    return profile.once(_trained)


def _trained(profile: Profile) -> Flags:
    flow = flow_of(profile)
    if flow is None:
        return np.empty(0, np.bool_)
    # The numbers of the nodes that a backward ran.
    ranges = profile.ranges.ranges
    chosen = (pl.col("kind") == "op") & (pl.col("process") == profile.process) & (pl.col("number") >= 0)
    backward = ranges.filter(chosen, ~pl.col("name").cast(pl.String).str.starts_with("aten::"))
    nodes = frozenset([*backward["number"].to_list(), *numbers_in_flow(backward, flow).values()])
    trained, last = np.zeros(len(flow.names), np.bool_), dict[int, int]()
    for row in flow.outermost:
        if flow.sequence[row] in nodes:
            last[flow.sequence[row]] = row
    for row in last.values():
        trained[row : int(np.searchsorted(flow.start_ns, flow.end_ns[row]))] = True
    return trained

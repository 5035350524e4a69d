"""Weights that a step moves between two of its backwards, without an optimizer: sharpness-aware minimization (SAM) and its kin.

The gradients of the backward before are made to say where to, and are then dropped: they are no part of what the optimizer is given.
"""

from __future__ import annotations

import re

import polars as pl

from nsysx.events.operator_flow import OperatorFlow, flow_of, in_place, is_view
from nsysx.events.profile import Profile

#: Operators whose second argument is always a weight.
_OF_WEIGHTS = re.compile(r"^aten::(linear|conv\dd|conv_transpose\dd)$")
_CASTS = re.compile(r"^aten::(to|_to_copy|contiguous|clone)$")


def perturbed(profile: Profile) -> bool:
    """Return whether weights are written, or gradients reset, between two backwards of one step of the optimizer."""
    return profile.once(_perturbed)


def _perturbed(profile: Profile) -> bool:
    flow = flow_of(profile)
    return (flow is not None and writes_weights(flow)) or _resets_between(profile)


def writes_weights(flow: OperatorFlow) -> bool:
    """Return whether a layer's weight was written by an operator of the step that comes before the layer's call."""
    for row, name in enumerate(flow.names):
        if not _OF_WEIGHTS.match(name) or len(flow.made[row]) < 2:
            continue
        maker = flow.row_of.get(flow.made[row][1], row)
        while maker < row and (is_view(flow.names[maker]) or _CASTS.match(flow.names[maker])) and flow.made[maker]:
            maker = flow.row_of.get(flow.made[maker][0], row)
        if maker < row and in_place(flow.names[maker]):
            return True
    return False


def _resets_between(profile: Profile) -> bool:
    """Return whether gradients are reset behind a backward that another backward follows, before an optimizer steps, in most steps."""
    ranges = profile.ranges.ranges
    of_phases = ranges.filter(
        (ranges["process"] == profile.process) & ranges["own"] & (ranges["kind"] == "phase")
    ).select(pl.col("name").cast(pl.String).str.extract(r"^(\w+)"), "start_ns")
    names = of_phases.sort("start_ns")["name"].fill_null("").to_list()
    order = [name for name in names if name in ("backward", "zero_grad", "optimizer")]
    resets = sum(order[i : i + 3] == ["backward", "zero_grad", "backward"] for i in range(len(order)))
    return resets > 0 and 2 * resets >= order.count("optimizer")

"""The operators of an X-ray step behind those of the step before it.

A step may end between what a network makes and what is read of it: that of a frozen network, which comes before the trained one's forward,
lies in the step before it. Read together, the two say what the next step takes of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nsysx.events.alignment import align
from nsysx.events.operator_flow import OperatorFlow, flow_of, operators_before
from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64


class TwoSteps(NamedTuple):
    """The operators of two steps, and of each the row in the second one's flow of the one that does the same there, -1 for none;
    ``first``: the row of the second one's first. Without a step before it is the flow itself.
    """

    flow: OperatorFlow
    like: I64
    first: int


def with_step_before(profile: Profile) -> TwoSteps | None:
    """Return the operators of the X-ray step of ``flow_of`` with those before it, None where no step holds operators."""
    return profile.once(_with_step_before)


def _with_step_before(profile: Profile) -> TwoSteps | None:
    flow, before = flow_of(profile), operators_before(profile)
    if flow is None:
        return None
    rows = np.arange(len(flow.names))
    if before is None:
        return TwoSteps(flow, rows, 0)
    sizes = [list(zip(each.names, each.size, strict=True)) for each in (before, flow)]
    code = {each: number for number, each in enumerate(dict.fromkeys([*sizes[0], *sizes[1]]))}
    here, there = align(*(np.array([code[each] for each in both], np.int64) for both in sizes))
    like = np.full(len(before.names), -1)
    like[here] = there
    both = replace(
        flow,
        names=[*before.names, *flow.names],
        number=[*before.number, *flow.number],
        made=[*before.made, *flow.made],
        size=[*before.size, *flow.size],
        calls=(),
        start_ns=np.concatenate([before.start_ns, flow.start_ns]),
        end_ns=np.concatenate([before.end_ns, flow.end_ns]),
        sequence=[*before.sequence, *flow.sequence],
        which=[*before.which, *flow.which],
    )
    return TwoSteps(both, np.concatenate([like, rows]), len(before.names))

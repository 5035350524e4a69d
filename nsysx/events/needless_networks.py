"""Calls of networks of which a backward of the program needs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from nsysx.events.event_bounds import WHOLE_BACKWARD_SHARE
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import ModuleCall, OperatorFlow
from nsysx.frames.intervals import I64


class NeedlessNetwork(NamedTuple):
    """A call of a network of which some backwards of a step (their numbers) need nothing; ``always``: none of them needs anything."""

    call: ModuleCall
    backwards: frozenset[int]
    always: bool


def outermost_calls(flow: OperatorFlow) -> Iterator[ModuleCall]:
    """Yield the calls of modules that lie in no other."""
    end = 0
    for call in flow.calls:
        if call.first >= end:
            end = call.last
            yield call


def needless_networks(
    flow: OperatorFlow, backward: I64, number: I64, needless: Flags
) -> tuple[Flags, tuple[NeedlessNetwork, ...]]:
    """Return which needless API calls belong to calls of networks of which a backward needs nothing, and these calls of networks.

    ``number``: of the backward of its step that each API call is made in. One call may be gone back through for several losses.
    """
    whole, networks = np.zeros(len(needless), np.bool_), list[NeedlessNetwork]()
    for call in outermost_calls(flow):
        theirs = (backward >= call.first) & (backward < call.last)
        each = np.unique(number[theirs]).tolist()
        gone = [n for n in each if needless[theirs & (number == n)].mean() >= WHOLE_BACKWARD_SHARE]
        if gone:
            whole |= theirs & needless & np.isin(number, gone)
            networks.append(NeedlessNetwork(call, frozenset(gone), len(gone) == len(each)))
    return whole, tuple(networks)

"""GPU work that no operator of an X-ray step launches, so that nobody knows what it reads and writes: rules about operators ask first."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events import thread_roles
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.operator_of_calls import OperatorOfCalls
from nsysx.findings._case import Case
from nsysx.findings._work_bounds import UNSEEN_LAUNCHES_SHARE


def launched_unseen(
    case: Case, flow: OperatorFlow, of_calls: OperatorOfCalls, *, but_collectives: bool = False
) -> bool:
    """Return whether GPU work belongs to no operator of the program's thread, or is another thread's: what it reads is not seen.

    ``but_collectives``: those do not count. What they bring bears a number that no operator of the flow has, so that nothing is taken for
    the same because of them; whether they read a result stays unknown.
    """
    attributed = case.profile.attributed
    ops = case.ops.filter(case.ops["call"].is_not_null())
    call = ops["call"].to_numpy()
    if not len(call):
        return True
    thread = attributed.api_calls["thread"].to_numpy()[call]
    theirs = [flow.thread, *(key for key, role in attributed.roles.items() if role == thread_roles.AUTOGRAD)]
    counted = (ops["op_kind"].cast(pl.String) == "kernel").to_numpy()
    if but_collectives:
        counted &= (ops["cls"] != DeviceActivity.COMM.value).to_numpy()
    unseen = (thread == flow.thread) & (of_calls.forward[call] < 0) & (of_calls.backward[call] < 0) & counted
    return bool((unseen | ~np.isin(thread, theirs)).sum() > UNSEEN_LAUNCHES_SHARE * len(call))

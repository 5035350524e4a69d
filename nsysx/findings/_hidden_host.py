"""Whether a recording shows the host at work while some GPU work runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import polars as pl

from nsysx.catalogue import StepPart
from nsysx.findings._finding_bounds import WAITED_FOR_SHARE

_IDLE = frozenset(part for part in StepPart if part.idle)


def host_is_hidden(
    taken_by: Callable[[Iterable[StepPart]], int],
    step_ns: int,
    timed: pl.DataFrame | None,
    idle_before: Mapping[int, int],
) -> bool:
    """Return whether the host works unseen while some GPU ops run (op, ns): they were queued, and the GPU hardly idles for the host.

    Idle time behind a wait does not count there: the wait has emptied the queue, and tells how fast the host fills it, not how far it is
    ahead where that work runs. Nor does that of steps that were not recorded: the GPU may be full in these, too. ``taken_by``: parts of the
    step (ns); ``idle_before``: of each replayed op (ns).
    """
    idle = _IDLE - {StepPart.LONGER}
    if taken_by(idle) <= WAITED_FOR_SHARE * step_ns:
        return True
    if timed is None or taken_by(idle - {StepPart.SYNC}) > WAITED_FOR_SHARE * step_ns:
        return False
    replayed = [(idle_before[op], ns) for op, ns in timed.select("op", "ns").iter_rows() if op in idle_before]
    return sum(idle for idle, _ in replayed) <= WAITED_FOR_SHARE * sum(ns for _, ns in replayed) and bool(replayed)

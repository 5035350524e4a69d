"""How much less a change saves on a slower host, where the host limits the step behind it."""

from __future__ import annotations

from nsysx.findings._finding_bounds import SLOWER_HOST_SHARE
from nsysx.replay.outcome import LIMITS_OF_HOST
from nsysx.saving import Saving


def lost_to_slower_host_ns(saving: Saving, step_ns: int) -> int:
    """Return by how much (ns) a change of GPU work may save less of a step in another run, whose host is slower: 0 where the GPU limits the
    step behind it.

    Tried: the same job of two H200 took 151 ms where it was recorded, 187 on another day, and there half of what was replayed was saved.
    """
    likely = saving.likely_ns
    if likely is None or saving.next_limit not in LIMITS_OF_HOST:
        return 0
    return min(likely, round(SLOWER_HOST_SHARE * (step_ns - likely)))

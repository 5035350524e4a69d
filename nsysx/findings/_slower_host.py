"""How much less a change saves on a slower host, where the GPU waits for the host in the step behind it."""

from __future__ import annotations

from nsysx.findings._finding_bounds import SLOWER_HOST_SHARE
from nsysx.replay.outcome import GPU_WORK
from nsysx.saving import Saving


def lost_to_slower_host_ns(saving: Saving) -> int:
    """Return by how much (ns) a change of GPU work may save less of a step in another run, whose host is slower.

    0 where the GPU hardly idles behind it, or no replay was made. Tried: the same job of two H200 took 151 ms where it was recorded, 187 on
    another day, and there half of what was replayed was saved. A host that waits in a part of the step alone sets the pace of the rest: of
    a step in which it was at work for 79 % half was saved, too.
    """
    if saving.likely_ns is None or saving.next_limit in (None, GPU_WORK):
        return 0
    return min(saving.likely_ns, more_of_slower_host_ns(saving.host_ns))


def more_of_slower_host_ns(host_ns: float) -> int:
    """Return how much longer (ns) a slower host may take for what takes ``host_ns``: a host is as slow as the machine is that day."""
    return round(SLOWER_HOST_SHARE * host_ns)

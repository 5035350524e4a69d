"""How long a step takes if its GPU has nothing to do: what its host does then is all that is left."""

from __future__ import annotations

from collections.abc import Sequence

from nsysx.events.profile import Profile
from nsysx.judging.judging_bounds import LITTLE_KNOWN_SHARE
from nsysx.model import Finding
from nsysx.replay.engine import RemoveOps, Replay


def without_gpu_ns(given: Profile, replay: Replay, judged: Sequence[Finding]) -> int | None:
    """Return the step without a profiler if the GPU had nothing to do and nothing were launched (ns): no less GPU work makes it shorter.

    None where the replay is far off the recorded steps, or a change is known that saves more than little: its own replay holds that.
    """
    savings = (f.saving.likely_ns or 0 for f in judged if f.verdict == "found" and not f.saving.bound)
    if not replay.trusted or max(savings, default=0) >= LITTLE_KNOWN_SHARE * replay.real_ns:
        return None
    return replay.saving(RemoveOps(frozenset(given.steady_ops["op"].to_list()))).step_ns

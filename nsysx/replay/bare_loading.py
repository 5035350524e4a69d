"""Waiting for batches that only the steps without a profiler have: a window opens with what workers made while the program stood still."""

from __future__ import annotations

import numpy as np

from nsysx import ids
from nsysx.events import bare
from nsysx.events.profile import Profile


def more_ns(profile: Profile, step_ns: int, waits_ns: int) -> int:
    """Return how much longer the mean bare step is because it waits longer for its batch than the recorded steps do (ns).

    ``step_ns`` is the step with the recorded waiting, ``waits_ns`` that waiting (ns per step). Of each bare step it is the time in the
    loader's ``next`` beyond that, but not more than the step is longer: what the device still has to do meanwhile hides the rest.
    """
    if profile.steps.in_rounds:  # the probe's steps are parts of the shown ones
        return 0
    record = next(iter(ids.records_of(profile.trace.capture.probe, profile.steps.process)), {})
    timed = bare.batches(record, profile.trace.capture)
    longer = [min(fetch_ns - waits_ns, ns - step_ns) for ns, fetch_ns in timed]
    return round(float(np.maximum(longer, 0).mean())) if longer else 0

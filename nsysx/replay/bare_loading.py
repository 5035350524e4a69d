"""Waiting for batches that only the steps without a profiler have: a window opens with what workers made while the program stood still."""

from __future__ import annotations

import numpy as np

from nsysx import ids
from nsysx.events import bare
from nsysx.events.event_bounds import FEWEST_STARVED_WAITS, STARVED_WAIT_SHARE
from nsysx.events.profile import Profile


def more_ns(profile: Profile, step_ns: int, waits_ns: int, fed_ns: int) -> int:
    """Return how much longer the mean bare step is because it waits longer for its batch than the recorded steps do (ns).

    Negative where bare steps wait again and again, and less than the recorded ones do. ``step_ns`` is the step with the recorded
    waiting, ``waits_ns`` that waiting (ns per step), and ``fed_ns`` the step of a loader that is always ready. Of each bare step it is
    the time in the loader's ``next`` beyond that, but not more than the step is longer: what the device still has to do meanwhile hides
    the rest. Waits that come in some steps only are longer than the mean, recorded ones as well: what they add is compared as a mean, too.
    """
    if profile.steps.in_rounds:  # the probe's steps are parts of the shown ones
        return 0
    record = next(iter(ids.records_of(profile.trace.capture.probe, profile.steps.process)), {})
    timed = bare.batches(record, profile.trace.capture)
    if not timed:
        return 0
    steps_ns, fetches_ns = np.array(timed, np.float64).T
    longer = np.maximum(np.minimum(fetches_ns - waits_ns, steps_ns - step_ns), 0).mean()
    shown = np.minimum(fetches_ns, np.maximum(steps_ns - fed_ns, 0))
    more = float(shown.mean()) - (step_ns - fed_ns)
    if more < 0 and (shown > STARVED_WAIT_SHARE * fed_ns).sum() < FEWEST_STARVED_WAITS:
        return 0  # what they had in their queue says nothing of the loader
    return round(min(float(longer), more))

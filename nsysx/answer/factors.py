"""How many times as fast the program is after a change, at least and at most, where its step is known only within bounds."""

from __future__ import annotations

from nsysx.answer.answer_bounds import MOST_SAVED_SHARE
from nsysx.catalogue import StepLimit
from nsysx.findings import rule_of
from nsysx.model import Finding, Summary

#: Causes whose time is the host's, of communication that of a host elsewhere: in a longer step without the profiler the GPU idles for
#: longer.
_OF_THE_HOST = (StepLimit.LAUNCH, StepLimit.SYNC, StepLimit.ALLOC, StepLimit.INPUT)


def factor_bounds(
    summary: Summary, chosen: Finding | None, saving_ns: int | None, margins_ns: tuple[int, int] | None = None
) -> tuple[float, ...]:
    """Return the least and the most factor of a change that saves ``saving_ns`` of the shown step, the error of that included.

    The GPU's work is what was recorded; a step that is longer without the profiler idles for longer. So what a change saves of idle
    time grows with that. What it saves of other time stays, and is no larger a share of a shorter step. Empty without a saving, and
    where the step is as recorded, unless the saving is a time that was recorded, too. ``margins_ns``: how much less and more it may
    save, the error of the saving where not given.
    """
    now, bounds, real = summary.step.shown_ns, summary.step.bounds_ns, summary.step.estimate
    if chosen is None or not saving_ns or not now:
        return ()
    if real is None and chosen.saving.source in ("time", "limits") and margins_ns is not None:
        most = min(saving_ns + margins_ns[1], round(MOST_SAVED_SHARE * now))
        return round(now / (now - saving_ns + margins_ns[0]), 3), round(now / (now - most), 3)
    if bounds is None or real is None or summary.step.as_recorded:
        return ()
    about = rule_of(chosen.code).about
    waits_for_peers = real.exposed_comm_ns if about == StepLimit.COMM else 0
    busy = now * (real.gpu_busy_ns - waits_for_peers) / max(real.step_ns, 1)
    host = about in (*_OF_THE_HOST, StepLimit.COMM)
    error = 0 if chosen.saving.bound else chosen.saving.error_ns or 0
    less, more = margins_ns or (min(error, saving_ns), error)

    def at(step: int, saving: int) -> float:
        if about == "slow steps":  # what varies is how often they come: the usual step stays
            return max(1.0, step / max(now - saving, (1 - MOST_SAVED_SHARE) * now))
        idle = min(saving, now - busy) if host else 0.0
        grows = max(0.0, step - busy) / max(now - busy, 1.0)
        left = (now - min(saving, MOST_SAVED_SHARE * now)) * min(1.0, step / now)
        return step / max(step - idle * grows - (saving - idle), left)

    ends = [at(step, saving) for step in (*bounds, now) for saving in (saving_ns - less, saving_ns + more)]
    return round(min(ends), 3), round(max(ends), 3)

"""Whether another process of the report works on the GPU that is shown, so that each of them waits for the other."""

from __future__ import annotations

import numpy as np

from nsysx import ids, units
from nsysx.events.profile import Profile
from nsysx.frames.intervals import coverage, overlay
from nsysx.model import Check

#: Work of others for less than this share of the steps changes no figure that is shown.
_NOTABLE = 0.01


def shared_gpu(profile: Profile) -> list[Check]:
    """Return a warning if other processes work on the shown GPU during the steady steps; nothing if the report does not say."""
    limits = profile.trace.limits
    if profile.device is None or (shown := limits.get((profile.process, profile.device))) is None or shown.gpu is None:
        return []
    others = [
        place
        for place in profile.ledgers.activity
        if place[0] != profile.process and (known := limits.get(place)) is not None and known.gpu == shown.gpu
    ]
    start, end = profile.window
    if not others or end <= start:
        return []
    by_others = [profile.ledgers.activity[place] for place in others]
    work = coverage([(f.times[:-1][f.labels > 0], f.times[1:][f.labels > 0]) for f in by_others])
    times, (working, labels) = overlay([work, profile.ledgers.activity[profile.process, profile.device]], start, end)
    ns, busy = np.diff(times), working > 0
    whole, idle = int(ns[busy].sum()), int(ns[busy & (labels <= 0)].sum())
    if whole < _NOTABLE * (end - start):
        return []
    pids = sorted({ids.pid_of(process) for process, _ in others})
    who = f"process {pids[0]} works" if len(pids) == 1 else f"{len(pids)} other processes work"
    detail = (
        f"{who} on the same GPU for {units.share(whole, end - start)} of the steps, {units.share(idle, end - start)} while this "
        "one leaves it idle: kernel and idle times include waiting for that work"
    )
    fix = "give each process its own GPU: torch.cuda.set_device(int(os.environ['LOCAL_RANK'])), or CUDA_VISIBLE_DEVICES"
    return [Check("shared gpu", "warn", detail, fix)]

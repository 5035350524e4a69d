"""Work of others while the shown device works or idles: of other processes on the same GPU, and of the process's other GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nsysx import ids, units
from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64, coverage, overlay
from nsysx.judging.judging_bounds import OTHERS_WORK_SHARE
from nsysx.model import Check


@dataclass(frozen=True)
class OtherWork:
    """How long others work in the steady steps (ns), and how much of that while the shown device idles."""

    busy_ns: int
    meanwhile_ns: int
    devices: tuple[int, ...] = ()


def _work_at(profile: Profile, places: Sequence[tuple[int, int]]) -> OtherWork:
    """Return the work of these (process, device) in the steady steps of the shown device."""
    start, end = profile.window
    if profile.device is None or not places or end <= start:
        return OtherWork(0, 0)
    others = [profile.ledgers.activity[key] for key in places]
    work = coverage([(f.times[:-1][f.labels > 0], f.times[1:][f.labels > 0]) for f in others])
    shown = profile.ledgers.activity[profile.process, profile.device]
    times, (working, labels) = overlay([work, shown], start, end)
    ns, busy = np.diff(times), working > 0
    return OtherWork(
        int(ns[busy].sum()), int(ns[busy & (labels <= 0)].sum()), tuple(sorted({device for _, device in places}))
    )


def other_gpus(profile: Profile) -> OtherWork:
    """Return the work of the shown process's other GPUs."""
    return profile.once(_other_gpus)


#: Why evening out the work of ranks saves less on a GPU that they share.
FASTER_ALONE = "ranks share a GPU, and one computes faster while the other waits"


def _other_gpus(profile: Profile) -> OtherWork:
    process, shown = profile.process, profile.device
    return _work_at(
        profile, [(p, device) for p, device in profile.ledgers.activity if p == process and device != shown]
    )


def others_of_gpu(profile: Profile, key: tuple[int, int] | None = None) -> list[tuple[int, int]]:
    """Return the (process, device) of other processes whose GPU is the shown one, or that of ``key``; none if the report does not say."""
    limits = profile.trace.limits
    if key is None:
        key = None if profile.device is None else (profile.process, profile.device)
    if key is None or (shown := limits.get(key)) is None or shown.gpu is None:
        return []
    return [
        device
        for device in profile.ledgers.activity
        if device[0] != key[0] and (its_limits := limits.get(device)) is not None and its_limits.gpu == shown.gpu
    ]


def working_share(profile: Profile, places: Sequence[tuple[int, int]], start_ns: I64, end_ns: I64) -> float:
    """Return in which share of the time of some spans within the steady steps these (process, device) work; 0 without spans."""
    others = [profile.ledgers.activity[key] for key in places]
    work = coverage([(f.times[:-1][f.labels > 0], f.times[1:][f.labels > 0]) for f in others])
    times, (working, inside) = overlay([work, coverage([(start_ns, end_ns)])], *profile.window)
    ns = np.diff(times)
    return float(ns[(working > 0) & (inside > 0)].sum() / max(int(ns[inside > 0].sum()), 1))


def shared_gpu(profile: Profile) -> list[Check]:
    """Return a warning if other processes work on the shown GPU during the steady steps; nothing if the report does not say."""
    others = others_of_gpu(profile)
    work, whole = _work_at(profile, others), profile.window[1] - profile.window[0]
    if not work.busy_ns or work.busy_ns < OTHERS_WORK_SHARE * whole:
        return []
    pids = sorted({ids.pid_of(process) for process, _ in others})
    who = f"process {pids[0]} works" if len(pids) == 1 else f"{len(pids)} other processes work"
    detail = (
        f"{who} on the same GPU for {units.share(work.busy_ns, whole)} of the steps, {units.share(work.meanwhile_ns, whole)} while "
        "this one leaves it idle: kernel and idle times include waiting for that work"
    )
    fix = "give each process its own GPU: torch.cuda.set_device(int(os.environ['LOCAL_RANK'])), or CUDA_VISIBLE_DEVICES"
    return [Check("shared gpu", "warn", detail, fix, doubt="numbers")]

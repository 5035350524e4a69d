"""Where the time of the busiest device goes: parts that sum to the window, each named after whoever could remove it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from nsysx.analyses import gpu_ledger
from nsysx.analyses.gpu_ledger import GpuRow
from nsysx.catalogue import Call, Cause, StepLimit, StepPart
from nsysx.events import bare
from nsysx.events.profile import Profile
from nsysx.judging import waiting
from nsysx.judging.idle_parts import idle_parts, pages_moving
from nsysx.judging.judging_bounds import SAME_STEP_SHARE
from nsysx.model import Scope, Unprofiled
from nsysx.replay.engine import (
    Edit,
    FreeLoader,
    Graph,
    OverlapCopies,
    RemoveCalls,
    RemoveExposedComm,
    RemoveHost,
    RemoveWaits,
    Replay,
    Withheld,
    replay_of,
    unprofiled_of,
)
from nsysx.replay.unprofiled import steady_lengths


@dataclass(frozen=True)
class WindowLimits:
    """The steady window of one device. ``parts`` (ns, by Part) sum to ``window_ns``; ``kernels``: whether any ran at all.

    ``unprofiled``: the parts are those of the step without a profiler. ``recorded_ns`` is then the window as recorded if it
    differs enough to mention, else None. ``estimated``: the step comes from costs of tracing, it was not measured. ``between_ns``: what
    runs between steps adds so much to each, as measured without the profiler.
    """

    process: int
    device: int
    window_ns: int
    steps: int
    whole: bool
    parts: dict[StepPart, int]
    kernels: bool
    recorded_ns: int | None = None
    estimated: bool = False
    unprofiled: bool = False
    between_ns: int = 0

    @property
    def real_ns(self) -> int:
        """The window (ns) without the profiler's own work and without pauses in which the program does something else."""
        return self.window_ns - self.parts[StepPart.PROFILER] - self.parts[StepPart.ELSEWHERE]

    @property
    def idle_ns(self) -> int:
        """The time in which nothing runs on the device (ns), the profiler's own work included."""
        return sum(self.parts[p] for p in StepPart if p.idle)

    @property
    def lost(self) -> dict[StepLimit, int]:
        """The time that somebody could remove, by what it is a limit of (ns)."""
        by_limit: dict[StepLimit, int] = {}
        for part in StepPart:
            if part.limit is not None and self.parts[part]:
                by_limit[part.limit] = by_limit.get(part.limit, 0) + self.parts[part]
        return by_limit

    def per_step(self, ns: int) -> float:
        """Return a time in the window per step (ns); the time itself if there are no steps."""
        return Scope("steady", (self.process,), steps=0 if self.whole else self.steps).per_step(ns)


def limits_of(profile: Profile) -> WindowLimits:
    """Return the limits of the busiest device of the shown process, without a profiler if that is known. Raises NotRecorded."""
    return profile.once(_limits)


def _limits(profile: Profile) -> WindowLimits:
    recorded = recorded_limits(profile, profile.once(gpu_ledger.rows_of))
    unprofiled = unprofiled_of(profile)
    if isinstance(unprofiled, Withheld) or (unprofiled.process, unprofiled.device) != (
        recorded.process,
        recorded.device,
    ):
        return recorded
    limits = _with_waits(profile, _unprofiled(profile, recorded, unprofiled))
    return replace(limits, between_ns=max((unprofiled.loop_ns or 0) - unprofiled.step_ns, 0))


def _with_waits(profile: Profile, limits: WindowLimits) -> WindowLimits:
    """Return the limits with the part of the waits at least as large as what removing the costliest wait saves.

    A host that waits loses its lead, and the device may run dry long after the wait: the idle time right after it is only
    some of what it costs. The difference is taken from host code and launches, where it shows up.
    """
    replay = replay_of(profile)
    if not isinstance(replay, Replay) or not replay.trusted or not replay.real_ns:
        return limits
    host, launch, sync = (limits.parts[p] for p in (StepPart.HOST, StepPart.LAUNCH, StepPart.SYNC))
    # Scaled to the window of these limits, which may hold more steps than were replayed.
    worth = profile.once(waiting.dearest_ns) * limits.window_ns // replay.real_ns
    more = min(worth - sync, host + launch)
    if more <= 0:
        return limits
    of_host = more * host // (host + launch)
    moved = {StepPart.SYNC: sync + more, StepPart.HOST: host - of_host, StepPart.LAUNCH: launch - (more - of_host)}
    return replace(limits, parts=limits.parts | moved)


def _unprofiled(profile: Profile, recorded: WindowLimits, unprofiled: Unprofiled) -> WindowLimits:
    """Return the limits without tracing, which stretches what the host does: its code, launches and what follows a wait.

    The GPU's work, and anything else it waits for, stays as recorded; but communication is capped at what the untraced replay
    gives, because ranks then wait less for each other. The remainder of the real step is divided between host code and launches
    as in that replay; waits keep the share that they have as recorded.
    """
    real, with_it = steady_lengths(profile, unprofiled, recorded.steps)
    window, steps = real * recorded.steps, recorded.steps
    much = recorded.window_ns > (1 + SAME_STEP_SHARE) * window
    of_the_host = (StepPart.HOST, StepPart.LAUNCH, StepPart.SYNC)
    stay = {p: ns for p, ns in recorded.parts.items() if p not in (*of_the_host, StepPart.PROFILER)}
    stay[StepPart.COMM] = min(stay[StepPart.COMM], unprofiled.exposed_comm_ns * steps)
    stay[StepPart.INPUT] += _more_loading_ns(profile) * steps
    stay[StepPart.LONGER] = _longer(profile, recorded, window)
    of_host = window - sum(stay.values())
    if recorded.parts[StepPart.MIGRATION] and (of_host < 0 or not much):
        return recorded  # pages that move by themselves are not part of the replay
    if of_host < 0 or not much:
        return _shrunk(profile, recorded, unprofiled, much)
    host = sum(recorded.parts[p] for p in of_the_host)
    sync = of_host * recorded.parts[StepPart.SYNC] // host if host else 0
    causes = dict.fromkeys((StepPart.HOST, StepPart.LAUNCH), 0)
    for cause, ns in unprofiled.idle_causes.items():
        if (part := Cause.named(cause).part) in causes:
            causes[part] += ns
    launch = (of_host - sync) * causes[StepPart.LAUNCH] // max(sum(causes.values()), 1)
    parts = (
        recorded.parts
        | stay
        | {StepPart.SYNC: sync, StepPart.LAUNCH: launch, StepPart.HOST: of_host - sync - launch, StepPart.PROFILER: 0}
    )
    return replace(
        recorded,
        window_ns=window,
        parts=parts,
        recorded_ns=with_it * steps,
        estimated=_estimated(unprofiled),
        unprofiled=True,
    )


def _more_loading_ns(profile: Profile) -> int:
    """Return how much longer a step waits for batches than as recorded (ns)."""
    replay = replay_of(profile)
    return replay.more_loading_ns if isinstance(replay, Replay) else 0


def _estimated(unprofiled: Unprofiled) -> bool:
    return unprofiled.source in ("modelled", "assumed")


def _shrunk(profile: Profile, recorded: WindowLimits, unprofiled: Unprofiled, much: bool) -> WindowLimits:
    """Return the limits of the step without a profiler, each idle gap as long as it is in the untraced replay.

    ``much``: tracing changes the step enough to mention.
    """
    real, with_it = steady_lengths(profile, unprofiled, recorded.steps)
    window = real * recorded.steps
    works = {p: recorded.parts[p] for p in (StepPart.WORK, StepPart.COMM, StepPart.COPY)}
    busy, longer = round(window * unprofiled.gpu_busy), _longer(profile, recorded, window)
    if longer:  # what the usual step works is known: the rest of the longer ones is not
        busy = min(busy, sum(works.values()))
        longer = min(longer, window - busy)
    device = (profile, recorded.process, recorded.device)
    worked = _to_sum(works, busy)
    idle = _to_sum(
        {StepPart.LAUNCH: 0} | idle_parts(*device, real=True) | {StepPart.PROFILER: 0}, window - busy - longer
    ) | {StepPart.LONGER: longer}
    return replace(
        recorded,
        window_ns=window,
        parts={p: worked.get(p, 0) + idle.get(p, 0) for p in StepPart},
        recorded_ns=with_it * recorded.steps if much else None,
        estimated=much and _estimated(unprofiled),
        unprofiled=True,
    )


def _longer(profile: Profile, recorded: WindowLimits, window: int) -> int:
    """Return what of the window (ns) is in none of the recorded steps: some steps without the profiler take longer than the usual one.

    Recorded steps may be longer than the usual one because of tracing, too; what any of them takes longer than the others is recorded.
    """
    if profile.steps.in_rounds:
        return 0
    more = round(not_recorded_ns(profile, recorded.process, recorded.device, *(profile.steps.steady or (0, -1))))
    more *= recorded.steps
    works = sum(recorded.parts[p] for p in (StepPart.WORK, StepPart.COPY))
    return max(0, min(more, window - works))


def not_recorded_ns(profile: Profile, process: int, device: int, first: int, last: int) -> float:
    """Return what long bare steps add to the mean one beyond what long ones of these recorded steps add to theirs (ns).

    Without what bare steps wait longer for batches, which is known by itself. Negative where the recorded steps hold more of it.
    """
    more = bare.excess_ns(profile.trace.capture, process) - _more_loading_ns(profile)
    of_device = (pl.col("process") == process) & (pl.col("device") == device)
    tiles = profile.steps.gpu.filter(of_device & pl.col("index").is_between(first, last))
    ns = (tiles["end_ns"] - tiles["start_ns"]).to_numpy()
    return more - int((ns - np.median(ns))[bare.long_steps(ns)].sum()) / len(ns) if len(ns) else more


def _to_sum(parts: dict[StepPart, int], whole: int) -> dict[StepPart, int]:
    """Return parts scaled so that they sum to ``whole``; the rounding error goes to the largest."""
    largest, total = max(parts, key=lambda p: parts[p]), sum(parts.values())
    scaled = {p: ns * whole // max(total, 1) for p, ns in parts.items()}
    return scaled | {largest: scaled[largest] + whole - sum(scaled.values())}


def recorded_limits(profile: Profile, rows: Sequence[GpuRow]) -> WindowLimits:
    """Return the limits of the busiest device of the shown process as recorded, from the rows of the table ``gpu_ledger``."""
    of_process = [r for r in rows if r["process"] == profile.steps.process] or list(rows)
    row = max(of_process, key=lambda r: (r["busy_ns"], -r["device"]))
    process, device = row["process"], row["device"]
    parts = dict.fromkeys(StepPart, 0)
    parts[StepPart.MIGRATION] = pages_moving(profile, process, device)
    parts[StepPart.WORK] = row["compute_ns"] + row["memset_ns"]
    parts[StepPart.COMM] = row["comm_ns"]
    parts[StepPart.COPY] = row["copy_ns"] - parts[StepPart.MIGRATION]
    for part, ns in idle_parts(profile, process, device).items():
        parts[part] += ns
    kernels = bool(profile.attributed.gpu_ops["op_kind"].is_in(["kernel", "graph"]).any())
    steps = profile.steps
    return WindowLimits(
        process,
        device,
        window_ns=row["window_ns"],
        steps=profile.scope.steps,
        whole=steps.whole,
        parts=parts,
        kernels=kernels,
    )


def worth(profile: Profile, limits: WindowLimits, code: StepLimit) -> int | None:
    """Return what a step saves without the cause of a verdict code, by the replay (ns); None without a trusted one."""
    replay = replay_of(profile)
    if not isinstance(replay, Replay) or not replay.trusted:
        return None
    edits: tuple[Edit, ...]
    ops, calls = profile.steady_ops, profile.steady_calls
    match code:
        case StepLimit.LAUNCH:
            return max(replay.saving(Graph()).saving_ns, replay.saving(RemoveHost()).saving_ns)
        case StepLimit.SYNC:
            edits = (RemoveWaits(),)
        case StepLimit.INPUT:
            edits = (FreeLoader(),)
        case StepLimit.COMM:
            edits = (RemoveExposedComm(),)
        case StepLimit.COPY:
            copies = ops.filter((ops["op_kind"] == "memcpy") & (ops["process"] == limits.process))
            edits = (OverlapCopies(frozenset(copies["op"].to_list())),)
        case StepLimit.ALLOC:
            allocations = calls.filter(calls["kind"].is_in(Call.ALLOCATOR))
            edits = (RemoveCalls(frozenset(allocations["call"].to_list())),)
        case _:
            return None
    return replay.saving(*edits).saving_ns

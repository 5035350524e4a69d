"""A discrete-event replay of the recorded steady steps, unchanged and with edits, to tell what a change would be worth.

The model: the calls of the threads that drive the GPU form one chain (``chain``). A call takes the CPU time that was recorded
for it without its waiting. Each stream is a FIFO: an op starts when its stream is free, the work that its stream must wait for is
done, and its launch has arrived. A blocking call returns when the work that it waits for is done. A launch finds the queue full
when as many ops are pending as were pending at recorded launches that stalled (``simulate``).

How an op was recorded tells what is known about it: an op that found its stream idle shows its launch latency; one that was queued
shows only the pause of the stream between two ops. So the unchanged replay is right by construction as long as the recorded causes
are those of the model, and its error shows where the model fails.

Savings are in unprofiled time: what tracing added to each call and range is removed first (``overhead``, ``unprofiled``).

The steps are replayed three times in a row, and the second round is measured, so that neither the start nor the end of the window
affects the result. A saving is (replay without tracing) - (the same with the edit), per step. It assumes that the program does not
need the value for which a removed wait waited, and that host code takes the same time elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property
from typing import Any

import polars as pl

from nsysx import units
from nsysx.events.other_ranks import Modelled
from nsysx.events.profile import Profile
from nsysx.model import Scope, Unprofiled
from nsysx.replay import no_comm, real_idle, run_ahead, unprofiled
from nsysx.replay.edits import (
    Edit,
    Fixed,
    FreeLoader,
    Fuse,
    Graph,
    OverlapCopies,
    PinCopies,
    RemoveCalls,
    RemoveExposedComm,
    RemoveHost,
    RemoveOps,
    RemoveWaits,
    ScaleOps,
    apply,
)
from nsysx.replay.outcome import GPU_WORK, HOST, IN_TURN, Moved, Outcome, SteadyStep
from nsysx.replay.replay_bounds import TRUSTED_ERROR, VALIDATED_ERROR_SHARE
from nsysx.replay.replayed_window import Withheld
from nsysx.replay.simulate import ReplayResult, run

__all__ = [
    "Edit",
    "FreeLoader",
    "Fuse",
    "Graph",
    "OverlapCopies",
    "PinCopies",
    "RemoveCalls",
    "RemoveExposedComm",
    "RemoveHost",
    "RemoveOps",
    "RemoveWaits",
    "Replay",
    "ScaleOps",
    "Withheld",
    "build",
    "idle_of",
    "replay_of",
    "replayed_scope",
    "unprofiled_of",
]


class Replay:
    """The replay of a report's steady steps. ``build`` makes it; ``saving`` tells what an edit is worth.

    ``recorded_ns`` is the recorded step and ``unchanged_ns`` its replay, both with tracing; ``real_ns`` is the step without tracing,
    from which savings are counted. ``error`` is the relative error of the unchanged replay, beside which ``trusted`` knows of hosts that
    ran ahead while the steps were recorded (``run_ahead``).
    """

    def __init__(self, profile: Profile, model: unprofiled.Model) -> None:
        self._profile = profile
        self.window = window = model.window
        self.start_ns, self.steps, self.recorded_ns = window.start_ns, window.steps, window.recorded_ns
        self.unchanged_ns = model.step(0.0)
        self.error = abs(self.unchanged_ns - self.recorded_ns) / self.recorded_ns
        self.trusted = self.error <= TRUSTED_ERROR or self._missed(profile) <= TRUSTED_ERROR
        self.items = len(model.chain.items)
        self._fixed = Fixed.from_chain(model.chain)
        self.unprofiled, self._columns, self._seen = unprofiled.unprofiled(profile, model)
        self._real = self._seen.run
        #: How long the bare step waits for batches beyond what the recorded ones do, per step (ns): no call of the chain shows it.
        self.more_loading_ns = self._seen.loading_ns // window.steps
        self.real_ns = self.window.step_ns(self._real.round_ns) + self.more_loading_ns
        #: The least error bar of a saving, per step (ns): the error of the unchanged replay, at least the validated one.
        self.bar_ns = round(max(self.error, VALIDATED_ERROR_SHARE) * self.real_ns)
        self._known: dict[tuple[Edit, ...], Outcome] = {}
        self._ran: dict[tuple[tuple[str, Any], ...], ReplayResult] = {}

    def _missed(self, profile: Profile) -> float:
        """Return by which part of the recorded step the unchanged replay misses what is left of that where steps repeat."""
        gone_ns = run_ahead.gone_in_repeats_ns(profile, self.window) // self.steps
        return abs(self.unchanged_ns - (self.recorded_ns - gone_ns)) / self.recorded_ns

    @cached_property
    def steady(self) -> SteadyStep:
        """The mean of all steady steps: reports speak of it, and fewer may be replayed."""
        real, steps = self.unprofiled, self._profile.scope.steps
        mean_ns, recorded_ns = unprofiled.steady_lengths(self._profile, real, steps)
        times = mean_ns / real.step_ns if real.step_ns else 1.0
        return SteadyStep(
            mean_ns,
            round(self.real_ns * times),
            (real.low_ns, real.high_ns),
            real.step_ns,
            real.source,
            recorded_ns,
            steps,
            times,
        )

    @property
    def misses(self) -> str:
        """What is said where the unchanged replay cannot be trusted."""
        return f"the unchanged replay misses the recorded step by {units.share(self.error, 1)}: no claims are made"

    def outcome(self, *edits: Edit) -> Outcome:
        """Return the mean steady step with all these edits made together."""
        return self.saving(*edits).scaled(self.steady.times)

    def saving(self, *edits: Edit) -> Outcome:
        """Return the step with all these edits made together."""
        if edits not in self._known:
            self._known[edits] = self._replayed(edits)
        return self._known[edits]

    def _replayed(self, edits: tuple[Edit, ...]) -> Outcome:
        after = self._edited(edits)
        step = self.window.step_ns(after.round_ns) + (0 if FreeLoader() in edits else self.more_loading_ns)
        grown = {
            call: ns - self._real.blocked.get(call, 0)
            for call, ns in after.blocked.items()
            if ns > self._real.blocked.get(call, 0)
        }
        if any(isinstance(edit, RemoveExposedComm) for edit in edits):
            shown, rest = self._profile.once(_without_comm)
            if shown is not None and len(edits) == 1:
                step = no_comm.job_step(self.real_ns, [shown, *rest])
            elif rest:
                step = max(step, no_comm.job_step(self.real_ns, rest))
        saving = min(self.real_ns - step, sum(map(self.most_ns, edits)), self.real_ns)
        step = self.real_ns - saving
        # The least error bar, plus the relative uncertainty of the step times the saving.
        real = self.unprofiled
        uncertainty = (real.high_ns - real.low_ns) / (2 * real.step_ns) if real.step_ns else 0.0
        return Outcome(
            step,
            saving,
            self._limit(after, step),
            self._moves_to(grown),
            self.bar_ns + round(abs(saving) * uncertainty),
            min(after.cpu_ns // self.steps, step),
        )

    def _edited(self, edits: Iterable[Edit]) -> ReplayResult:
        cols = self._columns
        for edit in edits:
            cols = apply(cols, edit, self._fixed, self._profile)
        changed = cols.changed_from(self._columns)  # edits that differ in words often come to the same calls
        if changed not in self._ran:
            self._ran[changed] = run(cols)
        return self._ran[changed]

    def blocked_ns(self) -> dict[int, int]:
        """Return call -> how long it blocks in one round of the replay without tracing (ns, over all steps)."""
        return dict(self._real.blocked)

    def idle_before(self) -> dict[int, int]:
        """Return op -> how long the device idles before it without tracing (ns), for all replayed ops."""
        return dict.fromkeys(self._fixed.op.tolist(), 0) | self._seen.before

    def most_ns(self, edit: Edit) -> int:
        """Return the most that an edit can save per step (ns): the idle time without tracing plus the GPU work it may shorten."""
        match edit:
            case RemoveOps(ops) | ScaleOps(ops, _) | OverlapCopies(ops, _) | PinCopies(ops, _):
                work = int(self._columns.op_duration[self._fixed.ops(ops)].sum())
            case RemoveExposedComm() | Fuse():
                return self.real_ns
            case _:
                work = 0
        return min(self.unprofiled.gpu_idle_ns + work // self.steps, self.real_ns)

    def loading_ns(self) -> int:
        """Return how long a step waits for data on the threads that drive the GPU (ns)."""
        return int(self._columns.loading.sum()) // self.steps + self.more_loading_ns

    def gpu_work_ns(self) -> int:
        """Return the GPU work of a step (ns), that of the busiest stream, because streams may overlap."""
        work = self._columns.op_duration
        streams = (work[self._columns.op_stream == stream] for stream in range(self._columns.streams))
        return max((int(ns.sum()) for ns in streams), default=0) // self.steps

    @property
    def turned_share(self) -> float:
        """The share of the idle time that was waiting in collectives as recorded, for the host of a later rank: see `late_causes`."""
        return self._seen.turned_ns / max(self._seen.whole_ns - self._seen.busy_ns, 1)

    def covered(self, calls: pl.DataFrame) -> pl.Series:
        """Return for each of these calls, by its ``start_ns``, whether it begins in the replayed steps."""
        return calls["start_ns"].is_between(self.window.start_ns, self.window.end_ns, closed="left")

    def replayed(self, calls: Collection[int]) -> bool:
        """Return whether one of these API calls is in the replayed steps."""
        return bool(self.window.calls["call"].is_in(list(calls)).any())

    def chain(self, sites: dict[str, frozenset[int]], most: int = 6) -> list[Moved]:
        """Remove the longest wait, then the longest remaining one, and so on, until the step gains more than 1 %.

        ``sites`` is call site -> its calls; at most ``most`` waits are removed.
        """
        gone: set[int] = set()
        blocked = self._real.blocked
        links: list[Moved] = []

        def longest() -> tuple[str | None, int]:
            waits = {site: sum(blocked.get(c, 0) for c in calls) for site, calls in sites.items() if not calls <= gone}
            site = max(waits, key=lambda s: (waits[s], s), default=None)
            return (site, waits[site]) if site is not None and waits[site] else (None, 0)

        site, _ = longest()
        while site is not None and len(links) < most:
            gone |= sites[site]
            after = self._edited((RemoveWaits(frozenset(gone)),))
            blocked, step = after.blocked, self.window.step_ns(after.round_ns) + self.more_loading_ns
            following, ns = longest()
            links.append(Moved(site, step, self.real_ns - step, following, ns // self.steps))
            if self.real_ns - step > 0.01 * self.real_ns:
                break
            site = following
        return links

    def _limit(self, after: ReplayResult, step: int) -> str:
        whole = (step + self.window.between_ns) * self.steps
        waiting = sum(after.blocked.values())
        if after.gpu_ns >= 0.9 * whole:
            return GPU_WORK
        if after.cpu_ns >= 0.9 * whole:
            return HOST
        return "waits for the GPU" if waiting > 0.1 * whole else IN_TURN

    def _moves_to(self, grown: dict[int, int]) -> str | None:
        """Return the call site whose wait grows most, None if no wait grows by more than 1 % of the step."""
        names = self._profile.once(_sites)
        sites: dict[str, int] = {}
        for call, ns in grown.items():
            if call in names:  # others are launches that find the queue full, which are not call sites
                sites[names[call]] = sites.get(names[call], 0) + ns
        if not sites:
            return None
        site = max(sites, key=lambda s: (sites[s], s))
        return site if sites[site] > 0.01 * self.real_ns * self.steps else None


def _without_comm(profile: Profile) -> tuple[Modelled | None, list[Modelled]]:
    """Return the steps without communication of the shown rank, None if it cannot be told, and of the others."""
    return no_comm.alone(profile), no_comm.others(profile)


def replay_of(profile: Profile) -> Replay | Withheld:
    """Return the replay of the steady steps, which is made only once for each profile, or why there is none."""
    return profile.once(build)


def idle_of(profile: Profile) -> pl.DataFrame:
    """Return the idle pieces of the busiest device in the steady steps: `derived.REAL_IDLE`.

    ``real_ns`` is the length without tracing. Without a trusted replay it equals ``ns``, or, of a step that was timed in the program, the
    same share of each piece: the GPU's work takes as long there.
    """
    idle, replay = real_idle.recorded(profile), replay_of(profile)
    if not isinstance(replay, Replay) or not replay.trusted:
        real = unprofiled_of(profile)
        if isinstance(real, Withheld) or not len(idle):
            return idle.with_columns(real_ns="ns")
        gone_ns = max(real.recorded_ns - real.step_ns, 0) * profile.scope.steps
        left = max(0.0, 1 - gone_ns / max(int(idle["ns"].sum()), 1))
        return idle.with_columns(real_ns=(pl.col("ns") * left).round().cast(pl.Int64))
    window = replay.window
    return real_idle.without_tracing(
        idle, replay.idle_before(), window.gpu_span, replay.unprofiled, profile.scope.steps, replay.more_loading_ns
    )


def _sites(profile: Profile) -> dict[int, str]:
    """Return call -> call site for the blocking calls of the steady steps."""
    return dict(profile.wait_sites()["call", "site"].iter_rows())


def replayed_scope(profile: Profile) -> Scope | None:
    """Return the steps that the replay covers; None if there is no replay."""
    replay = replay_of(profile)
    if isinstance(replay, Withheld) or profile.scope.last is None:
        return None
    first = profile.step_of_capture(replay.window.first)
    return profile.scope.on(replay.window.device).replayed(*range(first, first + replay.steps))


def unprofiled_of(profile: Profile) -> Unprofiled | Withheld:
    """Return the shown process's step without tracing, on its busiest device, or why it is not known.

    A step that was timed in the program itself needs no replay.
    """
    replay = replay_of(profile)
    if isinstance(replay, Replay):
        if replay.trusted or replay.unprofiled.source == "in_process":
            return replay.unprofiled
        return Withheld(f"the unchanged replay misses the recorded step by {units.share(replay.error, 1)}")
    return replay


def build(profile: Profile) -> Replay | Withheld:
    """Return the replay of the steady steps of the shown process, or why there is none."""
    model = unprofiled.model_of(profile)
    return model if isinstance(model, Withheld) else Replay(profile, model)

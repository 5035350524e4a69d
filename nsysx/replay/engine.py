"""A discrete-event re-run of the recorded steady steps, unchanged and with edits: what a change would be worth.

The model. The calls of the threads that drive the GPU form one chain (``chain``). A call costs the CPU what it was recorded to
cost without waiting. Each stream is a FIFO: an op starts when its stream is free, what its stream was told to wait for is
done, and its launch has arrived. A call that blocks returns when what it awaits is done. A launch finds the queue full when as
many ops are pending as were seen pending at launches that stalled (``simulate``).

What is known of each op is split by how it was recorded: an op that found its stream idle shows its launch latency; one that
was queued shows only the pause that the stream makes between two ops. So the unchanged replay is right by construction
where the recorded order of causes holds, and its error shows where the model fails.

Savings are in un-profiled time: what tracing added to each call and range is taken out first (``overhead``, ``unprofiled``).

The steps are replayed three times in a row; the second round is measured, so that neither the recorded start nor the end of
the window colours the result. A saving is (replay without tracing) - (the same, edited), per step. It assumes that the program
does not need the value that a removed wait brought, and that host code costs the same elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import polars as pl

from nsysx import units
from nsysx.events.profile import Profile
from nsysx.model import Scope, Unprofiled
from nsysx.replay import real_idle, unprofiled
from nsysx.replay.columns import columns
from nsysx.replay.edits import (
    Edit,
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
from nsysx.replay.simulate import Run, run
from nsysx.replay.window import Window, Withheld, choose

__all__ = [
    "TRUSTED_ERROR",
    "VALIDATED_ERROR",
    "Edit",
    "FreeLoader",
    "Fuse",
    "Graph",
    "Moved",
    "Outcome",
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

#: What predictions were off by in the median over twelve before/after pairs, most of them bound by the GPU: no claim is surer.
VALIDATED_ERROR = 0.01
#: Above this, the model does not describe the program and nothing is claimed.
TRUSTED_ERROR = 0.05


@dataclass(frozen=True)
class Outcome:
    """The step after an edit, in un-profiled time. ``saving_ns`` is against the step without tracing; ``bar_ns`` its error.

    ``moves_to`` names the wait that grew most.
    """

    step_ns: int
    saving_ns: int
    next_limit: str
    moves_to: str | None
    bar_ns: int = 0


@dataclass(frozen=True)
class Moved:
    """One link of the chain: the site whose wait goes, the step after it (with all before), and the longest wait left."""

    site: str
    step_ns: int
    saving_ns: int
    next_site: str | None
    next_wait_ns: int


class Replay:
    """The replay of a report's steady steps. Build with ``build``; ask with ``saving``.

    ``recorded_ns`` and ``unchanged_ns`` are as recorded, ``real_ns`` is the step without tracing that savings are held against.
    """

    def __init__(self, profile: Profile, window: Window) -> None:
        self._profile = profile
        self.window = window
        self.start_ns, self.steps, self.recorded_ns = window.start_ns, window.steps, window.recorded_ns
        model = unprofiled.Model(profile, window)
        self.unchanged_ns = model.step(0.0)
        self.error = abs(self.unchanged_ns - self.recorded_ns) / self.recorded_ns
        self.trusted = self.error <= TRUSTED_ERROR
        self.items = len(model.chain.items)
        self.unprofiled, self._chain, self._seen = unprofiled.unprofiled(profile, model)
        self._columns = columns(self._chain)
        self._real = run(self._columns)
        self.real_ns = self.window.step_ns(self._real.round_ns)
        #: The error bar of every saving, per step: the replay's own error, and never less than what was seen in reality.
        self.bar_ns = round(max(self.error, VALIDATED_ERROR) * self.real_ns)
        self._known: dict[tuple[Edit, ...], Outcome] = {}

    def saving(self, *edits: Edit) -> Outcome:
        """Return the step with the edits made, all at once."""
        if edits not in self._known:
            self._known[edits] = self._replayed(edits)
        return self._known[edits]

    def _replayed(self, edits: tuple[Edit, ...]) -> Outcome:
        after = self._edited(edits)
        step = self.window.step_ns(after.round_ns)
        grown = {
            call: ns - self._real.blocked.get(call, 0)
            for call, ns in after.blocked.items()
            if ns > self._real.blocked.get(call, 0)
        }
        saving = min(self.real_ns - step, sum(map(self.most_ns, edits)), self.real_ns)
        step = self.real_ns - saving
        return Outcome(step, saving, self._limit(after, step), self._moves_to(grown), self._bar(saving))

    def _edited(self, edits: Iterable[Edit]) -> Run:
        chain = self._chain.copy()
        for edit in edits:
            apply(chain, edit, self._profile)
        return run(columns(chain, (self._chain.items, self._columns)))

    def _bar(self, saving_ns: int) -> int:
        """Return how far a saving may be off: by the replay's error, and by as much as the step itself is uncertain."""
        known = self.unprofiled
        unsure = (known.high_ns - known.low_ns) / (2 * known.step_ns) if known.step_ns else 0.0
        return self.bar_ns + round(abs(saving_ns) * unsure)

    def blocked_ns(self) -> dict[int, int]:
        """Return how long each API call blocks in one round of the replay without tracing (ns)."""
        return dict(self._real.blocked)

    def idle_before(self) -> dict[int, int]:
        """Return op -> how long the device idles before it without tracing (ns), for all ops that are replayed."""
        return {op.op: 0 for item in self._chain.items for op in item.ops} | self._seen.before

    def most_ns(self, edit: Edit) -> int:
        """Return what an edit can save at most, per step (ns): the idle time without tracing, and the GPU work that goes."""
        match edit:
            case RemoveOps(ops) | ScaleOps(ops, _) | OverlapCopies(ops, _) | PinCopies(ops, _):
                work = sum(op.duration for item in self._chain.items for op in item.ops if op.op in ops)
            case RemoveExposedComm() | Fuse():
                return self.real_ns
            case _:
                work = 0
        return min(self.unprofiled.gpu_idle_ns + work // self.steps, self.real_ns)

    def loading_ns(self) -> int:
        """Return what a step waits for data on the threads that drive the GPU, as recorded (ns)."""
        return sum(item.loading for item in self._chain.items) // self.steps

    def gpu_work_ns(self) -> int:
        """Return what a step works on the device, as recorded (ns): the longest stream, because streams may overlap."""
        streams: dict[int, int] = {}
        for item in self._chain.items:
            for op in item.ops:
                streams[op.stream] = streams.get(op.stream, 0) + op.duration
        return max(streams.values(), default=0) // self.steps

    def covered(self, calls: pl.DataFrame) -> pl.Series:
        """Return which of these calls begin in the replayed steps, by their ``start_ns``."""
        return calls["start_ns"].is_between(self.window.start_ns, self.window.end_ns, closed="left")

    def replayed(self, calls: Collection[int]) -> bool:
        """Return whether one of these API calls is in the replayed steps."""
        return bool(self.window.calls["call"].is_in(list(calls)).any())

    def chain(self, sites: dict[str, frozenset[int]], most: int = 6) -> list[Moved]:
        """Remove the longest wait, then the longest that is left, and so on, until the step gains more than 1 %."""
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
            blocked, step = after.blocked, self.window.step_ns(after.round_ns)
            following, ns = longest()
            links.append(Moved(site, step, self.real_ns - step, following, ns // self.steps))
            if self.real_ns - step > 0.01 * self.real_ns:
                break
            site = following
        return links

    def _limit(self, after: Run, step: int) -> str:
        whole = (step + self.window.between_ns) * self.steps
        waiting = sum(after.blocked.values())
        if after.gpu_ns >= 0.9 * whole:
            return "GPU work"
        if after.cpu_ns >= 0.9 * whole:
            return "host code and launches"
        return "waits for the GPU" if waiting > 0.1 * whole else "host code and launches in turn with GPU work"

    def _moves_to(self, grown: dict[int, int]) -> str | None:
        """Name the call site whose wait grows most, None when no wait grows by more than 1 % of the step."""
        names = self._profile.once(_sites)
        sites: dict[str, int] = {}
        for call, ns in grown.items():
            if call in names:  # else a launch that finds the queue full: nobody's wait
                sites[names[call]] = sites.get(names[call], 0) + ns
        if not sites:
            return None
        site = max(sites, key=lambda s: (sites[s], s))
        return site if sites[site] > 0.01 * self.real_ns * self.steps else None


def replay_of(profile: Profile) -> Replay | Withheld:
    """Return the replay of the steady steps, made when it is first asked for, or why there is none."""
    return profile.once(build)


def idle_of(profile: Profile) -> pl.DataFrame:
    """Return the idle pieces of the busiest device in the steady steps, with ``ns`` and ``real_ns``.

    ``real_ns`` is without tracing, and ``ns`` where no replay can be trusted to say that.
    """
    idle, replay = real_idle.recorded(profile), replay_of(profile)
    if not isinstance(replay, Replay) or not replay.trusted:
        return idle.with_columns(real_ns="ns")
    window = replay.window
    return real_idle.without_tracing(
        idle, replay.idle_before(), window.gpu_span, replay.unprofiled, profile.scope.steps
    )


def _sites(profile: Profile) -> dict[int, str]:
    """Return call -> call site of the blocking calls of the steady steps."""
    return dict(profile.wait_sites().select("call", "site").iter_rows())


def replayed_scope(profile: Profile) -> Scope | None:
    """Return which steps the replay covers; None when there is no replay."""
    replay = replay_of(profile)
    if isinstance(replay, Withheld) or profile.scope.last is None:
        return None
    first = replay.window.first
    return profile.scope.on(replay.window.device).replayed(*range(first, first + replay.steps))


def unprofiled_of(profile: Profile) -> Unprofiled | Withheld:
    """Return the step of the shown process without tracing, on its busiest device, or why it cannot be given."""
    replay = replay_of(profile)
    if isinstance(replay, Replay):
        if replay.trusted:
            return replay.unprofiled
        return Withheld(f"the unchanged replay misses the recorded step by {units.share(replay.error, 1)}")
    return replay


def build(profile: Profile) -> Replay | Withheld:
    """Return the replay of the steady steps of the shown process, or why there is none."""
    window = choose(profile)
    return window if isinstance(window, Withheld) else Replay(profile, window)

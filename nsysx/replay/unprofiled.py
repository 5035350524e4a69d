"""The steps as they run without a profiler: the chain with what tracing added taken out, replayed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nsysx.events.other_ranks import Modelled
from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64
from nsysx.model import Unprofiled
from nsysx.replay import chain as chains
from nsysx.replay import costs as tables
from nsysx.replay import overhead, peers
from nsysx.replay.chain import Chain
from nsysx.replay.columns import Columns, Relief
from nsysx.replay.simulate import Happened, run, traced
from nsysx.replay.window import Window, Withheld, choose

#: A modelled step is never surer than this: GPU-bound programs, whose work no model changes, were off by up to 2 %.
_LEAST_BAR = 0.02
#: Nor than this where the nodes of CUDA graphs were traced, which stretches the GPU's own time: steps were off by up to 9 %.
_LEAST_BAR_GRAPHS = 0.1
#: How far costs are scaled to meet a measured step, and how closely it is met.
_MOST_SCALE, _CLOSE = 4.0, 0.002
#: Halvings of that range until a scale is good enough.
_HALVINGS = 9
#: How much longer than recorded a rank may wait for others.
_MOST_WAITING = 64.0
#: A host that is still slower than the measured step says is slower in all it does, at most by this.
_LEAST_HOST = 0.3
#: And a device whose work the measured step is too short for is faster without tracing, at most by this: copies from pageable
#: memory, which the host makes, took 10.1 ms a step, 8.3 without (H200).
_LEAST_WORK = 0.7


class Model:
    """One rank, whose step can be told at any cost of tracing: ``scale`` times the known one, with host time times ``host``.

    ``waits`` is how much of the waiting for other ranks stays that was recorded.
    """

    def __init__(self, profile: Profile, window: Window, waiting: peers.Waiting | None = None) -> None:
        self.window, self.added = window, overhead.added(profile, window)
        self.chain = chains.chain(profile, window, self.added)
        waiting = waiting or peers.waiting(profile, *window.gpu_span)
        #: Whether the other ranks tell what is waiting for them; else all communication may be.
        self.with_peers = waiting.by_peers
        self.relief = Relief(self.chain, waiting.ns, waiting.whole_ns)
        self._known: dict[tuple[float, float, float, float], int] = {}

    def step(self, scale: float, host: float = 1.0, waits: float = 1.0, work: float = 1.0) -> int:
        """Return the step (ns)."""
        asked = (scale, host, waits if self.relief.waits else 1.0, work)
        if asked not in self._known:
            self._known[asked] = self.window.step_ns(run(self.relief.columns(*asked)).round_ns)
        return self._known[asked]

    def at(self, waits: float) -> Modelled:
        """Return the step by the costs that are known or assumed, with this much of the waiting."""
        added = self.added
        step = self.step(1.0, added.host, waits)
        if not added.totals:
            return Modelled(step, step, step)
        # The bounds are also those of a host that was slower, or faster, while it was recorded, as hosts are now and then.
        low = self._at_least(waits)
        high = min(self.step(added.low, 1 + tables.HOST_DRIFT_UP, waits), self.step(0.0, 1.0, waits))
        bar = _LEAST_BAR_GRAPHS if tables.GRAPH_NODE in added.totals else _LEAST_BAR
        return Modelled(step, min(low, round(step * (1 - bar))), max(high, round(step * (1 + bar))))

    def alone(self) -> Modelled:
        """Return the step of a rank that never waits for another.

        Where the others do not tell what is waiting, it waits as recorded; at least so long as it would if tracing had made
        the others as much slower as it made this one.
        """
        if self.with_peers:
            return replace(self.at(0.0), by_step=self.by_step())
        told = self.at(1.0)
        if not self.relief.waits or not self.added.totals:
            return told
        least = self._at_least(0.0)
        low = max(least, told.step_ns - (self.step(0.0, 1.0, 0.0) - least))
        return replace(told, low_ns=min(told.low_ns, low))

    def by_step(self) -> dict[int, int]:
        """Return number of a step -> how long it takes if this rank never waits for another; nothing where borders are not seen."""
        cols = self.relief.columns(1.0, self.added.host, 0.0)
        first = cols.first_op[sorted(self.chain.borders)]
        if len(first) != self.window.steps or first[-1] >= len(cols.op_item):
            return {}
        _, at = traced(cols)
        _, measured, following = at.op_begin
        lengths = np.diff(np.append(measured[first], following[first[0]]))
        return dict(zip(self.window.numbers, np.maximum(lengths, 0).tolist(), strict=True))

    def _at_least(self, waits: float) -> int:
        return self.step(self.added.high, min(1 - tables.HOST_DRIFT, self.added.host), waits)


def of_job(ranks: Sequence[Modelled]) -> Modelled:
    """Return the step of ranks that wait for each other in every step: that of the slowest, which nobody keeps waiting."""
    more = _in_turn(ranks)
    return Modelled(
        *(round(max(of) * more) for of in zip(*((r.step_ns, r.low_ns, r.high_ns) for r in ranks), strict=True))
    )


def _in_turn(ranks: Sequence[Modelled]) -> float:
    """Return by how much longer steps are than those of the slowest rank, because the slowest is another one in every step.

    Such as with batches of different length.
    """
    numbers = sorted(set[int].intersection(*(set(r.by_step) for r in ranks)))
    lengths = np.array([[r.by_step[number] for number in numbers] for r in ranks], np.float64)
    slowest = lengths.mean(axis=1).max() if numbers else 0.0
    return float(lengths.max(axis=0).mean() / slowest) if slowest else 1.0


def unprofiled(profile: Profile, model: Model) -> tuple[Unprofiled, Chain, Seen]:
    """Return the step without tracing, the chain that yields it, and what it shows on the device."""
    window, added, relief = model.window, model.added, model.relief
    steps = window.steps
    told = tables.measured(profile, window.numbers)
    least = _least_ns(model) if told is not None else 0
    if told is not None and told.step_ns < least:  # no step: the host only ran ahead of the device
        told = None
    work = 1.0
    if told is None:
        scale, host, count, source = 1.0, added.host, 0, added.source
        known = of_job([model.alone(), *(_other_ranks(profile) if model.with_peers else ())])
        waits, most = 1.0, known.high_ns
        if model.with_peers:  # tracing makes no step shorter
            recorded = model.step(0.0)
            waits = _waiting(min(known.step_ns, recorded), lambda part: model.step(1.0, host, part))
            most = min(most, round(recorded * (1 + _LEAST_BAR)))
        step = model.step(1.0, host, waits)
        low, high = min(known.low_ns, step), max(most, step)
    else:
        # Tracing makes no step shorter: where the measured steps were longer, the host was slower then.
        step = min(told.step_ns, model.step(0.0))
        low, high, source, count = min(max(told.low_ns, least), step), told.high_ns, told.source, told.count
        waits = _less_waiting(step, lambda part: model.step(1.0, 1.0, part)) if relief.waits else 1.0
        scale, host, work = _meeting(step, lambda scale, host=1.0, work=1.0: model.step(scale, host, waits, work))
    shown = seen(model.chain, relief.columns(scale, host, waits, work), peers.communication(profile))
    # Where something lies between steps, its work and idle time are told by the same shares as those of the steps.
    part = 1.0 if not window.between_ns else step / max(step + window.between_ns, 1)
    return (
        Unprofiled(
            step_ns=step,
            low_ns=low,
            high_ns=high,
            source=source,
            measured_steps=count,
            recorded_ns=window.recorded_ns,
            process=profile.steps.process,
            device=window.device,
            steps=steps,
            gpu_busy=shown.busy_ns / max(shown.whole_ns, 1),
            gpu_busy_ns=round(shown.busy_ns * part) // steps,
            gpu_idle_ns=round((shown.whole_ns - shown.busy_ns) * part) // steps,
            idle_causes={cause: round(ns * part) // steps for cause, ns in shown.causes.items() if ns >= steps},
            overhead={name: round(ns * scale) // steps for name, ns in added.totals.items()},
            exposed_comm_ns=round(shown.exposed_comm_ns * part) // steps,
        ),
        relief.chain(scale, host, waits, work),
        shown,
    )


def _other_ranks(profile: Profile) -> list[Modelled]:
    """Return the other ranks of the job, each for itself; those that cannot be replayed are left out."""
    windows = [(other, choose(other)) for other in peers.others(profile)]
    of_report = [Model(other, window).alone() for other, window in windows if not isinstance(window, Withheld)]
    return [*of_report, *(profile.other_ranks.alone if profile.other_ranks else ())]


#: Parts of its communication that a rank keeps, at which its step is told to those who know what it waits.
_PARTS = (0.0, 0.25, 0.5, 0.75, 1.0)


def by_communication(profile: Profile) -> tuple[tuple[float, Modelled], ...]:
    """Return the step of the shown rank at parts of the time that it communicates; nothing where that cannot be told."""
    window = choose(profile)
    if isinstance(window, Withheld):
        return ()
    model = Model(profile, window, peers.unknown(profile))
    if not model.relief.waits:
        return ()
    by_step = model.by_step()
    return tuple((part, replace(model.at(part), by_step=by_step)) for part in _PARTS)


def _less_waiting(step_ns: int, step_of: Callable[[float], int]) -> float:
    """Return how much of the recorded waiting for other ranks stays, so that the step is no longer than this."""
    if step_of(1.0) <= step_ns * (1 + _CLOSE):
        return 1.0
    if step_of(0.0) >= step_ns:
        return 0.0
    return 1.0 - _halved(0.0, 1.0, step_ns, lambda less: step_of(1.0 - less))


def _waiting(step_ns: int, step_of: Callable[[float], int]) -> float:
    """Return how much of the recorded waiting for other ranks makes the step that of the job.

    More than all of it where this rank itself is faster without tracing, and the one it waits for is not.
    """
    if step_of(1.0) >= step_ns * (1 - _CLOSE):
        return _less_waiting(step_ns, step_of)
    most = 2.0
    while step_of(most) < step_ns and most < _MOST_WAITING:
        most *= 2
    return most - _halved(0.0, most, step_ns, lambda less: step_of(most - less))


def _least_ns(model: Model) -> int:
    """Return what a step takes at least on a device that is as much faster without tracing as any was seen to be."""
    return model.step(_MOST_SCALE, 0.0, 0.0, _LEAST_WORK)


def _meeting(step_ns: int, step_of: Callable[..., int]) -> tuple[float, float, float]:
    """Return by what to scale the costs, the rest of the host's time, and the device's, so that the step is the measured one."""
    if abs(step_of(1.0) - step_ns) <= _CLOSE * step_ns:
        return 1.0, 1.0, 1.0
    if step_of(0.0) <= step_ns:
        return 0.0, 1.0, 1.0
    if step_of(_MOST_SCALE) < step_ns:
        return _halved(0.0, _MOST_SCALE, step_ns, step_of), 1.0, 1.0
    if step_of(_MOST_SCALE, _LEAST_HOST) > step_ns:
        # What is left is the device's: the host says nothing about it.
        work = 1.0 - _halved(0.0, 1.0 - _LEAST_WORK, step_ns, lambda less: step_of(1.0, 1.0, 1.0 - less))
        return 1.0, 1.0, work
    # Even without all of it the host is slower than it was then.
    host = 1.0 - _halved(0.0, 1.0 - _LEAST_HOST, step_ns, lambda less: step_of(_MOST_SCALE, 1.0 - less))
    return _MOST_SCALE, host, 1.0


def _halved(low: float, high: float, step_ns: int, step_of: Callable[[float], int]) -> float:
    """Return where ``step_of``, which falls, meets the step."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        step = step_of(middle)
        if abs(step - step_ns) <= _CLOSE * step_ns:
            return middle
        low, high = (middle, high) if step > step_ns else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True)
class Seen:
    """One round of a chain on its device: its length, the union of its GPU work, idle time by cause (ns, over all steps).

    ``exposed_comm_ns`` of the union is communication alone. ``before`` is the idle time before each op that ends a gap.
    """

    whole_ns: int
    busy_ns: int
    exposed_comm_ns: int
    causes: dict[str, int]
    before: dict[int, int]


#: What a device idles for while the CPU is in a call of this kind; names as in the recorded ledger.
_CAUSE_OF_KIND = {
    "sync": "sync",
    "alloc": "alloc",
    "free": "alloc",
    "host_alloc": "alloc",
    "load": "load",
    "copy": "copy_call",
    "memset": "copy_call",
}
_HOST, _LOADER, _OTHER_CALL = "host_code", "data_loader", "other_api"
#: Work that was launched before its device idled, and that no pause explains, waited for other work.
_PAUSES = "kernel_gap"


def seen(chain: Chain, cols: Columns, communicating: Collection[int] = ()) -> Seen:
    """Return what a replay of the columns of a chain shows on the device. Causes sum to the idle time.

    ``communicating`` are the ops that communicate.
    """
    replayed, at = traced(cols)
    ends = replayed.ends
    start, end = ends[-3] if len(ends) > 2 else 0, ends[-2]
    rounds = len(at.called)
    called_at = np.repeat(at.called, np.diff(cols.first_op), axis=1).ravel()
    op_begin = at.op_begin.ravel()
    order = np.argsort(op_begin, kind="stable")
    begin, finish = op_begin[order], (op_begin + np.tile(cols.op_duration, rounds))[order]
    names = np.array([op.op for item in chain.items for op in item.ops], np.int64)
    reach = np.maximum.accumulate(np.append(start, finish))[:-1]
    gaps = np.flatnonzero((begin > reach) & (begin > start) & (reach < end))
    g0, g1 = np.maximum(reach[gaps], start), np.minimum(begin[gaps], end)
    idle = int((g1 - g0).sum())
    first = order[gaps]  # the op that ends each gap
    called = called_at[first]
    split = np.clip(called, g0, g1)
    causes = _host_causes(chain, cols, at, (g0, split))
    late = called >= g0
    queued = begin[gaps] - called > np.tile(cols.op_latency, rounds)[first]
    after = g1 - split
    causes["launch_latency"] = int(after[late | ~queued].sum())
    short = ~late & queued & (after <= np.tile(cols.op_pause, rounds)[first])
    causes[_PAUSES] = int(after[short].sum())
    causes["dependency"] = int(after[~late & queued & ~short].sum())
    causes[_HOST] = causes.get(_HOST, 0) + idle - sum(causes.values())
    before = dict(zip(names[first % max(len(names), 1)].tolist(), (g1 - g0).tolist(), strict=True))
    exposed = 0
    if communicating and len(names):
        computing = ~np.isin(names, list(communicating))[order % len(names)]
        exposed = end - start - idle - _union(begin[computing], finish[computing], start, end)
    return Seen(end - start, end - start - idle, exposed, {cause: ns for cause, ns in causes.items() if ns > 0}, before)


def _union(begin: I64, finish: I64, start: int, end: int) -> int:
    """Return how long at least one of these intervals, sorted by their begin, lasts within [start, end)."""
    begin, finish = np.clip(begin, start, end), np.clip(finish, start, end)
    reach = np.maximum.accumulate(np.append(start, finish))[:-1]
    return int(np.maximum(finish - np.maximum(begin, reach), 0).sum())


def _host_causes(chain: Chain, cols: Columns, at: Happened, windows: tuple[I64, I64]) -> dict[str, int]:
    """Return what the CPU did in the disjoint windows [starts, ends), by cause (ns)."""
    names = [_LOADER, _HOST, *dict.fromkeys(_CAUSE_OF_KIND.values()), _OTHER_CALL]
    number = {name: n for n, name in enumerate(names)}
    calls = np.array([number[_CAUSE_OF_KIND.get(item.api, _OTHER_CALL)] for item in chain.items], np.int64)
    free = at.called - cols.gap
    # Of each item: waiting for data, other host code, the call itself.
    edges = np.append(np.stack([free, free + cols.loading, at.called], axis=-1), at.left[-1, -1])
    label = np.tile(np.stack([np.full_like(calls, 0), np.full_like(calls, 1), calls], axis=-1).ravel(), len(at.called))
    ns = np.diff(edges)
    causes = {}
    for n, name in enumerate(names):
        upto = np.append(0, np.cumsum(np.where(label == n, ns, 0)))
        within = np.interp(windows[1], edges, upto) - np.interp(windows[0], edges, upto)
        if took := int(np.rint(within.sum())):
            causes[name] = took
    return causes

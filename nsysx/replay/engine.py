"""A discrete-event re-run of the recorded steady steps, unchanged and with edits: what a change would be worth.

The model. The threads that drive the GPU take turns (autograd works while the main thread waits for it), so their API calls
form one chain in the order in which they began. Between two calls lies host code, as long as it was recorded. A call costs
the CPU what it was recorded to cost without waiting. Each stream is a FIFO: an op starts when its stream is free, what its
stream was told to wait for is done, and its launch has arrived. A call that blocks returns when what it awaits is done. A
launch finds the queue full when as many ops are pending as were seen pending at launches that stalled.

What is known of each op is split by how it was recorded: an op that found its stream idle shows its launch latency; one that
was queued shows only the pause that the stream makes between two ops. So the unchanged replay is right by construction
where the recorded order of causes holds, and its error shows where the model fails.

The steps are replayed three times in a row; the second round is measured, so that neither the recorded start nor the end of
the window colours the result. A saving is (unchanged replay) - (edited replay), per step. It assumes that the program does
not need the value that a removed wait brought, and that host code costs the same elsewhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from nsysx.events.profile import Profile

#: What predictions were off by in the median over twelve measured before/after pairs (README): no claim is surer than this.
VALIDATED_ERROR = 0.01
#: Above this, the model does not describe the program and nothing is claimed.
TRUSTED_ERROR = 0.05
#: Rounds of the steady steps: one to settle, one to measure, one to end it.
_ROUNDS = 3
#: More GPU ops than this are not replayed: the last steady steps that fit stand for the others.
_MOST_OPS = 8_000
#: A launch of this many pending ops or more can find the queue full; CUDA's limit is 1024.
_DEEP = 900
#: What a launch of a whole graph costs the CPU, and the pause between its kernels: measured on an H200.
_GRAPH_LAUNCH_NS, _GRAPH_GAP_NS = 10_000, 1_000

_LAUNCH, _SYNC, _COPY, _RECORD, _WAIT_EVENT, _PLAIN = range(6)


@dataclass(frozen=True)
class RemoveWaits:
    """These API calls no longer wait; None: no call does."""

    calls: frozenset[int] | None = None


@dataclass(frozen=True)
class RemoveHost:
    """Host code before these API calls takes no time; None: nowhere does it."""

    calls: frozenset[int] | None = None


@dataclass(frozen=True)
class FreeLoader:
    """Waiting for data takes no time."""


@dataclass(frozen=True)
class RemoveCalls:
    """These API calls cost nothing and wait for nothing; the work that they launch stays."""

    calls: frozenset[int]


@dataclass(frozen=True)
class RemoveOps:
    """These GPU ops and the launches that only they need are gone."""

    ops: frozenset[int]


@dataclass(frozen=True)
class ScaleOps:
    """These GPU ops take ``factor`` times as long."""

    ops: frozenset[int]
    factor: float


@dataclass(frozen=True)
class Graph:
    """Each run of these launch calls becomes one graph launch, with nothing in between; None: every launch."""

    calls: frozenset[int] | None = None


@dataclass(frozen=True)
class OverlapCopies:
    """These copies run from pinned memory on a stream of their own and nobody waits for the copying itself."""

    ops: frozenset[int]
    bandwidth_bytes_per_s: float | None = None


@dataclass(frozen=True)
class RemoveExposedComm:
    """Communication takes no time: an upper bound of what hiding it is worth."""


Edit = (
    RemoveWaits
    | RemoveHost
    | FreeLoader
    | RemoveCalls
    | RemoveOps
    | ScaleOps
    | Graph
    | OverlapCopies
    | RemoveExposedComm
)


@dataclass(frozen=True)
class Outcome:
    """The step after an edit. ``saving_ns`` is against the unchanged replay. ``moves_to`` names the wait that grew most."""

    step_ns: int
    saving_ns: int
    next_limit: str
    moves_to: str | None


@dataclass
class _Chain:
    """The recorded steady steps as plain lists: items in order, GPU ops of item i at ops[first[i]:first[i + 1]]."""

    kind: list[int] = field(default_factory=list)
    call: list[int] = field(default_factory=list)
    gap: list[int] = field(default_factory=list)  # host code before the item
    loading: list[int] = field(default_factory=list)  # of it waiting for data
    cost: list[int] = field(default_factory=list)  # what the call costs the CPU without waiting
    waits: list[bool] = field(default_factory=list)
    tail: list[int] = field(
        default_factory=list
    )  # from the end of the own copy to the return, -1: does not wait for it
    target: list[int] = field(default_factory=list)  # stream, -1 device, or event
    first: list[int] = field(default_factory=lambda: [0])
    op: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    latency: list[int] = field(default_factory=list)
    pause: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)  # of an op of a graph, behind the graph's first op; -1 otherwise
    duration: list[int] = field(default_factory=list)
    streams: int = 0
    limit: int = 0  # pending ops at which launches stall, 0: never seen

    def copy(self) -> _Chain:
        lists: dict[str, Any] = {n: list(v) for n, v in vars(self).items() if isinstance(v, list)}
        return replace(self, **lists)


@dataclass(frozen=True)
class _Run:
    """What a replay yields per round: when all of its GPU work is done; CPU time blocked by call; CPU and GPU work."""

    ends: list[int]
    blocked: dict[int, int]
    cpu_ns: int
    gpu_ns: int


def _run(chain: _Chain, rounds: int = _ROUNDS) -> _Run:
    """Re-run the chain ``rounds`` times in a row. O(items + ops) per round."""
    free = [0] * (chain.streams + 1)
    events: dict[int, int] = {}
    pending: list[int] = []  # starts of all ops in launch order, for the queue limit
    ends: list[int] = []
    blocked: dict[int, int] = {}
    call, waits, tail, target = chain.call, chain.waits, chain.tail, chain.target
    ops = list(zip(chain.stream, chain.latency, chain.pause, chain.offset, chain.duration, strict=True))
    # What neither launches nor waits is host time of the item after it.
    items: list[tuple[int, int, int, int, list[tuple[int, int, int, int, int]]]] = []
    host = 0
    every = zip(chain.kind, chain.gap, chain.cost, chain.first, chain.first[1:], strict=False)
    for i, (what, gap, cost, first, last) in enumerate(every):
        if what == _PLAIN and first == last:
            host += gap + cost
        else:
            items.append((i, what, host + gap, cost, ops[first:last]))
            host = 0
    limit = chain.limit or 1024
    t = 0
    for round_ in range(rounds):
        measured = round_ == rounds - 2
        for i, what, gap, cost, mine in items:
            t += gap
            if mine:
                if len(pending) >= limit and pending[-limit] > t:
                    if measured:
                        blocked[call[i]] = blocked.get(call[i], 0) + pending[-limit] - t
                    t = pending[-limit]
                head = -1
                end = t
                for s, latency, pause, offset, duration in mine:
                    begin = t + latency if offset < 0 or head < 0 else head + offset
                    if (at := free[s] + pause) > begin:
                        begin = at
                    if head < 0:
                        head = begin
                    free[s] = end = begin + duration
                    pending.append(begin)
                t += cost
                if what == _COPY and waits[i] and tail[i] >= 0 and end + tail[i] > t:
                    if measured:
                        blocked[call[i]] = blocked.get(call[i], 0) + end + tail[i] - t
                    t = end + tail[i]
                continue
            if what == _SYNC:
                if waits[i]:
                    place = target[i]
                    done = max(free) if place == -1 else free[place] if place >= 0 else events.get(place, 0)
                    if done > t:
                        if measured:
                            blocked[call[i]] = blocked.get(call[i], 0) + done - t
                        t = done
            elif what == _RECORD:
                events[target[i]] = free[tail[i]]
            elif what == _WAIT_EVENT:
                done = events.get(target[i], 0)
                if done > free[tail[i]]:
                    free[tail[i]] = done
            t += cost
        t += host
        ends.append(max(free))
    return _Run(ends, blocked, sum(chain.gap) + sum(chain.cost), sum(chain.duration))


class Replay:
    """The replay of a report's steady steps. Build with ``build``; ask with ``saving``."""

    def __init__(self, profile: Profile, chain: _Chain, start_ns: int, recorded_ns: int, steps: int) -> None:
        self._facts, self._chain = profile, chain
        self.start_ns = start_ns
        self.steps = steps
        self.recorded_ns = recorded_ns
        self._unchanged = _run(chain)
        self.unchanged_ns = self._period(self._unchanged)
        self.error = abs(self.unchanged_ns - recorded_ns) / recorded_ns if recorded_ns else 1.0
        self.trusted = self.error <= TRUSTED_ERROR
        #: The error bar of every saving, per step: the replay's own error, and never less than what was seen in reality.
        self.bar_ns = round(max(self.error, VALIDATED_ERROR) * recorded_ns)
        self.items = len(chain.kind)
        self._known: dict[tuple[Edit, ...], Outcome] = {}

    def _period(self, run: _Run) -> int:
        # The last end, not the first start: a copy stream that runs ahead is not what the step takes.
        return (run.ends[-1] - run.ends[-2]) // self.steps

    def saving(self, *edits: Edit) -> Outcome:
        """Return the step with the edits made, all at once."""
        if edits not in self._known:
            self._known[edits] = self._replayed(edits)
        return self._known[edits]

    def _replayed(self, edits: tuple[Edit, ...]) -> Outcome:
        chain = self._chain.copy()
        for edit in edits:
            _edit(chain, edit, self._facts)
        run = _run(chain)
        step = self._period(run)
        grown = {
            call: ns - self._unchanged.blocked.get(call, 0)
            for call, ns in run.blocked.items()
            if ns > self._unchanged.blocked.get(call, 0)
        }
        return Outcome(step, self.unchanged_ns - step, self._limit(run, step), self._moves_to(grown))

    def blocked_ns(self) -> dict[int, int]:
        """Return how long each API call blocks in one round of the unchanged replay (ns)."""
        return dict(self._unchanged.blocked)

    def chain(self, sites: dict[str, frozenset[int]], most: int = 6) -> list[Moved]:
        """Remove the longest wait, then the longest that is left, and so on, until the step gains more than 1 %."""
        gone: set[int] = set()
        blocked = self._unchanged.blocked
        links: list[Moved] = []

        def longest() -> tuple[str | None, int]:
            waits = {site: sum(blocked.get(c, 0) for c in calls) for site, calls in sites.items() if not calls <= gone}
            site = max(waits, key=lambda s: (waits[s], s), default=None)
            return (site, waits[site]) if site is not None and waits[site] else (None, 0)

        site, _ = longest()
        while site is not None and len(links) < most:
            gone |= sites[site]
            chain = self._chain.copy()
            _edit(chain, RemoveWaits(frozenset(gone)), self._facts)
            run = _run(chain)
            blocked, step = run.blocked, self._period(run)
            following, ns = longest()
            links.append(Moved(site, step, self.unchanged_ns - step, following, ns // self.steps))
            if self.unchanged_ns - step > 0.01 * self.unchanged_ns:
                break
            site = following
        return links

    def _limit(self, run: _Run, step: int) -> str:
        whole = step * self.steps
        waiting = sum(run.blocked.values())
        if run.gpu_ns >= 0.9 * whole:
            return "GPU work"
        if run.cpu_ns >= 0.9 * whole:
            return "host code and launches"
        return "waits for the GPU" if waiting > 0.1 * whole else "host code and launches in turn with GPU work"

    def _moves_to(self, grown: dict[int, int]) -> str | None:
        """Name the call site whose wait grows most, None when no wait grows by more than 1 % of the step."""
        names = self._facts.once("site_of_call", lambda f: dict(f.wait_sites().select("call", "site").iter_rows()))
        sites: dict[str, int] = {}
        for call, ns in grown.items():
            if call in names:  # else a launch that finds the queue full: nobody's wait
                sites[names[call]] = sites.get(names[call], 0) + ns
        if not sites:
            return None
        site = max(sites, key=lambda s: (sites[s], s))
        return site if sites[site] > 0.01 * self.unchanged_ns * self.steps else None


def _items(chain: _Chain, calls: frozenset[int] | None) -> Iterable[int]:
    return range(len(chain.call)) if calls is None else (i for i, c in enumerate(chain.call) if c in calls)


def _edit(chain: _Chain, edit: Edit, profile: Profile) -> None:
    match edit:
        case RemoveWaits(calls):
            for i in _items(chain, calls):
                chain.waits[i] = False
        case RemoveHost(calls):
            for i in _items(chain, calls):
                chain.gap[i] = chain.loading[i]
        case FreeLoader():
            for i in range(len(chain.gap)):
                chain.gap[i] -= chain.loading[i]
        case RemoveCalls(calls):
            for i in _items(chain, calls):
                chain.cost[i], chain.waits[i] = 0, False
        case RemoveOps(ops):
            for i in range(len(chain.kind)):
                mine = range(chain.first[i], chain.first[i + 1])
                gone = [k for k in mine if chain.op[k] in ops]
                for k in gone:
                    chain.duration[k] = chain.pause[k] = chain.latency[k] = 0
                if gone and len(gone) == len(mine):
                    chain.cost[i], chain.waits[i] = 0, False
        case ScaleOps(ops, factor):
            for k, op in enumerate(chain.op):
                if op in ops:
                    chain.duration[k] = round(chain.duration[k] * factor)
        case Graph(calls):
            _graph(chain, calls)
        case OverlapCopies(ops, bandwidth):
            _overlap(chain, ops, bandwidth, profile)
        case RemoveExposedComm():
            comm = profile.attributed.gpu_ops.filter(pl.col("cls").cast(pl.String) == "comm")["op"].to_list()
            _edit(chain, ScaleOps(frozenset(comm), 0.0), profile)


def _graph(chain: _Chain, calls: frozenset[int] | None) -> None:
    """Make one graph launch of each run of launches: what lies between them on the CPU goes, pauses become a graph's."""
    inside = False
    for i, kind in enumerate(chain.kind):
        chosen = calls is None or chain.call[i] in calls
        if kind in (_RECORD, _WAIT_EVENT, _PLAIN) and inside and chosen and not chain.loading[i]:
            chain.gap[i] = chain.cost[i] = 0
            continue
        if kind != _LAUNCH or not chosen:
            inside = False
            continue
        if inside and not chain.loading[i]:
            chain.gap[i] = chain.cost[i] = 0
        else:
            chain.cost[i] = min(chain.cost[i], _GRAPH_LAUNCH_NS) or _GRAPH_LAUNCH_NS
        for k in range(chain.first[i], chain.first[i + 1]):
            chain.pause[k] = min(chain.pause[k], _GRAPH_GAP_NS)
            if inside:
                chain.latency[k] = 0
        inside = True


def _overlap(chain: _Chain, ops: frozenset[int], bandwidth: float | None, profile: Profile) -> None:
    """Give copies a stream of their own; a bandwidth above 0 sets what they take."""
    sizes = dict(profile.attributed.gpu_ops.filter(pl.col("op").is_in(list(ops))).select("op", "bytes").iter_rows())
    own = chain.streams
    chain.streams += 1
    for i in range(len(chain.kind)):
        for k in range(chain.first[i], chain.first[i + 1]):
            if chain.op[k] in ops:
                chain.stream[k] = own
                chain.waits[i] = False
                if bandwidth and sizes.get(chain.op[k]):
                    chain.duration[k] = min(chain.duration[k], round(sizes[chain.op[k]] / bandwidth * 1e9))


@dataclass(frozen=True)
class Moved:
    """One link of the chain: the site whose wait goes, the step after it (with all before), and the longest wait left."""

    site: str
    step_ns: int
    saving_ns: int
    next_site: str | None
    next_wait_ns: int


@dataclass(frozen=True)
class Withheld:
    """Why there is no replay."""

    reason: str


#: What a chain is made of.
_CALL = ("call", "process", "thread", "start_ns", "end_ns", "kind", "name", "correlation_id")
_OP = ("op", "process", "device", "stream", "start_ns", "end_ns", "call", "thread", "call_start_ns", "latency_ns")


def replay_of(profile: Profile) -> Replay | Withheld:
    """Return the replay of the steady steps, made when it is first asked for, or why there is none."""
    return profile.once("replay", build)


def build(profile: Profile) -> Replay | Withheld:
    """Return the replay of the steady steps of the shown process, or why there is none."""
    steps = profile.steps
    if steps.whole or steps.steady is None:
        return Withheld("the report has no steps to replay")
    first, last = steps.steady
    cpu = steps.cpu.filter(pl.col("process") == steps.process).sort("index")
    if last + 1 >= cpu.height:
        return Withheld("no step follows the steady ones, so that their end is not seen")
    first = _fitting(profile, cpu, first, last)
    start, end = int(cpu["start_ns"][first]), int(cpu["start_ns"][last + 1])
    gpu = steps.gpu.filter((pl.col("process") == steps.process) & pl.col("index").is_between(first, last))
    if not gpu.height:
        return Withheld("no GPU work was recorded in the steady steps")
    device = _busiest(profile, gpu)
    tiles = gpu.filter(pl.col("device") == device)
    recorded = int((tiles["end_ns"] - tiles["start_ns"]).sum()) // (last - first + 1)
    if recorded <= 0:
        return Withheld("the steady steps hold no GPU time")
    own = pl.col("process") == steps.process
    calls = profile.attributed.api_calls.select(_CALL)
    calls = calls.filter(own & (pl.col("start_ns") >= start) & (pl.col("start_ns") < end))
    ops = profile.attributed.gpu_ops.select(_OP).filter(own & (pl.col("device") == device))
    driving = ops.join(calls.select("call"), on="call", how="semi")["thread"].unique().to_list()
    if not driving:
        return Withheld("the GPU work of the steady steps was launched outside the trace")
    mine = calls.filter(pl.col("thread").is_in(driving)).sort("start_ns", "end_ns", descending=[False, True])
    crossing = _concurrency(mine)
    if crossing > 0.05:
        return Withheld(f"several threads drive the GPU at once ({crossing:.0%} of the time in CUDA calls)")
    chain = _chain(profile, mine, ops, start, end)
    return Replay(profile, chain, start, recorded, last - first + 1)


def _fitting(profile: Profile, cpu: pl.DataFrame, first: int, last: int) -> int:
    """Return the first step from which on the steady ones hold few enough GPU ops."""
    ops = profile.attributed.gpu_ops.select("process", "call_start_ns").filter(
        pl.col("process") == profile.steps.process
    )
    called = np.sort(ops["call_start_ns"].drop_nulls().to_numpy(), kind="stable")
    borders = np.searchsorted(called, cpu["start_ns"].to_numpy()[first : last + 2])
    few = np.flatnonzero(borders[-1] - borders[:-1] <= _MOST_OPS)
    return first + int(few[0]) if len(few) else last


def _busiest(profile: Profile, gpu: pl.DataFrame) -> int:
    busy = {}
    for (device,), part in gpu.group_by("device"):
        activity = profile.ledgers.activity[profile.steps.process, int(str(device))]
        window = part.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
        busy[int(str(device))] = int(
            activity.within(activity.labels > 0, np.array(window[:1]), np.array(window[1:]))[0]
        )
    return max(busy, key=lambda d: (busy[d], -d))


def _concurrency(calls: pl.DataFrame) -> float:
    """Return the share of API time in which another driving thread is inside a call too."""
    whole = 0
    both = 0
    reach: dict[int, int] = {}
    for thread, a, b in calls.select("thread", "start_ns", "end_ns").iter_rows():
        whole += b - a
        others = max((end for t, end in reach.items() if t != thread), default=a)
        both += max(min(others, b) - a, 0)
        reach[thread] = max(reach.get(thread, a), b)
    return both / whole if whole else 0.0


def _usual_latency(ops: pl.DataFrame) -> int:
    """Return the median latency of ops that did not wait for their stream, 0 when none is known."""
    known = ops.select("stream", "call_start_ns", "end_ns", "latency_ns").drop_nulls("call_start_ns")
    called, end, latency = (known[c].to_numpy() for c in ("call_start_ns", "end_ns", "latency_ns"))
    free = [np.empty(0, np.int64)]
    for stream in known["stream"].unique().to_list():
        mine = np.flatnonzero((known["stream"] == stream).to_numpy())  # sorted by start
        reach = np.maximum.accumulate(end[mine])[:-1]
        free.append(latency[mine[np.append(True, called[mine[1:]] >= reach)]])
    latencies = np.concatenate(free)
    return int(np.median(latencies)) if len(latencies) else 0


def _chain(profile: Profile, calls: pl.DataFrame, ops: pl.DataFrame, start: int, end: int) -> _Chain:
    """Return the calls and ops of the window as a chain."""
    chain = _Chain()
    usual = _usual_latency(ops)
    blocking_calls = profile.ledgers.waits.join(calls.select("call"), on="call", how="semi")
    waits = {c: (b, h) for c, b, h in blocking_calls.select("call", "backlog_ns", "host_ns").iter_rows()}
    streams: dict[int, int] = {}
    # Work that was queued before the window holds its stream.
    before = ops.filter(pl.col("call_start_ns").is_null() | (pl.col("call_start_ns") < start))
    recorded_free: dict[int, int] = dict(before.group_by("stream").agg(pl.col("end_ns").max()).iter_rows())
    mine = ops.filter((pl.col("call_start_ns") >= start) & (pl.col("call_start_ns") < end)).sort(
        "call", "start_ns", "op"
    )
    of_call: dict[int, list[tuple[int, int, int, int]]] = {}
    for call, op, stream, a, b in mine.select("call", "op", "stream", "start_ns", "end_ns").iter_rows():
        of_call.setdefault(call, []).append((op, stream, a, b))
    records, edges = _events(profile, calls)
    targets = _targets(profile, calls)
    loading = _loading(profile, calls, start, end)
    every = profile.attributed.api_calls
    launches = every.select("process", "start_ns", "end_ns").filter(every["kind"] == "launch")
    launches = launches.filter(pl.col("process") == profile.steps.process)
    # What a launch costs when nothing holds it up: in a full queue most of them stall, but not the first thousand.
    usual_cost = int(launches.select((pl.col("end_ns") - pl.col("start_ns")).quantile(0.1)).item() or 0)
    stalled: list[int] = []
    pauses: list[int] = []  # between queued ops of a stream
    unknown: list[int] = []  # ops that found their stream idle: what their pause would have been does not show
    reach = start
    held: dict[int, int] = {}  # recorded time at which an event is done
    begun: list[int] = []

    def number(stream: int) -> int:
        return streams.setdefault(stream, len(streams))

    for call, kind, a, b in calls.select("call", pl.col("kind").cast(pl.String), "start_ns", "end_ns").iter_rows():
        own = of_call.get(call, [])
        if a < reach and b <= reach and not own:
            continue  # nested in the call before: its time is inside that one's
        gap = max(a - reach, 0)
        cost = b - max(a, reach) if b > reach else 0
        reach = max(reach, b)
        blocking = waits.get(call)
        item, does_wait, tail, target = _PLAIN, False, -1, -1
        if kind == "sync":
            item, does_wait = _SYNC, True
            cost = min(cost, blocking[1]) if blocking else cost
            target = targets.get(call, -1)
            if target >= 0:
                target = number(target)
        elif own:
            item = _LAUNCH
            last_own = max(o[3] for o in own)
            if blocking is not None and kind == "copy":
                item = _COPY
                if last_own <= b:
                    does_wait, tail = True, b - last_own
                    cost = max(min(own[0][2], b) - a - blocking[0], 0) if blocking[0] == 0 else min(cost, usual_cost)
                elif blocking[0]:
                    does_wait = True
                    cost = min(cost, blocking[1])
            else:
                depth = _depth(begun, a)
                if depth >= _DEEP and cost > 3 * max(usual_cost, 1):
                    stalled.append(depth)
                    cost = usual_cost
        elif blocking is not None and blocking[0]:
            item, does_wait, cost = _SYNC, True, min(cost, blocking[1])
        elif call in records:
            item, (event, stream) = _RECORD, records[call]
            target, tail = -2 - event, number(stream)
            held[event] = recorded_free.get(stream, start)
        elif call in edges:
            item, (event, stream) = _WAIT_EVENT, edges[call]
            target, tail = -2 - event, number(stream)
            recorded_free[stream] = max(recorded_free.get(stream, start), held.get(event, start))
        if item == _PLAIN and chain.kind and chain.kind[-1] == _PLAIN and not chain.loading[-1] and call not in loading:
            chain.cost[-1] += gap + cost  # nobody asks about it: one item for a run of them
            continue
        chain.kind.append(item)
        chain.call.append(call)
        chain.gap.append(gap)
        chain.loading.append(min(loading.get(call, 0), gap))
        chain.cost.append(cost)
        chain.waits.append(does_wait)
        chain.tail.append(tail)
        chain.target.append(target)
        head = -1
        for op, stream, s, e in own:
            was_free = recorded_free.get(stream, start)
            chain.op.append(op)
            chain.stream.append(number(stream))
            chain.duration.append(e - s)
            if head >= 0:
                chain.latency.append(0)
                chain.offset.append(s - head if was_free < head else 0)
                chain.pause.append(max(s - was_free, 0) if was_free >= head else 0)
            elif a + usual <= was_free:
                chain.latency.append(min(usual, max(s - a, 0)))
                chain.pause.append(max(s - was_free, 0))
                chain.offset.append(-1)
                pauses.append(chain.pause[-1])
            else:
                chain.latency.append(max(s - a, 0))
                chain.pause.append(max(s - was_free, 0))
                chain.offset.append(-1)
                unknown.append(len(chain.pause) - 1)
            head = s if head < 0 else head
            recorded_free[stream] = max(was_free, e)
            begun.append(max(s, begun[-1]) if begun else s)
        chain.first.append(len(chain.op))
    pause = int(np.median(pauses)) if pauses else _GRAPH_GAP_NS
    for k in unknown:
        chain.pause[k] = min(chain.pause[k], pause)
    # The host code after the last call belongs to the round.
    chain.kind.append(_PLAIN)
    chain.call.append(-1)
    chain.gap.append(max(end - reach, 0))
    chain.loading.append(min(loading.get(-1, 0), max(end - reach, 0)))
    chain.cost.append(0)
    chain.waits.append(False)
    chain.tail.append(-1)
    chain.target.append(-1)
    chain.first.append(len(chain.op))
    chain.streams = len(streams)
    chain.limit = int(np.median(stalled)) if stalled else 0
    return chain


def _depth(starts: list[int], at: int) -> int:
    """Return how many of the launched ops have not begun at ``at``; ops begin nearly in launch order."""
    return len(starts) - bisect_right(starts, at)


def _events(profile: Profile, calls: pl.DataFrame) -> tuple[dict[int, tuple[int, int]], dict[int, tuple[int, int]]]:
    """Return call -> (event, stream) of event records, and of stream waits."""
    key = ["process", "correlation_id"]
    calls = calls.select(*key, "call", pl.col("name").cast(pl.String))
    trace = profile.trace
    recorded = trace.event.join(calls, on=key, how="inner").select("call", "event", "stream")
    waiting = trace.sync.join(calls.filter(pl.col("name").str.contains("StreamWaitEvent")), on=key, how="inner")
    return (
        {c: (e, s) for c, e, s in recorded.iter_rows()},
        {c: (e, s) for c, e, s in waiting.select("call", "event", "stream").drop_nulls().iter_rows()},
    )


def _targets(profile: Profile, calls: pl.DataFrame) -> dict[int, int]:
    """Return call -> stream, or -2 - event, of the synchronize calls that name one."""
    key = ["process", "correlation_id"]
    calls = calls.filter(pl.col("kind") == "sync")
    rows = profile.trace.sync.join(calls.select(*key, "call", pl.col("name").cast(pl.String)), on=key, how="inner")
    result: dict[int, int] = {}
    for call, name, stream, event in rows.select("call", "name", "stream", "event").iter_rows():
        if "Stream" in name and stream not in (None, 0xFFFFFFFF):
            result[call] = stream
        elif "Event" in name and event not in (None, 0xFFFFFFFF):
            result[call] = -2 - event
    return result


def _loading(profile: Profile, calls: pl.DataFrame, start: int, end: int) -> dict[int, int]:
    """Return call -> time in the data phase between the call before it and itself, -1 for after the last call.

    Only what lies in the window [start, end) counts: other steps load too.
    """
    spans = profile.attributed.phase_spans.filter(
        (pl.col("phase") == "data") & pl.col("thread").is_in(calls["thread"].unique().to_list())
    ).sort("start_ns")
    starts = calls["start_ns"].to_numpy()
    ids = calls["call"].to_numpy()
    result: dict[int, int] = {}
    for begin, finish in spans.select("start_ns", "end_ns").iter_rows():
        a, b = max(begin, start), min(finish, end)
        i = int(np.searchsorted(starts, a, side="left"))
        # A fetch that itself makes API calls (pinning) is cut at them; its parts count for the next call each.
        at = a
        while at < b:
            upto = min(int(starts[i]), b) if i < len(starts) else b
            key = int(ids[i]) if i < len(ids) else -1
            result[key] = result.get(key, 0) + upto - at
            at, i = upto, i + 1
            if i > len(starts):
                break
    return result

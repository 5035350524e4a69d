"""What may be changed in a replayed step, and how a chain changes with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import polars as pl

from nsysx.events.profile import Profile
from nsysx.replay.chain import LAUNCH, PLAIN, RECORD, WAIT_EVENT, Chain, Item, Op

#: What a launch of a whole graph costs the CPU, and the pause between its kernels: measured on an H200.
GRAPH_LAUNCH_NS, GRAPH_GAP_NS = 10_000, 1_000


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


def apply(chain: Chain, edit: Edit, profile: Profile) -> None:
    """Make the edit in the chain, in place."""
    match edit:
        case RemoveWaits(calls):
            for i, item in _chosen(chain, calls):
                chain.items[i] = item._replace(waits=False)
        case RemoveHost(calls):
            for i, item in _chosen(chain, calls):
                chain.items[i] = item._replace(gap=item.loading)
        case FreeLoader():
            for i, item in enumerate(chain.items):
                if item.loading:
                    chain.items[i] = item._replace(gap=item.gap - item.loading, loading=0)
        case RemoveCalls(calls):
            for i, item in _chosen(chain, calls):
                chain.items[i] = item._replace(cost=0, waits=False)
        case RemoveOps(ops):
            _remove_ops(chain, ops)
        case ScaleOps(ops, factor):
            _each_op(chain, ops, lambda op: op._replace(duration=round(op.duration * factor)))
        case Graph(calls):
            _graph(chain, calls)
        case OverlapCopies(ops, bandwidth):
            _overlap(chain, ops, bandwidth, profile)
        case RemoveExposedComm():
            comm = profile.attributed.gpu_ops.filter(pl.col("cls").cast(pl.String) == "comm")["op"].to_list()
            apply(chain, ScaleOps(frozenset(comm), 0.0), profile)


def _chosen(chain: Chain, calls: frozenset[int] | None) -> Iterator[tuple[int, Item]]:
    return ((i, item) for i, item in enumerate(chain.items) if calls is None or item.call in calls)


def _each_op(chain: Chain, ops: frozenset[int], change: Callable[[Op], Op]) -> list[int]:
    """Change these ops; return the items that hold any."""
    touched = []
    for i, item in enumerate(chain.items):
        if any(op.op in ops for op in item.ops):
            chain.items[i] = item._replace(ops=tuple(change(op) if op.op in ops else op for op in item.ops))
            touched.append(i)
    return touched


def _remove_ops(chain: Chain, ops: frozenset[int]) -> None:
    for i in _each_op(chain, ops, lambda op: op._replace(duration=0, pause=0, latency=0)):
        item = chain.items[i]
        if all(op.op in ops for op in item.ops):
            chain.items[i] = item._replace(cost=0, waits=False)


def _graph(chain: Chain, calls: frozenset[int] | None) -> None:
    """Make one graph launch of each run of launches: what lies between them on the CPU goes, pauses become a graph's."""
    inside = False
    for i, item in enumerate(chain.items):
        chosen = calls is None or item.call in calls
        if item.kind in (RECORD, WAIT_EVENT, PLAIN) and inside and chosen and not item.loading:
            chain.items[i] = item._replace(gap=0, cost=0)
            continue
        if item.kind != LAUNCH or not chosen:
            inside = False
            continue
        if inside:
            ops = tuple(op._replace(pause=min(op.pause, GRAPH_GAP_NS), latency=0) for op in item.ops)
        else:
            ops = tuple(op._replace(pause=min(op.pause, GRAPH_GAP_NS)) for op in item.ops)
        if inside and not item.loading:
            chain.items[i] = item._replace(gap=0, cost=0, ops=ops)
        else:
            chain.items[i] = item._replace(cost=min(item.cost, GRAPH_LAUNCH_NS) or GRAPH_LAUNCH_NS, ops=ops)
        inside = True


def _overlap(chain: Chain, ops: frozenset[int], bandwidth: float | None, profile: Profile) -> None:
    """Give copies a stream of their own; a bandwidth above 0 sets what they take."""
    sizes = dict(profile.attributed.gpu_ops.filter(pl.col("op").is_in(list(ops))).select("op", "bytes").iter_rows())
    own = chain.streams
    chain.streams += 1

    def moved(op: Op) -> Op:
        size = sizes.get(op.op)
        faster = min(op.duration, round(size / bandwidth * 1e9)) if bandwidth and size else op.duration
        return op._replace(stream=own, duration=faster)

    for i in _each_op(chain, ops, moved):
        chain.items[i] = chain.items[i]._replace(waits=False)

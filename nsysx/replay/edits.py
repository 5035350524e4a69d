"""The changes that can be made in a replayed step, and how each changes the chain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import polars as pl

from nsysx.catalogue import Activity
from nsysx.events.profile import Profile
from nsysx.frames.intervals import union
from nsysx.replay.chain import COPY, LAUNCH, NOT_AWAITED, PLAIN, RECORD, WAIT_EVENT, Chain, Item, Op

#: CPU time of one replay of a CUDA graph, by how the graph is made. Captured by hand: 5 us for the launch and 5 us for the copy into
#: the static input (H200: 2.6 us alone in a loop; a decoding step of 2.59 ms became 0.436 ms). ``make_graphed_callables``: the same
#: step became 0.44 ms. ``torch.compile(mode="reduce-overhead")``: 176 us for guards and 128 us for cudagraph trees (pytorch#150488).
GRAPH_PRICE_NS = {"raw": 10_000, "callable": 20_000, "compiled": 310_000}
#: CPU time that each node adds to a graph launch (H200: 2.4 ns), and the pause between the kernels of a graph.
GRAPH_NODE_NS, GRAPH_GAP_NS = 3, 1_000
#: Time of a kernel that does not depend on its bytes; fused kernels take it once. The shortest kernels on an H200 take 1.0 us.
_KERNEL_FLOOR_NS = 1_000
#: Least number of runs alone, and of runs beside communication, from which a kernel's slowdown is derived.
_SEEN_OFTEN = 3
#: Rate of copies from pinned memory over PCIe 5 x16 (H200 host), used if the report has no copy of this size itself.
_PINNED_BYTES_PER_S = 55e9
_LARGE_BYTES = 1 << 20


@dataclass(frozen=True)
class RemoveWaits:
    """These API calls no longer wait; None: no call waits."""

    calls: frozenset[int] | None = None


@dataclass(frozen=True)
class RemoveHost:
    """Host code before these API calls takes no time; None: no host code takes time."""

    calls: frozenset[int] | None = None


@dataclass(frozen=True)
class FreeLoader:
    """Waiting for data takes no time."""


@dataclass(frozen=True)
class RemoveCalls:
    """These API calls take no time and wait for nothing; the work that they launch remains.

    ``between``: the host code between two consecutive ones goes, too.
    """

    calls: frozenset[int]
    between: bool = False


@dataclass(frozen=True)
class RemoveOps:
    """These GPU ops take no time, nor do the launches that only they need."""

    ops: frozenset[int]


@dataclass(frozen=True)
class ScaleOps:
    """These GPU ops take ``factor`` times as long; those of them in ``bound`` take at least ``least`` times as long."""

    ops: frozenset[int]
    factor: float
    bound: frozenset[int] = frozenset()
    least: float = 0.0


@dataclass(frozen=True)
class Graph:
    """Each run of these launch calls becomes one graph launch, with no host code in between; None: every launch.

    ``by`` is how the graph is made, which determines the CPU time of its launch: see ``GRAPH_PRICE_NS``.
    """

    calls: frozenset[int] | None = None
    by: Literal["raw", "callable", "compiled"] = "raw"


@dataclass(frozen=True)
class Fuse:
    """Each run of these launches becomes one launch that moves the same bytes, with no host code between."""

    calls: frozenset[int]


@dataclass(frozen=True)
class PinCopies:
    """These copies use pinned memory and no call waits for them; they stay on their stream."""

    ops: frozenset[int]
    bandwidth_bytes_per_s: float | None = None


@dataclass(frozen=True)
class OverlapCopies:
    """These copies use pinned memory and run on a separate stream, and no call waits for them."""

    ops: frozenset[int]
    bandwidth_bytes_per_s: float | None = None


@dataclass(frozen=True)
class RemoveExposedComm:
    """Communication takes no time: an upper bound for what hiding it is worth."""


Edit = (
    RemoveWaits
    | RemoveHost
    | FreeLoader
    | RemoveCalls
    | RemoveOps
    | ScaleOps
    | Graph
    | Fuse
    | PinCopies
    | OverlapCopies
    | RemoveExposedComm
)


def apply(chain: Chain, edit: Edit, profile: Profile) -> None:
    """Make the edit in the chain, in place."""
    match edit:
        case RemoveWaits(calls):
            places = [i for i, _ in _chosen(chain, calls)]
            places = places if calls is None else _with_companions(chain, places)
            _unstage(chain, [i for i in places if chain.items[i].tail != NOT_AWAITED])
            _no_waits(chain, places)
        case RemoveHost(calls):
            if calls is not None and chain.closing in calls:
                calls |= {-1}  # the last host code of the round comes before that call
            for i, item in _chosen(chain, calls):
                if item.gap != item.loading:
                    chain.items[i] = _timed(item, item.loading, item.cost, item.ops)
        case FreeLoader():
            for i, item in enumerate(chain.items):
                if item.loading:
                    chain.items[i] = item._replace(gap=item.gap - item.loading, loading=0)
        case RemoveCalls(calls, between):
            _remove_calls(chain, calls, between)
        case RemoveOps(ops):
            _remove_ops(chain, ops)
        case ScaleOps(ops, factor, bound, least):
            for chosen, by in ((ops - bound, factor), (ops & bound, max(factor, least))):
                _each_op(chain, chosen, partial(_scaled, by))
        case Graph(calls, by):
            _graph(chain, calls, GRAPH_PRICE_NS[by])
        case Fuse(calls):
            _fuse(chain, calls)
        case PinCopies(ops, bandwidth):
            _pin(chain, ops, bandwidth, profile)
        case OverlapCopies(ops, bandwidth):
            chain.streams += 1
            new_stream = chain.streams - 1
            _each_op(chain, ops, lambda op: op._replace(stream=new_stream))
            _pin(chain, ops, bandwidth, profile)
        case RemoveExposedComm():
            _remove_comm(chain, profile)


def shortened(edits: Sequence[Edit]) -> frozenset[int] | None:
    """Return the GPU ops that these edits make shorter, None where one of them changes anything else."""
    ops: set[int] = set()
    for edit in edits:
        if not isinstance(edit, RemoveOps | ScaleOps):
            return None
        ops |= edit.ops
    return frozenset(ops)


def _scaled(factor: float, op: Op) -> Op:
    return Op(op.op, op.stream, op.latency, op.pause, op.offset, round(op.duration * factor))


def _timed(item: Item, gap: int, cost: int, ops: tuple[Op, ...]) -> Item:
    """Return the item with other times. Every launch of a step may need it: ``_replace`` takes three times as long."""
    kind, call, api, _, loading, _, waits, tail, target, stream, site, _, before, inside = item
    return Item(kind, call, api, gap, loading, cost, waits, tail, target, stream, site, ops, before, inside)


def _chosen(chain: Chain, calls: frozenset[int] | None) -> Iterator[tuple[int, Item]]:
    return ((i, item) for i, item in enumerate(chain.items) if calls is None or item.call in calls)


def _each_op(chain: Chain, ops: frozenset[int], change: Callable[[Op], Op]) -> list[int]:
    """Change these ops; return the indices of the items that contain any of them."""
    places = chain.places_of(ops)
    for i in places:
        item = chain.items[i]
        chain.items[i] = _timed(item, item.gap, item.cost, tuple(change(op) if op.op in ops else op for op in item.ops))
    return places


def _remove_ops(chain: Chain, ops: frozenset[int]) -> None:
    for i in _each_op(chain, ops, lambda op: Op(op.op, op.stream, 0, 0, op.offset, 0)):
        item = chain.items[i]
        if all(op.op in ops for op in item.ops):
            chain.items[i] = item._replace(cost=0, waits=False)


def _with_companions(chain: Chain, places: list[int]) -> list[int]:
    """Return the items at ``places``, with each copy's synchronize and each synchronize's copy, since the two are one wait."""
    together = set(places)
    for i in places:
        item = chain.items[i]
        if i + 1 < len(chain.items) and chain.items[i + 1].site == item.call >= 0:
            together.add(i + 1)
        if i and item.site == chain.items[i - 1].call >= 0:
            together.add(i - 1)
    return sorted(together)


def _remove_calls(chain: Chain, calls: frozenset[int], between: bool) -> None:
    before = False
    for i, item in enumerate(chain.items):
        removed = item.call in calls
        if removed:
            gap = item.loading if between and before else item.gap
            chain.items[i] = item._replace(gap=gap, cost=0, waits=False)
        before = removed


def _graph(chain: Chain, calls: frozenset[int] | None, price_ns: int) -> None:
    """Make one graph launch of each run of launches, without host code in between and with the pauses of a graph."""
    first = -1  # item of the launch that becomes the graph launch
    nodes: dict[int, int] = {}  # of each graph, by its first item
    for i, item in enumerate(chain.items):
        chosen = calls is None or item.call in calls
        if i in chain.borders:
            first = -1  # a graph does not extend over two steps
        if item.kind in (RECORD, WAIT_EVENT, PLAIN) and first >= 0 and chosen and not item.loading:
            if item.gap or item.cost:
                chain.items[i] = _timed(item, 0, 0, item.ops)
            continue
        if item.kind != LAUNCH or not chosen:
            first = -1
            continue
        inside = first >= 0 and not item.loading
        first = first if inside else i
        nodes[first] = nodes.get(first, 0) + len(item.ops)
        ops = tuple(
            Op(op.op, op.stream, 0 if inside else op.latency, min(op.pause, GRAPH_GAP_NS), op.offset, op.duration)
            for op in item.ops
        )
        chain.items[i] = _timed(item, 0 if inside else item.gap, 0, ops)
    for i, count in nodes.items():
        head = chain.items[i]
        chain.items[i] = _timed(head, head.gap, price_ns + GRAPH_NODE_NS * count, head.ops)


def _fuse(chain: Chain, calls: frozenset[int]) -> None:
    """Merge each run of launches into one, without host code in between; all kernels but the first lose their floor."""
    inside = False
    for i, item in enumerate(chain.items):
        chosen = item.call in calls
        inside = inside and i not in chain.borders
        if item.kind in (RECORD, WAIT_EVENT, PLAIN) and inside and chosen:
            chain.items[i] = _timed(item, item.loading, 0, item.ops)
        elif item.kind == LAUNCH and chosen:
            if inside:
                ops = tuple(
                    Op(op.op, op.stream, 0, 0, op.offset, max(op.duration - _KERNEL_FLOOR_NS, 0)) for op in item.ops
                )
                chain.items[i] = _timed(item, item.loading, 0, ops)
            inside = True
        else:
            inside = False


def pinned_rate(profile: Profile) -> float:
    """Return how fast the device copies from pinned memory (bytes/s): as the report's own large copies do, if it has any."""
    copies = profile.steady_ops.filter(pl.col("copy_kind") == 1)
    pinned = copies.filter(((pl.col("src_kind") == 1) | (pl.col("dst_kind") == 1)) & (pl.col("bytes") >= _LARGE_BYTES))
    ns = (pinned["end_ns"] - pinned["start_ns"]).sum()
    return float(pinned["bytes"].sum() / ns * 1e9) if ns else _PINNED_BYTES_PER_S


def _pin(chain: Chain, ops: frozenset[int], bandwidth: float | None, profile: Profile) -> None:
    """Let no call wait for these copies; at a given bandwidth they take their bytes over it, if that is shorter."""
    sizes = dict(profile.attributed.gpu_ops.filter(pl.col("op").is_in(list(ops))).select("op", "bytes").iter_rows())

    def faster(op: Op) -> Op:
        size = sizes.get(op.op)
        return op._replace(duration=min(op.duration, round(size / bandwidth * 1e9))) if bandwidth and size else op

    places = _each_op(chain, ops, faster)
    _unstage(chain, places)
    _no_waits(chain, _with_companions(chain, places))


def _no_waits(chain: Chain, places: list[int]) -> None:
    for i in places:
        if chain.items[i].waits:
            chain.items[i] = chain.items[i]._replace(waits=False)


def _unstage(chain: Chain, places: list[int]) -> None:
    """Let the copies at these places take the CPU as long as a launch, and begin as soon as a kernel does.

    A call that copies pageable memory moves the data to a staging buffer itself, and returns when the last part is there: only
    pinned memory frees the CPU of this, and a copy that no longer waits for its data is one.
    """
    copies = [i for i in places if chain.items[i].kind == COPY]
    launches = [item for item in chain.items if item.kind == LAUNCH] if copies else []
    if not launches:
        return
    cost = int(np.median([item.cost for item in launches]))
    latency = int(np.median([item.ops[0].latency for item in launches]))
    for i in copies:
        item = chain.items[i]
        first, *others = item.ops
        sooner = first._replace(latency=min(first.latency, latency))
        chain.items[i] = item._replace(cost=min(item.cost, cost), ops=(sooner, *others))


def _remove_comm(chain: Chain, profile: Profile) -> None:
    """Let communication take no time, and let kernels that ran beside it take as long as they take alone, if that is known."""
    ops = profile.attributed.gpu_ops
    is_comm = (ops["process"] == profile.steps.process) & (ops["cls"] == Activity.COMM.value)
    _each_op(chain, frozenset(ops["op"].filter(is_comm).to_list()), lambda op: op._replace(duration=0))
    for group, factor in profile.once(slowed_by_communication):
        apply(chain, ScaleOps(group, factor), profile)


def slowed_by_communication(profile: Profile) -> list[tuple[frozenset[int], float]]:
    """Return the groups of ``slowed`` for the ops of the shown process."""
    ops = profile.attributed.gpu_ops.select("op", "process", "cls", "name", "grid", "block", "start_ns", "end_ns")
    ops = ops.filter(pl.col("process") == profile.steps.process)
    is_comm = ops["cls"] == Activity.COMM.value
    return slowed(ops.filter(~is_comm), ops.filter(is_comm))


def slowed(ops: pl.DataFrame, comm: pl.DataFrame) -> list[tuple[frozenset[int], float]]:
    """Return groups of ops that ran beside communication and were slowed by it, each with a factor below 1.

    The factor is the median time of the same kernel (name, grid, block) alone over its median time beside communication. Kernels
    without enough runs of both kinds are left out.
    """
    start, end = union(comm["start_ns"].to_numpy(), comm["end_ns"].to_numpy())
    if not len(start):
        return []
    a, b = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    first = np.searchsorted(end, a, side="right")
    beside = (first < len(start)) & (start[np.minimum(first, len(start) - 1)] < b)
    same = ("name", "grid", "block")
    timed = ops.select("op", *same, ns=pl.col("end_ns") - pl.col("start_ns")).with_columns(beside=beside)
    factors = []
    for _, alike in timed.group_by(same):
        alone, together = alike.filter(~pl.col("beside")), alike.filter("beside")
        if min(alone.height, together.height) >= _SEEN_OFTEN:
            usual, slow = alone["ns"].to_numpy(), together["ns"].to_numpy()
            factor = float(np.median(usual) / np.median(slow)) if np.median(slow) else 1.0
            if factor < 1:
                factors.append((frozenset(together["op"].to_list()), factor))
    return factors

"""The changes that can be made in a replayed step, and how each changes the columns of a chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import polars as pl

from nsysx.events import host_messages
from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64
from nsysx.replay import job_changes
from nsysx.replay.chain import COPY, LAUNCH, PLAIN, RECORD, WAIT_EVENT, Chain
from nsysx.replay.chain_columns import Columns, Flags
from nsysx.replay.removed_work import without_calls, without_launches, without_ops
from nsysx.replay.replay_bounds import (
    GRAPH_GAP_NS,
    GRAPH_NODE_NS,
    KERNEL_FLOOR_NS,
    LARGE_COPY_BYTES,
    NOT_AWAITED,
    PINNED_BYTES_PER_S,
)
from nsysx.replay.slowed_kernels import slowed_by_communication

#: CPU time of one replay of a CUDA graph, by how the graph is made. Captured by hand: 5 us for the launch, 5 us for the copy into the
#: static input (H200: 2.6 us alone; a step of 2.59 ms became 0.436 ms). ``make_graphed_callables``: the same step became 0.44 ms.
#: ``torch.compile(mode="reduce-overhead")``: 176 us for guards and 128 us for cudagraph trees (pytorch#150488).
GRAPH_PRICE_NS = {"raw": 10_000, "callable": 20_000, "compiled": 310_000}


@dataclass(frozen=True)
class RemoveWaits:
    """These API calls no longer wait; None: no call waits."""

    calls: frozenset[int] | None = None


@dataclass(frozen=True)
class RemoveHost:
    """Host code before these API calls takes no time, or loses a ``share`` of it; None: that before all calls.

    ``leading``: that before calls in front of them, too, which are made for them, launch nothing and hold no host: queries, events.
    """

    calls: frozenset[int] | None = None
    leading: bool = False
    share: float = 1.0


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
    """These GPU ops take ``factor`` times as long; those of them in ``bound`` take at least ``least`` times as long.

    ``less_work``: the change leaves fewer operations, or fewer bytes. Else none of them gets past the device's limits.
    """

    ops: frozenset[int]
    factor: float
    bound: frozenset[int] = frozenset()
    least: float = 0.0
    less_work: bool = False


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
    """Communication takes no time, on the GPU or on the host: no change of it saves more."""


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


@dataclass(frozen=True)
class Fixed:
    """What edits ask for besides the columns of a chain, and none of them changes.

    ``site`` is that of each item and ``begins`` whether a step begins with it; ``op`` is the number of each GPU op; ``closing`` is that
    of the `Chain`.
    """

    site: I64
    begins: Flags
    op: I64
    closing: int

    @classmethod
    def from_chain(cls, chain: Chain) -> Fixed:
        """Return it for a chain."""
        begins = np.zeros(len(chain.items), np.bool_)
        begins[[i for i in chain.borders if i < len(begins)]] = True
        ops = [op.op for item in chain.items for op in item.ops]
        site = np.array([item.site for item in chain.items], np.int64)
        return cls(site, begins, np.array(ops, np.int64), chain.closing)

    def ops(self, ops: frozenset[int]) -> Flags:
        """Return which of the GPU ops these are."""
        return _are_among(self.op, ops)


def apply(cols: Columns, edit: Edit, fixed: Fixed, profile: Profile) -> Columns:
    """Return the columns with the edit made."""
    match edit:
        case RemoveWaits(calls):
            places = _with_companions(cols, fixed, _items_of_calls(cols, calls))
            return _no_waits(_unstaged(cols, places & (cols.tail != NOT_AWAITED)), places)
        case RemoveHost(calls, leading, share):
            if calls is not None and fixed.closing in calls:
                calls |= {-1}  # the last host code of the round comes before that call
            items = _items_of_calls(cols, calls)
            if leading:
                items |= _leading_to(cols, fixed, items)
            left = np.rint((1 - share) * (cols.gap - cols.loading)).astype(np.int64)
            return replace(cols, gap=np.where(items, cols.loading + left, cols.gap))
        case FreeLoader():
            return replace(cols, gap=cols.gap - cols.loading, loading=np.zeros_like(cols.loading))
        case RemoveCalls(calls, between):
            return without_calls(cols, _items_of_calls(cols, calls), between)
        case RemoveOps(ops):
            return without_ops(cols, fixed.ops(ops))
        case ScaleOps(ops, factor, bound, least):
            cols = _scaled(cols, fixed.ops(ops - bound), factor)
            return _scaled(cols, fixed.ops(ops & bound), max(factor, least))
        case Graph(calls, by):
            return _graph(cols, fixed, _items_of_calls(cols, calls), GRAPH_PRICE_NS[by])
        case Fuse(calls):
            return _fused(cols, fixed, _items_of_calls(cols, calls))
        case PinCopies(ops, bandwidth):
            return _pinned(cols, fixed, ops, bandwidth, profile)
        case OverlapCopies(ops, bandwidth):
            stream = np.where(fixed.ops(ops), cols.streams, cols.op_stream)
            apart = replace(cols, op_stream=stream, streams=cols.streams + 1)
            return _pinned(apart, fixed, ops, bandwidth, profile)
        case RemoveExposedComm():
            return _without_comm(cols, fixed, profile)


def shortened(edits: Sequence[Edit]) -> frozenset[int] | None:
    """Return the GPU ops that these edits make shorter, None where one of them changes anything else."""
    ops: set[int] = set()
    for edit in edits:
        if not isinstance(edit, RemoveOps | ScaleOps):
            return None
        ops |= edit.ops
    return frozenset(ops)


def freed_ns(edits: Sequence[Edit], ops: pl.DataFrame) -> float:
    """Return what edits take off the time of GPU ops (op, ns) themselves."""
    freed = 0.0
    for edit in edits:
        if isinstance(edit, RemoveOps | ScaleOps):
            left = edit.factor if isinstance(edit, ScaleOps) else 0.0
            freed += (1 - left) * int(ops.filter(ops["op"].is_in(list(edit.ops)))["ns"].sum())
    return freed


def _are_among(numbers: I64, wanted: frozenset[int]) -> Flags:
    among: Flags = np.isin(numbers, np.fromiter(wanted, np.int64, len(wanted)))
    return among


def _items_of_calls(cols: Columns, calls: frozenset[int] | None) -> Flags:
    """Return which items are these calls; None: all."""
    return np.ones(len(cols.call), np.bool_) if calls is None else _are_among(cols.call, calls)


#: Kinds of items that launch nothing and for which the host does not wait.
_LAUNCH_NOTHING = (PLAIN, RECORD, WAIT_EVENT)


def _leading_to(cols: Columns, fixed: Fixed, items: Flags) -> Flags:
    """Return the calls in a row right before one of these items that launch nothing, in the same step and behind its first call."""
    plain = np.isin(cols.kind, _LAUNCH_NOTHING) & (cols.call >= 0)
    ends = np.flatnonzero(~plain | items)
    behind = np.searchsorted(ends, np.arange(len(plain)))
    step = np.cumsum(fixed.begins)
    leads: Flags = plain & ~fixed.begins & (behind < len(ends))
    leads[leads] = items[ends[behind[leads]]] & (step[ends[behind[leads]]] == step[leads])
    return leads


def _scaled(cols: Columns, ops: Flags, factor: float) -> Columns:
    return replace(
        cols, op_duration=np.where(ops, np.rint(cols.op_duration * factor).astype(np.int64), cols.op_duration)
    )


def _with_companions(cols: Columns, fixed: Fixed, places: Flags) -> Flags:
    """Return the items at ``places``, with each copy's synchronize and each synchronize's copy, since the two are one wait."""
    follows = (fixed.site[1:] == cols.call[:-1]) & (
        cols.call[:-1] >= 0
    )  # each synchronize that is of the copy before it
    companions = np.zeros_like(places)
    companions[1:] |= places[:-1] & follows
    companions[:-1] |= places[1:] & follows
    return places | companions


@dataclass(frozen=True)
class _Runs:
    """Runs of launches that become one: which items are ``launches`` of one and ``inside`` it, behind the first.

    ``heads`` are the places of the first ones, and ``number`` is the run of each item.
    """

    launches: Flags
    inside: Flags
    heads: I64
    number: I64


#: What a run of launches may hold besides them.
_BETWEEN = (LAUNCH, RECORD, WAIT_EVENT, PLAIN)


def _runs(cols: Columns, fixed: Fixed, chosen: Flags, joins: Flags) -> _Runs:
    """Return the runs of chosen launches. An item that does not join what is before it ends a run, as does the end of a step."""
    number: I64 = np.cumsum(fixed.begins | ~(joins & np.isin(cols.kind, _BETWEEN)))
    launches = chosen & (cols.kind == LAUNCH)
    runs, first = np.unique(number[launches], return_index=True)
    heads = np.flatnonzero(launches)[first]
    head = np.full(len(number) + 1, len(number))  # of each run; behind all items where it has none
    head[runs] = heads
    return _Runs(launches, np.arange(len(number)) > head[number], heads, number)


def _graph(cols: Columns, fixed: Fixed, chosen: Flags, price_ns: int) -> Columns:
    """Make one graph launch of each run of launches, without host code in between and with the pauses of a graph."""
    runs = _runs(cols, fixed, chosen, chosen & (cols.loading == 0))
    nodes = np.zeros(len(cols.kind) + 1, np.int64)
    np.add.at(nodes, runs.number[runs.launches], np.diff(cols.first_op)[runs.launches])
    cost = np.where(runs.inside, 0, cols.cost)
    cost[runs.heads] = price_ns + GRAPH_NODE_NS * nodes[runs.number[runs.heads]]
    return replace(
        cols,
        gap=np.where(runs.inside, 0, cols.gap),
        cost=cost,
        op_latency=np.where(runs.inside[cols.op_item], 0, cols.op_latency),
        op_pause=np.where(runs.launches[cols.op_item], np.minimum(cols.op_pause, GRAPH_GAP_NS), cols.op_pause),
    )


def _fused(cols: Columns, fixed: Fixed, chosen: Flags) -> Columns:
    """Merge each run of launches into one, without host code in between; all kernels but the first lose their floor.

    Calls that do nothing, such as cudaStreamIsCapturing, are made for a launch: those between two of a run go, too.
    """
    runs = _runs(cols, fixed, chosen, chosen | (cols.kind == PLAIN))
    item = np.arange(len(cols.kind))
    last = np.full(int(runs.number.max(initial=0)) + 1, -1)
    np.maximum.at(last, runs.number[runs.launches], item[runs.launches])
    inside = runs.inside & (item <= last[runs.number])
    ops = inside[cols.op_item]
    return replace(
        cols,
        gap=np.where(inside, cols.loading, cols.gap),
        cost=np.where(inside, 0, cols.cost),
        op_latency=np.where(ops, 0, cols.op_latency),
        op_pause=np.where(ops, 0, cols.op_pause),
        op_duration=np.where(ops, np.maximum(cols.op_duration - KERNEL_FLOOR_NS, 0), cols.op_duration),
    )


def pinned_rate(profile: Profile) -> float:
    """Return how fast the device copies from pinned memory (bytes/s): as the report's own large copies do, if it has any."""
    copies = profile.steady_ops.filter(pl.col("copy_kind") == 1)
    pinned = copies.filter(
        ((pl.col("src_kind") == 1) | (pl.col("dst_kind") == 1)) & (pl.col("bytes") >= LARGE_COPY_BYTES)
    )
    ns = (pinned["end_ns"] - pinned["start_ns"]).sum()
    return float(pinned["bytes"].sum() / ns * 1e9) if ns else PINNED_BYTES_PER_S


def _pinned(cols: Columns, fixed: Fixed, ops: frozenset[int], bandwidth: float | None, profile: Profile) -> Columns:
    """Let no call wait for these copies; at a given bandwidth they take their bytes over it, if that is shorter."""
    copies = fixed.ops(ops)
    if bandwidth:
        sizes = dict(profile.attributed.gpu_ops.filter(pl.col("op").is_in(list(ops)))["op", "bytes"].iter_rows())
        duration = cols.op_duration.copy()
        for row in np.flatnonzero(copies).tolist():
            if size := sizes.get(int(fixed.op[row])):
                duration[row] = min(int(duration[row]), round(size / bandwidth * 1e9))
        cols = replace(cols, op_duration=duration)
    places = np.zeros(len(cols.kind), np.bool_)
    places[cols.op_item[copies]] = True
    return _no_waits(_unstaged(cols, places), _with_companions(cols, fixed, places))


def _no_waits(cols: Columns, places: Flags) -> Columns:
    return replace(cols, waits=cols.waits & ~places)


def _unstaged(cols: Columns, places: Flags) -> Columns:
    """Let the copies at these places take the CPU as long as a launch, and begin as soon as a kernel does.

    A call that copies pageable memory moves the data to a staging buffer itself, and returns when the last part is there: only
    pinned memory frees the CPU of this, and a copy that no longer waits for its data is one.
    """
    copies, launches = np.flatnonzero(places & (cols.kind == COPY)), np.flatnonzero(cols.kind == LAUNCH)
    if not len(copies) or not len(launches):
        return cols
    cost, latency = cols.cost.copy(), cols.op_latency.copy()
    first = cols.first_op[copies]
    cost[copies] = np.minimum(cost[copies], int(np.median(cols.cost[launches])))
    latency[first] = np.minimum(latency[first], int(np.median(cols.op_latency[cols.first_op[launches]])))
    return replace(cols, cost=cost, op_latency=latency)


def _without_comm(cols: Columns, fixed: Fixed, profile: Profile) -> Columns:
    """Let what is there for communication alone be gone, its launches too; kernels that ran beside it take as long as alone, if known."""
    gone = fixed.ops(profile.once(job_changes.communicating))
    cols = without_launches(without_ops(cols, gone), gone)
    for group, factor in profile.once(slowed_by_communication):
        cols = _scaled(cols, fixed.ops(group), factor)
    met = profile.once(_host_communication)
    if not len(met):
        return cols
    # The last host code of the round comes before the closing call.
    behind = np.where(cols.call >= 0, cols.call, fixed.closing)
    held = np.where(behind >= 0, met[behind], 0)
    return replace(cols, gap=np.maximum(cols.gap - held, cols.loading))


def _host_communication(profile: Profile) -> I64:
    """Return how much of the host code before each API call is communication (ns), empty where there is none."""
    if not host_messages.recorded(profile.trace):
        return np.empty(0, np.int64)
    return host_messages.before_calls(profile.trace, profile.attributed.api_calls).to_numpy()

"""A chain as columns, for ``simulate``: one row per item and one per GPU op, both in the order of the calls."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from nsysx.frames.intervals import I64
from nsysx.frames.statistics import F64
from nsysx.replay.chain import LAUNCH, Chain
from nsysx.replay.replay_bounds import KERNEL_GAP_NS, TRACED_CODE_NEAR_CALL_NS, TRACED_TIME_STAYS_SHARE

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Columns:
    """The fields of `ChainItem` and `Op` that take time or wait (ns). Item ``i`` has the ops ``first_op[i]`` to ``first_op[i + 1] - 1``.

    ``op_item`` is the item of each op; ``streams`` and ``limit`` are those of the `Chain`.
    """

    kind: I64
    call: I64
    gap: I64
    loading: I64
    cost: I64
    waits: Flags
    tail: I64
    target: I64
    stream: I64
    first_op: I64
    op_item: I64
    op_stream: I64
    op_latency: I64
    op_pause: I64
    op_offset: I64
    op_duration: I64
    streams: int
    limit: int

    def changed_from(self, before: Columns) -> tuple[tuple[str, Any], ...]:
        """Return the columns that differ from those before, as (name, value or digest of all values)."""
        changed: list[tuple[str, Any]] = []
        for name, was in vars(before).items():
            now = getattr(self, name)
            if not isinstance(now, np.ndarray):
                changed += [(name, now)] if now != was else []
            elif now is not was and not np.array_equal(now, was):
                changed.append((name, blake2b(now.tobytes()).digest()))
        return tuple(changed)

    def only(self, first: int, last: int) -> Columns:
        """Return items [first, last) with their ops."""
        a, b = int(self.first_op[first]), int(self.first_op[last])
        of_item = {name: getattr(self, name)[first:last] for name in (*_OF_ITEM, "waits")}
        of_op = {f"op_{name}": getattr(self, f"op_{name}")[a:b] for name in _OF_OP}
        first_op, op_item = self.first_op[first : last + 1] - a, self.op_item[a:b] - first
        return replace(self, **of_item, **of_op, first_op=first_op, op_item=op_item)


#: Fields of `ChainItem` and `Op` that are columns.
_OF_ITEM = ("kind", "call", "gap", "loading", "cost", "tail", "target", "stream")
_OF_OP = ("stream", "latency", "pause", "offset", "duration")


def columns(chain: Chain) -> Columns:
    """Return the columns of a chain, in O(items + ops)."""
    ops = [item.ops for item in chain.items]
    counts = np.fromiter(map(len, ops), np.int64, len(ops))
    flat = list(itertools.chain.from_iterable(ops))
    made: dict[str, Any] = {
        f"op_{name}": np.fromiter(map(attrgetter(name), flat), np.int64, len(flat)) for name in _OF_OP
    }
    of_items: dict[str, Any] = {
        n: np.fromiter(map(attrgetter(n), chain.items), np.int64, len(chain.items)) for n in _OF_ITEM
    }
    of_items["waits"] = np.fromiter(map(attrgetter("waits"), chain.items), np.bool_, len(chain.items))
    return Columns(
        **of_items,
        **made,
        first_op=np.append(0, np.cumsum(counts)),
        op_item=np.repeat(np.arange(len(ops)), counts),
        streams=chain.streams,
        limit=chain.limit,
    )


class WithoutTracing:
    """A chain from which the time that tracing added can be removed, at different scales.

    ``waiting`` is op -> the time in which it only waits for another rank (ns), which is scaled separately. ``collectives`` is op ->
    whole time (ns) for the ops that would take longer if the other rank were later.
    """

    def __init__(
        self, chain: Chain, waiting: Mapping[int, int] | None = None, collectives: Mapping[int, int] | None = None
    ) -> None:
        self.recorded = columns(chain)
        ops = [op.op for item in chain.items for op in item.ops]
        self._waiting, self._collectives = (
            np.array([kept.get(op, 0) for op in ops], np.float64) if kept else np.zeros(len(ops))
            for kept in (waiting, collectives)
        )
        self.waits = bool(self._waiting.any() or self._collectives.any())
        self._before = np.array([item.added_before for item in chain.items], np.float64)
        self._inside = np.array([item.added_inside for item in chain.items], np.float64)
        self._most_before = np.array([item.most_before for item in chain.items], np.float64)
        self._most_inside = np.array([item.most_inside for item in chain.items], np.float64)
        self._any = bool(self._before.any() or self._inside.any())

    def with_loading(self, times: float) -> None:
        """Let each wait for data be ``times`` as long as it was recorded, from now on and as if recorded so."""
        loading = _rounded(self.recorded.loading * times)
        self.recorded = replace(self.recorded, gap=self.recorded.gap - self.recorded.loading + loading, loading=loading)

    def columns(
        self, scale: float, host: float = 1.0, waits: float = 1.0, work: float = 1.0, near: float = 1.0
    ) -> Columns:
        """Return the columns without ``scale`` times what tracing added, and with all other host time multiplied by ``host``.

        Calls and up to ``TRACED_CODE_NEAR_CALL_NS`` of the host code before each are multiplied by ``near``, too.
        Waiting of ops for other ranks is multiplied by ``waits`` if that is at most 1; above 1, the whole time of the collectives
        is. All device time is multiplied by ``work``.
        """
        base = self.recorded
        if self.waits and waits != 1:
            which = self._waiting if waits < 1 else self._collectives
            base = replace(base, op_duration=base.op_duration + _rounded(which * (waits - 1)))
        if work != 1:
            base = replace(
                base,
                op_duration=_rounded(base.op_duration * work),
                op_pause=_rounded(base.op_pause * work),
                op_offset=np.where(base.op_offset > 0, _rounded(base.op_offset * work), base.op_offset),
            )
        if (scale == 0 and host == near == 1) or not self._any:
            return base
        before, inside = self._before * scale, self._inside * scale
        code = base.gap - base.loading  # tracing does not prolong waiting for data
        # What is more than the host code can hold must lie in the call, and the other way round.
        room_before, room_inside = code * (1 - TRACED_TIME_STAYS_SHARE), base.cost * (1 - TRACED_TIME_STAYS_SHARE)
        more_inside, more_before = np.maximum(before - room_before, 0), np.maximum(inside - room_inside, 0)
        less_code = np.minimum(before + more_before, room_before)
        less_cost = np.minimum(inside + more_inside, room_inside)
        less_code, less_cost = self._placed(less_code, less_cost, code)
        latency, pause = self._relieved_ops(base, inside, scale)
        left = code - less_code
        left -= (1 - near) * np.minimum(left, TRACED_CODE_NEAR_CALL_NS)
        return replace(
            base,
            gap=base.loading + _rounded(left * host),
            cost=_rounded((base.cost - less_cost) * host * near),
            op_latency=latency,
            op_pause=pause,
        )

    def _placed(self, less_code: F64, less_cost: F64, code: I64) -> tuple[F64, F64]:
        """Return, of what goes of the code before calls and of the calls (ns), what can lie there, and the rest as slower host code.

        An item loses as much as its own events can have taken, and all lose the same share of what is left of their calls and of the code
        near these: together as much as before.
        """
        here_code, here_cost = np.minimum(less_code, self._most_before), np.minimum(less_cost, self._most_inside)
        left_code = np.minimum(code - here_code, TRACED_CODE_NEAR_CALL_NS)
        left_cost = self.recorded.cost - here_cost
        rest = (less_code - here_code).sum() + (less_cost - here_cost).sum()
        share = min(rest / max(left_code.sum() + left_cost.sum(), 1.0), 1 - TRACED_TIME_STAYS_SHARE)
        return here_code + share * left_code, here_cost + share * left_cost

    def _relieved_ops(self, base: Columns, inside: npt.NDArray[np.float64], scale: float) -> tuple[I64, I64]:
        """Return latency and pause of all ops; those of each item's first op without what tracing added inside the call.

        A graph whose nodes are traced also starts that much later after the previous one: with tiny nodes in a queue of graphs, a
        step took 4.1 ms with tracing and 3.2 ms without (H200).
        """
        counts = np.diff(base.first_op)
        item = np.flatnonzero((counts > 0) & (inside != 0))
        first = base.first_op[item]
        latency, pause = base.op_latency.copy(), base.op_pause.copy()
        latency[first] = _rounded(
            latency[first] - np.minimum(inside[item], latency[first] * (1 - TRACED_TIME_STAYS_SHARE))
        )
        between = np.where(counts[item] == 1, KERNEL_GAP_NS * min(scale, 1), inside[item])
        queued = np.where(base.kind[item] == LAUNCH, between, 0.0)
        pause[first] = _rounded(pause[first] - np.minimum(queued, pause[first] * (1 - TRACED_TIME_STAYS_SHARE)))
        return latency, pause


def _rounded(ns: npt.NDArray[np.floating[Any]]) -> I64:
    whole: I64 = np.rint(ns).astype(np.int64)
    return whole

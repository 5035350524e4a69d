"""What one round of a replayed chain does on its device: its work, its idle time, and what the host did meanwhile."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from nsysx.catalogue import Cause
from nsysx.frames.intervals import I64
from nsysx.replay.chain import Chain
from nsysx.replay.chain_columns import Columns
from nsysx.replay.simulate import ReplayResult, Times, traced


@dataclass(frozen=True)
class DeviceRound:
    """One round of a chain on its device (ns, over all steps): its length, the union of its GPU work, idle time by cause.

    ``exposed_comm_ns`` is the part of the union in which only communication runs. ``before``: op -> idle time that it ends. ``run`` is
    the replay whose measured round it is. ``loading_ns`` is idle time that no op of the chain ends: see `bare_loading`. ``turned_ns`` is
    idle time for the host of a later rank that was waiting in collectives as recorded: see `late_causes`.
    """

    whole_ns: int
    busy_ns: int
    exposed_comm_ns: int
    causes: dict[str, int]
    before: dict[int, int]
    run: ReplayResult
    loading_ns: int = 0
    turned_ns: int = 0

    def waiting_longer(self, ns: int) -> DeviceRound:
        """Return the round in which the device idles so much longer because the host waits for batches."""
        causes = (
            self.causes | {Cause.DATA_LOADER.value: self.causes.get(Cause.DATA_LOADER.value, 0) + ns}
            if ns
            else self.causes
        )
        return replace(self, whole_ns=self.whole_ns + ns, causes=causes, loading_ns=ns)


def on_device(chain: Chain, cols: Columns, communicating: Collection[int] = ()) -> DeviceRound:
    """Return what the measured round of a replay does on the device. The causes sum to the idle time.

    ``cols`` are the columns of ``chain``, with any changes; ``communicating`` are the communication ops.
    """
    replayed, times = traced(cols)
    ends = replayed.ends
    start, end = ends[-3] if len(ends) > 2 else 0, ends[-2]
    rounds = len(times.called)
    called_at = np.repeat(times.called, np.diff(cols.first_op), axis=1).ravel()
    op_begin = times.op_begin.ravel()
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
    causes = _host_causes(chain, cols, times, (g0, split))
    late = called >= g0
    queued = begin[gaps] - called > np.tile(cols.op_latency, rounds)[first]
    after = g1 - split
    causes[Cause.LAUNCH_LATENCY] = int(after[late | ~queued].sum())
    short = ~late & queued & (after <= np.tile(cols.op_pause, rounds)[first])
    causes[Cause.KERNEL_GAP] = int(after[short].sum())
    causes[Cause.DEPENDENCY] = int(after[~late & queued & ~short].sum())
    causes[Cause.HOST_CODE] = causes.get(Cause.HOST_CODE, 0) + idle - sum(causes.values())
    before = dict(zip(names[first % max(len(names), 1)].tolist(), (g1 - g0).tolist(), strict=True))
    exposed = 0
    if communicating and len(names):
        computing = ~np.isin(names, list(communicating))[order % len(names)]
        exposed = end - start - idle - _union(begin[computing], finish[computing], start, end)
    idle_causes = {cause.value: ns for cause, ns in causes.items() if ns > 0}
    return DeviceRound(
        end - start, end - start - idle, exposed_comm_ns=exposed, causes=idle_causes, before=before, run=replayed
    )


def _union(begin: I64, finish: I64, start: int, end: int) -> int:
    """Return the length of the union of these intervals, which must be sorted by start, within [start, end)."""
    begin, finish = np.clip(begin, start, end), np.clip(finish, start, end)
    reach = np.maximum.accumulate(np.append(start, finish))[:-1]
    return int(np.maximum(finish - np.maximum(begin, reach), 0).sum())


def _host_causes(chain: Chain, cols: Columns, times: Times, windows: tuple[I64, I64]) -> dict[Cause, int]:
    """Return cause -> time (ns) of what the CPU did in the disjoint windows [starts, ends)."""
    names = [Cause.DATA_LOADER, Cause.HOST_CODE, *(cause for cause in Cause if cause.kinds)]
    number = {name: n for n, name in enumerate(names)}
    of_api = {api: number[Cause.of_call(api)] for api in {item.api for item in chain.items}}
    calls = np.array([of_api[item.api] for item in chain.items], np.int64)
    free = times.called - cols.gap
    # Each item has three segments: waiting for data, other host code, the call itself.
    edges = np.append(np.stack([free, free + cols.loading, times.called], axis=-1), times.left[-1, -1])
    label = np.tile(
        np.stack([np.full_like(calls, 0), np.full_like(calls, 1), calls], axis=-1).ravel(), len(times.called)
    )
    ns = np.diff(edges)
    causes = {}
    for n, name in enumerate(names):
        upto = np.append(0, np.cumsum(np.where(label == n, ns, 0)))
        within = np.interp(windows[1], edges, upto) - np.interp(windows[0], edges, upto)
        if took := int(np.rint(within.sum())):
            causes[name] = took
    return causes

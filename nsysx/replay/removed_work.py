"""The columns of a chain without some of its calls, of its GPU work, or of the launches that only this work needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nsysx.frames.intervals import I64
from nsysx.frames.statistics import F64
from nsysx.replay.chain_columns import Columns, Flags
from nsysx.replay.replay_bounds import MOST_CODE_OF_LAUNCH_NS, NEAR_STRETCHES


def without_calls(cols: Columns, removed: Flags, between: bool) -> Columns:
    """Return the columns with nothing left of these items but the work that they launch; see ``RemoveCalls``."""
    follows = removed & np.append(False, removed[:-1])
    gap = np.where(follows, cols.loading, cols.gap) if between else cols.gap
    return replace(cols, gap=gap, cost=np.where(removed, 0, cols.cost), waits=cols.waits & ~removed)


def without_ops(cols: Columns, ops: Flags) -> Columns:
    """Return the columns without these GPU ops, and without the launches that only they need."""
    count = np.diff(cols.first_op)
    idle = (count > 0) & (np.bincount(cols.op_item[ops], minlength=len(count)) == count)
    return replace(
        cols,
        op_duration=np.where(ops, 0, cols.op_duration),
        op_pause=np.where(ops, 0, cols.op_pause),
        op_latency=np.where(ops, 0, cols.op_latency),
        cost=np.where(idle, 0, cols.cost),
        waits=cols.waits & ~idle,
    )


def without_launches(cols: Columns, gone: Flags) -> Columns:
    """Return the columns without the calls that are there for these ops alone, and without the host code for them.

    What is called between two of their launches and launches nothing belongs to them. Before and after a run of them there is host code
    that leads to them and back, with other work on one side alone: what is longer than usual between two other launches near them goes
    (DDP on an H100: 10 us before and 24 us after a gradient's copy, 18 us between two other launches). A pause on one side is other host
    code: no more goes than a launch has been seen to take, or than the shorter side.
    """
    launches = np.diff(cols.first_op) > 0
    removed = launches & (np.bincount(cols.op_item[~gone], minlength=len(launches)) == 0)
    ends = np.flatnonzero(launches | cols.waits)
    # Stretch n is what follows the n-th launch or wait, up to the next one, itself included; the first one precedes them all.
    stretch = np.searchsorted(ends, np.arange(len(launches)))
    goes = np.append(removed[ends], False)
    before = np.append(False, goes[:-1])
    calls = launches | cols.waits
    code = cols.gap - cols.loading + np.where(calls, 0, cols.cost)
    host = np.bincount(stretch, code, minlength=len(goes)).astype(np.float64)
    left = np.where(goes & before, 0.0, 1.0)
    enters, leaves = np.flatnonzero(goes & ~before), np.flatnonzero(before & ~goes)
    both, shorter = host[enters] + host[leaves], np.minimum(host[enters], host[leaves])
    usual = _usual(host, np.flatnonzero(~goes & ~before), enters)
    stays = both - np.where(
        np.isfinite(usual), np.clip(both - usual, 0, np.maximum(shorter, MOST_CODE_OF_LAUNCH_NS)), shorter
    )
    behind = np.minimum(stays, host[leaves])
    left[leaves] = behind / np.maximum(host[leaves], 1)
    left[enters] = (stays - behind) / np.maximum(host[enters], 1)
    share = left[stretch]
    cost = np.where(removed, 0, np.where(calls, cols.cost, np.rint(cols.cost * share)))
    gap = cols.loading + np.rint((cols.gap - cols.loading) * share)
    return replace(cols, cost=cost.astype(np.int64), gap=gap.astype(np.int64), waits=cols.waits & ~removed)


def _usual(host: F64, others: I64, places: I64) -> F64:
    """Return the median of ``host`` at the other stretches nearest to each of these places; infinity where there are no others."""
    if not len(others):
        return np.full(len(places), np.inf)
    near = min(NEAR_STRETCHES, len(others))
    medians = np.median(np.lib.stride_tricks.sliding_window_view(host[others], near), axis=1)
    return medians[np.clip(np.searchsorted(others, places) - near // 2, 0, len(medians) - 1)]

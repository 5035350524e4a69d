"""Whether a program measures: its loop reads the time of single operations from pairs of CUDA events, and does little else.

``elapsed_time`` asks both events of a pair, directly one after the other, whether they are done: two cudaEventQuery calls. What
repeats in such a program is the measurement. It is no step: a step would be what the measured operation is part of.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.events.event_bounds import FEWEST_READINGS, MOST_TIMED_OPS, READ_GAP_NS, TIMED_OPS_SHARE
from nsysx.frames import lookup
from nsysx.frames.intervals import I64

#: Why what repeats in such a program is no step.
WHY = "the program times single operations with CUDA events, and what repeats is the measurement"


def measures(calls: pl.DataFrame) -> bool:
    """Return whether one thread of ``calls``, those of one process, does little but measure. Columns as in ``api_calls``."""
    return any(_measures(of_thread) for _, of_thread in calls.group_by("thread", maintain_order=True))


def _measures(calls: pl.DataFrame) -> bool:
    calls = calls.select("start_ns", "end_ns", "name", "gpu_ops").sort("start_ns", "end_ns")
    # An event that a stream waits for at once orders two streams, as those of collectives do: nobody reads its time.
    orders = np.append(lookup.matching(calls["name"], "StreamWaitEvent")[1:], False)
    recorded = calls["start_ns"].to_numpy()[lookup.matching(calls["name"], "EventRecord") & ~orders]
    readings = _readings(calls)
    if len(readings) < FEWEST_READINGS or len(recorded) < 2 * FEWEST_READINGS:
        return False
    begun = int(np.searchsorted(recorded, readings[0]))
    if begun % 2:  # a start without its end before the first reading: these records are no pairs
        return False
    pairs = recorded[: len(recorded) // 2 * 2].reshape(-1, 2)
    ops = calls.select("start_ns", "gpu_ops").filter(pl.col("gpu_ops") > 0)
    total = np.concatenate(([0], np.cumsum(ops["gpu_ops"].to_numpy())))
    launched = ops["start_ns"].to_numpy()
    inside = total[np.searchsorted(launched, pairs[:, 1])] - total[np.searchsorted(launched, pairs[:, 0])]
    meanwhile = int(total[np.searchsorted(launched, pairs[-1, 1])] - total[np.searchsorted(launched, pairs[0, 0])])
    return bool(np.median(inside) <= MOST_TIMED_OPS and inside.sum() >= max(TIMED_OPS_SHARE * meanwhile, 1))


def _readings(calls: pl.DataFrame) -> I64:
    """Return when (ns) pairs of events are read: by two queries in a row, or by the call that tells the time between them."""
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    elapsed = np.flatnonzero(lookup.matching(calls["name"], "EventElapsedTime"))
    if len(elapsed):
        return start[elapsed]
    asked = lookup.matching(calls["name"], "EventQuery")
    follows = np.flatnonzero(asked[:-1] & asked[1:] & (start[1:] - end[:-1] <= READ_GAP_NS))
    kept, last = [], -2
    for i in follows.tolist():
        if i > last + 1:
            kept.append(i)
            last = i
    return start[np.array(kept, np.int64)]

"""Whether a program measures: its loop reads the time of single operations from pairs of CUDA events, and does little else.

``elapsed_time`` asks both events of a pair, directly one after the other, whether they are done: two cudaEventQuery calls. What
repeats in such a program is the measurement. It is no step: a step would be what the measured operation is part of.

A program in C++ waits for the second event of a pair as soon as it is recorded, and then asks for the time between them, which nsys
does not record: cudaEventSynchronize directly behind cudaEventRecord is such a reading.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.events.event_bounds import FEWEST_READINGS, MOST_TIMED_OPS, READ_GAP_NS, TIMED_OPS_SHARE
from nsysx.frames import lookup
from nsysx.frames.intervals import I64

#: Why what repeats in such a program is no step.
WHY = "the program times single operations with CUDA events, and what repeats is the measurement"


def measures(calls: pl.DataFrame, ops: pl.DataFrame) -> bool:
    """Return whether one thread of ``calls``, those of one process, does little but measure. Columns as in ``api_calls``.

    ``ops`` are the GPU ops of the process: call, name.
    """
    return any(_measures(of_thread, ops) for _, of_thread in calls.group_by("thread", maintain_order=True))


def _measures(calls: pl.DataFrame, ops: pl.DataFrame) -> bool:
    calls = calls["call", "start_ns", "end_ns", "name", "gpu_ops"].sort("start_ns", "end_ns")
    # torch asks before each call that a capture may not hold whether there is one: two calls with such a question between them are
    # neighbours.
    calls = calls.filter(~pl.Series(lookup.matching(calls["name"], "StreamIsCapturing")))
    # An event that a stream waits for at once orders two streams, as those of collectives do: nobody reads its time.
    orders = np.append(lookup.matching(calls["name"], "StreamWaitEvent")[1:], False)
    recorded = calls["start_ns"].to_numpy()[lookup.matching(calls["name"], "EventRecord") & ~orders]
    readings = _readings(calls, recorded)
    if len(readings) < FEWEST_READINGS or len(recorded) < 2 * FEWEST_READINGS:
        return False
    begun = int(np.searchsorted(recorded, readings[0]))
    if begun % 2:  # a start without its end before the first reading: these records are no pairs
        return False
    pairs = recorded[: len(recorded) // 2 * 2].reshape(-1, 2)
    working = calls["call", "start_ns", "gpu_ops"].filter(pl.col("gpu_ops") > 0)
    total = np.concatenate(([0], np.cumsum(working["gpu_ops"].to_numpy())))
    first, last = np.searchsorted(working["start_ns"].to_numpy(), pairs).T
    inside = total[last] - total[first]
    few = np.median(inside) <= MOST_TIMED_OPS or _repeats_one(working["call"], first, last, ops)
    return bool(few and inside.sum() >= max(TIMED_OPS_SHARE * int(total[last[-1]] - total[first[0]]), 1))


def _repeats_one(calls: pl.Series, first: I64, last: I64, ops: pl.DataFrame) -> bool:
    """Return whether most pairs have but one operation between them, again and again: ``first`` to ``last`` of ``calls``."""
    names = ops.filter(ops["call"].is_in(calls.implode())).group_by("call").agg(pl.col("name").cast(pl.String).unique())
    of_call: dict[int, list[str | None]] = dict(names.iter_rows())
    told = calls.to_list()
    alike = [len({n for c in told[a:b] for n in of_call.get(c, ())}) == 1 for a, b in zip(first, last, strict=True)]
    return 2 * sum(alike) > len(alike)


def _readings(calls: pl.DataFrame, recorded: I64) -> I64:
    """Return when (ns) pairs of events are read: by the call that tells the time between them, by a wait for one that was just
    recorded, or by two queries in a row.

    A wait is for the end of a copy, or of anything else, where not two events are ``recorded`` (ns) from one such wait to the next.
    """
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    elapsed = np.flatnonzero(lookup.matching(calls["name"], "EventElapsedTime"))
    if len(elapsed):
        return start[elapsed]
    waited = lookup.matching(calls["name"], "EventSynchronize")[1:] & lookup.matching(calls["name"], "EventRecord")[:-1]
    if waited.any():
        waits = start[1:][waited]
        between = np.diff(np.searchsorted(recorded, waits), prepend=0)
        return waits if np.median(between) == 2 else waits[:0]
    asked = lookup.matching(calls["name"], "EventQuery")
    follows = np.flatnonzero(asked[:-1] & asked[1:] & (start[1:] - end[:-1] <= READ_GAP_NS))
    kept, last = [], -2
    for i in follows.tolist():
        if i > last + 1:
            kept.append(i)
            last = i
    return start[np.array(kept, np.int64)]

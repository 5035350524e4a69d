"""Waits of a launching thread for the batch that another thread or process prepares, as calls of the operating system show them.

A DataLoader with workers hands over its batches through a queue: the thread that launches waits in ``sem_timedwait`` or ``poll``
until one arrives, and then copies it to the GPU. The same holds for any other program that is fed that way. Where ranges mark the
loading, they say it better, and nothing is inferred.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.events.correlate import Correlated
from nsysx.events.event_bounds import FEWEST_BATCHES, LONG_BATCH_WAIT_NS
from nsysx.events.nvtx_ranges import Flags
from nsysx.frames import frame_columns, lookup
from nsysx.frames.frame_columns import PHASE_SPANS
from nsysx.frames.intervals import I64
from nsysx.reading.trace import Trace

DATA = "data"
#: Calls in which a thread waits until another thread or process has something for it.
WAITS = r"^(sem_(timed|clock)?wait|pthread_cond_(timed|clock)?wait|futex|poll|ppoll|select|pselect6?|epoll_p?wait|read|recv(msg|from)?)\b"


def batch_waits(trace: Trace, correlated: Correlated, marked: pl.DataFrame) -> pl.DataFrame:
    """Return the waits for batches as spans of the phase "data": columns of ``phase_spans``.

    A wait is one if its thread next launches a copy to the GPU, makes no CUDA call meanwhile, and is in no phase. ``marked`` are the
    phases that ranges mark: processes in which they mark loading have none here.
    """
    none = pl.DataFrame(schema=frame_columns.schema(PHASE_SPANS))
    calls, ops = correlated.api_calls, correlated.gpu_ops
    if not trace.osrt.height:
        return none
    waits = trace.osrt.filter(pl.col("end_ns") - pl.col("start_ns") >= LONG_BATCH_WAIT_NS)
    waits = waits.filter(lookup.matching(waits["name"], WAITS))
    if not waits.height:
        return none
    process_of = dict(calls["thread", "process"].unique().iter_rows())
    loading = set(marked.filter(pl.col("phase").cast(pl.String) == DATA)["process"].unique())
    to_gpu = ops["call"].filter((ops["op_kind"] == "memcpy") & (ops["name"] == "HtoD")).drop_nulls().unique()
    copies = np.zeros(calls.height + 1, np.bool_)
    copies[to_gpu.to_numpy()] = True
    spans_of = [none]
    for (thread,), of_thread in waits.sort("start_ns").group_by("thread", maintain_order=True):
        process = process_of.get(thread)
        if process is None or process in loading:
            continue
        called = calls.filter(pl.col("thread") == thread).sort("start_ns")
        start, end = of_thread["start_ns"].to_numpy(), of_thread["end_ns"].to_numpy()
        working = called.filter(pl.col("gpu_ops") > 0)
        following = np.searchsorted(working["start_ns"].to_numpy(), end)
        fed = copies[np.append(working["call"].to_numpy(), calls.height)[following]]
        apart = _touching_no_span(start, end, called) & _touching_no_span(
            start, end, marked.filter(pl.col("thread") == thread)
        )
        spans = of_thread.filter(pl.Series(fed & apart))
        if spans.height >= FEWEST_BATCHES:
            owner, phase = pl.lit(process, pl.Int64).alias("process"), pl.lit(DATA).cast(none.schema["phase"])
            spans = spans.select(owner, "thread", "start_ns", "end_ns", phase.alias("phase"))
            spans_of.append(spans.filter((pl.col("start_ns") >= pl.col("end_ns").cum_max().shift(1)).fill_null(True)))
    return pl.concat(spans_of)


def _touching_no_span(start: I64, end: I64, spans: pl.DataFrame) -> Flags:
    """Return which of the intervals touch none of the spans of their thread, which are in order."""
    begun = np.searchsorted(np.sort(spans["start_ns"].to_numpy()), end)
    over = np.searchsorted(np.sort(spans["end_ns"].to_numpy()), start, side="right")
    apart: Flags = begun == over
    return apart

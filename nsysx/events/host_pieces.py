"""The idle time of a device that is the host's doing, and what its threads were in meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from nsysx.catalogue import Cause
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.frames.intervals import I64, StepFunction, merged

#: The causes of the ledger that are the host's own doing, by the column that holds them.
CAUSES = {"idle_ns": Cause.HOST_CODE.number, "loader_idle_ns": Cause.DATA_LOADER.number}
HOST_CODE = (Cause.HOST_CODE, Cause.DATA_LOADER)


def host_pieces(profile: Profile, causes: Sequence[Cause] = HOST_CODE) -> pl.DataFrame:
    """Return the pieces of idle time of the shown device with these causes, cut to the window, in order of time.

    Columns: start_ns, end_ns, cause, op (that ended the gap), thread (that was late, -1 for none), module and phase of the op.
    """
    start, end = profile.window
    pieces = profile.ledgers.idle_of(profile.process, profile.device).filter(
        (pl.col("end_ns") > start)
        & (pl.col("start_ns") < end)
        & pl.col("cause").is_in([cause.number for cause in causes])
    )
    op = pieces["op"].fill_null(-1).to_numpy()
    ops = profile.attributed.gpu_ops
    return pieces.select(
        pl.max_horizontal("start_ns", pl.lit(start)).alias("start_ns"),
        pl.min_horizontal("end_ns", pl.lit(end)).alias("end_ns"),
        "cause",
        "op",
        pl.col("thread").fill_null(-1),
        lookup.at(ops["module"], op).alias("module"),
        lookup.at(ops["phase"], op).alias("phase"),
    ).sort("start_ns")


def _labeled(start: I64, end: I64) -> StepFunction:
    """Return which of the spans of a thread is open at each instant, -1 for none; of spans that overlap the first."""
    order = np.lexsort((-end, start))
    reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(end[order])[:-1]))
    begin = np.maximum(start[order], reach)
    real = end[order] > begin
    begin, finish, row = begin[real], end[order][real], order[real]
    if not len(row):
        return StepFunction(np.empty(0, np.int64), np.empty(0, np.int64))
    times = merged([begin, np.sort(finish)])
    piece = np.searchsorted(begin, times[:-1], side="right") - 1
    return StepFunction(times, np.where(times[:-1] < finish[piece], row[piece], -1))


def split(pieces: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the pieces cut by what their threads were in: columns of ``pieces``, and span (row of ``spans``, null for none).

    ``spans`` has thread, start_ns, end_ns. The parts sum to the pieces to the nanosecond.
    """
    thread = pieces["thread"].to_numpy()
    of_span = spans["thread"].to_numpy()
    start, end = (pieces[c].to_numpy() for c in ("start_ns", "end_ns"))
    parts = []
    for who in np.unique(thread).tolist():
        of_thread, of_spans = np.flatnonzero(thread == who), np.flatnonzero(of_span == who)
        open_ = _labeled(*(spans[c].to_numpy()[of_spans] for c in ("start_ns", "end_ns")))
        times = merged([start[of_thread], end[of_thread], open_.borders_in(start[of_thread], end[of_thread])])
        piece = np.searchsorted(start[of_thread], times[:-1], side="right") - 1
        inside = (piece >= 0) & (times[:-1] < end[of_thread][piece])
        span = open_.at(times[:-1][inside]).astype(np.int64)
        parts.append(
            (
                of_thread[piece[inside]],
                times[:-1][inside],
                times[1:][inside],
                np.where(span < 0, -1, np.append(of_spans, -1)[span]),
            )
        )
    row, begin, finish, span = (
        np.concatenate([p[i] for p in parts]) if parts else np.empty(0, np.int64) for i in range(4)
    )
    numbers = pl.Series("span", span, dtype=pl.Int64)
    cut = pieces[row].with_columns(
        pl.Series("start_ns", begin),
        pl.Series("end_ns", finish),
        numbers.set(numbers < 0, None) if len(row) else numbers,
    )
    return cut.sort("start_ns")

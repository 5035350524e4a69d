"""Which place in the program a window between two CUDA events belongs to, if a loop times several places in turn.

No stack says where an event was recorded. But a loop over three timed calls reads three windows per round, always in the
same order: the work inside each window, and the work before it, repeats every third window.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from nsysx.analyses.helpers.analysis_bounds import FEWEST_LOOP_ROUNDS, MOST_LOOP_PLACES
from nsysx.frames.intervals import I64

_KINDS = ("kernel", "memcpy", "memset")


def placed(pairs: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the windows with ``loop`` (its number), ``turn`` (from 0) and ``turns`` (places of a round; 1 where there is one).

    ``pairs`` are windows with their process, thread, device and stream, ``ops`` all GPU work. In a round ``kernels`` and
    ``gpu_ops`` of the first windows, which may do more, do not tell a place: ``like_kernels`` and ``like_ops`` are those of the
    window a round later.
    """
    groups: list[pl.DataFrame] = []
    for (process, _, device, stream), part in pairs.group_by(
        "process", "thread", "device", "stream", maintain_order=True
    ):
        part = part.sort("start_ns", "end_ns")
        on_stream = (ops["process"] == process) & (ops["device"] == device) & (ops["stream"] == stream)
        before = _work_kinds_before(part, ops.filter(on_stream))
        inside = part["module", "phase", "kernels", "gpu_ops"].rows()
        turns = _period([(*row, int(bits)) for row, bits in zip(inside, before, strict=True)])
        position = np.arange(part.height)
        like = np.where((position < turns) & (turns > 1), position + turns, position)
        groups.append(
            part.with_columns(
                turn=pl.Series(position % turns, dtype=pl.Int64),
                turns=pl.lit(turns, pl.Int64),
                loop=pl.lit(len(groups), pl.Int64),
                like_kernels=part["kernels"].gather(like),
                like_ops=part["gpu_ops"].gather(like),
            )
        )
    return pl.concat(groups).sort("start_record", "end_record")


def _work_kinds_before(part: pl.DataFrame, ops: pl.DataFrame) -> I64:
    """Return which kinds of work the stream starts between the previous window and each window, as bits."""
    start = part["start_ns"].to_numpy()
    after = np.concatenate((start[:1], part["end_ns"].to_numpy()[:-1]))
    bits = np.zeros(part.height, np.int64)
    for bit, kind in enumerate(_KINDS):
        begun = np.sort(ops["start_ns"].filter(ops["op_kind"] == kind).to_numpy())
        bits |= (np.searchsorted(begun, start) > np.searchsorted(begun, after)).astype(np.int64) << bit
    return bits


def _period(signs: Sequence[tuple[object, ...]]) -> int:
    """Return after how many windows the same ones recur, 1 if all are alike or in no order; the first may differ."""
    for turns in range(1, min(MOST_LOOP_PLACES, len(signs) // FEWEST_LOOP_ROUNDS) + 1):
        if all(sign == next_sign for sign, next_sign in zip(signs[turns:-turns], signs[2 * turns :], strict=True)):
            return turns
    return 1

"""Steps of a job that only infers: forward passes up to the collective in which its ranks meet.

Where no optimizer ends a step, each call of the network is proposed as one. Ranks that share the samples of a query or of a batch call it
several times, each as often as its share asks for, and meet once behind all of them, to gather what they found:

    proposed   |f   |f   |f   |f   |f   |f   |f   |f   |        f: one forward pass
    collective                  c                   c
    step       |                   |                   |

What one rank has more of than the others stands in each pass, and the wait for it in every so many of them alone: neither is a matter of
one pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.event_bounds import FEWEST_MEETINGS, MOST_STEP_PARTS
from nsysx.frames.intervals import I64


def up_to_meetings(
    cpu: pl.DataFrame, ops: pl.DataFrame, seams: Sequence[int] = ()
) -> tuple[pl.DataFrame, dict[int, int]]:
    """Return the steps of each process, with the passes up to a collective as one, and process -> how many passes where that is so.

    ``cpu``: process, index, number, thread, start_ns, end_ns, cut. Passes before the first whole step of a window are none; those behind
    the last collective are a step that is cut. ``seams``: where the later parts of the capture begin.
    """
    made, parts = [], {}
    for (process,), steps in cpu.group_by("process", maintain_order=True):
        launched = ops.filter((pl.col("process") == process) & pl.col("call_start_ns").is_not_null())
        part = np.searchsorted(np.asarray(seams, np.int64), steps["start_ns"].to_numpy(), side="right")
        windows = [steps.filter(part == number) for number in np.unique(part)]
        collectives = launched.filter(pl.col("cls") == DeviceActivity.COMM.value)["call_start_ns"].sort().to_numpy()
        met = [_with_calls(window, collectives) for window in windows]
        size = _passes(met)
        if size is None or not _only_infers(steps, launched):
            made.append(steps)
            continue
        parts[int(str(process))] = size
        whole = pl.concat([_in_wholes(window, behind, size) for window, behind in zip(windows, met, strict=True)])
        made.append(whole.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("index")))
    return pl.concat(made) if made else cpu, parts


def _with_calls(steps: pl.DataFrame, called: I64) -> I64:
    """Return in which of these steps, counted from the first, one of these calls begins."""
    held = np.searchsorted(called, steps["end_ns"].to_numpy()) - np.searchsorted(called, steps["start_ns"].to_numpy())
    return np.flatnonzero(held)


def _passes(met: Sequence[I64]) -> int | None:
    """Return how many passes lie between two meetings, the last of them included, None where that differs or is one.

    ``met``: for each window, in which passes a collective was launched.
    """
    distances = np.unique(np.concatenate([np.diff(window) for window in met]))
    if len(distances) != 1 or not 1 < distances[0] <= MOST_STEP_PARTS:
        return None
    return int(distances[0]) if max(map(len, met)) >= FEWEST_MEETINGS else None


def _only_infers(steps: pl.DataFrame, launched: pl.DataFrame) -> bool:
    """Return whether these passes compute no gradient, by their phases."""
    called = pl.col("call_start_ns").is_between(steps["start_ns"][0], steps["end_ns"][-1])
    phases = set(launched.filter(called)["phase"].cast(pl.String).unique().to_list())
    return "evaluation" in phases and not phases & {"backward", "optimizer"}


def _in_wholes(steps: pl.DataFrame, met: I64, size: int) -> pl.DataFrame:
    """Return the passes of one window in steps that end with a meeting."""
    if not len(met):
        return steps.clear()
    first = np.arange((int(met[0]) + 1) % size, steps.height, size)
    last = np.minimum(first + size, steps.height) - 1
    return steps[first].with_columns(
        pl.Series("end_ns", steps["end_ns"].to_numpy()[last]),
        pl.Series("cut", (last - first + 1 < size) | steps["cut"].to_numpy()[last]),
    )

"""Which parts of a long capture are read: its first steps, a stretch of later ones that stands for all, and the longest ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.events import nvtx_ranges, trend
from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64
from nsysx.reading.capture_parts import CaptureParts, Choice
from nsysx.reading.trace import Sampled, Trace

#: Steps of the cold start, of the stretch (or so many more), and of those in front of it: they fill the queue of the device.
_COLD, _STRETCH, _MORE, _LEAD = 48, 128, 32, 8
#: A capture with fewer steps than so many times those that would be read is read as a whole.
_WORTH = 3
#: A step is long if it takes so many times as long as the median one, and rare if fewer than one in a stretch are.
_LONG = 1.5
#: Rare long steps that take more than this share of the time are what the report is about: then every step is read.
_MOST = 0.1
#: The stretch stands for all steps if their means differ by less than this share; so close ones are equally close.
_CLOSE, _AS_CLOSE = 0.01, 0.001
#: And so far each tenth of the stretch may be from the same tenth of all.
_DECILE = 0.1
#: So far the time of all GPU work may be from what the steps that were read make expect.
_WORK_ALIKE = 0.02
#: So far the mean step on the device may be from that on the CPU.
_ALIKE = 0.02
#: Long steps that are read, each with so many before and after it; and the last steps, with what comes after them.
_READ, _BESIDE, _LAST = 8, 1, 2
#: Before and after everything in a session (ns).
_BEFORE, _NEVER = -(1 << 60), 1 << 60


def choose(look: Trace) -> CaptureParts | None:
    """Return which parts of a capture to read, of which ``look`` has the NVTX rows; None if all of it is to be read.

    Parts are enough where one process alone has steps, which ranges mark one after another, and a stretch of them is as long as all.
    """
    steps = _steps(look)
    if steps is None or steps.height < _WORTH * (_COLD + _LEAD + _STRETCH):
        return None
    start, end = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    length = np.append(np.diff(start), end[-1] - start[-1])  # with what lies behind a step
    later = length[_COLD:-1]
    long = later > _LONG * np.median(later)
    if long.sum() * _STRETCH >= len(later):  # they belong to the usual steps
        long = np.zeros(len(later), np.bool_)
    if later[long].sum() > _MOST * later.sum() or trend.trend(later[~long]).kind in ("growing", "falling"):
        return None
    stretch = _stretch(later, long)
    if stretch is None or not _alike(later[stretch[0] : stretch[1] + 1], later[~long]):
        return None
    first, last = (_COLD + offset for offset in stretch)
    rows = np.flatnonzero(long) + _COLD
    rows = rows[np.argsort(-length[rows], kind="stable")]
    # One more step shows where the last of a stretch ends.
    wanted = [(0, _COLD), (first - _LEAD, last + 2), (len(start) - _LAST, len(start))]
    wanted += [(i - _BESIDE, i + _BESIDE + 1) for i in rows[:_READ].tolist()]
    parts = _apart(sorted(wanted))
    long_steps = tuple((int(start[i]), int(length[i])) for i in rows)
    edges = [_BEFORE, *start[1:].tolist(), _NEVER]
    main = next(n for n, (a, b) in enumerate(parts) if a <= first < b)
    return CaptureParts(
        tuple((edges[a], edges[b]) for a, b in parts), main, Sampled(length, parts, first, last, long_steps)
    )


def is_step(text: str) -> bool:
    """Return whether the text of a range may mean a step, whoever wrote it."""
    return any(nvtx_ranges.meaning(text, by_probe)[0] == "step" for by_probe in (True, False))


def _apart(wanted: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return stretches of steps in their order, those that meet as one."""
    apart: list[tuple[int, int]] = []
    for a, b in wanted:
        if apart and a <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(b, apart[-1][1]))
        else:
            apart.append((a, b))
    return tuple(apart)


def stands(given: Profile) -> bool:
    """Return whether the parts of a long capture that were read tell what all of it would.

    Steps are found as ranges mark them, a step takes as long on the device as on the CPU, the time of all GPU work is what the steps that
    were read make expect, and no row was left out or merged, for those that were not read are counted as they are.
    """
    steps, sampled = given.steps, given.trace.sampled
    if sampled is None or steps.steady is None or steps.whole or steps.parts != 1 or given.trace.left_out:
        return False
    first, last = steps.steady
    if steps.source not in ("nsysx", "user") or last - first + 1 < _STRETCH // 2:
        return False
    if steps.cpu.filter(pl.col("process") == steps.process).height != len(sampled.indices):
        return False
    if abs(gpu_work_error(given, sampled)) > _WORK_ALIKE:
        return False
    of_process = steps.windows.filter(pl.col("process") == steps.process)
    if not of_process.height:
        return True
    on_device = int((of_process["end_ns"] - of_process["start_ns"]).to_numpy().max()) / (last - first + 1)
    return abs(on_device / float(sampled.read_ns.mean()) - 1) <= _ALIKE


def gpu_work_error(given: Profile, sampled: Sampled) -> float:
    """Return by which share the GPU time that the steps that were read make expect is off that of all GPU work, 0 without any."""
    ops, counted = given.attributed.gpu_ops, sum(ns for _, ns in sampled.totals.work.values())
    launched = (ops["process"] == given.process) & ops["call_start_ns"].is_not_null()
    window = given.steps.cpu_windows.filter(pl.col("process") == given.process)
    if not counted or not window.height:
        return 0.0
    begin, end = window.select("start_ns", "end_ns").row(0)
    ns = (ops["end_ns"] - ops["start_ns"]).to_numpy()
    inside = (
        launched.fill_null(False).to_numpy()
        & ops["call_start_ns"].is_between(begin, end, closed="left").fill_null(False).to_numpy()
    )
    of_step = float(ns[inside].sum()) / max(given.scope.steps, 1)
    unread = len(sampled.lengths_ns) - len(sampled.indices)
    return (float(ns.sum()) + of_step * unread) / counted - 1


def _stretch(later: I64, long: npt.NDArray[np.bool_]) -> tuple[int, int] | None:
    """Return the first and last step of the stretch without long ones whose mean is closest to that of all but those, the last of equals.

    Steps often repeat after a number of them (lengths of an epoch, a save): of a stretch of any length one covers whole periods.
    """
    usual_ns = float(later[~long].mean())
    ends, longs = (np.concatenate(([0], np.cumsum(values))) for values in (later, long.astype(np.int64)))
    best, chosen = _CLOSE, None
    for size in range(_STRETCH, min(_STRETCH + _MORE, len(later) - _LEAD) + 1):
        means = (ends[size:] - ends[:-size]) / size
        off = np.where(longs[size:] == longs[:-size], np.abs(means / usual_ns - 1), np.inf)
        off[:_LEAD] = np.inf  # they are read before it
        if off.min() < best - _AS_CLOSE or (chosen is None and off.min() <= best):
            best = float(off.min())
            first = int(np.flatnonzero(off <= best + _AS_CLOSE)[-1])
            chosen = first, first + size - 1
    return chosen


def _alike(some: I64, every: I64) -> bool:
    """Return whether some lengths are distributed as all of them are."""
    deciles = np.arange(0.1, 1.0, 0.1)
    return bool((np.abs(np.quantile(some, deciles) / np.quantile(every, deciles) - 1) <= _DECILE).all())


def _steps(look: Trace) -> pl.DataFrame | None:
    """Return the steps of the only process that has any: start_ns, end_ns; None for several, or if some overlap."""
    texts = look.nvtx["text"].unique().drop_nulls().cast(pl.String).to_list()
    named = [text for text in texts if is_step(text)]
    rows = look.nvtx.filter(pl.col("text").cast(pl.String).is_in(named))
    ranges = nvtx_ranges.read(replace(look, frames={**look.frames, "nvtx": rows})).ranges
    steps = ranges.filter(pl.col("kind") == "step")
    steps = steps.filter("own") if steps["own"].any() else steps
    if steps["process"].n_unique() != 1 or steps["thread"].n_unique() != 1:
        return None
    steps = steps.sort("start_ns")
    if (steps["start_ns"] < steps["end_ns"].shift(1)).any():
        return None
    return steps.select("start_ns", "end_ns")


CHOICE = Choice(is_step, choose)

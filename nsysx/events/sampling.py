"""Which parts of a long capture are read: its first steps, a stretch of later ones that stands for all, and the longest ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.events import nvtx_ranges, trend
from nsysx.events.event_bounds import (
    AS_CLOSE_MEANS_SHARE,
    CLOSE_MEANS_SHARE,
    COLD_START_STEPS,
    DEVICE_AND_CPU_STEP_SHARE,
    LAST_STEPS_READ,
    LEADING_STEPS,
    MORE_STRETCH_STEPS,
    MOST_LONG_STEPS_READ,
    RARE_LONG_STEP_TIMES,
    RARE_LONG_STEPS_SHARE,
    STEPS_READ_BESIDE,
    STRETCH_STEPS,
    TENTHS_APART_SHARE,
    WORK_AS_EXPECTED_SHARE,
    WORTH_SAMPLING_TIMES,
)
from nsysx.events.profile import Profile
from nsysx.frames.frame_bounds import LONG_AGO_NS
from nsysx.frames.intervals import I64
from nsysx.reading.capture_parts import CaptureParts, Choice
from nsysx.reading.reading_bounds import AFTER_SESSION_NS
from nsysx.reading.trace import Sampled, Trace


def choose(look: Trace) -> CaptureParts | None:
    """Return which parts of a capture to read, of which ``look`` has the NVTX rows; None if all of it is to be read.

    Parts are enough where one process alone has steps, which ranges mark one after another, and a stretch of them is as long as all.
    """
    steps = _steps(look)
    if steps is None or steps.height < WORTH_SAMPLING_TIMES * (COLD_START_STEPS + LEADING_STEPS + STRETCH_STEPS):
        return None
    start, end = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    length = np.append(np.diff(start), end[-1] - start[-1])  # with what lies behind a step
    later = length[COLD_START_STEPS:-1]
    long = later > RARE_LONG_STEP_TIMES * np.median(later)
    if long.sum() * STRETCH_STEPS >= len(later):  # they belong to the usual steps
        long = np.zeros(len(later), np.bool_)
    if later[long].sum() > RARE_LONG_STEPS_SHARE * later.sum() or trend.trend(later[~long]).kind in (
        "growing",
        "falling",
    ):
        return None
    stretch = _stretch(later, long)
    if stretch is None or not _alike(later[stretch[0] : stretch[1] + 1], later[~long]):
        return None
    first, last = (COLD_START_STEPS + offset for offset in stretch)
    rows = np.flatnonzero(long) + COLD_START_STEPS
    rows = rows[np.argsort(-length[rows], kind="stable")]
    # One more step shows where the last of a stretch ends.
    wanted = [(0, COLD_START_STEPS), (first - LEADING_STEPS, last + 2), (len(start) - LAST_STEPS_READ, len(start))]
    wanted += [(i - STEPS_READ_BESIDE, i + STEPS_READ_BESIDE + 1) for i in rows[:MOST_LONG_STEPS_READ].tolist()]
    parts = _merged_stretches(sorted(wanted))
    long_steps = tuple((int(start[i]), int(length[i])) for i in rows)
    edges = [LONG_AGO_NS, *start[1:].tolist(), AFTER_SESSION_NS]
    main = next(n for n, (a, b) in enumerate(parts) if a <= first < b)
    return CaptureParts(
        tuple((edges[a], edges[b]) for a, b in parts), main, Sampled(length, parts, first, last, long_steps)
    )


def is_step(text: str) -> bool:
    """Return whether the text of a range may mean a step, whoever wrote it."""
    return any(nvtx_ranges.meaning(text, by_probe)[0] == "step" for by_probe in (True, False))


def _merged_stretches(wanted: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
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
    if steps.source not in ("nsysx", "user") or last - first + 1 < STRETCH_STEPS // 2:
        return False
    if steps.cpu.filter(steps.cpu["process"] == steps.process).height != len(sampled.indices):
        return False
    if abs(gpu_work_error(given, sampled)) > WORK_AS_EXPECTED_SHARE:
        return False
    of_process = steps.windows.filter(steps.windows["process"] == steps.process)
    if not of_process.height:
        return True
    on_device = int((of_process["end_ns"] - of_process["start_ns"]).to_numpy().max()) / (last - first + 1)
    return abs(on_device / float(sampled.read_ns.mean()) - 1) <= DEVICE_AND_CPU_STEP_SHARE


def gpu_work_error(given: Profile, sampled: Sampled) -> float:
    """Return by which share the GPU time that the steps that were read make expect is off that of all GPU work, 0 without any."""
    ops, counted = given.attributed.gpu_ops, sum(ns for _, ns in sampled.totals.work.values())
    launched = (ops["process"] == given.process) & ops["call_start_ns"].is_not_null()
    window = given.steps.cpu_windows.filter(pl.col("process") == given.process)
    if not counted or not window.height:
        return 0.0
    begin, end = window["start_ns", "end_ns"].row(0)
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
    best, chosen = CLOSE_MEANS_SHARE, None
    for size in range(STRETCH_STEPS, min(STRETCH_STEPS + MORE_STRETCH_STEPS, len(later) - LEADING_STEPS) + 1):
        means = (ends[size:] - ends[:-size]) / size
        off = np.where(longs[size:] == longs[:-size], np.abs(means / usual_ns - 1), np.inf)
        off[:LEADING_STEPS] = np.inf  # they are read before it
        if off.min() < best - AS_CLOSE_MEANS_SHARE or (chosen is None and off.min() <= best):
            best = float(off.min())
            first = int(np.flatnonzero(off <= best + AS_CLOSE_MEANS_SHARE)[-1])
            chosen = first, first + size - 1
    return chosen


def _alike(some: I64, every: I64) -> bool:
    """Return whether some lengths are distributed as all of them are."""
    deciles = np.arange(0.1, 1.0, 0.1)
    return bool((np.abs(np.quantile(some, deciles) / np.quantile(every, deciles) - 1) <= TENTHS_APART_SHARE).all())


def _steps(look: Trace) -> pl.DataFrame | None:
    """Return the steps of the only process that has any: start_ns, end_ns; None for several, or if some overlap."""
    texts = look.nvtx["text"].unique().drop_nulls().cast(pl.String).to_list()
    named = [text for text in texts if is_step(text)]
    rows = look.nvtx.filter(pl.col("text").cast(pl.String).is_in(named))
    ranges = nvtx_ranges.read(replace(look, frames={**look.frames, "nvtx": rows})).ranges
    steps = ranges.filter(ranges["kind"] == "step")
    steps = steps.filter("own") if steps["own"].any() else steps
    if steps["process"].n_unique() != 1 or steps["thread"].n_unique() != 1:
        return None
    steps = steps.sort("start_ns")
    if (steps["start_ns"] < steps["end_ns"].shift(1)).any():
        return None
    return steps["start_ns", "end_ns"]


CHOICE = Choice(is_step, choose)

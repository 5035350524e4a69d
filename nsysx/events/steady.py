"""Which steps are steady: what comes after the warm-up and before the end that nothing closes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx import ids
from nsysx.catalogue import Call
from nsysx.events.attribute import Attributed
from nsysx.events.event_bounds import (
    FIRST_CALL_STEP_SHARE,
    START_UP_STEP_TIMES,
    UNMARKED_STEPS_TIMES,
    WARMUP_EXCESS,
    WHOLE_WINDOW_STEPS,
)
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.one_time import one_time_steps
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.model import Row

Times = npt.NDArray[np.float64]


def _with_full_work(cpu: pl.DataFrame, ops: pl.DataFrame) -> Flags:
    """Return for each step of one process whether it launches at least half as much GPU work as the median step."""
    starts, last_end = cpu["start_ns"].to_numpy(), int(cpu["end_ns"].to_numpy()[-1])
    of_process = lookup.having(ops, process=cpu["process"][0])
    called = of_process["call_start_ns"].drop_nulls().to_numpy()
    step_of = np.searchsorted(starts, called, side="right") - 1
    counts = np.bincount(step_of[(step_of >= 0) & (called < last_end)], minlength=cpu.height)
    return np.asarray(counts >= np.median(counts) / 2)


def steps_of_probe(probes: Sequence[Row], process: int) -> Row:
    """Return what the probe of a process wrote about its steps, and as "xray" which it X-rayed; empty when there is none.

    A step of several has the number of the first.
    """
    record = next(iter(ids.records_of(probes, process)), {})
    told, xray = record.get("steps"), record.get("xray")
    return (told if isinstance(told, dict) else {}) | {"xray": xray.get("steps") if isinstance(xray, dict) else None}


def worked(steps: pl.DataFrame, probes: Sequence[Row]) -> pl.DataFrame:
    """Leave out the steps that were none, as the probe knows.

    Those that began and held nothing (a fetch that found its loader exhausted), and those before the first: networks that were called
    before training, in a program of which the report holds training, too.
    """
    for process in lookup.present(steps["process"]):
        told = steps_of_probe(probes, process)
        empty, first = told.get("empty"), told.get("first")
        numbers = [n for n in empty if isinstance(n, int)] if isinstance(empty, list) else []
        of_process = pl.col("process") == process
        if numbers:
            steps = steps.filter(~(of_process & pl.col("number").is_in(numbers)))
        if isinstance(first, int) and first > 0 and steps.filter(of_process & (pl.col("number") >= first)).height:
            steps = steps.filter(~of_process | (pl.col("number") >= first))
    return steps


def _tiles(cpu: pl.DataFrame, gpu: pl.DataFrame) -> tuple[I64, I64]:
    """Return begin and end of each step on the device on which it is longest; on the CPU where there is no GPU work."""
    if not gpu.height:
        return cpu["start_ns"].to_numpy(), cpu["end_ns"].to_numpy()
    index, tile = cpu["index"].to_numpy(), gpu["index"].to_numpy()
    size = max(index.max(initial=-1), tile.max(initial=-1)) + 1
    begin, end = np.zeros(size, np.int64), np.zeros(size, np.int64)
    by_length = np.argsort((gpu["start_ns"] - gpu["end_ns"]).to_numpy(), kind="stable")[::-1]
    for times, column in ((begin, "start_ns"), (end, "end_ns")):
        times[tile[by_length]] = gpu[column].to_numpy()[by_length]  # the last assignment, of the longest, holds
    return begin[index], end[index]


def _usual_and_long_ns(length: I64, last: int) -> tuple[float, float]:
    """Return the usual length of the later steps, and the length from which a step is long (ns)."""
    half = len(length) // 2
    tail = length[half : last + 1] if last >= half else length[-1:]
    usual = float(np.median(tail))
    return usual, usual * (1 + WARMUP_EXCESS) + 3 * float(np.median(np.abs(tail - usual)))


def _first_calls(cpu: pl.DataFrame, attributed: Attributed, last: int) -> Times:
    """Return how long each step loads code and allocates (ns), more than the later steps do."""
    n = cpu.height
    calls = attributed.api_calls
    kind = calls["kind"]
    once = (kind == Call.LOAD) | (kind == Call.ALLOC) | (kind == Call.HOST_ALLOC)
    loads = lookup.having(calls["process", "start_ns", "self_ns"].filter(once), process=cpu["process"][0])
    loads = loads.sort("start_ns")
    step_of = np.searchsorted(cpu["start_ns"].to_numpy(), loads["start_ns"].to_numpy(), side="right") - 1
    first_calls = np.zeros(n)
    np.add.at(first_calls, step_of[step_of >= 0], loads["self_ns"].to_numpy()[step_of >= 0])
    # What every step pays is not a first call: an allocator that keeps missing is part of the steady step.
    usual = float(np.median(first_calls[n // 2 : last + 1])) if last >= n // 2 else 0.0
    return first_calls - usual


def _behind_start_up(window: tuple[I64, I64], works: Flags) -> int:
    """Return which step stands for a program whose first alone is left: a later one that ``works`` on the GPU, if it is far shorter."""
    length = window[1] - window[0]
    later = np.flatnonzero(works & (START_UP_STEP_TIMES * length < length[0]))
    return int(later[0]) if later.size else 0


def _xrayed(cpu: pl.DataFrame, told_of: Row) -> Flags:
    """Return which steps an X-ray made longer; none where all were."""
    told = told_of.get("xray")
    numbers = [n for n in told if isinstance(n, int)] if isinstance(told, list) else []
    marked = np.sort(np.asarray(numbers, np.int64))
    first = cpu["number"].to_numpy()
    traced = np.searchsorted(marked, first + cpu["parts"].to_numpy()) > np.searchsorted(marked, first)
    return traced if not traced.all() else np.zeros(cpu.height, np.bool_)


def steady_steps(
    cpu: pl.DataFrame, gpu: pl.DataFrame, attributed: Attributed, pauses: pl.DataFrame, told_of: Row
) -> tuple[int, int, Flags]:
    """Return the first and last step of one process that may be steady, and which steps paid a one-time cost.

    ``pauses`` are those of Python; ``told_of`` is what the probe wrote about the steps. Warm-up is the longest prefix whose steps
    are longer than the later ones, carry first-call work (loading kernels), or hold little GPU work (the capture of a CUDA graph).
    The last full step has no full step after it that would show where it ends, so it is left out where there are enough
    others; behind it there may be a rest with little work (an exhausted loader, a last print).
    """
    n = cpu.height
    windows = [_tiles(cpu, gpu), (cpu["start_ns"].to_numpy(), cpu["end_ns"].to_numpy())]
    full, traced = _with_full_work(cpu, attributed.gpu_ops), _xrayed(cpu, told_of)
    if (full & ~traced).any():
        full &= ~traced
    last = int(np.flatnonzero(full)[-1])
    # A step that only the program's exit ended holds whatever came after training; one before an X-ray ends with that.
    if (
        last >= 1
        and not traced[last + 1 :].any()
        and (n >= 4 or (told_of.get("last_closed_by") == "exit" and last == n - 1))
    ):
        last -= 1
    if last == 0 and int(cpu["number"][0]) == 0:
        later = _behind_start_up(windows[1], cpu["index"].is_in(gpu["index"].unique().to_list()).to_numpy())
        if later:
            return later, later, np.zeros(n, np.bool_)
    usual = [_usual_and_long_ns(end - begin, last) for begin, end in windows]
    once, often = one_time_steps(int(cpu["process"][0]), windows, usual, attributed, pauses)
    once[last + 1 :] = False  # the last step holds whatever the program does at its end
    (begin, end), (base, most) = windows[0], usual[0]
    fine = (end - begin <= most) & (_first_calls(cpu, attributed, last) <= FIRST_CALL_STEP_SHARE * max(base, 1.0))
    fine[1:] |= often[1:]  # what comes back is no warm-up, but the first step pays for more
    # Before the probe took the cheap leaves back, steps cost more and modules were told apart otherwise.
    thinned = told_of.get("thinned_from")
    least = int((cpu["number"] < thinned).sum()) if isinstance(thinned, int) else 0
    least = least if least <= last else 0
    # The same goes for the steps whose modules it marked, where enough others are left.
    unmarked = told_of.get("unmarked_from")
    after = int((cpu["number"] < unmarked).sum()) if isinstance(unmarked, int) else 0
    least = max(least, after) if last - after + 1 >= UNMARKED_STEPS_TIMES else least
    behind = int(np.flatnonzero(traced[:last])[-1]) + 1 if traced[:last].any() else 0
    least = max(least, behind) if last - behind + 1 >= UNMARKED_STEPS_TIMES else least
    for first in range(least, min(max(n // 2, least) + 1, last + 1)):
        if full[first] and fine[first : first + 2].all():
            return first, last, once
    return min(max(n // 2, least), last), last, once


def in_main_part(
    cpu: pl.DataFrame, gpu: pl.DataFrame, attributed: Attributed, pauses: pl.DataFrame, told_of: Row, main: range | None
) -> tuple[int, int, Flags]:
    """Return what `steady_steps` does; of a capture in parts, the steady steps are those of its main part if that has enough.

    ``main`` are the steps of that part, None for a capture in one. The first one holds the cold start, in which steps may have
    other lengths, and the others follow after steps that are not there: each is judged by its own steps.
    """
    first, last, once = steady_steps(cpu, gpu, attributed, pauses, told_of)
    if main is None or cpu["parts"][main.start : main.stop].sum() < WHOLE_WINDOW_STEPS:
        return first, last, once
    inside = pl.col("index").is_between(main.start, main.stop - 1)
    of_main = steady_steps(cpu.filter(inside), gpu.filter(inside), attributed, pauses, told_of)
    first, last, once[main.start : main.stop] = of_main
    return first + main.start, last + main.start, once

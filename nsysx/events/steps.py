"""Training steps: where they come from, which of them are steady, and how they tile the timeline of each device.

Sources, the first that gives steps wins: ``--step-range``, nsysx's own ranges, a user's ranges or marks named like steps,
optimizer ranges, the repeated kernel sequence, the whole capture as one step.

CPU step = its range on the thread that drives it. GPU step i runs from the first GPU op launched in step i to the first
launched in step i + 1, or to where something else begins that is not a step: an evaluation, a checkpoint, logging (``tiles``).

*Steady* steps exclude warm-up and one-time costs. Averages are over one stretch of them that follow one another without anything
between; how long steps are, and how far that varies, is told of all of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import polars as pl

from nsysx import ids
from nsysx.errors import EXIT_EMPTY, EXIT_USAGE, NsysxError
from nsysx.events import bare, lost_kernels, step_periods, step_work, steps_to_meetings
from nsysx.events import levels as level_room
from nsysx.events.attribute import Attributed
from nsysx.events.coverage import Coverage
from nsysx.events.event_bounds import FEW_STEPS
from nsysx.events.levels import Level
from nsysx.events.nvtx_ranges import Flags, Ranges
from nsysx.events.steady import in_main_part, steps_of_probe, worked
from nsysx.events.step_coverage import step_coverage, steps_of_coverage
from nsysx.events.step_sources import MARKS, find_steps, whole_capture
from nsysx.events.tiles import Run, StepTiles, gpu_tiles, representative, runs, without_evaluation
from nsysx.events.trend import Trend, trend
from nsysx.frames import frame_columns, lookup
from nsysx.model import Column, Row
from nsysx.reading.trace import Sampled


@dataclass(frozen=True)
class StepTable:
    """``cpu``: process, index, number, thread, start_ns, end_ns, warmup, steady, cut (its end is not seen: the last of a window), parts.

    ``gpu``: process, device, index, start_ns, end_ns. ``between``: what follows step ``index`` in its window and is not a step,
    columns as in `StepTiles`. ``windows``: the steady part per (process, device) on the device timeline; ``cpu_windows`` the same per
    process on the CPU. ``process`` is the one whose steps are shown; ``trend`` is the course of its steady steps, ``levels`` are
    those of their lengths. ``parts``: of how many proposed steps its steps are made, about; ``grouped``: with what comes before
    them (``periods``). ``timed``: of how many steps that the probe timed a steady one is made on average, 0 if that is not known.
    ``coverage``: how its recorded time divides. ``runs``: all stretches of steady steps in order, of which ``steady`` is one; trend and
    levels are of all. ``lost``: so many steps are left out because their kernels were lost (``lost_kernels``).
    """

    source: str
    rule: str
    cpu: pl.DataFrame
    gpu: pl.DataFrame
    between: pl.DataFrame
    windows: pl.DataFrame
    cpu_windows: pl.DataFrame
    process: int
    steady: tuple[int, int] | None
    whole: bool
    trend: Trend
    levels: tuple[Level, ...] = ()
    parts: int = 1
    coverage: Coverage | None = None
    runs: tuple[Run, ...] = ()
    grouped: bool = False
    timed: float = 1
    lost: int = 0

    @property
    def in_rounds(self) -> bool:
        """Return whether a step is not one of those that the probe timed, but so many rounds of the loop around them."""
        return self.grouped or self.timed != 1


def parse_window(text: str) -> tuple[int, int] | None:
    """Return ``A:B`` as (A, B), B exclusive; None for ``all``. Errors: NsysxError, exit code 2."""
    if text == "all":
        return None
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if not match or int(match[1]) >= int(match[2]):
        what = f"--steps {text}: not a window of steps"
        raise NsysxError(what, slug="steps-syntax", hint="Write A:B with A < B, or all", exit_code=EXIT_USAGE)
    return int(match[1]), int(match[2])


def find(
    ranges: Ranges,
    attributed: Attributed,
    *,
    steps: str | None = None,
    step_range: str | None = None,
    probes: Sequence[Row] = (),
    whole_in: tuple[int, int] | None = None,
    seams: Sequence[int] = (),
    main: int = 0,
    sampled: Sampled | None = None,
) -> StepTable:
    """Return the steps of a report, the steady ones, and the windows that averages are taken over.

    ``steps`` is A:B (those steps count as steady) or "all" (the window is the whole capture). ``probes`` is what the probe
    of each process wrote about itself. ``whole_in``: steps that do not lie in this time are none. Errors: NsysxError with
    exit code 2 for a malformed window, 4 for one that holds no step. ``seams``, ``main`` and ``sampled`` as in `Trace`.
    """
    all_steps, source, rule = _proposed(ranges, attributed, step_range)
    probes = probes if source == "nsysx" else ()
    lost: dict[int, int] = {}
    all_steps = worked(all_steps, probes)
    if sampled is None:  # its parts were chosen, not recorded apart
        all_steps, lost = lost_kernels.whole(all_steps, attributed.api_calls, seams)
    all_steps = _steps_inside(all_steps, whole_in if source != "capture" else None)
    cpu, tiles, grouped, passes = _tiled(all_steps, attributed, source, closed=rule != MARKS, seams=seams)
    process = _busiest(_timed_bare(cpu, probes), attributed.gpu_ops)
    parts = grouped.get(process) or passes.get(process, 1)
    shown_steps, tiled, rest = (lookup.having(f, process=process) for f in (cpu, tiles.gpu, tiles.between))
    ends = _part_ends(shown_steps, seams)
    whole = steps == "all" or source == "capture"
    steady, once = _chosen_steps(steps, shown_steps.height, source), np.zeros(shown_steps.height, np.bool_)
    stretches, warm_from = [steady or (0, -1)], (steady or (0, -1))[0]
    if steady is None and shown_steps.height:
        judge = partial(in_main_part, shown_steps, tiled, attributed, ranges.pauses, steps_of_probe(probes, process))
        judged = judge(_of_main(shown_steps, seams, main, sampled))
        steady, stretches, once = _steady(shown_steps, tiled, rest, judged, ends)
        warm_from = judge(range(ends[0] + 1))[0] if sampled and ends else stretches[0][0]
    cpu = steps_to_meetings.numbered(_marked(cpu, steady, warm_from, once), attributed.gpu_ops, passes)
    windows, cpu_windows = _windows(cpu, tiles.gpu, steady, attributed, whole=whole)
    shown_steps = lookup.having(cpu, process=process)
    shown_steady = shown_steps.filter(_within_stretches(stretches))
    lengths, numbers = step_work.lengths(shown_steady, tiled)
    work = None if bare.timed(probes, process) else step_work.gpu_work(shown_steady, tiled, attributed.gpu_ops)
    of_lengths = level_room.levels(lengths, numbers, in_a_row=len(stretches) == 1)
    counted = steps_of_coverage(shown_steps, stretches, once, warm_from, sampled)
    return StepTable(
        source,
        rule + _grouped_by(grouped.get(process)) + _met_after(passes.get(process)),
        cpu=cpu,
        gpu=tiles.gpu,
        between=tiles.between.filter(_between_parts(seams).not_()) if seams else tiles.between,
        windows=windows,
        cpu_windows=cpu_windows,
        process=process,
        steady=steady,
        whole=whole,
        trend=_course(trend(lengths, work, in_a_row=len(stretches) == 1), of_lengths, probes, process),
        levels=of_lengths if source != "capture" else (),
        parts=round(parts),
        coverage=step_coverage(counted, tiled, rest, once, attributed, ends, source),
        runs=tuple(stretches),
        grouped=process in grouped,
        timed=_mean_parts(shown_steady) if source == "nsysx" else _timed(shown_steps, ranges.ranges, source),
        lost=lost.get(process, 0),
    )


def _proposed(ranges: Ranges, attributed: Attributed, step_range: str | None) -> tuple[pl.DataFrame, str, str]:
    """Return the steps of all processes, with the source and the rule of the one that works most on the GPU."""
    sources = find_steps(ranges, attributed, step_range)
    all_steps = pl.concat([steps for *_, steps in sources])
    process = _busiest(all_steps, attributed.gpu_ops)
    source, rule, _ = next((s for s in sources if process in lookup.present(s[2]["process"])), sources[0])
    return all_steps, source, rule


def _grouped_by(size: int | None) -> str:
    return f"; {size} of them and what comes before them repeat as one step" if size else ""


def _met_after(passes: float | None) -> str:
    of_mean = "" if passes is None or passes.is_integer() else " on average"
    return f", {passes:.3g} of them{of_mean} up to each collective in which the ranks meet" if passes else ""


def _mean_parts(steady: pl.DataFrame) -> float:
    """Return of how many proposed steps a steady step is made on average."""
    mean = steady["parts"].mean()
    return float(mean) if isinstance(mean, float) else 1.0


def _timed(steps: pl.DataFrame, ranges: pl.DataFrame, source: str) -> int:
    """Return how many steps of the probe each steady step of another source holds, 0 where that differs; 1 if the probe marked none.

    Both repeat alike, but either may begin first: so they are counted from one beginning to the next.
    """
    steady = steps.filter("steady")
    of_probe = ranges.filter(
        (pl.col("kind") == "step") & pl.col("own") & pl.col("process").is_in(steady["process"].unique().to_list())
    )
    if not of_probe.height:
        return 1
    if source == "capture" or not steady.height:
        return 0
    borders = np.append(steady["start_ns"].to_numpy(), steady["end_ns"].to_numpy()[-1])
    held = np.diff(np.searchsorted(of_probe["start_ns"].sort().to_numpy(), borders))
    count = np.unique(held[:-1] if len(held) > 1 else held)  # in front of the last end there may be one more
    return int(count[0]) if len(count) == 1 else 0


def _tiled(
    all_steps: pl.DataFrame, attributed: Attributed, source: str, *, closed: bool, seams: Sequence[int]
) -> tuple[pl.DataFrame, StepTiles, dict[int, int], dict[int, float]]:
    """Return the CPU steps, how they cut the timeline of each device, and process -> parts of its steps: of those that begin with what
    comes before them (``step_periods``), and of those that end where the ranks meet (``steps_to_meetings``).
    """
    ops = attributed.gpu_ops
    cpu = all_steps.sort("process", "start_ns")
    part = np.searchsorted(np.asarray(seams, np.int64), cpu["start_ns"].to_numpy(), side="right")
    process, row = cpu["process"].to_numpy(), np.arange(cpu.height)
    begins = process != np.append(process[:1] - 1, process[:-1])
    ends = np.append(begins[1:] | (np.diff(part) != 0), True)[: len(row)]  # each part cuts its last step
    cpu = cpu.with_columns(
        pl.Series("index", row - np.maximum.accumulate(np.where(begins, row, 0)), dtype=pl.Int64),
        pl.Series("cut", ends, dtype=pl.Boolean),
        pl.Series("parts", np.ones(len(row), np.int64)),
    )
    if source != "capture":
        cpu = without_evaluation(cpu, attributed.phase_spans, ops)
    few = 0 if source == "capture" else FEW_STEPS
    tiles = gpu_tiles(cpu, ops, closed=closed, few=few, seams=seams)
    cpu, parts = step_periods.grouped(cpu, tiles.between, ops, seams)
    passes: dict[int, float] = {}
    if not parts and source == "nsysx":
        cpu, passes = steps_to_meetings.up_to_meetings(cpu, ops, seams)
    if parts or passes:
        tiles = gpu_tiles(cpu, ops, closed=closed, few=few, seams=seams)
    return cpu, tiles, parts, passes


def _windows(
    cpu: pl.DataFrame, tiles: pl.DataFrame, steady: Run | None, attributed: Attributed, *, whole: bool
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return what averages are taken over, on each device and on the CPU: the ``steady`` tiles and steps, or the whole capture."""
    span = [pl.col("start_ns").min(), pl.col("end_ns").max()]
    if whole:
        windows = attributed.gpu_ops.group_by("process", "device").agg(span).sort("process", "device")
        return windows, whole_capture(attributed)["process", "start_ns", "end_ns"].sort("process")
    first, last = steady or (0, -1)
    inside = tiles.filter((tiles["index"] >= first) & (tiles["index"] <= last))
    windows = _spans(inside, frame_columns.GPU_WINDOWS, "process", "device")
    return windows.filter(windows["end_ns"] > windows["start_ns"]), _spans(
        cpu.filter(cpu["steady"]), frame_columns.CPU_WINDOWS, "process"
    )


def _spans(steps: pl.DataFrame, columns: Sequence[Column], *keys: str) -> pl.DataFrame:
    """Return the first start and the last end of the steps with each combination of the keys, in their order."""
    parts = sorted(lookup.parted(steps, *keys).items(), key=lambda item: item[0])
    rows = [(*key, part["start_ns"].min(), part["end_ns"].max()) for key, part in parts]
    return pl.DataFrame(rows, schema=frame_columns.schema(columns), orient="row")


def _steady(
    cpu: pl.DataFrame, tiled: pl.DataFrame, rest: pl.DataFrame, judged: tuple[int, int, Flags], ends: Sequence[int]
) -> tuple[Run, list[Run], Flags]:
    """Return the stretch of steady steps that averages are taken over, all of them, and which steps paid a one-time cost.

    ``judged`` is what ``in_main_part`` returns, ``ends`` are the last steps of all parts but the last.
    """
    begin, end, once = judged
    stretches = runs((begin, end), rest, once, ends)
    longest = representative(stretches, step_work.lengths(cpu, tiled)[0])
    steady = _whole_periods(*longest, cpu, tiled)
    return steady, [steady if run == longest else run for run in stretches], once


def _within_stretches(stretches: Sequence[Run]) -> pl.Expr:
    """Return whether a step is in one of the stretches."""
    return pl.any_horizontal(pl.col("index").is_between(*run) for run in stretches)


def _marked(cpu: pl.DataFrame, steady: Run | None, warm_from: int, once: Flags) -> pl.DataFrame:
    """Return the steps with ``steady`` and ``warmup``."""
    first, last = steady or (0, -1)
    # Warm-up is what lies before all steady steps, or has a one-time cost before those that averages are taken over.
    index = cpu["index"].to_numpy()
    cold = (index < warm_from) | np.isin(index, np.flatnonzero(once[:first]))
    return cpu.with_columns(pl.Series("steady", (index >= first) & (index <= last)), pl.Series("warmup", cold))


def _course(recorded: Trend, of_lengths: tuple[Level, ...], probes: Sequence[Row], process: int) -> Trend:
    """Return the course of the steady steps; where they have several levels, its words are those."""
    course = bare.course(recorded, probes, process)
    note = level_room.note(of_lengths)
    if not note:
        return course
    if course.kind in ("growing", "falling"):
        note = f"{course.note} {note}"
    return replace(course, kind="uneven" if course.kind in ("level", "unknown") else course.kind, note=note)


def _whole_periods(first: int, last: int, cpu: pl.DataFrame, tiles: pl.DataFrame) -> tuple[int, int]:
    """Return the steady steps without the beginning of a period that is not whole: it would shift the mean."""
    inside = pl.col("index").is_between(first, last)
    every = level_room.period(level_room.levels(*step_work.lengths(cpu.filter(inside), tiles)))
    return first + (last - first + 1) % (every or 1), last


def _part_ends(cpu: pl.DataFrame, seams: Sequence[int]) -> list[int]:
    """Return the indices of the last steps of all parts of the capture but the last."""
    lasts = [cpu.filter(pl.col("start_ns") < seam)["index"].max() for seam in seams]
    return [last for last in lasts if isinstance(last, int)]


def _of_main(cpu: pl.DataFrame, seams: Sequence[int], main: int, sampled: Sampled | None) -> range | None:
    """Return the indices of the steps of the main part of the capture that may be steady; None for a capture in one."""
    if not seams:
        return None
    borders = np.searchsorted(cpu["start_ns"].to_numpy(), [-(1 << 62), *seams, 1 << 62])
    lead = sampled.first - sampled.parts[main][0] if sampled else 0
    return range(int(borders[main]) + lead, int(borders[main + 1]))


def _between_parts(seams: Sequence[int]) -> pl.Expr:
    """Return whether what follows a step is nothing of the program: one part of the capture ended and another began."""
    return pl.any_horizontal((pl.col("cpu_start_ns") < seam) & (pl.col("cpu_end_ns") >= seam) for seam in seams)


def _steps_inside(steps: pl.DataFrame, window: tuple[int, int] | None) -> pl.DataFrame:
    """Return the steps that lie in a part of the capture. Errors: NsysxError, exit code 4, where there is none."""
    if window is None:
        return steps
    steps = steps.filter((pl.col("start_ns") >= window[0]) & (pl.col("end_ns") <= window[1]))
    if not steps.height:
        what = "--time-range: no whole step lies in it"
        raise NsysxError(what, slug="time-range-empty", hint="Widen it, or add --steps all", exit_code=EXIT_EMPTY)
    return steps


def _timed_bare(cpu: pl.DataFrame, probes: Sequence[Row]) -> pl.DataFrame:
    """Return the steps without those of processes that trained beside the one whose steps were timed between the windows, if it has any."""
    beside = {p.get("pid") for p in probes if p.get("windows_of")}
    processes = [key for key in lookup.present(cpu["process"]) if ids.pid_of(key) not in beside] if beside else []
    return cpu.filter(cpu["process"].is_in(processes)) if processes else cpu


def _busiest(cpu: pl.DataFrame, ops: pl.DataFrame) -> int:
    """Return the process with steps that works most on the GPU, 0 where there are no steps."""
    processes = lookup.present(cpu["process"])
    if len(processes) < 2:
        return processes[0] if processes else 0
    work = dict(ops.group_by("process").agg((pl.col("end_ns") - pl.col("start_ns")).sum()).iter_rows())
    return max(processes, key=lambda key: (work.get(key, -1), (cpu["process"] == key).sum(), -key))


def _chosen_steps(steps: str | None, count: int, source: str) -> Run | None:
    """Return the first and last step that ``--steps`` names, or all if they are the whole capture. Errors: exit codes 2 and 4."""
    window = parse_window(steps) if steps else None
    if window is None:
        return (0, count - 1) if count and source == "capture" else None
    steady = (window[0], min(window[1], count) - 1)
    if steady[0] > steady[1]:
        what = f"--steps {steps}: the report holds steps 0 to {count - 1}"
        raise NsysxError(what, slug="steps-empty", exit_code=EXIT_EMPTY)
    return steady

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

import numpy as np
import polars as pl

from nsysx.errors import EXIT_EMPTY, EXIT_USAGE, NsysxError
from nsysx.events import bare, periods
from nsysx.events import levels as level_room
from nsysx.events.attribute import Attributed
from nsysx.events.coverage import Coverage, coverage
from nsysx.events.levels import Level
from nsysx.events.nvtx_ranges import Flags, Ranges
from nsysx.events.steady import in_last_window, told, worked
from nsysx.events.step_sources import MARKS, find_steps, whole_capture
from nsysx.events.tiles import FEW_STEPS, Run, Tiles, gpu_tiles, representative, runs, without_evaluation
from nsysx.events.trend import Trend, trend
from nsysx.frames.intervals import I64
from nsysx.model import Row


@dataclass(frozen=True)
class StepTable:
    """``cpu``: process, index, number, thread, start_ns, end_ns, warmup, steady, cut (its end is not seen: the last of a window).

    ``gpu``: process, device, index, start_ns, end_ns. ``between``: what follows step ``index`` in its window and is not a step,
    columns as in ``tiles.Tiles``. ``windows``: the steady part per (process, device) on the device timeline; ``cpu_windows`` the same per
    process on the CPU. ``process`` is the one whose steps are shown; ``trend`` is the course of its steady steps, ``levels`` are
    those of their lengths. ``parts``: of how many proposed steps each of its steps is made; ``grouped``: with what comes before
    them (``periods``). ``timed``: of how many steps that the probe timed each is made, 0 if that is no whole number. ``coverage``:
    how its recorded time divides. ``runs``: all stretches of steady steps in order, of which ``steady`` is one; trend and levels are
    of all.
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
    timed: int = 1

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
    joined_ns: int | None = None,
) -> StepTable:
    """Return the steps of a report, the steady ones, and the windows that averages are taken over.

    ``steps`` is A:B (those steps count as steady) or "all" (the window is the whole capture). ``probes`` is what the probe
    of each process wrote about itself. ``whole_in``: steps that do not lie in this time are none. Errors: NsysxError with
    exit code 2 for a malformed window, 4 for one that holds no step. ``joined_ns``: where the second of two windows begins.
    """
    sources = find_steps(ranges, attributed, step_range)
    all_steps = pl.concat([steps for *_, steps in sources])
    process = _busiest(all_steps, attributed.gpu_ops)
    source, rule, _ = next((s for s in sources if process in s[2]["process"]), sources[0])
    probes = probes if source == "nsysx" else ()
    all_steps = _inside(worked(all_steps, probes), whole_in if source != "capture" else None)
    cpu, tiles, parts = _tiled(all_steps, attributed, source, closed=rule != MARKS, joined_ns=joined_ns)
    process = _busiest(cpu, attributed.gpu_ops)
    rule += f"; {parts[process]} of them and what comes before them repeat as one step" if process in parts else ""
    shown = pl.col("process") == process
    shown_steps, tiled, rest = (f.filter(shown) for f in (cpu, tiles.gpu, tiles.between))
    joined = _before(shown_steps, joined_ns)
    whole = steps == "all" or source == "capture"
    steady, once = _chosen(steps, shown_steps.height, source), np.zeros(shown_steps.height, np.bool_)
    stretches = [steady or (0, -1)]
    if steady is None and shown_steps.height:
        judged = in_last_window(shown_steps, tiled, attributed, ranges.pauses, told(probes, process), joined)
        steady, stretches, once = _steady(shown_steps, tiled, rest, judged, joined)
    first, last = steady or (0, -1)
    in_steady = pl.col("index").is_between(first, last)
    cpu = cpu.with_columns(in_steady.alias("steady"), _cold(stretches[0][0], first, once).alias("warmup"))
    windows, cpu_windows = _windows(cpu, tiles.gpu.filter(in_steady), attributed, whole=whole)
    shown_steps = cpu.filter(shown)
    lengths, numbers = _lengths(shown_steps.filter(_in(stretches)), tiled)
    of_lengths = level_room.levels(lengths, numbers, in_a_row=len(stretches) == 1)
    return StepTable(
        source,
        rule,
        cpu,
        tiles.gpu,
        tiles.between.filter(_between_windows(joined_ns).not_()),
        windows,
        cpu_windows,
        process,
        steady,
        whole,
        _course(trend(lengths, in_a_row=len(stretches) == 1), of_lengths, probes, process),
        of_lengths if source != "capture" else (),
        parts.get(process, 1),
        _covered(_wherever(shown_steps, stretches, once), tiled, rest, once, attributed, joined, source),
        tuple(stretches),
        process in parts,
        parts.get(process, 1) if source == "nsysx" else _timed(shown_steps, ranges.ranges, source),
    )


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
    all_steps: pl.DataFrame, attributed: Attributed, source: str, *, closed: bool, joined_ns: int | None
) -> tuple[pl.DataFrame, Tiles, dict[int, int]]:
    """Return the CPU steps, how they cut the timeline of each device, and process -> parts of its steps (``periods``)."""
    ops = attributed.gpu_ops
    second = pl.col("start_ns") >= (joined_ns or 0)  # each window cuts its last step
    cpu = all_steps.sort("process", "start_ns").with_columns(
        pl.int_range(pl.len(), dtype=pl.Int64).over("process").alias("index"),
        ((second.shift(-1) != second) | second.shift(-1).is_null()).over("process").alias("cut"),
    )
    if source != "capture":
        cpu = without_evaluation(cpu, attributed.phase_spans, ops)
    few = 0 if source == "capture" else FEW_STEPS
    tiles = gpu_tiles(cpu, ops, closed=closed, few=few, joined_ns=joined_ns)
    cpu, parts = periods.grouped(cpu, tiles.between, ops, joined_ns)
    if parts:
        tiles = gpu_tiles(cpu, ops, closed=closed, few=few, joined_ns=joined_ns)
    return cpu, tiles, parts


def _windows(
    cpu: pl.DataFrame, steady: pl.DataFrame, attributed: Attributed, *, whole: bool
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return what averages are taken over, on each device and on the CPU: the ``steady`` tiles and steps, or the whole capture."""
    span = [pl.col("start_ns").min(), pl.col("end_ns").max()]
    if whole:
        windows = attributed.gpu_ops.group_by("process", "device").agg(span)
        cpu_windows = whole_capture(attributed).select("process", "start_ns", "end_ns")
    else:
        windows = steady.group_by("process", "device").agg(span).filter(pl.col("end_ns") > pl.col("start_ns"))
        cpu_windows = cpu.filter("steady").group_by("process").agg(span)
    return windows.sort("process", "device"), cpu_windows.sort("process")


def _steady(
    cpu: pl.DataFrame, tiled: pl.DataFrame, rest: pl.DataFrame, judged: tuple[int, int, Flags], joined: int | None
) -> tuple[Run, list[Run], Flags]:
    """Return the stretch of steady steps that averages are taken over, all of them, and which steps paid a one-time cost.

    ``judged`` is what ``in_last_window`` returns.
    """
    begin, end, once = judged
    stretches = runs((begin, end), rest, once, joined)
    longest = representative(stretches, _lengths(cpu, tiled)[0])
    steady = _whole_periods(*longest, cpu, tiled)
    return steady, [steady if run == longest else run for run in stretches], once


def _in(stretches: Sequence[Run]) -> pl.Expr:
    """Return whether a step is in one of the stretches."""
    return pl.any_horizontal(pl.col("index").is_between(*run) for run in stretches)


def _cold(steady_from: int, first: int, once: Flags) -> pl.Expr:
    """Return whether a step is warm-up: before all steady steps, or with a one-time cost before those that averages are taken over."""
    return (pl.col("index") < steady_from) | pl.col("index").is_in(np.flatnonzero(once[:first]))


def _wherever(cpu: pl.DataFrame, stretches: Sequence[Run], once: Flags) -> pl.DataFrame:
    """Return the steps with ``steady`` where they are steady wherever they lie, whether or not it is seen where they end."""
    if len(stretches) == 1:
        return cpu
    inside = pl.col("index").is_between(stretches[0][0], stretches[-1][1])
    return cpu.with_columns((inside & ~pl.Series(once)).alias("steady"))


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
    every = level_room.period(level_room.levels(*_lengths(cpu.filter(inside), tiles)))
    return first + (last - first + 1) % (every or 1), last


def _before(cpu: pl.DataFrame, joined_ns: int | None) -> int | None:
    """Return the index of the last step of the first of two windows; None without two."""
    last = cpu.filter(pl.col("start_ns") < joined_ns)["index"].max() if joined_ns is not None else None
    return last if isinstance(last, int) else None


def _between_windows(joined_ns: int | None) -> pl.Expr:
    """Return whether what follows a step is nothing of the program: one window was closed and another opened."""
    border_ns = joined_ns or 0
    return (pl.col("cpu_start_ns") < border_ns) & (pl.col("cpu_end_ns") >= border_ns)


def _covered(
    cpu: pl.DataFrame,
    tiles: pl.DataFrame,
    between: pl.DataFrame,
    once: Flags,
    attributed: Attributed,
    joined: int | None,
    source: str,
) -> Coverage | None:
    """Return how the recorded time of the shown process divides, whose steps ``cpu`` holds; None without steps.

    It divides on the device that works most in the steps: the host runs ahead, and an evaluation that waits for the steps before
    it would count for them. Without GPU work it divides on the CPU.
    """
    all_of_it = whole_capture(attributed).filter(pl.col("process").is_in(cpu["process"].unique().to_list()))
    spans = all_of_it.select("start_ns", "end_ns").rows()
    if not spans or not cpu.height or source == "capture":
        return None
    length = tiles.group_by("device").agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns"))
    shown = length.filter(pl.col("ns") > 0).sort("ns", "device", descending=[True, False])["device"].to_list()[:1]
    if not shown:
        return coverage(cpu, between, once, spans[0], joined)
    on_device = pl.col("device") == shown[0]
    of_device = tiles.filter(on_device).select("index", "start_ns", "end_ns")
    steps = cpu.drop("start_ns", "end_ns").join(of_device, on="index", how="left", maintain_order="left")
    return coverage(steps, between.filter(on_device), once, spans[0], joined)


def _inside(steps: pl.DataFrame, window: tuple[int, int] | None) -> pl.DataFrame:
    """Return the steps that lie in a part of the capture. Errors: NsysxError, exit code 4, where there is none."""
    if window is None:
        return steps
    steps = steps.filter((pl.col("start_ns") >= window[0]) & (pl.col("end_ns") <= window[1]))
    if not steps.height:
        what = "--time-range: no whole step lies in it"
        raise NsysxError(what, slug="time-range-empty", hint="Widen it, or add --steps all", exit_code=EXIT_EMPTY)
    return steps


def _busiest(cpu: pl.DataFrame, ops: pl.DataFrame) -> int:
    """Return the process with steps that works most on the GPU, 0 where there are no steps."""
    busiest = ops.group_by("process").agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("d"))
    ranked = (
        cpu.group_by("process")
        .len()
        .join(busiest, on="process", how="left")
        .sort("d", "len", "process", nulls_last=True, descending=[True, True, False])
    )
    return int(ranked["process"][0]) if ranked.height else 0


def _chosen(steps: str | None, count: int, source: str) -> Run | None:
    """Return the first and last step that ``--steps`` names, or all if they are the whole capture. Errors: exit codes 2 and 4."""
    window = parse_window(steps) if steps else None
    if window is None:
        return (0, count - 1) if count and source == "capture" else None
    steady = (window[0], min(window[1], count) - 1)
    if steady[0] > steady[1]:
        what = f"--steps {steps}: the report holds steps 0 to {count - 1}"
        raise NsysxError(what, slug="steps-empty", exit_code=EXIT_EMPTY)
    return steady


def _lengths(cpu: pl.DataFrame, tiles: pl.DataFrame) -> tuple[I64, I64]:
    """Return the length of each step, of its longest tile, on the CPU where it has none (ns), and the number it was given."""
    longest = tiles.group_by("index").agg((pl.col("end_ns") - pl.col("start_ns")).max().alias("d"))
    both = cpu.join(longest, on="index", how="left", maintain_order="left")
    lengths: I64 = both.select(pl.coalesce("d", pl.col("end_ns") - pl.col("start_ns")))["d"].to_numpy()
    return lengths, both["number"].to_numpy()

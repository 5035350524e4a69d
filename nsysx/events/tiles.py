"""GPU steps: the tiles that CPU steps cut the timeline of each device into, and what lies between two steps.

A tile runs from the first GPU op launched in its step to the first one launched in the next: what the next step's host code costs
before its first launch belongs to the step before, as in every step. It ends earlier where something else begins: an evaluation,
a checkpoint, logging. Such *between* work is told from what belongs to the loop by being an exception: it follows fewer than half
of the steps, or an evaluation range names it. What follows every second step or more (fetching the next batch) is loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.events.event_bounds import (
    AS_GOOD_MEAN_SHARE,
    FEW_STEPS,
    LEAST_RUN_SHARE,
    NOTICED_DELAY_SHARE,
    NOTICED_PAUSE_SHARE,
    SPARED_RUN_STEPS,
)
from nsysx.events.nvtx_ranges import Flags
from nsysx.frames import frame_columns, lookup
from nsysx.frames.intervals import I64

_NEVER = np.iinfo(np.int64).max

_TILE, _BETWEEN = frame_columns.schema(frame_columns.GPU_STEPS), frame_columns.schema(frame_columns.BETWEEN_STEPS)


@dataclass(frozen=True)
class StepTiles:
    """``gpu``: process, device, index, start_ns, end_ns. ``between``: what follows step ``index`` and is not a step.

    Columns of ``between``: those of ``gpu``, on the device's timeline; cpu_start_ns, cpu_end_ns between the two CPU steps;
    evaluation (a range says that it is one).
    """

    gpu: pl.DataFrame
    between: pl.DataFrame


def without_evaluation(cpu: pl.DataFrame, phases: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the CPU steps without evaluations at their ends, which some sources of steps leave inside.

    One in the middle, with other GPU work before and behind it, stays. Where half of the steps or more hold one, it is what the
    program does (inference in ``eval()`` mode) and no exception. ``phases``: process, start_ns, end_ns, phase.
    """
    evaluates = phases["phase"] == "evaluation"
    if not evaluates.any():
        return cpu
    spans = phases.filter(evaluates).sort("process", "start_ns")
    start, end, process = (cpu[c].to_numpy().copy() for c in ("start_ns", "end_ns", "process"))
    for (key,), part in spans.group_by("process", maintain_order=True):
        other = ops.filter(
            (pl.col("process") == key) & (pl.col("phase").cast(pl.String) != "evaluation").fill_null(True)
        )
        called = other["call_start_ns"].drop_nulls().sort().to_numpy()
        of_process = np.flatnonzero(process == key)
        begins, ends = part["start_ns"].to_numpy(), part["end_ns"].to_numpy()
        touched = _touched(start[of_process], end[of_process], begins, ends)
        for row in of_process[touched].tolist() if 2 * touched.sum() < len(of_process) else ():
            work = called[np.searchsorted(called, start[row]) : np.searchsorted(called, end[row])]
            if not len(work):
                continue
            head = ends[(begins < work[0]) & (ends > start[row]) & (begins >= start[row])]
            tail = begins[(begins > work[-1]) & (begins < end[row])]
            if len(head):
                start[row] = min(int(head.max()), int(work[0]))
            if len(tail):
                end[row] = int(tail.min())
    return cpu.with_columns(pl.Series("start_ns", start), pl.Series("end_ns", end))


def _touched(start: I64, end: I64, begins: I64, ends: I64) -> Flags:
    """Return which steps share time with one of the spans."""
    order = np.sort(ends)
    return np.searchsorted(np.sort(begins), end, side="left") > np.searchsorted(order, start, side="right")


def _exceptional(delay: I64, noticed: float) -> Flags:
    """Return which gaps delay the next step noticeably beyond the usual, if those are fewer than half."""
    late = delay > np.median(delay) + noticed if len(delay) else np.zeros(0, np.bool_)
    return late if 2 * late.sum() < len(late) else np.zeros(len(late), np.bool_)


@dataclass(frozen=True)
class _Steps:
    """The CPU steps of one process and the launched work of one device: when called, begin, end, whether an evaluation's."""

    start: I64
    end: I64
    called: I64
    op_begin: I64
    op_end: I64
    evaluation: Flags
    closed: bool
    few: int
    seams: Sequence[int]

    def place(self) -> tuple[I64, Flags]:
        """Return the last step that began before each launch, and whether the launch lies inside it."""
        step = np.searchsorted(self.start, self.called, side="right") - 1
        inside = (step >= 0) & (self.called < self.end[np.maximum(step, 0)])
        return step, inside

    def first_begin(self, step: I64, chosen: Flags) -> I64:
        first = np.full(len(self.start), _NEVER)
        np.minimum.at(first, step[chosen], self.op_begin[chosen])
        return first

    def begin_of_first(self, step: I64, chosen: Flags) -> I64:
        """Return when the first launched op of each step begins: on a stream of its own later work may run ahead of it."""
        rows = np.flatnonzero(chosen)
        rows = rows[np.lexsort((self.op_begin[rows], self.called[rows]))[::-1]]
        begin = np.full(len(self.start), _NEVER)
        begin[step[rows]] = self.op_begin[rows]  # the last assignment, of the first launch, holds
        return begin

    def last_end(self, step: I64, chosen: Flags) -> I64:
        last = np.full(len(self.start), -_NEVER)
        np.maximum.at(last, step[chosen], self.op_end[chosen])
        return last

    def borders(self, step: I64, inside: Flags) -> I64:
        """Return where each step begins on the device, and where the last one ends."""
        n = len(self.start)
        border = np.append(self.begin_of_first(step, inside), self.op_end[inside & (step == step[inside].max())].max())
        if n <= self.few:
            # The step begins with its host code, unless the device is still busy with what came before.
            before = np.array([self.op_end[self.called < s].max(initial=-_NEVER) for s in self.start])
            border[:n] = np.clip(np.maximum(self.start, before), None, border[:n])
            border[n] = max(border[n], self.end[-1]) if self.closed else border[n]
        # A step without GPU work takes the border of the next: an empty tile. Prefetched work may start early.
        return np.minimum.accumulate(border[::-1])[::-1]

    def tiles(self) -> tuple[I64, I64, Flags, Flags] | None:
        """Return begin and end of each tile, after which something else runs, and whether that is an evaluation."""
        step, inside = self.place()
        if not inside.any():
            return None
        border = self.borders(step, inside)
        behind = (step >= 0) & ~inside & (step < len(self.start) - 1)
        other = np.maximum(self.first_begin(step, behind), np.maximum(self.last_end(step, inside), border[:-1]))
        other = np.minimum(other, border[1:])[:-1]
        pause = np.maximum(np.maximum(self.last_end(step, inside), self.end)[:-1], border[:-2])
        usual = float(np.median(np.diff(border)))
        named = np.zeros(len(self.start), np.bool_)
        named[step[behind & self.evaluation]] = True
        named = named[:-1] & (2 * named.sum() < len(named))
        # What launches as much as usual is what the program does behind each step, however long the host takes for it this time.
        launches = np.bincount(step[behind], minlength=len(self.start))[:-1]
        of_loop = (launches > 0) & (launches == (np.median(launches) if len(launches) else 0))
        odd = (_exceptional(border[1:-1] - other, NOTICED_DELAY_SHARE * usual) & ~of_loop) | named
        idle = _exceptional(self.start[1:] - self.end[:-1], NOTICED_PAUSE_SHARE * usual) & ~odd & ~of_loop
        for seam in self.seams:  # the end of the last step of each part was not recorded
            idle |= (self.start[:-1] < seam) & (self.start[1:] >= seam)
        end = border[1:].copy()
        end[:-1] = np.where(odd, other, np.where(idle, np.minimum(pause, border[1:-1]), end[:-1]))
        return border[:-1], end, np.append(end[:-1] < border[1:-1], False), np.append(named, False)


def gpu_tiles(
    cpu: pl.DataFrame, ops: pl.DataFrame, *, closed: bool = True, few: int = FEW_STEPS, seams: Sequence[int] = ()
) -> StepTiles:
    """Return the GPU steps per (process, device, index) and what lies between them; see the head of this file.

    ``closed``: the end of the last CPU step was seen. In captures of at most ``few`` steps a step begins with its host code and
    the last one ends with it, too: else a single step would hold nothing but its GPU work. ``seams``: where the later
    parts of the capture begin; what follows the last step before one is no step.
    """
    tiles, between = [pl.DataFrame(schema=_TILE)], [pl.DataFrame(schema=_BETWEEN)]
    wanted = ops["process", "device", "call_start_ns", "start_ns", "end_ns", "phase"]
    of_process = lookup.parted(cpu, "process")
    for (process, device), part in lookup.parted(wanted.drop_nulls("call_start_ns"), "process", "device").items():
        steps = of_process.get((process,))
        if steps is None:
            continue
        start, end = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
        called, op_begin, op_end = (part[c].to_numpy() for c in ("call_start_ns", "start_ns", "end_ns"))
        evaluation = (part["phase"] == "evaluation").fill_null(False).to_numpy()
        tiled = _Steps(
            start,
            end,
            called=called,
            op_begin=op_begin,
            op_end=op_end,
            evaluation=evaluation,
            closed=closed,
            few=few,
            seams=seams,
        ).tiles()
        if tiled is None:
            continue
        begin, finish, followed, named = tiled
        device_columns = {"process": np.full(len(start), process), "device": np.full(len(start), device)}
        frame = pl.DataFrame(
            {
                **device_columns,
                "index": steps["index"].to_numpy(),
                "start_ns": begin,
                "end_ns": finish,
                "cpu_start_ns": end,
                "cpu_end_ns": np.append(start[1:], end[-1]),
                "evaluation": named,
                "next_ns": np.append(begin[1:], finish[-1]),
            }
        )
        tiles.append(frame[list(_TILE)])
        if followed.any():
            rest = frame.filter(pl.Series(followed)).with_columns(
                pl.col("end_ns").alias("start_ns"), pl.col("next_ns").alias("end_ns")
            )
            between.append(rest[list(_BETWEEN)])
    order = ("process", "device", "index")
    return StepTiles(pl.concat(tiles).sort(order), pl.concat(between).sort(order))


#: First and last step.
Run = tuple[int, int]


def runs(steady: Run, between: pl.DataFrame, once: Flags, cut: Sequence[int] = ()) -> list[Run]:
    """Return the stretches of steady steps between which nothing else runs, in order; ``steady`` is the first and last of all.

    None holds a step that paid a one-time cost (``once``). The step before something else is left out, like the last of all, where
    there are enough others: no step behind it shows where it would have ended. ``cut``: the last step of each part but the last.
    """
    first, last = steady
    cuts = {i for i in (*between["index"].to_list(), *cut) if first <= i < last}
    stretches, begin = [], first
    for step in range(first, last + 1):
        if once[step]:
            stretches.append((begin, step - 1))
            begin = step + 1
        elif step in cuts:
            stretches.append((begin, step - 1 if step - begin + 1 >= SPARED_RUN_STEPS else step))
            begin = step + 1
    stretches.append((begin, last))
    most = max(b - a + 1 for a, b in stretches)
    if once.any() and most < FEW_STEPS:  # too few: a one-time cost is the smaller fault
        return runs(steady, between, np.zeros(len(once), np.bool_), cut)
    return [(a, b) for a, b in stretches if a <= b]


def representative(stretches: list[Run], lengths: I64) -> Run:
    """Return the stretch that averages are taken over: they need one window that holds steps alone.

    It has at least half as many steps as the longest, and a mean as close to that of all steady steps as any of them has; of several,
    the longest, and of these the last. ``lengths`` has one value for each step of the process (ns).
    """
    most = max(b - a + 1 for a, b in stretches)
    long = [run for run in stretches if run[1] - run[0] + 1 >= LEAST_RUN_SHARE * most]
    every = float(np.concatenate([lengths[a : b + 1] for a, b in stretches]).mean())
    off = [abs(float(lengths[a : b + 1].mean()) - every) for a, b in long]
    near = [run for run, ns in zip(long, off, strict=True) if ns <= min(off) + AS_GOOD_MEAN_SHARE * every]
    return max(near, key=lambda run: (run[1] - run[0], run[0]))

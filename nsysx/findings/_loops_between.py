"""What calls a network between steps and is no evaluation, and loops of launches there, such as advantages that are computed step by step.

A rollout or a batch is passed through a network once, without gradients, before the updates that train on it: nothing is evaluated then.
An evaluation is a loop of batches, takes most of the time in the network, ends in numbers for somebody, or is called one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.lines import texts
from nsysx.events.between_parts import COPIES_OUT, COPIES_OUT_PAGEABLE, BetweenSteps
from nsysx.findings import _job_bounds as bounds
from nsysx.findings._case import Case, Fix, way
from nsysx.findings._finding_bounds import BUSY_BETWEEN_SHARE, MOST_SHARE, ROUND_BYTES
from nsysx.findings._lines_between import LinesBetween, lines_between
from nsysx.findings._long_step_lines import LongStepLine
from nsysx.findings._made_between import is_unread
from nsysx.findings._scanned_loops import scan_of_lines
from nsysx.frames import intervals
from nsysx.frames.intervals import interval_of
from nsysx.model import Row
from nsysx.reading import schema

#: What is called a network that runs between steps, and evaluates nothing, where the program is at no line of its own.
PASS = "a pass through a network"
_GRAPHED = (
    "Make fewer launches in {function}: all rounds in one operation where they do not need one another, or compile it (torch.compile), or "
    "capture it in a CUDA graph"
)


class SavedLoop(NamedTuple):
    """What goes of the time between steps, per step (ns): at least, likely, and at most."""

    least_ns: int
    likely_ns: int
    most_ns: int


class LaunchLoop(NamedTuple):
    """A loop between steps that makes ``launches`` of the same few kernels before every ``every`` steps, in a function of the program.

    What is left without it: ``share`` of the time between steps, in which the host makes none of them, or ``stays_ns`` of the GPU's other
    work. ``within``: where no line of it was seen, between which lines it runs.
    """

    launches: int
    every: int
    share: float
    stays_ns: int
    line: LongStepLine | None
    within: LinesBetween | None
    fix: Fix

    @property
    def what(self) -> str:
        """What it is called."""
        if self.line is not None:
            return self.line.called
        return "a loop" if self.within is None else f"a loop{self.within.in_function}, behind line {self.within.line},"

    @property
    def where(self) -> Row:
        """Its place, as far as it is known."""
        if self.line is not None:
            return self.line.where
        return {} if self.within is None else self.within.where

    def sentence(self) -> str:
        """Return what was seen."""
        sentence = f"Each time {units.count(self.launches)} launches of a few short kernels follow each other"
        if self.line is not None:
            return f"{sentence} while the program is at {self.line.in_words}."
        return (
            f"{sentence}." if self.within is None else f"{sentence}, which the program makes in {self.within.in_words}."
        )

    def saved_ns(self, between_ns: int) -> SavedLoop:
        """Return what goes of it per step. What takes its place makes few launches, or as many that a graph makes."""
        most = max(0.0, between_ns - max(self.share * between_ns, self.stays_ns / self.every))
        scans = self.fix.ways[0].name == "scan-at-once"
        left = bounds.LAUNCHES_OF_SCAN / self.launches if scans else bounds.LAUNCH_LEFT_IN_GRAPH
        likely = max(0.0, most - min(1.0, left) * between_ns)
        seen = 1 - self.share if self.line is None else self.line.share
        least = min(likely, seen * between_ns * (1.0 if scans else bounds.GOES_BY_FUSION))
        return SavedLoop(round(least), round(likely), round(most))


def evaluates_between(
    case: Case, recorded: BetweenSteps | None, line: LongStepLine | None, loop: LaunchLoop | None
) -> bool:
    """Return whether networks that run between steps evaluate, as far as that is known; ``loop``: what takes most of the time there."""
    if recorded is None or not recorded.forwards or recorded.forwards >= bounds.BATCHES_EVALUATED * recorded.evaluating:
        return True
    if line is not None and (line.evaluates or line.entered_by_evaluation):
        return True
    if line is None and loop is not None:
        return False
    if not is_unread(case.profile):
        return line is None or line.enters or line.usual or _share_of_networks(case, recorded) >= MOST_SHARE
    return False


def reads_in_rounds(recorded: BetweenSteps | None) -> bool:
    """Return whether the host reads single values back again and again between two steps."""
    if recorded is None:
        return False
    copies = [part for part in recorded.parts if part.what in (COPIES_OUT, COPIES_OUT_PAGEABLE)]
    reads, size = sum(part.calls for part in copies), sum(part.bytes for part in copies)
    return reads >= bounds.READS_BETWEEN * len(recorded.start_ns) and size <= ROUND_BYTES * reads


def _share_of_networks(case: Case, recorded: BetweenSteps) -> float:
    """Return for which share of the time between steps networks run there, on the host or on the GPU."""
    ops = case.profile.attributed.gpu_ops.filter(
        (pl.col("process") == case.process) & (pl.col("phase").cast(pl.String) == "evaluation")
    )
    on_gpu = intervals.length(ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy())
    on_host = sum(part.ns for part in recorded.parts if part.evaluates)
    return max(on_gpu, on_host) / max(recorded.ns, 1)


def launch_loop(case: Case, recorded: BetweenSteps | None, line: LongStepLine | None) -> LaunchLoop | None:
    """Return the loop of launches that takes most of the time between steps, None where there is none."""
    if recorded is None or (line is not None and (line.enters or line.usual)):
        return None
    ops = case.profile.attributed.gpu_ops.filter(
        (pl.col("process") == case.process) & pl.col("call_start_ns").is_not_null()
    )
    held = interval_of(ops["call_start_ns"].to_numpy(), recorded.start_ns, recorded.end_ns)
    ops = ops.filter(pl.Series(held >= 0, dtype=pl.Boolean)).with_columns(stretch=pl.Series(held[held >= 0]))
    networks = (pl.col("phase").cast(pl.String) == "evaluation").fill_null(value=False)
    again = pl.len().over("stretch", "name") >= bounds.LAUNCHES_OF_KERNEL_BETWEEN
    short = (pl.col("end_ns") - pl.col("start_ns")).mean().over("stretch", "name") <= bounds.SHORT_BETWEEN_NS
    ops = ops.with_columns(looped=again & short & ~networks)
    in_loop = ops.filter("looped").sort("stretch", "call_start_ns")
    stretches = in_loop["stretch"].unique().to_numpy()  # one behind the start-up may hold nothing
    reads = in_loop["copy_kind"].is_in([kind for kind, name in schema.COPY_KINDS.items() if name == "DtoH"]).any()
    if not len(stretches) or reads:
        return None
    ns = int((recorded.end_ns - recorded.start_ns)[stretches].sum())
    apart = np.diff(in_loop["call_start_ns"].to_numpy())[np.diff(in_loop["stretch"].to_numpy()) == 0]
    host = int(apart[apart <= bounds.ROUND_PAUSE_NS].sum())
    if host < MOST_SHARE * ns or (in_loop["end_ns"] - in_loop["start_ns"]).sum() >= BUSY_BETWEEN_SHARE * ns:
        return None
    rest = ops.filter(~pl.col("looped") & pl.col("stretch").is_in(stretches.tolist()))
    stays = intervals.length(rest["start_ns"].to_numpy(), rest["end_ns"].to_numpy())
    launches = round(in_loop.height / len(stretches))
    steps = case.profile.steps.cpu.filter(pl.col("process") == case.process)
    before = np.searchsorted(np.sort(steps["start_ns"].to_numpy()), recorded.start_ns[stretches])
    every = max(1, int(np.median(np.diff(before)))) if len(before) > 1 else 1
    begins = in_loop.group_by("stretch").agg(pl.col("call_start_ns").min())["call_start_ns"].sort().to_numpy()
    within = lines_between(case, begins) if line is None else None
    return LaunchLoop(
        launches, every, 1 - host / ns, round(stays / len(stretches)), line, within, _fix(case, line, within)
    )


def _fix(case: Case, line: LongStepLine | None, within: LinesBetween | None) -> Fix:
    of_file = None if line is None else texts(case.profile).get(line.file)
    scan = scan_of_lines(of_file, line.line, line.lines) if line is not None and isinstance(of_file, Mapping) else None
    if scan is not None:
        return scan
    text = _GRAPHED.format(function=line.called if line is not None else within.loop if within is not None else "it")
    return Fix.by_name(way("batched-operation", text, ""))

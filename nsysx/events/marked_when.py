"""When the probe of a process marked modules, and which calls of networks lie outside of steps."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.events.nvtx_ranges import Flags, Ranges
from nsysx.frames.intervals import I64


@dataclass(frozen=True)
class Marks:
    """When the probe of one process had its marks on."""

    times: I64
    on: Flags

    def at(self, t: I64) -> Flags:
        """Return whether marks were on at each instant."""
        last = np.searchsorted(self.times, t, side="right") - 1
        state: Flags = np.where(last >= 0, self.on[np.maximum(last, 0)], ~self.on[0])
        return state

    def throughout(self, start: I64, end: I64) -> Flags:
        """Return whether marks were on from start to end."""
        changes = np.searchsorted(self.times, end, side="left") - np.searchsorted(self.times, start, side="right")
        whole: Flags = self.at(start) & (changes == 0)
        return whole


def switches(notes: pl.DataFrame) -> dict[int, Marks]:
    """Return process -> when marks were on, for processes in which they were off at some time."""
    switches: dict[int, list[tuple[int, bool]]] = defaultdict(list)
    for process, time, text in notes.sort("start_ns")["process", "start_ns", "name"].iter_rows():
        try:
            note = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            continue
        on = note.get("marks") if isinstance(note, dict) else None
        if isinstance(on, bool):
            switches[process].append((time, on))
    marks = {}
    for process, rows in switches.items():
        if not all(on for _, on in rows):
            marks[process] = Marks(np.array([t for t, _ in rows], np.int64), np.array([on for _, on in rows], np.bool_))
    return marks


def calls_outside(ranges: Ranges, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the outermost calls of networks that begin outside of every step: process, start_ns, end_ns, by start."""
    rows = ranges.ranges
    wanted = (rows["kind"] == "phase") & rows["own"] & ((rows["name"] == "forward") | (rows["name"] == "evaluation"))
    phases = rows.filter(wanted).sort("process", "thread", "start_ns")["process", "thread", "start_ns", "end_ns"]
    before = pl.col("end_ns").cum_max().shift(1).over("process", "thread")
    phases = phases.filter((pl.col("start_ns") >= before).fill_null(True))
    covered = steps.select("process", "start_ns", pl.col("end_ns").alias("until")).sort("start_ns")
    placed = phases.sort("start_ns").join_asof(covered, on="start_ns", by="process", check_sortedness=False)
    outside = placed.filter((pl.col("start_ns") >= pl.col("until")).fill_null(True))
    return outside["process", "start_ns", "end_ns"]


def xrayed(ranges: Ranges, threads: Collection[int], steps: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return which of these steps (start and end, ns) have lines or operators on one of these threads."""
    operators = ranges.ranges.filter(pl.col("kind") == "op")
    noted = pl.concat([rows["thread", "start_ns"] for rows in (operators, ranges.lines)])
    times = np.sort(noted.filter(pl.col("thread").is_in(list(threads)))["start_ns"].to_numpy())
    return {step for step in steps if np.diff(np.searchsorted(times, step)).item()}

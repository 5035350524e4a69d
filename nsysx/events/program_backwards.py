"""The backwards of the program: when each runs, and which one of its step it is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64, interval_of


class ProgramBackwards(NamedTuple):
    """When each backward of the shown process begins and ends, in order of time, and its number in its step, from 0."""

    start_ns: I64
    end_ns: I64
    number: I64

    def at(self, t: I64) -> I64:
        """Return the row of the backward in which each instant lies, -1 for none."""
        return interval_of(t, self.start_ns, self.end_ns)

    def number_at(self, t: I64) -> I64:
        """Return the number of the backward in which each instant lies, -1 for none."""
        numbers: I64 = np.append(self.number, -1)[self.at(t)]
        return numbers


def program_backwards(profile: Profile) -> ProgramBackwards:
    """Return the backwards that the probe marked."""
    return profile.once(_read)


def _read(profile: Profile) -> ProgramBackwards:
    chosen = pl.col("own") & (pl.col("process") == profile.process) & (pl.col("name").cast(pl.String) == "backward")
    backwards = profile.ranges.ranges.filter(chosen)["start_ns", "end_ns"].sort("start_ns")
    start, end = backwards["start_ns"].to_numpy(), backwards["end_ns"].to_numpy()
    steps = profile.steps.cpu.filter(pl.col("process") == profile.process)["start_ns"].sort().to_numpy()
    step = np.searchsorted(steps, start, side="right")
    return ProgramBackwards(start, end, np.arange(len(start)) - np.searchsorted(step, step))

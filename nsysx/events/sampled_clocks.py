"""At which clock a GPU worked, by its own counters: nsys samples the GPCs' clock beside every recording that the driver allows it in.

It tells what no kernel does: that the same program would be faster on the same card. On an H100 at 85 C the driver held the GPCs at 345 of
1980 MHz for minutes, while the memory kept its clock: products of matrices took 3.6 times as long, at 150 of 700 W.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from nsysx.events.event_bounds import AT_WORK_SHARE, FEWEST_WORKING_SAMPLES
from nsysx.reading.trace import Trace


@dataclass(frozen=True)
class WorkingClock:
    """The mean clock of a GPU's GPCs while its SMs worked, and the highest that the card has (MHz)."""

    mhz: float
    most_mhz: float

    @property
    def share(self) -> float:
        """The clock as a share of the highest."""
        return self.mhz / self.most_mhz

    @property
    def text(self) -> str:
        """Both, as people write them: "345 of 1980 MHz"."""
        return f"{self.mhz:.0f} of {self.most_mhz:.0f} MHz"


def working_clock(trace: Trace, process: int, device: int, window: tuple[int, int]) -> WorkingClock | None:
    """Return the clock of a device in a window (ns); None where it was not sampled while its SMs worked, or its highest is not recorded."""
    limits, samples = trace.limits.get((process, device)), trace.gpu_metrics
    if limits is None or limits.gpu is None or not limits.clock_hz or samples is None:
        return None
    inside = (pl.col("gpu") == limits.gpu & 0xFF) & pl.col("time_ns").is_between(*window)
    clock = samples.filter(inside & (pl.col("sm_active") >= AT_WORK_SHARE))["clock_hz"].drop_nulls()
    if clock.len() < FEWEST_WORKING_SAMPLES:
        return None
    return WorkingClock(float(clock.sum()) / clock.len() / 1e6, limits.clock_hz / 1e6)

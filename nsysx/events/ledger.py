"""The ledgers: what each device and each thread did at every instant, why a device idled, and what a blocking call waited for.

Each is a ``StepFunction`` or a frame of disjoint segments, so that any window can be integrated exactly and parts sum to the
whole. What each word means exactly stands in ``nsysx/docs/definitions.md``.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from nsysx.events.attribute import Attributed
from nsysx.events.correlate import Threads
from nsysx.events.device_activity import CLASSES, device_activities, gpu_parts, windows_function
from nsysx.events.idle_blame import idle_in, idle_parts, idle_pieces
from nsysx.events.nvtx_ranges import Ranges
from nsysx.events.wait_parts import wait_splits
from nsysx.frames.intervals import StepFunction
from nsysx.reading.load import Trace

__all__ = (
    "CLASSES",
    "Ledgers",
    "build",
    "gpu_parts",
    "idle_in",
    "idle_parts",
    "windows_function",
)


@dataclass(frozen=True)
class Ledgers:
    """``activity`` labels each instant of a device with a bit mask over CLASSES, 0 where it idles.

    ``idle`` has one row per piece of a gap: process, device, start_ns, end_ns, cause, gap, op (that ended the gap), began_in
    (the API call in which the launching thread was when the device ran dry, null for none). ``waits`` has one row per call that
    can block: call, backlog_ns, own_op_ns, host_ns, idle_caused_ns, awaited.
    """

    activity: dict[tuple[int, int], StepFunction]
    threads: Threads
    idle: pl.DataFrame
    waits: pl.DataFrame

    def idle_of(self, process: int, device: int | None) -> pl.DataFrame:
        """Return the rows of ``idle`` of one device, in order; none for a device that did not work."""
        first, behind = self._runs.get((process, -1 if device is None else device), (0, 0))
        return self.idle.slice(first, behind - first)

    @cached_property
    def _runs(self) -> dict[tuple[int, int], tuple[int, int]]:
        """The first row of each device in ``idle`` and the one behind its last: they are one run."""
        process, device = self.idle["process"].to_numpy(), self.idle["device"].to_numpy()
        changes = np.flatnonzero((np.diff(process) != 0) | (np.diff(device) != 0)) + 1
        borders = [0, *changes.tolist(), len(process)] if len(process) else []
        return {(int(process[a]), int(device[a])): (a, b) for a, b in itertools.pairwise(borders)}


def build(trace: Trace, attributed: Attributed, named: Ranges) -> Ledgers:
    """Return the ledgers of a whole report; windows are taken from them later."""
    activities = device_activities(attributed, named)
    idle = idle_pieces(trace, attributed, activities)
    waits = wait_splits(trace, attributed).join(idle_caused(idle), on="call", how="left", maintain_order="left")
    waits = waits.with_columns(pl.col("idle_caused_ns").fill_null(0))
    return Ledgers(activities, attributed.threads, idle, waits)


def idle_caused(idle: pl.DataFrame) -> pl.DataFrame:
    """Return call, idle_caused_ns: the idle time of these pieces by the call in which the device ran dry."""
    return (
        idle.drop_nulls("began_in")
        .group_by(pl.col("began_in").alias("call"))
        .agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("idle_caused_ns"))
    )

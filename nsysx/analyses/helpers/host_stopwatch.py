"""The GPU calls of each thread in order, and the calls around a piece of work: what a stopwatch on the host sees."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

import numpy as np
import numpy.typing as npt

from nsysx.analyses.helpers.analysis_bounds import FEWEST_EXECUTIONS
from nsysx.catalogue import Call
from nsysx.events.profile import Profile
from nsysx.frames.frame_bounds import LONG_AGO_NS
from nsysx.frames.intervals import I64, Labels
from nsysx.rows import Of

Mask = npt.NDArray[np.bool_]
WAYS = ("both", "before", "after", "none")
_CLOCK = "a clock with synchronize {}; null when it cannot be told"
#: Columns of a table of readings, for each way its reading and how that is known: the type of a row's field.
BothNs = Annotated[float | None, Of(_CLOCK.format("before and after"), "ns", label="sync before and after")]
BeforeNs = Annotated[float | None, Of(_CLOCK.format("only before"), "ns", label="sync only before")]
AfterNs = Annotated[float | None, Of(_CLOCK.format("only after"), "ns", label="sync only after")]
NoneNs = Annotated[float | None, Of(_CLOCK.format("nowhere"), "ns", label="no sync")]
HowRead = Annotated[str | None, Of("measured or composed; null likewise")]
#: What a table of readings shows, in order, with the readings of events, and what it hides.
READ = (*(f"{way}_ns" for way in WAYS), "event_idle_ns", "event_queued_ns", "benchmark_ns")
HIDDEN = tuple(f"{way}_from" for way in WAYS)


def median(values: I64, chosen: Mask | None = None) -> float | None:
    """Return the median of the values (of those chosen), None for fewer than FEWEST_EXECUTIONS."""
    if chosen is not None and not chosen.all():
        values = values[chosen]
    if len(values) < FEWEST_EXECUTIONS:
        return None
    # np.median spends longer on its checks than on the few values of a small report.
    low, high = (len(values) - 1) // 2, len(values) // 2
    parted = np.partition(values, (low, high))
    return (float(parted[low]) + float(parted[high])) / 2


def total(*parts: float | None) -> float | None:
    """Return the sum, None if a part is unknown."""
    recorded = [p for p in parts if p is not None]
    return sum(recorded) if len(recorded) == len(parts) else None


class Backlog:
    """How long the GPU keeps working on what was launched before an instant. ``backlog`` makes it once."""

    def __init__(self, profile: Profile) -> None:
        ops = profile.attributed.gpu_ops
        launched, process = ops["call"].is_not_null().to_numpy(), ops["process"].fill_null(-1).to_numpy()
        called, end = ops["call_start_ns"].fill_null(0).to_numpy(), ops["end_ns"].to_numpy()
        #: Whether each op was launched when everything before it was done.
        self.alone = np.zeros(ops.height, np.bool_)
        self._of: dict[int, tuple[I64, I64]] = {}
        for key in ops["process"].drop_nulls().unique().to_list():
            rows = np.flatnonzero(launched & (process == key))
            # Ops come by their start, which is nearly the order of their launches: a stable sort only merges runs.
            rows = rows[np.argsort(called[rows], kind="stable")]
            times = called[rows]
            reach = np.concatenate(([LONG_AGO_NS], np.maximum.accumulate(end[rows])))
            self._of[key] = times, reach
            # The ops of a graph are launched at one instant: before each of them is what was before the first.
            first = np.flatnonzero(np.diff(times, prepend=LONG_AGO_NS))
            before = np.repeat(first, np.diff(first, append=len(times)))
            self.alone[rows] = reach[before] <= times

    def after(self, process: int, time: I64) -> I64:
        """Return how much longer the work of a process that was launched before each instant ran after it (ns)."""
        if process not in self._of:
            return np.zeros(len(time), np.int64)
        times, reach = self._of[process]
        left: I64 = reach[np.searchsorted(times, time, side="left")] - time
        return np.maximum(left, 0)


def backlog(profile: Profile) -> Backlog:
    """Return the backlog of a report."""
    return profile.once(Backlog)


class GpuCalls:
    """The GPU calls of all threads, in order, with the calls before and after each. ``gpu_calls`` makes it once."""

    def __init__(self, profile: Profile) -> None:
        calls = profile.attributed.api_calls  # numbered by thread and time
        kinds = [Call.LAUNCH, Call.GRAPH_LAUNCH, Call.COPY, Call.MEMSET, Call.SYNC]
        self.call = np.flatnonzero(calls["kind"].is_in(kinds).to_numpy())
        self._start, self._end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
        # cudaStreamWaitEvent only tells the device to wait, and is not a synchronize of the host; its kind is event.
        self.sync = (calls["kind"] == Call.SYNC).to_numpy()[self.call]
        self.row = np.full(calls.height, -1, np.int32)
        self.row[self.call] = np.arange(len(self.call))
        thread = calls["thread"].to_numpy()[self.call]
        new = np.flatnonzero(np.diff(thread)) + 1
        borders = [0, *new.tolist(), len(thread)]
        self._slice = {int(thread[a]): (a, b) for a, b in pairwise(borders) if a < b}
        #: Where a thread begins, and at the end of all.
        self._border = np.zeros(len(thread) + 1, np.bool_)
        self._border[borders] = True
        self.idle_after = np.zeros(len(thread), np.bool_)
        syncs = np.flatnonzero(self.sync)
        process = calls["process"].to_numpy()[self.call[syncs]]
        for key in np.unique(process).tolist():
            rows = syncs[process == key]
            self.idle_after[rows] = backlog(profile).after(key, self.end(rows)) == 0

    def start(self, row: Labels) -> I64:
        """Return when these calls begin."""
        return self._start[self.call[row]]

    def end(self, row: Labels) -> I64:
        """Return when these calls end."""
        return self._end[self.call[row]]

    def previous(self, row: Labels) -> Labels:
        """Return the row before on the same thread, -1 where there is none."""
        return np.where(self._border[row], -1, row - 1)

    def following(self, row: Labels) -> Labels:
        """Return the next row of the same thread, -1 where there is none."""
        return np.where(self._border[row + 1], -1, row + 1)

    def at(self, thread: int, time: I64) -> I64:
        """Return the row of the thread's last call that starts before each instant, -1 for none."""
        first, last = self._slice.get(thread, (0, 0))
        call = np.searchsorted(self._start[self.call[first:last]], time, side="left") - 1
        return np.where(call >= 0, call + first, -1)

    def synced(self, before: Labels, after: Labels, end: I64) -> tuple[Mask, Mask, I64]:
        """Return (a synchronize stands before, one stands after and waits for ``end``, when that one returns) as arrays.

        ``before`` and ``after`` are the calls next to each piece of work, -1 for none.
        """
        if not len(self.call):
            nowhere = np.zeros(len(end), np.bool_)
            return nowhere, nowhere, np.zeros(len(end), np.int64)
        empty = (before >= 0) & (self.sync & self.idle_after)[before]
        returned = self.end(after)
        return empty, (after >= 0) & self.sync[after] & (returned >= end), returned


def gpu_calls(profile: Profile) -> GpuCalls:
    """Return the GPU calls of a report."""
    return profile.once(GpuCalls)


def readings(
    measured: dict[str, float | None],
    composed: dict[str, float | None],
    *,
    handed: float | None,
    work: float | None,
    alone: float | None,
) -> dict[str, object]:
    """Return NAME_ns and NAME_from of the four ways (measured if known, else composed), and what events and benchmarks read.

    ``handed``: how long the CPU takes to hand the work over; ``work``: its GPU time; ``alone``: all of it on an idle device.
    """
    columns: dict[str, object] = {}
    for way in WAYS:
        value = measured[way] if measured[way] is not None else composed[way]
        columns[f"{way}_ns"] = value
        columns[f"{way}_from"] = None if value is None else "composed" if measured[way] is None else "measured"
    slower = max(handed, work) if handed is not None and work is not None else None
    return {**columns, "event_idle_ns": alone, "event_queued_ns": work, "benchmark_ns": slower}

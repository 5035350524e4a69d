"""The GPU calls of each thread in order, and what stands around a piece of work: what a stopwatch on the host sees."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nsysx.columns import matching
from nsysx.facts import Facts
from nsysx.intervals import I64
from nsysx.queueing import pending

Mask = npt.NDArray[np.bool_]
WAYS = ("both", "before", "after", "none")
#: Fewer executions of a kind are no measurement.
LEAST = 3


def median(values: I64) -> float | None:
    """Return the median, None for fewer than LEAST values."""
    return float(np.median(values)) if len(values) >= LEAST else None


def total(*parts: float | None) -> float | None:
    """Return the sum, None when a part is not known."""
    known = [p for p in parts if p is not None]
    return sum(known) if len(known) == len(parts) else None


class GpuCalls:
    """The GPU calls of all threads, in order, with what stands before and after each on its thread."""

    def __init__(self, facts: Facts) -> None:
        calls = facts.attributed.api_calls  # sorted by thread and time
        calls = calls.filter(matching(calls["kind"], "^(launch|graph_launch|copy|memset|sync)$"))
        self.call = calls["call"].to_numpy()
        self.start, self.end, self.thread = (calls[c].to_numpy() for c in ("start_ns", "end_ns", "thread"))
        # cudaStreamWaitEvent only tells the device to wait, and is no synchronize of the host; its kind is event.
        self.sync = matching(calls["kind"], "^sync$")
        self.row = np.full(facts.attributed.api_calls.height, -1, np.int64)
        self.row[self.call] = np.arange(len(self.call))
        self.idle_after = np.zeros(len(self.call), np.bool_)
        process = calls["process"].to_numpy()
        self.idle_after[self.sync] = pending(facts, process[self.sync], self.end[self.sync]) == 0

    def neighbour(self, row: I64, step: int) -> I64:
        """Return the row ``step`` further on the same thread, -1 where there is none."""
        other = row + step
        inside = (other >= 0) & (other < len(self.call))
        same = inside & (self.thread[np.clip(other, 0, len(self.call) - 1)] == self.thread[row])
        return np.where(same, other, -1)

    def at(self, thread: int, time: I64) -> I64:
        """Return the row of the thread's last call that starts before each instant, -1 for none."""
        first, last = (int(i) for i in np.searchsorted(self.thread, [thread, thread + 1]))
        found = np.searchsorted(self.start[first:last], time, side="left") - 1
        return np.where(found >= 0, found + first, -1)

    def synced(self, before: I64, after: I64, end: I64) -> tuple[Mask, Mask, I64]:
        """Return (a synchronize stands before, one stands after and waits for ``end``, when that one returns) as arrays.

        ``before`` and ``after`` are the calls next to each piece of work, -1 for none.
        """
        if not len(self.call):
            nowhere = np.zeros(len(end), np.bool_)
            return nowhere, nowhere, np.zeros(len(end), np.int64)
        previous, following = np.maximum(before, 0), np.maximum(after, 0)
        empty = (before >= 0) & self.sync[previous] & self.idle_after[previous]
        returned = self.end[following]
        return empty, (after >= 0) & self.sync[following] & (returned >= end), returned


def readings(measured: dict[str, float | None], composed: dict[str, float | None]) -> dict[str, object]:
    """Return NAME_ns and NAME_from of the four ways, measured where that is known."""
    found: dict[str, object] = {}
    for way in WAYS:
        value = measured[way] if measured[way] is not None else composed[way]
        found[f"{way}_ns"] = value
        found[f"{way}_from"] = None if value is None else "composed" if measured[way] is None else "measured"
    return found

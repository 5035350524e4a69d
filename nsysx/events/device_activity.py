"""What each device did at every instant, as classes of GPU work, and how that splits any window.

compute > communication > copy > memset > idle: where several run at once the first counts and the others are hidden behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.attribute import Attributed
from nsysx.events.nvtx_ranges import Ranges
from nsysx.frames import lookup
from nsysx.frames.intervals import I64, StepFunction, coverage

#: Classes of GPU work by priority: where several run at once, the first counts and the others are hidden behind it.
COPIES = ("HtoD", "DtoH", "DtoD", "copy_other")
CLASSES = (DeviceActivity.COMPUTE.value, DeviceActivity.COMM.value, *COPIES, DeviceActivity.MEMSET.value)

#: Copy codes (``schema.COPY_KINDS``) by direction.
_DIRECTION = {"HtoD": (1, 3, 11), "DtoH": (2, 4, 12), "DtoD": (5, 6, 7, 8, 10, 13)}


def _classes(ops: pl.DataFrame) -> I64:
    """Return the row of each op's class in CLASSES, -1 for none."""
    other = CLASSES.index("copy_other")
    numbers = {name: i for i, name in enumerate(CLASSES) if name not in COPIES} | {DeviceActivity.COPY.value: other}
    cls = lookup.coded(ops["cls"], numbers)
    copies = np.flatnonzero(cls == other)
    kind = lookup.filled(lookup.at(ops["copy_kind"], copies), -1)
    for direction, codes in _DIRECTION.items():
        cls[copies[np.isin(kind, codes)]] = CLASSES.index(direction)
    return cls


def _activity(ops: pl.DataFrame, start: int, end: int) -> StepFunction:
    s, e, cls = (ops[c].to_numpy() for c in ("start_ns", "end_ns", "class"))
    masks = [cls == i for i in range(len(CLASSES))]
    return coverage([(s[m], e[m]) for m in masks], start, end)


def device_activities(attributed: Attributed, named: Ranges) -> dict[tuple[int, int], StepFunction]:
    """Return (process, device) -> which classes of work run at each instant, as a bit mask over CLASSES, 0 where it idles.

    Each is defined from the first to the last instant of the capture: a step may begin long before the first call of CUDA and
    end long after the last, in another process too.
    """
    ops = attributed.gpu_ops
    times = [
        t
        for f in (attributed.api_calls, ops, named.ranges)
        for t in (f["start_ns"].min(), f["start_ns"].max(), f["end_ns"].max())
        if isinstance(t, int)  # null where there are no rows
    ]
    first, last = (min(times), max(times)) if times else (0, 0)
    wanted = ops["process", "device", "start_ns", "end_ns"].with_columns(pl.Series("class", _classes(ops)))
    parts = lookup.parted(wanted, "process", "device")
    return {(process, device): _activity(part, first, last) for (process, device), part in parts.items()}


def windows_function(start: I64, end: I64, label: I64) -> StepFunction:
    """Return disjoint windows, sorted by start, as a function that carries each window's label."""
    keep = end > start
    start, end, label = start[keep], end[keep], label[keep]
    times = np.stack([start, end], axis=1).ravel()
    labels = np.stack([label, np.full(len(label), -1, np.int64)], axis=1).ravel()
    return StepFunction(times, labels[:-1])


def _counts_as(bit: int, mask: int) -> bool:
    return mask & bit > 0 and mask & (bit - 1) == 0


def gpu_parts(activity: StepFunction, start: I64, end: I64) -> dict[str, I64]:
    """Return the GPU ledger of each window [start, end) of one device (ns).

    compute + comm + copy + memset + idle = end - start, exactly; busy is the first four. ``hidden_*`` is copy or
    communication that ran behind something of higher priority and therefore costs nothing.
    """
    masks = activity.shares(start, end)
    bits = {name: 1 << i for i, name in enumerate(CLASSES)}
    copies = sum(bits[c] for c in COPIES)
    compute, comm = bits[DeviceActivity.COMPUTE], bits[DeviceActivity.COMM]

    def time(chosen: Callable[[int], bool]) -> I64:
        return sum((ns for mask, ns in masks.items() if chosen(mask)), np.zeros(len(start), np.int64))

    # The lowest bit has the highest priority.
    parts = {name: time(partial(_counts_as, bit)) for name, bit in bits.items()}
    window = end - start
    busy = time(lambda m: m > 0)
    return {
        "window_ns": window,
        DeviceActivity.COMPUTE.column: parts[DeviceActivity.COMPUTE],
        DeviceActivity.COMM.column: parts[DeviceActivity.COMM],
        DeviceActivity.COPY.column: sum((parts[c] for c in COPIES), np.zeros(len(start), np.int64)),
        **{f"copy_{c.removeprefix('copy_')}_ns": parts[c] for c in COPIES},
        DeviceActivity.MEMSET.column: parts[DeviceActivity.MEMSET],
        DeviceActivity.IDLE.column: window - busy,
        "busy_ns": busy,
        "hidden_copy_ns": time(lambda m: m & copies > 0 and m & (compute | comm) > 0),
        "hidden_comm_ns": time(lambda m: m & comm > 0 and m & compute > 0),
    }

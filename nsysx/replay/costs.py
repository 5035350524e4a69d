"""What tracing adds to each class of event, and where that is known from.

Best first: the step was measured, in the same process before the window of ``--steps`` or in a second run without profiler
(``--calibrate``): the costs are then scaled until the modelled step is the measured one. Else they come from what ``nsysx
calibrate`` measured on the machine, else from the table here, with a wide bar.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeGuard

import numpy as np

from nsysx.events.profile import Profile

Source = Literal["in_process", "second_run", "modelled", "assumed"]

SCHEMA = "nsysx.tracing_costs/1"

#: Classes of traced events: API calls by kind. Ranges and marks have theirs in ``ASSUMED``; what nsys itself says that it took
#: (``PROFILER_OVERHEAD``) is measured and has no entry in a table of costs.
CALL_CLASSES = ("launch", "graph_launch", "copy", "memset", "sync", "event", "alloc", "nested", "other")
GRAPH_NODE = "graph_node"
FLUSH = "profiler"


#: No cost and no step is longer than an hour: what a file states beyond that is not believed.
_LONGEST_NS = 3_600e9


@dataclass(frozen=True)
class Cost:
    """What one event adds (ns): likely, at least, at most. ``inside``: the part that lies between the recorded stamps."""

    ns: float
    low_ns: float
    high_ns: float
    inside: float = 0.0


@dataclass(frozen=True)
class Costs:
    """Costs by class, measured where a launch was recorded to take ``launch_ns`` in the median. ``source`` as in `Unprofiled`.

    ``other_ns`` is what calls that do nothing (``cudaStreamIsCapturing``) took there: the speed of the host itself; 0 where it
    is not known. ``gpu`` names the machines for which that speed holds.
    """

    source: Source
    launch_ns: float
    of: Mapping[str, Cost]
    other_ns: float = 0.0
    gpu: str = ""


@dataclass(frozen=True)
class Measured:
    """A step that was measured without tracing (ns): median, and the range in which it lies."""

    source: Source
    step_ns: int
    low_ns: int
    high_ns: int
    count: int


#: nsys 2025.3 on H200 hosts, torch 2.11: six programs with blocks of steps without and with tracing in one process, and loops of
#: single calls: a launch +2.4 us, a copy +3.6, an event +2.6, a stream synchronize +1.1, a node of a graph +0.65 us where nodes
#: are traced, else +0.11. In a program, between other work, a launch costs twice as much: ``nsysx calibrate`` gave 3.9 us where
#: it was recorded to take 4.5, which is 5.0 at the 5.8 here. Backward marks are those of the probe of 2026.
ASSUMED = Costs(
    "assumed",
    launch_ns=5_800,
    of={
        "launch": Cost(5_500, 2_500, 8_000, 0.35),
        "graph_launch": Cost(4_000, 2_000, 10_000, 0.5),
        "graph_node": Cost(800, 110, 900, 1.0),
        "copy": Cost(6_000, 3_000, 9_000, 0.35),
        "memset": Cost(5_500, 2_500, 8_000, 0.35),
        "sync": Cost(2_500, 1_000, 5_000, 0.35),
        "event": Cost(4_500, 2_000, 7_000, 0.35),
        "alloc": Cost(3_000, 1_000, 6_000, 0.35),
        "nested": Cost(700, 300, 1_500, 1.0),
        "other": Cost(700, 300, 1_500, 0.2),
        "range": Cost(400, 150, 1_000),
        "module_range": Cost(2_500, 500, 5_000),
        "backward_mark": Cost(35_000, 5_000, 60_000),
        "mark": Cost(400, 150, 1_000),
    },
    other_ns=100,
    gpu="H200",
)
#: While a host is slow by its trivial calls, its other code is slow by this power of it. Over 18 programs on H200 hosts with a
#: known bare step the power 0.5 gave a median error of 8.5 % instead of 14 %, and no bias.
SLOW_HOST = 0.5
#: Two kernels that are queued in a stream are this much further apart while they are traced (H200: 1.83 to 2.01 us).
KERNEL_GAP_NS = 200
#: A host can be slower by this part while it is recorded, without the profiler's doing: one Python loop took 30 us, or 55, in the
#: same process; the same program's bare step differed by a third from process to process.
HOST_DRIFT = 0.55
#: And faster, by this part: of two processes of one program the recorded one may be either.
HOST_DRIFT_UP = 0.15


def parsed(told: object, source: Source) -> Costs | None:
    """Return the costs that a file states, None where it states none that can be used."""
    if not isinstance(told, dict) or told.get("schema") != SCHEMA:
        return None
    launch, table = told.get("launch_ns"), told.get("costs")
    if not _number(launch) or not launch or not isinstance(table, dict):
        return None
    known = {}
    # What the file does not state is from the table, for a host of this speed.
    speed = launch / ASSUMED.launch_ns
    for name, usual in ASSUMED.of.items():
        row = table.get(name, {})
        assumed = Cost(usual.ns * speed, usual.low_ns * speed, usual.high_ns * speed, usual.inside)
        if not isinstance(row, dict):
            return None
        values = [row.get(f.name, getattr(assumed, f.name)) for f in fields(Cost)]
        if not all(_number(v) for v in values) or values[-1] > 1:
            return None
        known[name] = Cost(*map(float, values))
    other = told.get("other_ns", 0)
    return Costs(source, float(launch), known, float(other) if _number(other) else 0.0)


def _number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LONGEST_NS


def costs(run: Mapping[str, Any]) -> Costs:
    """Return what tracing costs, from the machine's own profile in NAME.run.json or from the table."""
    return parsed(run.get("machine_profile"), "modelled") or ASSUMED


def measured(profile: Profile, numbers: Collection[int]) -> Measured | None:
    """Return the step without tracing where it was measured; of a second run the steps of these numbers."""
    run = profile.trace.run
    return _in_process(run, profile.steps.process) or _second_run(run, numbers)


def _in_process(run: Mapping[str, Any], process: int) -> Measured | None:
    for record in run.get("probe") or ():
        told = record.get("unrecorded_steps") if isinstance(record, dict) else None
        if not isinstance(told, dict) or record.get("pid") not in (None, process & 0xFFFFFF):
            continue
        step, low, high, count = (told.get(k) for k in ("median_ns", "low_ns", "high_ns", "count"))
        if _number(step) and _number(low) and _number(high) and _number(count) and step > 0 and count > 0:
            return Measured("in_process", round(step), round(min(low, step)), round(max(high, step)), int(count))
    return None


def _second_run(run: Mapping[str, Any], numbers: Collection[int]) -> Measured | None:
    timing = run.get("calibration")
    told = timing.get("steps_ns") if isinstance(timing, dict) else None
    if not isinstance(told, dict):
        return None
    try:
        lengths = [int(ns) for index, ns in told.items() if int(index) in numbers]
    except (TypeError, ValueError):
        return None
    lengths = [ns for ns in lengths if 0 < ns < 1 << 60]
    if not lengths:
        return None
    low, step, high = np.percentile(lengths, [25, 50, 75])
    return Measured("second_run", round(step), round(low), round(high), len(lengths))

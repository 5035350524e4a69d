"""What tracing adds to each class of event, and how well that is known.

The best source is a measured step: in the same process between two windows or before that of ``--steps``, or in a second run
without the profiler (``--calibrate``). The costs are then scaled until the modelled step equals the measured one. Without a
measured step they come from what ``nsysx calibrate`` measured on the machine, or else from the table here, with a wide error bar.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypedDict, TypeGuard

import numpy as np

from nsysx import ids
from nsysx.catalogue import Call, Cause
from nsysx.events import bare
from nsysx.events.profile import Profile
from nsysx.frames.statistics import bootstrap_bounds
from nsysx.model import Capture
from nsysx.replay.replay_bounds import (
    ATTACHED_STEP_SHARE,
    BETWEEN_PAUSES_SHARE,
    BOOTSTRAP_FEWEST_STEPS,
    BOOTSTRAP_RESAMPLES,
    BOOTSTRAP_SHARE,
    LEAST_MEASURED_BAR_SHARE,
    LONGEST_COST_NS,
    PAUSED_STEP_TIMES,
    PERIOD_SPREAD,
    STEPS_OF_ONE_PAUSE,
)

Source = Literal["in_process", "second_run", "modelled", "assumed"]

SCHEMA = "nsysx.tracing_costs/1"

GRAPH_NODE = "graph_node"
NESTED = "nested"
#: The classes of API calls. Ranges and marks have their own classes in ``ASSUMED``. The time that nsys reports for itself
#: (``PROFILER_OVERHEAD``) is measured, so it has no entry in a table of costs.
CALL_CLASSES = (
    *(Call.LAUNCH, Call.GRAPH_LAUNCH, Call.COPY, Call.MEMSET, Call.SYNC, Call.EVENT, Call.ALLOC),
    NESTED,
    Call.OTHER,
)
FLUSH = Cause.PROFILER.value


@dataclass(frozen=True)
class Cost:
    """What tracing adds to one event (ns): likely value, lower and upper bound. ``inside``: the share between its timestamps."""

    ns: float
    low_ns: float
    high_ns: float
    inside: float = 0.0


@dataclass(frozen=True)
class TracingCosts:
    """Costs by class, measured on a machine where recorded launches took ``launch_ns`` in the median. ``source``: see `Unprofiled`."""

    source: Source
    launch_ns: float
    of: Mapping[str, Cost]


@dataclass(frozen=True)
class Measured:
    """A step that was measured without tracing (ns): its usual length, lower and upper bound, and the number of measured steps.

    ``mean``: the length is the mean over all steps between two windows and after them, which counts what only some of them do.
    """

    source: Source
    step_ns: int
    low_ns: int
    high_ns: int
    count: int
    mean: bool = False


def mean_of(lengths: Sequence[int]) -> tuple[int, int, int]:
    """Return the mean of steps that followed one another, and its bounds (ns).

    The bounds are those of a block bootstrap; with few steps, they are the shortest and the longest.
    """
    values = np.asarray(lengths, np.float64)
    mean = float(values.mean())
    low, high = float(values.min()), float(values.max())
    if len(values) >= BOOTSTRAP_FEWEST_STEPS:
        low, high = bootstrap_bounds(values, BOOTSTRAP_SHARE, BOOTSTRAP_RESAMPLES)
    return (
        round(mean),
        round(min(low, mean * (1 - LEAST_MEASURED_BAR_SHARE))),
        round(max(high, mean * (1 + LEAST_MEASURED_BAR_SHARE))),
    )


#: nsys 2025.3 on H200 hosts, torch 2.11: six programs with blocks of steps without and with tracing in one process, and loops of
#: single calls. In loops tracing added 2.4 us to a launch, 3.6 to a copy, 2.6 to an event, 1.1 to a stream synchronize, and to a
#: graph node 0.65 us if nodes were traced, else 0.11. In a program, among other work, a launch costs twice as much: ``nsysx
#: calibrate`` gave 3.9 us where a recorded launch took 4.5, which makes 5.0 for the 5.8 here. Backward marks: the probe of 2026.
ASSUMED = TracingCosts(
    "assumed",
    launch_ns=5_800,
    of={
        Call.LAUNCH: Cost(5_500, 2_500, 8_000, 0.35),
        Call.GRAPH_LAUNCH: Cost(4_000, 2_000, 10_000, 0.5),
        GRAPH_NODE: Cost(800, 110, 900, 1.0),
        Call.COPY: Cost(6_000, 3_000, 9_000, 0.35),
        Call.MEMSET: Cost(5_500, 2_500, 8_000, 0.35),
        Call.SYNC: Cost(2_500, 1_000, 5_000, 0.35),
        Call.EVENT: Cost(4_500, 2_000, 7_000, 0.35),
        Call.ALLOC: Cost(3_000, 1_000, 6_000, 0.35),
        NESTED: Cost(700, 300, 1_500, 1.0),
        Call.OTHER: Cost(700, 300, 1_500, 0.2),
        "range": Cost(400, 150, 1_000),
        "module_range": Cost(2_500, 500, 5_000),
        "backward_mark": Cost(35_000, 5_000, 60_000),
        "mark": Cost(400, 150, 1_000),
    },
)


def parsed(profile: object, source: Source) -> TracingCosts | None:
    """Return the costs in the JSON of a machine profile, None if it is unusable. Missing classes come from ``ASSUMED``."""
    if not isinstance(profile, dict) or profile.get("schema") != SCHEMA:
        return None
    launch, table = profile.get("launch_ns"), profile.get("costs")
    if not _number(launch) or not launch or not isinstance(table, dict):
        return None
    costs_by_name = {}
    # A class that the file lacks comes from the table, scaled to the speed of this host.
    speed = launch / ASSUMED.launch_ns
    for name, usual in ASSUMED.of.items():
        row = table.get(name, {})
        assumed = Cost(usual.ns * speed, usual.low_ns * speed, usual.high_ns * speed, usual.inside)
        if not isinstance(row, dict):
            return None
        values = [row.get(f.name, getattr(assumed, f.name)) for f in fields(Cost)]
        if not all(_number(v) for v in values) or values[-1] > 1:
            return None
        costs_by_name[name] = Cost(*map(float, values))
    return TracingCosts(source, float(launch), costs_by_name)


def _number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LONGEST_COST_NS


def costs(run: Mapping[str, Any]) -> TracingCosts:
    """Return what tracing costs, from the machine profile in NAME.run.json or else from the table."""
    return parsed(run.get("machine_profile"), "modelled") or ASSUMED


def measured(profile: Profile, numbers: Collection[int]) -> Measured | None:
    """Return the measured step without tracing, None if there is none. From a second run, only the steps ``numbers`` count.

    With all that ran between them, the steps that followed took no less than a step: the lower bound is not above their mean.
    """
    timed, rest = _timed(profile, numbers), _steps_of_rest(profile)
    return timed if timed is None or rest is None else replace(timed, low_ns=min(timed.low_ns, rest[1]))


def _timed(profile: Profile, numbers: Collection[int]) -> Measured | None:
    """Return the measured step without tracing, None if there is none.

    The probe measured the steps that it marked. Where several of them make one step, or one does with what comes before it, that takes
    so many rounds of the whole loop, and a second run says nothing of it.
    """
    run, steps = profile.trace.run, profile.steps
    record = _unrecorded(run, steps.process)
    if steps.in_rounds:
        between, after, detached = _bare_loop(profile)
        if record is not None and not between and not steps.grouped:  # next to nothing runs between them
            between, after = bare.lengths(record), bare.after(record, profile.trace.capture)
        whole, whole_after = (_in_wholes(lengths, steps.timed) for lengths in (between, after))
        return _beside_windows(whole, whole_after, detached=detached) if whole else None
    in_process = None if record is None else _in_process(record, profile.trace.capture)
    return in_process or _second_run(run, numbers)


def of_loop(profile: Profile) -> Measured | None:
    """Return the mean of the loop per step without tracing, with what runs between bare steps, None where next to nothing does.

    Where a loader's new pass begins a step, the recorded one holds the start of its workers, and no bare step does: the probe that rests
    sees only that something ran before it.
    """
    mean_ns = None if profile.steps.in_rounds else _loop_ns(profile)
    between, after, detached = _bare_loop(profile)
    if mean_ns is None or not between:
        return None
    timed = _beside_windows(between, after, detached=detached)
    return replace(timed, step_ns=mean_ns, low_ns=min(timed.low_ns, mean_ns), high_ns=max(timed.high_ns, mean_ns))


def _in_wholes(lengths: Sequence[int], parts: float) -> list[int]:
    """Return how long so many steps in a row take (ns), for all that are whole; [] for 0 of them.

    On average they are as many as that: part of a step takes that part of its time.
    """
    if not parts:
        return []
    upto, borders = np.append(0, np.cumsum(lengths)), np.arange(int(len(lengths) / parts) + 1) * parts
    return [round(ns) for ns in np.diff(np.interp(borders, np.arange(len(upto)), upto)).tolist()]


class MeasuredOutside(TypedDict):
    """What was measured beside the steps, as `model.Unprofiled` has it."""

    loop_ns: int | None
    rest_ns: int | None
    rest_steps: int


def beside(profile: Profile) -> MeasuredOutside:
    """Return the measured mean of the loop per step (ns), whatever runs between steps counted, and that of the steps behind all that.

    The first is None where next to nothing runs between steps, and where the step is all of it.
    """
    rest = _steps_of_rest(profile)
    return MeasuredOutside(
        loop_ns=None if profile.steps.in_rounds else _loop_ns(profile),
        rest_ns=None if rest is None else rest[1],
        rest_steps=0 if rest is None else rest[0],
    )


def _loop_ns(profile: Profile) -> int | None:
    """Return the mean step of the bare stretches with what runs between steps (ns), None where next to nothing does.

    It is the step itself and what lies between, formed over the same stretches: one after which nothing ran adds nothing, and one
    whose loop was not timed is not counted. Less than the stretches differ by is nothing that ran, and so is what ran once in each.
    """
    record = _unrecorded(profile.trace.run, profile.steps.process)
    between, after, _ = _bare_loop(profile)
    if record is None or not (between or after):
        return None
    noted, capture = record["unrecorded_steps"], profile.trace.capture
    stretches = [(bare.lengths(record), between, "loop_ns"), (bare.after(record, capture), after, "after_loop_ns")]
    timed = [(steps, loop) for steps, loop, name in stretches if steps and (loop or name in noted)]
    if not timed:
        return round(
            float(np.mean([*between, *after]))
        )  # it runs behind every step, and no step has a length of its own
    counts = np.array([len(steps) for steps, _ in timed])
    means = np.array([np.mean(steps) for steps, _ in timed])
    loops = np.array([np.mean(loop) if loop else mean for (_, loop), mean in zip(timed, means, strict=True)])
    more = float(np.average(loops - means, weights=counts))
    # Without the longest of each stretch: one pause (of a window that opens or closes, of the machine) is no part of the loop.
    usual = np.array(
        [np.mean(sorted(loop)[:-1]) if len(loop) > 1 else mean for (_, loop), mean in zip(timed, loops, strict=True)]
    )
    recurs = float(np.average(usual - means, weights=counts))
    every = [np.mean(steps) for steps, _, _ in stretches if len(steps) >= BOOTSTRAP_FEWEST_STEPS]
    differ = max(every) - min(every) if every else 0
    # Long pauses that come back stand out of steps whose clocks change, too: by these alone no stretch differs from another.
    paused = sum(_pauses_ns(loop) - _pauses_ns(steps) for steps, loop in timed) / counts.sum()
    if min(more, recurs) <= differ and min(more, paused) <= BETWEEN_PAUSES_SHARE * float(means.mean()):
        return None
    regular = min(more, max(float(paused), 0.0))
    more += regular * (_share_by_period([loop for _, loop in timed if loop]) - 1)
    return round(float(np.mean([ns for steps, _, _ in stretches for ns in steps])) + more)


def _share_by_period(stretches: Sequence[Sequence[int]]) -> float:
    """Return how many of the pauses of loops (ns a step) come in so many steps, for each one that was seen; 1 where no period is known.

    What comes back every 48 steps costs a 48th of itself per step, whether a stretch of 100 happens to hold two or three of them.
    """
    seen, distances = 0, list[int]()
    for loop in stretches:
        ns = np.asarray(loop, np.int64)
        paused = np.flatnonzero(ns > PAUSED_STEP_TIMES * float(np.median(ns)))
        begins = paused[np.diff(paused, prepend=-STEPS_OF_ONE_PAUSE - 1) > STEPS_OF_ONE_PAUSE]
        seen += len(begins)
        distances += np.diff(begins).tolist()
    period = float(np.median(distances)) if distances else 0.0
    if not period or max(distances) - min(distances) > PERIOD_SPREAD * period:
        return 1.0
    return sum(map(len, stretches)) / period / seen


def _pauses_ns(lengths: Sequence[int]) -> float:
    """Return how much longer than usual those are together (ns) that take several times as long, without the longest of them."""
    ns = np.sort(np.asarray(lengths, np.int64))
    usual = float(np.median(ns)) if len(ns) else 0.0
    long = ns[ns > PAUSED_STEP_TIMES * usual][:-1]
    return float((long - usual).sum())


def _steps_of_rest(profile: Profile) -> tuple[int, int] | None:
    """Return how many steps followed all that were timed, and their mean (ns) with what ran between them; None without any."""
    record, steps, capture = _unrecorded(profile.trace.run, profile.steps.process), profile.steps, profile.trace.capture
    blocks = bare.rest(record, capture) if record is not None and steps.timed else []
    counted = int(sum(count for count, _ in blocks) / max(steps.timed, 1))
    if record is None or not counted:
        return None
    timed = [*bare.lengths(record), *bare.after(record, capture)]
    whole, usual = sum(ns for _, ns in blocks), float(np.mean(timed)) * steps.timed if timed else 0.0
    # The device is that much behind where the host's clock stops: a mean that is shorter by no more is no other one.
    if whole < usual * counted <= whole + bare.lead_ns(blocks):
        return None
    return counted, round(whole / counted)


def _bare_loop(profile: Profile) -> tuple[list[int], list[int], bool]:
    """Return the lengths (ns) of `bare.loop`, and whether nothing of nsys was in the program's calls meanwhile."""
    record, capture = _unrecorded(profile.trace.run, profile.steps.process), profile.trace.capture
    if record is None:
        return [], [], False
    before_window = record["unrecorded_steps"].get("where") == "before the window"
    return *bare.loop(record, capture), before_window or bare.detached(record, capture)


def _unrecorded(run: Mapping[str, Any], process: int) -> Mapping[str, Any] | None:
    """Return what the probe of a process wrote, if it timed steps without the profiler."""
    records = (p for p in run.get("probe") or () if isinstance(p, dict) and p.get("pid") in (None, ids.pid_of(process)))
    return next((record for record in records if isinstance(record.get("unrecorded_steps"), dict)), None)


def apart_ns(profile: Profile) -> int | None:
    """Return how far bare steps of the shown process lie apart, but for the longest and shortest twentieth (ns); None without several."""
    record = _unrecorded(profile.trace.run, profile.steps.process)
    lengths = [] if record is None else [*bare.lengths(record), *bare.after(record, profile.trace.capture)]
    if len(lengths) < BOOTSTRAP_FEWEST_STEPS:
        return None
    low, high = (float(np.quantile(lengths, share)) for share in (0.05, 0.95))
    return round(high - low)


def _in_process(record: Mapping[str, Any], capture: Capture) -> Measured | None:
    if between := bare.lengths(record):
        return _beside_windows(between, bare.after(record, capture), detached=bare.detached(record, capture))
    step, low, high, count = (record["unrecorded_steps"].get(k) for k in ("median_ns", "low_ns", "high_ns", "count"))
    if _number(step) and _number(low) and _number(high) and _number(count) and step > 0 and count > 0:
        return Measured("in_process", round(step), round(min(low, step)), round(max(high, step)), int(count))
    return None


def _beside_windows(between: Sequence[int], after: Sequence[int], *, detached: bool) -> Measured:
    """Return the mean of bare steps between two windows and after them; its bounds hold the mean of either part.

    Likewise those of a long stretch's thirds: where a host's pace drifts, another run may have that of one of them throughout.

    Not ``detached``: nsys stayed in each CUDA call, and without it the step may be shorter, which the lower bound holds.
    """
    steps = [*between, *after]
    step, low, high = mean_of(steps)
    thirds = [part.tolist() for stretch in (between, after) for part in np.array_split(np.asarray(stretch), 3)]
    means = [round(float(np.mean(part))) for part in (between, after, *thirds) if len(part) >= BOOTSTRAP_FEWEST_STEPS]
    low, high = min([low, *means]), max([high, *means])
    return Measured(
        "in_process",
        step,
        low if detached else min(low, round(ATTACHED_STEP_SHARE * step)),
        high,
        len(steps),
        mean=True,
    )


def _second_run(run: Mapping[str, Any], numbers: Collection[int]) -> Measured | None:
    timing = run.get("calibration")
    steps_ns = timing.get("steps_ns") if isinstance(timing, dict) else None
    if not isinstance(steps_ns, dict):
        return None
    try:
        lengths = [int(ns) for number, ns in steps_ns.items() if int(number) in numbers]
    except (TypeError, ValueError):
        return None
    lengths = [ns for ns in lengths if 0 < ns < 1 << 60]
    if not lengths:
        return None
    low, step, high = np.percentile(lengths, [25, 50, 75])
    return Measured("second_run", round(step), round(low), round(high), len(lengths))

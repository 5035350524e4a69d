"""What tracing added to the CPU time, at each call where it did.

After RL-Scope (MLSys 2021): overhead is not a share of the step but a sum over events. Each event costs what was measured for its
class, and that is subtracted from the time in which it arose. For a call this is partly between its timestamps and partly around
them; for a range or mark it is the host code between two calls. When nsys flushes its buffers, the report has rows with the times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.catalogue import Call
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.replay.replay_bounds import (
    COLD_AFTER_PAUSE_NS,
    ENOUGH_CALLS_OF_A_NAME,
    ENOUGH_TRIVIAL_CALLS,
    FASTEST_HOST_TIMES,
    LEAST_SEEN_QUANTILE,
    SLOW_HOST_POWER,
    SLOWED_HOST_LEAST,
    SLOWEST_HOST_TIMES,
    UNDISTURBED_CALL_TIMES,
)
from nsysx.replay.replayed_window import ReplayedWindow
from nsysx.replay.tracing_costs import CALL_CLASSES, FLUSH, GRAPH_NODE, Cost, Source, TracingCosts, costs

F64 = npt.NDArray[np.float64]

#: Kind of an API call -> its class, where they differ.
_CLASS_OF_KIND = {Call.FREE: Call.ALLOC, Call.HOST_ALLOC: Call.ALLOC, Call.LOAD: Call.OTHER}


@dataclass(frozen=True)
class Added:
    """What tracing added per call of the window (ns): ``before`` in the host code before it, ``inside`` between its timestamps.

    ``most_before`` and ``most_inside`` are what it can have added right there: no more than the least that calls of the same name, and
    the code between two calls, were seen to take. What is more than that slowed the host between its events.

    ``after`` is what it added after the last call, ``totals`` the sums by class over the window (ns). ``low`` and ``high`` bound
    the whole sum, as factors of it. ``near`` is the time that host code around calls takes at the host's usual speed over its time
    here, below 1 if the host was slow during the recording.
    """

    before: I64
    inside: I64
    most_before: I64
    most_inside: I64
    after: int
    totals: dict[str, int]
    low: float
    high: float
    source: Source
    near: float


def added(profile: Profile, window: ReplayedWindow) -> Added:
    """Return what tracing added to the calls of a window, by the report's machine profile or else the table of costs."""
    table = costs(profile.trace.run)
    calls = window.calls
    speed = _speed(calls, table)
    before, inside = np.zeros(calls.height + 1), np.zeros(calls.height + 1)
    sums: dict[str, tuple[float, float, float]] = {}

    def count(name: str, n: int, cost: Cost) -> None:
        so_far = sums.get(name, (0.0, 0.0, 0.0))
        sums[name] = (
            so_far[0] + n * cost.ns * speed,
            so_far[1] + n * cost.low_ns * speed,
            so_far[2] + n * cost.high_ns * speed,
        )

    kinds = calls["kind"].cast(pl.String).replace(_CLASS_OF_KIND)
    most_before, most_inside = _least_seen(calls)
    # Inside an earlier call: they are sorted by start.
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    reach = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, end))[:-1]
    nested = np.asarray((start < reach) & (end <= reach))
    for name in CALL_CLASSES:
        of_kind = nested if name == "nested" else (kinds == name).to_numpy() & ~nested
        cost = table.of[name]
        inside[:-1][of_kind] += cost.ns * cost.inside * speed
        before[:-1][of_kind] += cost.ns * (1 - cost.inside) * speed
        count(name, int(of_kind.sum()), cost)
    nodes = _graph_nodes(window)
    for each in (inside, most_inside):
        each[:-1] += nodes * table.of[GRAPH_NODE].ns * speed
    count(GRAPH_NODE, int(nodes.sum()), table.of[GRAPH_NODE])
    for name, call_rows in _nvtx(profile, window).items():
        for each in (before, most_before):
            np.add.at(each, call_rows, table.of[name].ns * speed)
        count(name, len(call_rows), table.of[name])
    flushed = _flushes(profile, window, before, inside)
    if flushed:
        _flushes(profile, window, most_before, most_inside)
        sums[FLUSH] = (float(flushed),) * 3
    whole = sum(s[0] for s in sums.values())
    of_calls = (np.rint(each[:-1]).astype(np.int64) for each in (before, inside, most_before, most_inside))
    before_ns, inside_ns, most_before_ns, most_inside_ns = of_calls
    return Added(
        before_ns,
        inside_ns,
        most_before_ns,
        most_inside_ns,
        after=round(before[-1]),
        totals={name: round(s[0]) for name, s in sums.items() if s[0]},
        low=sum(s[1] for s in sums.values()) / whole if whole else 1.0,
        high=sum(s[2] for s in sums.values()) / whole if whole else 1.0,
        source=table.source,
        near=_speed_factor(calls),
    )


def _least_seen(calls: pl.DataFrame) -> tuple[F64, F64]:
    """Return the least (a low quantile) of the code between two calls, and of the calls of each one's name (ns), with a row for the end.

    An event takes its place in the record within its call and next to it: in a loop of c10d's, code of 0.2 us lies between two events'
    calls of 0.7 us (H200), which the 4.5 us of the table do not fit into.
    """
    code = (pl.col("start_ns") - pl.col("end_ns").cum_max().shift(1)).clip(0).quantile(LEAST_SEEN_QUANTILE)
    took = (pl.col("end_ns") - pl.col("start_ns")).quantile(LEAST_SEEN_QUANTILE).over("name")
    least = calls.select(code.alias("code"), took.alias("took")).fill_null(0.0)
    between = least["code"].first() if calls.height else 0.0
    return np.full(calls.height + 1, between, np.float64), np.append(least["took"].to_numpy(), 0.0)


def _speed(calls: pl.DataFrame, table: TracingCosts) -> float:
    """Return by what factor launches are slower here than where the costs were measured."""
    launches = calls.filter(calls["kind"] == Call.LAUNCH)
    took = (launches["end_ns"] - launches["start_ns"]).median()
    if not isinstance(took, int | float) or not table.launch_ns:
        return 1.0
    return min(max(took / table.launch_ns, FASTEST_HOST_TIMES), SLOWEST_HOST_TIMES)


def _speed_factor(calls: pl.DataFrame) -> float:
    """Return the factor, at most 1, that brings host code around calls to the host's usual speed; 1 if that speed is not known.

    The usual speed is that of the fastest calls of the same name in this report, because that of another minute, or of another
    machine, says nothing about this one: ``nsysx calibrate`` measured 80 and 125 ns on one machine.
    """
    if (calls["kind"] == Call.OTHER).sum() < ENOUGH_TRIVIAL_CALLS:
        return 1.0
    reach = pl.col("end_ns").cum_max().shift(1)
    pause = pl.when(pl.col("start_ns") - reach >= COLD_AFTER_PAUSE_NS).then("start_ns").forward_fill()
    warm = pause.is_null() | (pl.col("start_ns") - pause >= COLD_AFTER_PAUSE_NS)
    trivial = calls.filter(warm & (pl.col("kind") == Call.OTHER)).select(
        "name", ns=pl.col("end_ns") - pl.col("start_ns")
    )
    usual = pl.col("ns").quantile(0.1).over("name").clip(1)
    slower = trivial.filter(pl.len().over("name") >= ENOUGH_CALLS_OF_A_NAME).select(pl.col("ns") / usual)["ns"]
    middle = slower.median()
    if slower.len() < ENOUGH_TRIVIAL_CALLS or not isinstance(middle, int | float):
        return 1.0
    return (
        float(min(max((UNDISTURBED_CALL_TIMES / middle) ** SLOW_HOST_POWER, SLOWED_HOST_LEAST), 1.0)) if middle else 1.0
    )


def _graph_nodes(window: ReplayedWindow) -> I64:
    """Return the number of recorded nodes of each call's graph; a graph that was traced as a whole has none."""
    calls = window.calls["call", "kind"]
    graphs = calls["call"].filter(calls["kind"] == Call.GRAPH_LAUNCH)
    if not len(graphs):
        return np.zeros(calls.height, np.int64)
    nodes = window.ops.select("call").filter(pl.col("call").is_in(graphs.implode())).group_by("call").len()
    counted = calls.join(nodes, on="call", how="left", maintain_order="left")
    count: I64 = counted["len"].fill_null(0).cast(pl.Int64).to_numpy()
    return count


def _nvtx(profile: Profile, window: ReplayedWindow) -> dict[str, I64]:
    """Return class -> the row of the next API call, for each NVTX call of the driving threads."""
    threads = lookup.present(window.calls["thread"])
    starts = window.calls["start_ns"].to_numpy()
    ranges, marks = profile.ranges.ranges, profile.ranges.marks
    # Ranges that were inferred from the sequence of calls were never pushed and cost nothing.
    pushed, written = (np.isin(f["thread"].to_numpy(), threads) & ~f["repeated"].to_numpy() for f in (ranges, marks))
    pushed &= ~ranges["open"].to_numpy()
    by_probe = ranges["own"].to_numpy()
    backward = ((marks["kind"] == "backward_module") & marks["own"]).to_numpy()
    begin, end, marked = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy(), marks["start_ns"].to_numpy()
    times = {
        "module_range": np.concatenate([begin[pushed & by_probe], end[pushed & by_probe]]),
        "range": np.concatenate([begin[pushed & ~by_probe], end[pushed & ~by_probe]]),
        "backward_mark": marked[written & backward],
        "mark": marked[written & ~backward],
    }
    inside = {name: t[(t >= window.start_ns) & (t < window.end_ns)] for name, t in times.items()}
    return {name: np.searchsorted(starts, t) for name, t in inside.items()}


def _flushes(profile: Profile, window: ReplayedWindow, before: F64, inside: F64) -> int:
    """Add the time in which nsys itself delayed a driving thread to ``before`` and ``inside``, and return its sum (ns)."""
    rows = profile.trace.overhead
    if not rows.height:
        return 0
    threads = window.calls["thread"].unique()
    rows = rows.filter(
        pl.col("thread").is_in(threads.implode())
        & (pl.col("start_ns") >= window.start_ns)
        & (pl.col("end_ns") <= window.end_ns)
    )
    start, ns = rows["start_ns"].to_numpy(), (rows["end_ns"] - rows["start_ns"]).to_numpy()
    starts, ends = window.calls["start_ns"].to_numpy(), window.calls["end_ns"].to_numpy()
    call = np.searchsorted(starts, start, side="right") - 1
    within = (call >= 0) & (start < ends[np.maximum(call, 0)])
    np.add.at(inside, call[within], ns[within])
    np.add.at(before, call[~within] + 1, ns[~within])
    return int(ns.sum())

"""What tracing added to the CPU's time, at each call where it arose.

After RL-Scope (MLSys 2021): overhead is not a share of the step but a sum over events, each of which costs what its class was
measured to cost, and is taken out of the time in which it stood. A call pays inside its own stamps and around them; a range or
mark pays in the host code between two calls; buffers that nsys empties are rows of the report with times of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64
from nsysx.replay.costs import CALL_CLASSES, FLUSH, GRAPH_NODE, SLOW_HOST, Cost, Costs, Source, costs
from nsysx.replay.window import Window

F64 = npt.NDArray[np.float64]

#: A host is slower or faster than the one that the costs were measured on, by its launches, at most by these factors.
_SLOWEST, _FASTEST = 3.0, 0.4
#: Fewer trivial calls than this say nothing about the host.
_ENOUGH = 100
#: Classes of API calls by kind.
_CLASS_OF_KIND = {"free": "alloc", "host_alloc": "alloc", "load": "other"}


@dataclass(frozen=True)
class Added:
    """What tracing added, per call of the window (ns): in the host code before it, and between its stamps; and after the last.

    ``totals`` is by class over the window, ``low`` and ``high`` bound the sum as factors of it. ``host`` is what host code takes
    where the costs were measured, as a part of what it took here: below 1 on a host that was slow while it was recorded.
    """

    before: I64
    inside: I64
    after: int
    totals: dict[str, int]
    low: float
    high: float
    source: Source
    host: float


def added(profile: Profile, window: Window) -> Added:
    """Return what tracing added to the calls of a window, by the costs that the report brings with it or the table's."""
    table = costs(profile.trace.run)
    calls = window.calls
    speed = _speed(calls, table)
    before, inside = np.zeros(calls.height + 1), np.zeros(calls.height + 1)
    sums: dict[str, tuple[float, float, float]] = {}

    def count(name: str, n: int, cost: Cost) -> None:
        had = sums.get(name, (0.0, 0.0, 0.0))
        sums[name] = (
            had[0] + n * cost.ns * speed,
            had[1] + n * cost.low_ns * speed,
            had[2] + n * cost.high_ns * speed,
        )

    kinds = calls["kind"].cast(pl.String).replace(_CLASS_OF_KIND)
    nested = _nested(calls)
    for name in CALL_CLASSES:
        of_kind = nested if name == "nested" else (kinds == name).to_numpy() & ~nested
        cost = table.of[name]
        inside[:-1][of_kind] += cost.ns * cost.inside * speed
        before[:-1][of_kind] += cost.ns * (1 - cost.inside) * speed
        count(name, int(of_kind.sum()), cost)
    nodes = _graph_nodes(window)
    inside[:-1] += nodes * table.of[GRAPH_NODE].ns * speed
    count(GRAPH_NODE, int(nodes.sum()), table.of[GRAPH_NODE])
    for name, at in _nvtx(profile, window).items():
        np.add.at(before, at, table.of[name].ns * speed)
        count(name, len(at), table.of[name])
    flushed = _flushes(profile, window, before, inside)
    if flushed:
        sums[FLUSH] = (float(flushed),) * 3
    whole = sum(s[0] for s in sums.values())
    return Added(
        np.rint(before[:-1]).astype(np.int64),
        np.rint(inside[:-1]).astype(np.int64),
        round(before[-1]),
        {name: round(s[0]) for name, s in sums.items() if s[0]},
        sum(s[1] for s in sums.values()) / whole if whole else 1.0,
        sum(s[2] for s in sums.values()) / whole if whole else 1.0,
        table.source,
        _host(profile, calls, table),
    )


def _speed(calls: pl.DataFrame, table: Costs) -> float:
    """Return how much slower this host launches than the one that the costs were measured on."""
    launches = calls.filter(calls["kind"] == "launch")
    took = (launches["end_ns"] - launches["start_ns"]).median()
    if not isinstance(took, int | float) or not table.launch_ns:
        return 1.0
    return min(max(took / table.launch_ns, _FASTEST), _SLOWEST)


def _host(profile: Profile, calls: pl.DataFrame, table: Costs) -> float:
    """Return by how much this host was slower than usual, as a factor of at most 1 for its host code."""
    trivial = calls.filter(calls["kind"] == "other")
    took = (trivial["end_ns"] - trivial["start_ns"]).median()
    known = any(table.gpu in gpu.name for gpu in profile.trace.capture.gpus)
    if not known or not table.other_ns or not isinstance(took, int | float) or trivial.height < _ENOUGH:
        return 1.0
    return float(min(table.other_ns / max(took, 1.0), 1.0) ** SLOW_HOST)


def _nested(calls: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Return which calls lie inside an earlier one; calls are sorted by start."""
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    reach = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, end))[:-1]
    return np.asarray((start < reach) & (end <= reach))


def _graph_nodes(window: Window) -> I64:
    """Return how many nodes each call's graph was recorded to have; opaque graphs show none."""
    graphs = window.calls.select("call", pl.col("kind") == "graph_launch")
    nodes = window.ops.drop_nulls("call").group_by("call").len()
    counted = graphs.join(nodes, on="call", how="left", maintain_order="left").fill_null(0)
    return np.where(counted["kind"].to_numpy(), counted["len"].to_numpy(), 0).astype(np.int64)


def _nvtx(profile: Profile, window: Window) -> dict[str, I64]:
    """Return class -> for each NVTX call of the driving threads the row of the API call after it."""
    threads = window.calls["thread"].unique()
    starts = window.calls["start_ns"].to_numpy()
    # What was read out of the sequence of calls was never pushed, and cost nothing.
    pushed = pl.col("thread").is_in(threads.implode()) & ~pl.col("repeated")
    ranges = profile.ranges.ranges.filter(pushed & ~pl.col("open"))
    marks = profile.ranges.marks.filter(pushed)
    by_probe, other = ranges.filter("own"), ranges.filter(~pl.col("own"))
    backward = (marks["kind"] == "backward_module") & marks["own"]
    times = {
        "module_range": np.concatenate([by_probe["start_ns"].to_numpy(), by_probe["end_ns"].to_numpy()]),
        "range": np.concatenate([other["start_ns"].to_numpy(), other["end_ns"].to_numpy()]),
        "backward_mark": marks.filter(backward)["start_ns"].to_numpy(),
        "mark": marks.filter(~backward)["start_ns"].to_numpy(),
    }
    inside = {name: t[(t >= window.start_ns) & (t < window.end_ns)] for name, t in times.items()}
    return {name: np.searchsorted(starts, t) for name, t in inside.items()}


def _flushes(profile: Profile, window: Window, before: F64, inside: F64) -> int:
    """Add the time in which nsys itself held up a driving thread, and return it."""
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

"""Nodes of autograd that several backwards of one step run: a graph that is kept (``retain_graph=True``) for the next loss.

Gradients add up, so one backward of the sum of the losses makes what they make together, and runs what they share once. A node has the
number of the operator that made it. That gradients do add up shows in the accumulations of the later backwards; where something reads,
clears or applies gradients in between, they are wanted each by itself.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.event_bounds import ADDED_GRADIENTS_SHARE
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import SIZES, OperatorFlow, flow_of
from nsysx.events.profile import Profile
from nsysx.events.trained_operators import trained_of
from nsysx.frames.intervals import I64, interval_of

_ACCUMULATES, _EVALUATES = "torch::autograd::AccumulateGrad", "autograd::engine::evaluate_function: "
_NODE = r"^\w+Backward\d*$"
#: What is added to a gradient that is there, and what handles all gradients of a list.
_ADDS, _OF_LISTS = r"^aten::add_?$", r"^aten::_foreach_|^aten::_fused_"


class RepeatedBackwards(NamedTuple):
    """``times`` backwards of each step of which all but the first run ``nodes`` nodes again, together.

    ``work``: of each API call of the report whether such a node makes it, or an accumulation that only they need. ``last_ns``: when the
    last of these backwards of a step begins.
    """

    times: int
    nodes: int
    work: Flags
    last_ns: int


class _RunAgain(NamedTuple):
    """``ranges`` of nodes that are run again and of what adds their gradients (thread, start_ns, end_ns; in none of each other), how many
    such nodes, the ``spans`` of their backwards and of the first one, and what the later ones accumulate (``gathered``).
    """

    ranges: pl.DataFrame
    nodes: int
    spans: list[tuple[int, int]]
    gathered: pl.DataFrame


def repeated_backwards(profile: Profile) -> RepeatedBackwards | None:
    """Return the nodes that backwards of the shown process run again, None without any or where operators do not tell."""
    return profile.once(_find)


def _find(profile: Profile) -> RepeatedBackwards | None:
    flow = flow_of(profile)
    if flow is None or not len(flow.start_ns):
        return None
    ranges = profile.ranges.ranges.filter(
        (pl.col("process") == profile.process) & ~(pl.col("crossing") | pl.col("open") | pl.col("repeated"))
    )
    ops = ranges.filter(pl.col("kind") == "op").select(
        "thread", "start_ns", "end_ns", "number", pl.col("name", "label").cast(pl.String)
    )
    of_probe = ranges.filter(pl.col("own"))
    phases = of_probe.filter(pl.col("kind") == "phase").with_columns(pl.col("name").cast(pl.String)).sort("start_ns")
    calls = profile.attributed.api_calls
    work, in_steps = np.zeros(calls.height, np.bool_), list[tuple[int, int, int]]()
    keys, when = calls["thread"].to_numpy(), calls["start_ns"].to_numpy()
    for start, end in (
        of_probe.filter(pl.col("kind") == "step").select("start_ns", "end_ns").sort("start_ns").iter_rows()
    ):
        inside = (pl.col("start_ns") >= start) & (pl.col("end_ns") <= end)
        spans = phases.filter(inside & (pl.col("name") == "backward")).select("start_ns", "end_ns").rows()
        updates = phases.filter(inside & (pl.col("name") == "optimizer"))["start_ns"].to_list()
        again = _again(ops.filter(inside), spans, updates) if len(spans) > 1 else None
        if again is None:
            continue
        if start <= flow.start_ns[0] < end and _handled(profile, flow, again.spans, again.gathered):
            return None
        in_steps.append((len(again.spans), again.nodes, again.spans[-1][0]))
        for (thread,), theirs in again.ranges.group_by("thread", maintain_order=True):
            within = interval_of(when, theirs["start_ns"].to_numpy(), theirs["end_ns"].to_numpy()) >= 0
            work |= (keys == thread) & within
    if not in_steps:
        return None
    repeats = profile.ranges.repeats
    if repeats is not None:
        work |= work[repeats.like]
    return RepeatedBackwards(*in_steps[0][:2], work, in_steps[0][2])


def _again(ops: pl.DataFrame, spans: list[tuple[int, int]], updates: list[int]) -> _RunAgain | None:
    """Return the nodes of a step that a backward before theirs has run; None where gradients do not add up from one to the next.
    ``spans``: of the backwards; ``updates``: when optimizers begin.
    """
    of_span = interval_of(ops["start_ns"].to_numpy(), *np.array(spans, np.int64).T)
    ops = ops.with_columns(span=pl.Series(of_span, dtype=pl.Int64)).sort("start_ns", "end_ns", descending=[False, True])
    nodes = ops.filter((pl.col("span") >= 0) & (pl.col("number") >= 0) & pl.col("name").str.contains(_NODE))
    # A node that wraps another one of its number is one.
    first = pl.col("span").min().over("number", "name", "thread")
    again = nodes.filter(pl.col("span") > first)
    if not again.height:
        return None
    shared = sorted({*again["span"].to_list(), min(nodes["span"].to_list())})
    if any(spans[shared[0]][1] <= update <= spans[shared[-1]][0] for update in updates):
        return None
    gathered = ops.filter(pl.col("span").is_in(shared[1:]) & (pl.col("name") == _ACCUMULATES))
    added = _adding(gathered, ops)
    if not gathered.height or added.height < ADDED_GRADIENTS_SHARE * gathered.height:
        return None
    evaluated = ops.filter(pl.col("name").str.starts_with(_EVALUATES))
    around = pl.concat([_around(again, evaluated), again, added]).select("thread", "start_ns", "end_ns")
    return _RunAgain(
        _disjoint(around), again.select("span", "number").n_unique(), [spans[each] for each in shared], gathered
    )


def _adding(gathered: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the accumulations that add to a gradient which is there."""
    adds = ops.filter(pl.col("name").str.contains(_ADDS) & (pl.col("span") >= 0)).select("thread", "start_ns")
    chosen = np.zeros(gathered.height, np.bool_)
    threads, start, end = (gathered[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    for (thread,), theirs in adds.group_by("thread", maintain_order=True):
        times = theirs["start_ns"].sort().to_numpy()
        holds = np.searchsorted(times, end) > np.searchsorted(times, start)
        chosen |= (threads == thread) & holds
    return gathered.filter(pl.Series(chosen, dtype=pl.Boolean))


def _handled(profile: Profile, flow: OperatorFlow, spans: list[tuple[int, int]], gathered: pl.DataFrame) -> bool:
    """Return whether something behind one of some backwards, before the last of them, reads, clears or changes gradients: operators of
    lists, or operators that are not trained of half of their sizes. What stands behind all reads what is added up.
    """
    between = (flow.start_ns >= spans[0][1]) & (flow.start_ns < spans[-1][0])
    rows = [row for row in flow.outermost if between[row]]
    if any(re.search(_OF_LISTS, flow.names[row]) for row in rows):
        return True
    # An operator without gradients has the number of the node that the next one with them makes.
    last = {number: row for row, number in enumerate(flow.sequence)}
    trained = trained_of(profile) & (np.array([last[number] for number in flow.sequence]) == np.arange(len(flow.names)))
    sizes = {size for text in gathered["label"].to_list() for size in _first_size(text) if len(size) > 1}
    here = {size for row in rows if not trained[row] for size in sizes_of(flow.size[row])[:1]}
    return bool(sizes) and 2 * len(sizes & here) >= len(sizes)


def _first_size(label: str | None) -> list[tuple[int, ...]]:
    text = pl.Series([label or ""]).str.extract(SIZES, 1)[0]
    return [tuple(each) for each in sizes_of(text or "")[:1]]


def _around(nodes: pl.DataFrame, evaluated: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges in which the engine evaluates these nodes, where such were recorded."""
    chosen = np.zeros(evaluated.height, np.bool_)
    for (thread,), theirs in nodes.group_by("thread", maintain_order=True):
        times: I64 = theirs["start_ns"].sort().to_numpy()
        start, end = evaluated["start_ns"].to_numpy(), evaluated["end_ns"].to_numpy()
        holds = np.searchsorted(times, end) > np.searchsorted(times, start)
        chosen |= (evaluated["thread"].to_numpy() == thread) & holds
    return evaluated.filter(pl.Series(chosen, dtype=pl.Boolean))


def _disjoint(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return these ranges without those that lie in another one of their thread."""
    ranges = ranges.unique().sort("thread", "start_ns", "end_ns", descending=[False, False, True])
    reach = pl.col("end_ns").cum_max().shift(1).over("thread").fill_null(0)
    return ranges.filter(pl.col("start_ns") >= reach)

"""Backward work below all that is trained, done because an activation was made to require a gradient that nothing reads.

Autograd adds a gradient to a parameter as soon as it has all of it. What it runs behind the last of these additions leads to no parameter:
only to a tensor that the step made itself (``x.requires_grad_(True)``, ``enable_input_require_grads()``), to which it adds a gradient at
the end. A gradient of such an input that an operator reads is one that is asked for.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.narrowed_operators import Size, result_sizes, sizes_of
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import ID, OperatorFlow, flow_of, results_given
from nsysx.events.profile import Profile
from nsysx.events.trained_operators import trained_of
from nsysx.frames.intervals import I64, interval_of

_ACCUMULATES = "torch::autograd::AccumulateGrad"
_EVALUATES = "autograd::engine::evaluate_function: "
#: Nodes in which a wrapper of ranks reduces gradients of what is trained, and those that run a part of the forward again and need an input
#: that requires a gradient.
_OF_WRAPPERS = re.compile(r"PostBackward")
_REENTRANT = "CheckpointFunctionBackward"
#: Thread, start_ns, end_ns and label of the accumulation of a gradient.
_Accumulation = tuple[int, int, int, str]


class LeafBackwards(NamedTuple):
    """Work of backward that only leads to activations which require a gradient that nothing reads.

    ``work``: of each API call of the report whether it is made for that alone. ``leaf``: the operator (row of the flow) that made the
    activation, and ``size`` of it. ``gradients``: how many a backward adds to parameters. ``last``: the row of the trained operator that
    comes first, -1 where that is not known. ``reentrant``: checkpoints compute the forward again for it, which need such an input.
    """

    work: Flags
    leaf: int
    size: Size
    gradients: int
    last: int
    reentrant: bool = False


class _RecordedBackward(NamedTuple):
    """One ``backward`` of an X-ray step: the accumulations in it in order (thread, start_ns, end_ns, label)."""

    start_ns: int
    end_ns: int
    accumulations: list[_Accumulation]


def leaf_backwards(profile: Profile) -> LeafBackwards | None:
    """Return that work, None without any, or where operators do not tell."""
    return profile.once(_find)


def _find(profile: Profile) -> LeafBackwards | None:
    flow = flow_of(profile)
    if flow is None or not len(flow.start_ns):
        return None
    ranges = profile.ranges.ranges.filter(
        (pl.col("process") == profile.process) & ~(pl.col("crossing") | pl.col("open") | pl.col("repeated"))
    )
    ops = ranges.filter(ranges["kind"] == "op").select(
        "thread", "start_ns", "end_ns", "number", pl.col("name", "label").cast(pl.String)
    )
    backwards = _backwards(ranges, ops)
    step_end = _end_of_step(ranges, flow)
    of_flow = [each for each in backwards if flow.start_ns[0] <= each.start_ns < step_end]
    result = result_sizes(flow, [sizes_of(text) for text in flow.size])
    if ops["name"].str.contains(_REENTRANT).any():
        return _of_checkpoints(profile, ops, backwards, flow, result)
    if not of_flow or _asked_for(ops, backwards):
        return None
    trained, read = trained_of(profile), {number for number, _ in results_given(_outside(ops))}
    leaves = [_leaves_of(each, ops, flow, result, trained, read) for each in of_flow]
    rows = [row for each in leaves for row in each]
    if not rows:
        return None
    shapes = [(len(each.accumulations), len(theirs)) for each, theirs in zip(of_flow, leaves, strict=True)]
    calls = profile.attributed.api_calls
    work = np.zeros(calls.height, np.bool_)
    keys, when = calls["thread"].to_numpy(), calls["start_ns"].to_numpy()
    for each in backwards:
        count = next((few for whole, few in shapes if whole == len(each.accumulations)), 0)
        if count:
            work |= _made_behind(each, count, ops, keys, when)
    repeats = profile.ranges.repeats
    if repeats is not None:
        work |= work[repeats.like]
    first = next(i for i, theirs in enumerate(leaves) if theirs)
    of_parameters = of_flow[first].accumulations[: shapes[first][0] - shapes[first][1]]
    last = max(_rows_before(of_parameters[-1], ops, flow, trained), default=-1)
    return LeafBackwards(work, rows[0], result[flow.number[rows[0]]], len(of_parameters), last)


def _of_checkpoints(
    profile: Profile, ops: pl.DataFrame, backwards: list[_RecordedBackward], flow: OperatorFlow, result: dict[int, Size]
) -> LeafBackwards | None:
    """Return what checkpoints that run a forward again in a backward of their own do for nothing but such an activation.

    Each of them adds a gradient to its input, which it has cut off; those below all that is trained add no other one.
    """
    calls = profile.attributed.api_calls
    work, size, gradients = np.zeros(calls.height, np.bool_), Size(), 0
    keys, when = calls["thread"].to_numpy(), calls["start_ns"].to_numpy()
    nodes = ops.filter(pl.col("name").str.contains(_REENTRANT) & pl.col("name").str.starts_with(_EVALUATES))
    for backward in backwards:
        of_backward = nodes.filter(pl.col("start_ns") >= backward.start_ns, pl.col("end_ns") <= backward.end_ns)
        spans = of_backward.sort("start_ns")["thread", "start_ns", "end_ns"].rows()
        thread, start, _, label = backward.accumulations[-1]
        size = next(iter(sizes_of(_sizes_in(label))), ())
        if not spans or thread != spans[-1][0] or start < spans[-1][2] or len(size) < 2:
            return None  # what is added to last is in a checkpoint, or no activation
        needless = list[tuple[int, int]]()
        for thread, start, end in reversed(spans):
            inside = [each[3] for each in backward.accumulations if each[0] == thread and start <= each[1] < end]
            if [next(iter(sizes_of(_sizes_in(text))), ()) for text in inside] != [size]:
                break
            needless.append((start, end))
        if not needless or len(needless) == len(spans):
            return None
        gradients = len(backward.accumulations) - len(spans) - 1
        starts, ends = np.array(sorted(needless), np.int64).T
        work |= (keys == thread) & (interval_of(when, starts, ends) >= 0)
    read = {number for number, _ in results_given(_outside(ops))}
    leaf = next((row for row in flow.outermost if result.get(flow.number[row]) == size), -1)
    added = {number for each in backwards for number in _numbers_within(ops, each.accumulations[-1])}
    if leaf < 0 or gradients < 1 or not read.isdisjoint(added):
        return None
    repeats = profile.ranges.repeats
    if repeats is not None:
        work |= work[repeats.like]
    return LeafBackwards(work, leaf, size, gradients, -1, reentrant=True)


def _numbers_within(ops: pl.DataFrame, accumulation: _Accumulation) -> list[int]:
    """Return the numbers of the operators in which a gradient is accumulated."""
    thread, start, end, _ = accumulation
    made = ops.filter((ops["thread"] == thread) & (ops["start_ns"] >= start) & (ops["end_ns"] <= end))
    numbers: list[int] = made["label"].str.extract(ID, 1).cast(pl.Int64, strict=False).drop_nulls().to_list()
    return numbers


def _end_of_step(ranges: pl.DataFrame, flow: OperatorFlow) -> int:
    steps = ranges.filter((ranges["kind"] == "step") & ranges["own"])
    ends = steps.filter(steps["end_ns"] > int(flow.start_ns[-1]))["end_ns"]
    least = ends.min()
    return int(least) if isinstance(least, int) else int(flow.end_ns[-1])


def _backwards(ranges: pl.DataFrame, ops: pl.DataFrame) -> list[_RecordedBackward]:
    """Return the backwards of the X-ray steps in which gradients are accumulated."""
    phases = ranges.filter(pl.col("own"), pl.col("kind") == "phase", pl.col("name").cast(pl.String) == "backward")
    spans = phases["start_ns", "end_ns"].sort("start_ns").rows()
    accumulating = ops.filter(pl.col("name") == _ACCUMULATES).sort("start_ns")
    result = list[_RecordedBackward]()
    for start, end in spans:
        inside = accumulating.filter((accumulating["start_ns"] >= start) & (accumulating["end_ns"] <= end))
        if inside.height:
            result.append(_RecordedBackward(start, end, inside["thread", "start_ns", "end_ns", "label"].rows()))
    return result


def _asked_for(ops: pl.DataFrame, backwards: list[_RecordedBackward]) -> bool:
    """Return whether gradients are computed outside of ``backward`` (``autograd.grad``), too."""
    nodes = ops.filter(pl.col("name").str.starts_with(_EVALUATES)).sort("start_ns")
    spans = np.array([(each.start_ns, each.end_ns) for each in backwards], np.int64)
    first, last = int(spans[0, 0]), int(spans[-1, 1])
    start = nodes["start_ns"].to_numpy()
    among = start[(start >= first) & (start < last)]
    return bool((interval_of(among, *spans.T) < 0).any())


def _outside(ops: pl.DataFrame) -> pl.Series:
    """Return the labels of the operators that lie in no accumulation of a gradient."""
    whole = ops.filter(pl.col("name") == f"{_EVALUATES}{_ACCUMULATES}").sort("thread", "start_ns")
    inside = np.zeros(ops.height, np.bool_)
    keys, start = ops["thread"].to_numpy(), ops["start_ns"].to_numpy()
    for (key,), theirs in whole.group_by("thread", maintain_order=True):
        of_thread = keys == key
        spans = theirs["start_ns"].to_numpy(), theirs["end_ns"].to_numpy()
        inside[of_thread] = interval_of(start[of_thread], *spans) >= 0
    labels: pl.Series = ops["label"].filter(pl.Series(~inside, dtype=pl.Boolean)).fill_null("")
    return labels


def _leaves_of(
    backward: _RecordedBackward,
    ops: pl.DataFrame,
    flow: OperatorFlow,
    result: dict[int, Size],
    trained: Flags,
    read: set[int],
) -> list[int]:
    """Return what made the activations to which a backward adds gradients behind all of its parameters, one row for each."""
    leaves = list[int]()
    for each in reversed(backward.accumulations):
        *_, label = each
        numbers = _numbers_within(ops, each)
        size = next(iter(sizes_of(_sizes_in(label))), ())
        # What the operator before it in the graph was given, and no operator that is trained made: a weight has no maker.
        given = (maker for row in _rows_before(each, ops, flow, trained) for maker in flow.makers[row])
        rows = [row for row in given if not trained[row] and len(size) > 1 and result.get(flow.number[row]) == size]
        if not rows or not read.isdisjoint(numbers):
            break
        leaves.append(rows[0])
    return leaves if len(leaves) < len(backward.accumulations) else []


def _sizes_in(label: str) -> str:
    return label.partition("sizes = [")[2].partition(", input_op_ids")[0].removesuffix("]")


def _made_behind(backward: _RecordedBackward, leaves: int, ops: pl.DataFrame, keys: I64, when: I64) -> Flags:
    """Return which API calls (their threads, and when) the nodes make that run behind the last gradient of a parameter."""
    thread, _, last, _ = backward.accumulations[-leaves - 1]
    nodes = ops.filter(
        pl.col("thread") == thread,
        pl.col("start_ns") >= last,
        pl.col("end_ns") <= backward.end_ns,
        pl.col("name").str.starts_with(_EVALUATES),
        ~pl.col("name").str.contains(_OF_WRAPPERS.pattern),
    ).sort("start_ns")
    spans = nodes["start_ns"].to_numpy(), nodes["end_ns"].to_numpy()
    inside: Flags = (keys == thread) & (interval_of(when, *spans) >= 0)
    return inside


def _rows_before(accumulation: _Accumulation, ops: pl.DataFrame, flow: OperatorFlow, trained: Flags) -> list[int]:
    """Return the trained operators (rows) whose node runs right before a gradient is accumulated, which it made."""
    thread, start, _, _ = accumulation
    before = ops.filter(
        pl.col("thread") == thread,
        pl.col("end_ns") <= start,
        pl.col("number") >= 0,
        pl.col("name").str.contains(r"Backward\d*$"),
    ).sort("start_ns")
    number = before["number"][-1] if before.height else -1
    return [row for row in np.flatnonzero(trained).tolist() if flow.sequence[row] == number >= 0]

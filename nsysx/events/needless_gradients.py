"""Which work of the backward serves only gradients that nothing reads: from what the operators of an X-ray step make of what.

Torch adds a gradient to its parameter in a node of its own, ``AccumulateGrad``. What that makes has a name as the results of all operators
have, and an optimizer, clipping or a collective names what it reads. A gradient that none of them names, in its step or later in the
X-ray, while they name others of the same step, is made for nothing, and so is whatever only led to it.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from nsysx.events.event_bounds import MOST_FLOW_OPERATORS, UNSEEN_READERS_SHARE
from nsysx.events.needless_networks import NeedlessNetwork, needless_networks
from nsysx.events.numbers_as_tensors import without_names_of_numbers
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import flow_of, in_place, is_view, results_given, results_in
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.profile import Profile
from nsysx.events.program_backwards import program_backwards
from nsysx.frames.intervals import I64, interval_of

_ACCUMULATES = "torch::autograd::AccumulateGrad"
#: How torch calls a node, with what it does to the node's results.
_EVALUATES = "autograd::engine::evaluate_function: "
_NODE = re.compile(r"^[^:]*Backward[^:]*$")
_COLLECTIVE = r"^(_?c10d\w*|nccl|gloo|fsdp):"
_TO_HOST = re.compile(r"::(item|_local_scalar_dense)$")
_NUMBER = r"op_id = (\d{1,18})\b"

#: Operators whose first result is the gradient of an input, and whose second is that of a weight.
_FOR_BOTH = ("aten::convolution_backward", "aten::native_layer_norm_backward", "aten::native_group_norm_backward")
#: The number of an operator, and which of its results.
_Result = tuple[int, int]


@dataclass(frozen=True)
class NeedlessGradients:
    """Work for gradients that nothing reads: ``unread`` of the ``gradients`` of a step.

    Of each API call of the report: ``needless``, whether it launches nothing else; ``partly``, whether it launches the gradient of an
    input, which is needed, and of weights, which is not; ``whole``, whether it is needless as all that a backward of the program does for
    the same call of a network; ``leading``, whether it launches the gradient of weights, which is needed, and of an input, which only
    leads there. ``networks``: these calls.
    """

    needless: Flags
    partly: Flags
    whole: Flags
    leading: Flags
    networks: tuple[NeedlessNetwork, ...]
    unread: int
    gradients: int


class _Operator(NamedTuple):
    """An operator that lies in no other. ``text`` names what it is given.

    ``into``: what it is a view of or writes into, None where that has no name. ``kept``: whether it is needed whoever reads its results.
    ``gradient``: the number of the AccumulateGrad that it lies in, -1 for none.
    """

    name: str
    number: int
    thread: int
    start_ns: int
    end_ns: int
    text: str
    into: _Result | None
    kept: bool
    gradient: int

    @property
    def span(self) -> tuple[int, int]:
        """When it runs."""
        return self.start_ns, self.end_ns

    @property
    def takes(self) -> Iterator[_Result]:
        """The results that it is given, those without a name left out."""
        return _results(self.text)


class _AutogradNode(NamedTuple):
    """A node of autograd; ``text`` names what it is given."""

    thread: int
    start_ns: int
    end_ns: int
    text: str


@dataclass
class _Step:
    """The outermost operators of a step by thread and time. ``outer``: number of an operator -> the row of the outermost around it.

    ``nodes``: the nodes of autograd.
    """

    operators: list[_Operator] = field(default_factory=list)
    outer: dict[int, int] = field(default_factory=dict)
    gradients: set[int] = field(default_factory=set)
    nodes: list[_AutogradNode] = field(default_factory=list)


def needless_gradients(profile: Profile) -> NeedlessGradients | None:
    """Return the work for gradients that nothing reads, none where all are read; None where operators do not tell."""
    return profile.once(_find)


def _find(profile: Profile) -> NeedlessGradients | None:
    flow, of_calls = flow_of(profile), operator_of_calls(profile)
    if flow is None or of_calls is None:
        return None
    ranges = profile.ranges.ranges.filter(
        (pl.col("process") == profile.process) & ~(pl.col("crossing") | pl.col("open") | pl.col("repeated"))
    )
    steps = ranges.filter((pl.col("kind") == "step") & pl.col("own"))["start_ns", "end_ns"].sort("start_ns")
    recorded = ranges.filter(pl.col("kind") == "op").select(
        "thread", "start_ns", "end_ns", "number", pl.col("name", "label").cast(pl.String)
    )
    recorded = recorded.sort("thread", "start_ns", "end_ns", descending=[False, False, True])
    # Collectives take gradients out of buffers, views of which they are: what reads those has no name.
    collective = recorded["name"].str.contains(_COLLECTIVE).any()
    if recorded.height > MOST_FLOW_OPERATORS or collective or not (recorded["name"] == _ACCUMULATES).any():
        return None
    recorded = without_names_of_numbers(recorded)
    calls = profile.attributed.api_calls
    thread, start_ns = calls["thread"].to_numpy(), calls["start_ns"].to_numpy()
    needless, partly = np.zeros(calls.height, np.bool_), np.zeros(calls.height, np.bool_)
    unneeded = list[tuple[_Step, set[_Result]]]()
    counted, judged = (0, 0), False
    for step, needed in _steps(profile, recorded, steps):
        if needed is None:
            judged |= bool(step.gradients)
            continue
        read = {op.gradient for row, op in enumerate(step.operators) if (row, 0) in needed}
        judged |= not read.isdisjoint(step.gradients)
        if read.isdisjoint(step.gradients) or step.gradients <= read:
            continue
        counted = (len(step.gradients - read), len(step.gradients))
        unneeded.append((step, needed))
        kept = {row for row, _ in needed}
        for row, made in _calls_of(step, thread, start_ns):
            needless[made] = row not in kept
            partly[made] = _in_part(row, step.operators[row], needed)
    if not judged:
        return None
    repeats = profile.ranges.repeats
    like = np.arange(calls.height) if repeats is None else repeats.like
    needless, partly = needless | needless[like], partly | partly[like]
    whole, networks = needless_networks(
        flow, of_calls.backward, program_backwards(profile).number_at(start_ns), needless
    )
    leading = np.zeros(calls.height, np.bool_)
    for step, needed in unneeded:
        _leading_to(calls, step, needed, whole, leading)
    whole, leading = whole | whole[like], leading | leading[like]
    return NeedlessGradients(needless, partly, whole, leading, networks, *counted)


def _steps(
    profile: Profile, recorded: pl.DataFrame, steps: pl.DataFrame
) -> Iterator[tuple[_Step, set[_Result] | None]]:
    """Yield each step that makes gradients, the last one first, with the results that something needs; None where it reads them all."""
    later, until = set[_Result](), int(recorded["end_ns"].max() or 0) + 1  # type: ignore[arg-type]
    launches, behind = _launching_kernels(profile), list[pl.Series]()
    for start, end in reversed(steps.rows()):
        theirs = recorded.filter((recorded["start_ns"] >= start) & (recorded["end_ns"] <= end))
        if not (theirs["name"] == _ACCUMULATES).any():
            continue
        after = recorded.filter((recorded["start_ns"] >= end) & (recorded["start_ns"] < until))
        behind.append(after["label"])
        until = end
        step = _read(theirs)
        unseen = _taken_unseen(launches.filter(pl.col("start_ns").is_between(start, end)), step)
        if unseen is None:
            continue
        if step.gradients <= _read_at_once(step):
            yield step, None
            continue
        later |= results_given(pl.concat(behind))
        behind.clear()
        yield step, _needed(step, unseen | later)


@lru_cache(maxsize=4096)  # few names, each of thousands of operators
def _role(name: str) -> Literal["evaluation", "accumulation", "node", "operator"]:
    """Return what a range of an operator is to autograd."""
    if name.startswith(_EVALUATES):
        return "evaluation"
    if name == _ACCUMULATES:
        return "accumulation"
    return "node" if _NODE.match(name) else "operator"


def _arguments(text: str) -> list[_Result]:
    """Return the results that an operator is given. One without a name has a negative number of the result."""
    return results_in(text.partition("input_op_ids = ")[2])


def _results(text: str) -> Iterator[_Result]:
    """Return the results that an operator is given, those without a name left out."""
    return (result for result in _arguments(text) if result[1] >= 0)


def _read(recorded: pl.DataFrame) -> _Step:
    """Return the operators of a step; what nodes of autograd run, and writes into nothing from elsewhere, may be needless."""
    step = _Step()
    evaluated = node = outer_end = gradient_end = -1
    thread_before, gradient, accumulating = -1, -1, False
    op_ids = recorded["label"].str.extract(_NUMBER, 1).cast(pl.Int64).to_list()
    columns = recorded["thread", "start_ns", "end_ns", "number", "name", "label"]
    for op_id, (thread, start, end, number, name, text) in zip(op_ids, columns.iter_rows(), strict=True):
        if thread != thread_before:
            evaluated = node = outer_end = gradient_end = -1
            thread_before = thread
        name, text = name or "", text or ""
        role = _role(name)
        if role == "evaluation":
            evaluated, accumulating = end, name.endswith(_ACCUMULATES)
        elif role == "accumulation":
            gradient_end, gradient = end, -1 if op_id is None else op_id
            step.gradients.add(gradient)
        elif role == "node":
            node = end
            step.nodes.append(_AutogradNode(thread, start, end, text))
        elif op_id is None:
            continue
        elif start < outer_end:
            step.outer[op_id] = len(step.operators) - 1
        else:
            outer_end = end
            in_gradient = start < gradient_end
            by_node = in_gradient or start < node or (start < evaluated and not accumulating)
            arguments = _arguments(text) if is_view(name) or in_place(name) else []
            into = arguments[0] if arguments and arguments[0][1] >= 0 else None
            written = in_place(name) and into is None and not in_gradient
            kept = not by_node or number >= 0 or written or not name.startswith("aten::") or bool(_TO_HOST.search(name))
            step.outer[op_id] = len(step.operators)
            step.operators.append(
                _Operator(name, op_id, thread, start, end, text, into, kept, gradient if in_gradient else -1)
            )
    order = sorted(range(len(step.operators)), key=lambda row: step.operators[row].start_ns)
    new_row = {row: index for index, row in enumerate(order)}
    return _Step(
        [step.operators[row] for row in order],
        {number: new_row[row] for number, row in step.outer.items()},
        step.gradients,
        step.nodes,
    )


def _launching_kernels(profile: Profile) -> pl.DataFrame:
    """Return thread, start_ns of the calls that launch kernels of the shown process, sorted by both."""
    ops, calls = profile.attributed.gpu_ops, profile.attributed.api_calls
    launches = np.zeros(calls.height, np.bool_)
    kernels = (ops["op_kind"] == "kernel") & (ops["process"] == profile.process)
    launches[ops["call"].filter(kernels).drop_nulls().to_numpy()] = True
    return calls["thread", "start_ns"].filter(launches)


def _taken_unseen(launches: pl.DataFrame, step: _Step) -> set[_Result] | None:
    """Return what nodes take or make that launch kernels outside of operators, which may read it; None where much else launches some.

    ``launches`` are those of the step, as `_launching_kernels` has them.
    """
    taken, elsewhere = set[_Result](), 0
    for (thread,), of_thread in launches.group_by("thread", maintain_order=True):
        start = of_thread["start_ns"].to_numpy()
        theirs = [op for op in step.operators if op.thread == thread]
        spans = np.array([op.span for op in theirs], np.int64).reshape(-1, 2)
        start = start[interval_of(start, *spans.T) < 0]
        in_node = np.zeros(len(start), np.bool_)
        nodes = [node for node in step.nodes if node.thread == thread] if len(start) else []
        within = np.searchsorted(
            start, np.array([(node.start_ns, node.end_ns) for node in nodes], np.int64).reshape(-1, 2)
        )
        for row in np.flatnonzero(within[:, 1] > within[:, 0]).tolist():
            node = nodes[row]
            in_node[slice(*within[row])] = True
            # Its kernels may read what its operators make, too.
            made = ((op.number, 0) for op in theirs if node.start_ns <= op.start_ns < node.end_ns)
            taken.update(_results(node.text), made)
        elsewhere += int((~in_node).sum())
    return None if elsewhere > UNSEEN_READERS_SHARE * max(launches.height, 1) else taken


def _read_at_once(step: _Step) -> set[int]:
    """Return gradients that operators of the same step are given which are needed whoever reads their results."""
    first = next((row for row, op in enumerate(step.operators) if op.gradient >= 0), len(step.operators))
    given = itertools.chain.from_iterable(op.takes for op in step.operators[first:] if op.kept)
    rows = {step.outer.get(number, -1) for number, which in given if which == 0}
    return {step.operators[row].gradient for row in rows if row >= 0}


def _needed(step: _Step, later: set[_Result]) -> set[_Result]:
    """Return the results (row of the operator, which) that something needs; ``later``: what operators of later steps are given."""

    def row_of(result: _Result) -> _Result:
        return (step.outer.get(result[0], -1), result[1])

    source: dict[_Result, _Result] = {}  # of a view, or of what was written into, the tensor that it is of
    writers = defaultdict[_Result, list[_Result]](list)
    waiting = [row_of(result) for result in later]
    for row, op in enumerate(step.operators):
        there = (-1, 0) if op.into is None else row_of(op.into)
        writes = in_place(op.name)
        if op.into is not None and 0 <= there[0] < row:
            whole = source.get(there, there)
            source[row, 0] = whole
            if writes:
                writers[whole].append((row, 0))
        elif writes and op.gradient < 0:
            waiting.append((row, 0))  # into a tensor from before
        if op.kept:
            waiting.append((row, 0))
    needed, rows = set[_Result](), set[int]()
    while waiting:
        result = waiting.pop()
        row = result[0]
        if row < 0 or result in needed:
            continue
        needed.add(result)
        whole = source.get(result, result)
        waiting += [whole, *writers.pop(whole, ())]  # once: some tensors have thousands
        if row not in rows:
            rows.add(row)
            waiting += [row_of(taken) for taken in step.operators[row].takes]
    return needed


def _in_part(row: int, op: _Operator, needed: set[_Result]) -> bool:
    """Return whether the gradient of an input, but not that of the weights, is needed of what makes both."""
    return op.name in _FOR_BOTH and (row, 0) in needed and (row, 1) not in needed


def _leading_to(calls: pl.DataFrame, step: _Step, needed: set[_Result], whole: Flags, leading: Flags) -> None:
    """Mark the API calls of needless operators that take results of what is marked, or whose results only go on into that, and those of
    operators whose gradient of an input does.
    """
    calls_of_rows = list(_calls_of(step, calls["thread"].to_numpy(), calls["start_ns"].to_numpy()))
    kept = {row for row, _ in needed}
    waiting = [row for row, made in calls_of_rows if row not in kept and whole[made].any()]
    reached, of_inputs = set[int](), set[int]()
    while waiting:
        row = waiting.pop()
        if row not in reached:
            reached.add(row)
            taken = {(step.outer.get(number, -1), which) for number, which in step.operators[row].takes} - needed
            waiting += {maker for maker, _ in taken} - kept - {-1}
            of_inputs |= {maker for maker, which in taken if maker in kept and which == 0}
    of_inputs = {row for row in of_inputs if step.operators[row].name in _FOR_BOTH}
    for row, op in enumerate(step.operators):  # as what adds gradients to those of before
        if row not in kept and any(step.outer.get(number, -1) in reached for number, _ in op.takes):
            reached.add(row)
    for row, made in calls_of_rows:
        whole[made] |= row in reached
        leading[made] |= row in of_inputs


def _calls_of(step: _Step, thread: I64, start_ns: I64) -> Iterator[tuple[int, slice]]:
    """Yield the operators with the API calls that each makes, of calls sorted by thread and time."""
    for key in {op.thread for op in step.operators}:
        theirs = [row for row, op in enumerate(step.operators) if op.thread == key]
        a, b = np.searchsorted(thread, [key, key + 1]).tolist()
        ends = a + np.searchsorted(start_ns[a:b], np.array([step.operators[row].span for row in theirs]))
        for row, (first, last) in zip(theirs, ends.tolist(), strict=True):
            if last > first:
                yield row, slice(first, last)

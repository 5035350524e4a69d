"""Passes of autograd in an X-ray step that begin at one output with the same gradient: they differ in the inputs asked for alone.

``torch.autograd.grad(u, x)``, and ``grad(u, y)`` behind it, run the nodes between ``u`` and where the ways to both part twice. With
``create_graph`` each makes a graph of its own, and a later backward goes through all of them. A node tells what it was given by the numbers
of operators, and which of its outputs by the one that has a size.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.backward_passes import step_end_ns
from nsysx.events.code_lines import CodeLines, NodesAtWork, are_nodes
from nsysx.events.operator_bounds import FEWEST_NODES_OF_PASS
from nsysx.events.operator_flow import DIMENSIONS, MADE, SIZES, OperatorFlow
from nsysx.events.profile import Profile

#: A node by its name and number: threads number theirs each by itself.
Node = tuple[str, int]
_GIVEN = re.compile(r"\((\d{1,18}),(-?\d{1,9})\)")
#: What adds to a gradient; the engine comes to the node in passes that only ask for gradients, too.
_ACCUMULATES = "torch::autograd::AccumulateGrad"
_ONES = ("aten::ones_like", "aten::ones")
#: Nodes of operators that make a single number of all of a tensor, and these operators.
_SUMS = {"SumBackward0": "aten::sum", "MeanBackward0": "aten::mean"}


class OneOutput(NamedTuple):
    """Passes from one output. ``stacks``: of each the lines that asked; ``nodes``: how many ran in several of them.

    ``of_ones``: they begin with ones. ``with_graph``: a later pass goes through graphs that they made. ``calls``: those of all steps that
    go where one pass gives all, those in later passes among them.
    """

    stacks: Sequence[int]
    nodes: int
    of_ones: bool
    with_graph: bool
    calls: frozenset[int]


@dataclass
class _Pass:
    """A pass: its nodes in order, when, on which thread, and the number of each operator in it with the node that runs it."""

    nodes: list[Node]
    thread: int
    start_ns: int
    stack: int
    label: str
    end_ns: int = 0
    made: dict[int, Node] = field(default_factory=dict)


def passes_of_one_output(profile: Profile, flow: OperatorFlow, code: CodeLines) -> list[OneOutput]:
    """Return such passes of the step of a flow, by output; nothing is said of those that accumulate gradients."""
    end_ns = step_end_ns(profile, flow)
    ops = profile.ranges.ranges.filter(
        (pl.col("kind") == "op")
        & (pl.col("process") == profile.process)
        & ~(pl.col("repeated") | pl.col("crossing"))
        & pl.col("start_ns").is_between(int(flow.start_ns[0]), end_ns)
    ).sort("start_ns")
    numbered = ops.filter(pl.col("number") >= 0)
    nodes = numbered.filter(are_nodes(numbered["name"]))
    if not nodes.height:
        return []
    passes = _passes(nodes, flow, code)
    for each, behind in zip(passes, [*(p.start_ns for p in passes[1:]), end_ns], strict=True):
        each.end_ns = behind
    accumulates = ops.filter(pl.col("name").cast(pl.String).str.starts_with(_ACCUMULATES))["start_ns"].to_numpy()
    groups = defaultdict[object, list[int]](list)
    for n, each in enumerate(passes):
        asks = len(each.nodes) >= FEWEST_NODES_OF_PASS
        adds = np.searchsorted(accumulates, each.end_ns) > np.searchsorted(accumulates, each.start_ns)
        key = _begins(flow, each) if asks and not adds else None
        if key is not None:
            groups[key].append(n)
    several = {key: group for key, group in groups.items() if len(group) > 1}
    if not several:
        return []
    _add_operators(passes, numbered, nodes)
    calls = _CallsOfNodes(profile, passes, nodes, ops)
    return [_one_output(passes, group, calls, of_ones=_is_of_ones(key)) for key, group in several.items()]


def _passes(nodes: pl.DataFrame, flow: OperatorFlow, code: CodeLines) -> list[_Pass]:
    """Return the passes in order of time: a node that runs again, other lines, or an operator of the program in between part them."""
    start, thread = nodes["start_ns"].to_numpy(), nodes["thread"].to_numpy()
    stacks = code.at(flow.thread, start).tolist()
    behind = np.searchsorted(flow.start_ns[flow.outermost], start).tolist()
    passes, ran, last = list[_Pass](), set[Node](), None
    rows = nodes.select(pl.col("name").cast(pl.String), "number", pl.col("label").cast(pl.String)).iter_rows()
    for n, (name, number, label) in enumerate(rows):
        node, borders = (name, number), (stacks[n], behind[n])
        if not passes or node in ran or borders != last:
            passes.append(_Pass([], int(thread[n]), int(start[n]), stacks[n], label))
            ran, last = set(), borders
        passes[-1].nodes.append(node)
        ran.add(node)
    return passes


def _begins(flow: OperatorFlow, each: _Pass) -> object | None:
    """Return from which output a pass begins, and with what; None where that is not known."""
    made, sizes = re.search(MADE, each.label), re.search(SIZES, each.label)
    if made is None or sizes is None:
        return None
    given = [(int(number), int(which)) for number, which in _GIVEN.findall(made[1])]
    size = DIMENSIONS.findall(sizes[1])
    seeds = [(n, *pair, size[n] if n < len(size) else "") for n, pair in enumerate(given) if pair[0] > 0]
    if not seeds:
        return None
    begins: list[object] = []
    for slot, number, which, dimensions in seeds:
        row = flow.row_of.get(number)
        ones = row is not None and flow.names[row] in _ONES
        begins.append((slot, dimensions, "ones" if ones else (number, which)))
    name, number = each.nodes[0]
    # The sum of one tensor may have been made for each pass anew.
    of_sum = [
        row for row, sequence in enumerate(flow.sequence) if sequence == number and flow.names[row] == _SUMS.get(name)
    ]
    if of_sum and seeds[0][3] == "" and flow.made[of_sum[-1]][:1] > (0,):
        row = of_sum[-1]
        result = flow.which[row][:1] if flow.which else ()
        return (name, flow.made[row][0], result, tuple(begins))
    return (name, number, None, tuple(begins))


def _is_of_ones(key: object) -> bool:
    return isinstance(key, tuple) and all(seed == "ones" for *_, seed in key[3])


def _add_operators(passes: Sequence[_Pass], numbered: pl.DataFrame, nodes: pl.DataFrame) -> None:
    """Note for each pass which operators made nodes in it, by number, and the node that ran them: with these numbers their nodes run."""
    starts = [each.start_ns for each in passes]
    ends = nodes["end_ns"].to_numpy()
    begin = nodes["start_ns"].to_numpy()
    every: list[Node] = list(zip(nodes["name"].cast(pl.String).to_list(), nodes["number"].to_list(), strict=True))
    others = numbered.filter(~pl.Series(are_nodes(numbered["name"]), dtype=pl.Boolean))
    latest = np.searchsorted(begin, others["start_ns"].to_numpy(), side="right") - 1
    columns = (others[name].to_list() for name in ("start_ns", "number", "thread"))
    for n, start, number, thread in zip(latest.tolist(), *columns, strict=True):
        each = passes[int(np.searchsorted(starts, start, side="right")) - 1]
        if n >= 0 and start < ends[n] and thread == each.thread:
            each.made[number] = every[n]


class _CallsOfNodes:
    """The API calls of the nodes of each pass, and those of all steps that correspond to some."""

    def __init__(self, profile: Profile, passes: Sequence[_Pass], nodes: pl.DataFrame, operators: pl.DataFrame) -> None:
        api = profile.attributed.api_calls
        start, thread = api["start_ns"].to_numpy(), api["thread"].to_numpy()
        self._of = np.arange(api.height) if profile.ranges.repeats is None else profile.ranges.repeats.like
        at_work = NodesAtWork(nodes, operators)
        self.of_pass = list[Mapping[int, list[int]]]()
        for each in passes:
            a, b = np.searchsorted(thread, [each.thread, each.thread + 1])
            first, last = (a + np.searchsorted(start[a:b], [each.start_ns, each.end_ns])).tolist()
            numbers = at_work.at_work(each.thread, start[first:last])[0]
            by_node = defaultdict[int, list[int]](list)
            for call, number in enumerate(numbers.tolist(), first):
                by_node[number].append(call)
            self.of_pass.append(by_node)

    def of_all_steps(self, calls: Sequence[int]) -> frozenset[int]:
        """Return the calls of all steps that correspond to some of the X-ray step, these among them."""
        return frozenset(np.flatnonzero(np.isin(self._of, calls) | np.isin(np.arange(len(self._of)), calls)).tolist())


def _one_output(passes: Sequence[_Pass], group: Sequence[int], calls: _CallsOfNodes, *, of_ones: bool) -> OneOutput:
    """Return what goes where one pass gives all: each node but where it runs first, and what later passes run of its graph."""
    ran, again, gone = dict[Node, int](), set[Node](), list[int]()
    for n in group:
        for node in passes[n].nodes:
            if ran.setdefault(node, n) != n:
                again.add(node)
                gone += calls.of_pass[n].get(node[1], ())
    made = _makers(passes, group)
    with_graph = False
    for n in range(group[0] + 1, len(passes)):
        if n in group:
            continue
        first = dict[tuple[Node, int], int]()  # of each operator of the graphs the pass whose one runs here first
        for _, number in passes[n].nodes:
            if number not in made:
                continue
            maker, node, nth = made[number]
            with_graph = True
            if first.setdefault((node, nth), maker) != maker:
                gone += calls.of_pass[n].get(number, ())
    return OneOutput([passes[n].stack for n in group], len(again), of_ones, with_graph, calls.of_all_steps(gone))


def _makers(passes: Sequence[_Pass], group: Sequence[int]) -> dict[int, tuple[int, Node, int]]:
    """Return number of a node that passes made -> the pass, the node that ran its operator, and the how manieth of that it is."""
    makers = dict[int, tuple[int, Node, int]]()
    for n in group:
        often = defaultdict[Node, int](int)
        for number in sorted(passes[n].made):
            node = passes[n].made[number]
            makers[number] = (n, node, often[node])
            often[node] += 1
    return makers

"""Layers of a graph network that each compute all nodes of a sampled subgraph, of which its first ones, the seeds, are read at the end.

A layer takes rows by the numbers of the edges' sources and adds them up by those of their targets. Of L layers the last one needs the seeds
alone, the one before it those that are one hop away, too: each hop that lies too far can be left out (``trim_to_layer``).
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from nsysx.events.narrowed_operators import kept_of_tensors, sizes_of
from nsysx.events.operator_bounds import FEWEST_SAMPLED_TIMES
from nsysx.events.operator_flow import ModuleCall, OperatorFlow, is_view

_TAKES = re.compile(r"^aten::(index_select|index|gather|embedding)$")
_ADDS = re.compile(r"^aten::(index_(add|reduce|put)|_?index_put_impl|scatter(_add|_reduce)?)_?$")
_CUTS = re.compile(r"^aten::(slice|narrow)$")


class SampledLayers(NamedTuple):
    """Calls of layers in their order, how many nodes each computes, how many are read at the end, and which operator takes them."""

    calls: tuple[ModuleCall, ...]
    nodes: int
    seeds: int
    cut: int

    def share(self, layer: int) -> float:
        """Return about which share of the nodes a layer needs, if each hop has as many times the nodes of the one before."""
        return float((self.seeds / self.nodes) ** (layer / len(self.calls)))


def sampled_layers(flow: OperatorFlow) -> list[SampledLayers]:
    """Return the networks of such layers in a step."""
    kept, sampled = kept_of_tensors(flow), list[SampledLayers]()
    for cls in dict.fromkeys(call.cls for call in flow.calls):
        calls, last = list[tuple[ModuleCall, int]](), -1
        for call in flow.calls:
            if call.cls == cls and call.first >= last and (nodes := _nodes_of(flow, call)):
                calls.append((call, nodes))
                last = call.last
        for nodes in {nodes for _, nodes in calls}:
            theirs = tuple(call for call, each in calls if each == nodes)
            made = flow.outermost_of(theirs[-1].first, theirs[-1].last)
            read = kept.get(flow.number[made[-1]]) if made else None
            if len(theirs) < 2 or read is None or read.dimensions != {0} or len(read.by) != 1:
                continue
            (cut,), seeds = read.by, round(read.share * nodes)
            if _CUTS.match(flow.names[cut]) and 0 < seeds * FEWEST_SAMPLED_TIMES <= nodes:
                sampled.append(SampledLayers(theirs, nodes, seeds, cut))
    return sampled


def _nodes_of(flow: OperatorFlow, call: ModuleCall) -> int:
    """Return to how many nodes a layer adds up what it takes of as many, by numbers that came in this step; 0 where it does not."""
    taken, added = set[int](), set[int]()
    for row in flow.outermost_of(call.first, call.last):
        sizes, made = sizes_of(flow.size[row]), flow.made[row]
        if len(sizes) != len(made) or len(sizes) < 2 or len(sizes[0]) < 2:
            continue
        if _TAKES.match(flow.names[row]) and any(
            _is_new(flow, n) for n, size in zip(made[1:], sizes[1:], strict=True) if size
        ):
            taken.add(sizes[0][0])
        elif _ADDS.match(flow.names[row]) and math.prod(sizes[0]):
            added.add(sizes[0][0])
    both = taken & added
    return both.pop() if len(both) == 1 else 0


def _is_new(flow: OperatorFlow, number: int) -> bool:
    """Return whether a tensor was made in this step, or is a view of such a one: a graph that stays has older edges."""
    row = flow.row_of.get(number)
    while row is not None and is_view(flow.names[row]) and flow.made[row]:
        number = flow.made[row][0]
        row = flow.row_of.get(number)
    return row is not None

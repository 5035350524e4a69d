"""Conversions that make once more what the same step has made: to another type or layout, or as a copy.

A tensor with a maker's number is the same as long as it bears it: what writes into it gives it another. A weight mostly bears none. How
many weights of a size are trained is how often autograd accumulates a gradient of that size: of more conversions of weights of that
size, the others are of the same ones. Autocast keeps converted weights until the outermost ``autocast`` ends, and no other tensor.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.code_lines import are_nodes
from nsysx.events.narrowed_operators import Size, result_sizes, sizes_of
from nsysx.events.operator_flow import OperatorFlow, flow_of, in_place, is_view
from nsysx.events.operator_names import writes_lists
from nsysx.events.profile import Profile

_CONVERTS = re.compile(r"^aten::(_?to(_copy)?|type_as|contiguous|clone)$")
#: Views of all that they are given, which no number of Python chooses but for the order of dimensions.
_WHOLE_VIEWS = re.compile(r"^aten::([tT]|numpy_T|mT|adjoint|transpose|permute|view|reshape|(un)?flatten|(un)?squeeze)$")
_SAME = re.compile(r"^aten::(detach|alias)$")
_ACCUMULATES = "torch::autograd::AccumulateGrad"
#: The gradient of a conversion to another type or device.
_OF_CONVERSION = re.compile(r"^ToCopyBackward")

#: Of operators (rows of the flow) the names of the kernels that each launches.
Kernels = Mapping[int, frozenset[str]]


class Conversion(NamedTuple):
    """An operator that converts: its row, and the end of the rows in it. ``by_autocast``: it lies in one that autocast calls again."""

    row: int
    end: int
    by_autocast: bool


class ConvertedAgain(NamedTuple):
    """Conversions of tensors that one before them has converted; ``weights``: all are of weights that are trained.

    ``first``: those whose results could have been kept, ``again``: the others.
    """

    first: Sequence[Conversion]
    again: Sequence[Conversion]
    weights: bool

    @property
    def by_autocast(self) -> bool:
        """Whether autocast makes all of them."""
        return all(each.by_autocast for each in self.again)


def converted_again(profile: Profile, kernels: Kernels) -> list[ConvertedAgain]:
    """Return what the operators of the flow convert again, weights first; none without a flow."""
    flow = flow_of(profile)
    if flow is None:
        return []
    conversions = _conversions(flow, kernels)
    of_weights, others = list[ConvertedAgain](), list[ConvertedAgain]()
    nodes, accumulated = _gradients(profile, flow)
    maker = {number: row for row, number in enumerate(flow.sequence) if number >= 0}  # the last one makes the node
    by_size = defaultdict[tuple[Size, bool], list[Conversion]](list)
    for each in conversions:
        number = flow.sequence[each.row] if flow.sequence else -1
        trained = each.row <= maker.get(number, -1) < each.end and _OF_CONVERSION.match(nodes.get(number, ""))
        if trained and flow.made[each.row][0] not in flow.row_of:
            by_size[sizes_of(flow.size[each.row])[0], each.by_autocast].append(each)
    kept, again = defaultdict[bool, list[Conversion]](list), defaultdict[bool, list[Conversion]](list)
    for (size, by_autocast), theirs in by_size.items():
        weights = accumulated[size]
        if 0 < weights < len(theirs):
            kept[by_autocast] += theirs[:weights]
            again[by_autocast] += theirs[weights:]
    of_weights += [ConvertedAgain(kept[key], again[key], weights=True) for key in again]
    for same in _of_results(flow, conversions, kernels):
        others.append(ConvertedAgain(same[:1], same[1:], weights=False))
    return of_weights + others


def _conversions(flow: OperatorFlow, kernels: Kernels) -> list[Conversion]:
    """Return the operators that convert a tensor by kernels, the outermost of each; those in the operators of a conversion left out."""
    conversions = list[Conversion]()
    for first, last in flow.outermost_spans:
        again = flow.names[first] in flow.names[first + 1 : last]  # autocast calls it with what it has converted
        until = first
        for row in range(first, last):
            if row < until or not _CONVERTS.match(flow.names[row]):
                continue
            until = row + int(np.searchsorted(flow.start_ns[row:last], flow.end_ns[row]))
            if flow.made[row] and any(kernels.get(inner) for inner in range(row, until)):
                conversions.append(Conversion(row, until, by_autocast=again and row > first))
    return conversions


def _gradients(profile: Profile, flow: OperatorFlow) -> tuple[dict[int, str], Counter[Size]]:
    """Return number -> name of the nodes that a backward of the flow's operators ran, and how often it accumulated gradients of a size."""
    numbers = [number for number in flow.sequence if number >= 0]
    chosen = (pl.col("kind") == "op") & (pl.col("process") == profile.process) & ~pl.col("repeated")
    name = pl.col("name").cast(pl.String)
    rows = profile.ranges.ranges.filter(chosen, ~name.str.starts_with("aten::"), pl.col("start_ns") >= _start(flow))
    rows = rows.sort("start_ns")
    nodes = rows.filter(pl.Series(are_nodes(rows["name"]), dtype=pl.Boolean), pl.col("number") >= 0)
    if not numbers or not nodes.height:
        return {}, Counter()
    of_flow = (pl.col("number") >= min(numbers)) & (pl.col("number") <= max(numbers))
    theirs = nodes.filter(of_flow)
    begin = theirs["start_ns"].min()
    other = nodes.filter(~of_flow, pl.col("start_ns") > begin)["start_ns"].min() if begin is not None else None
    sums = rows.filter(name == _ACCUMULATES, pl.col("start_ns") >= (begin or 0))
    if other is not None:
        sums = sums.filter(sums["start_ns"] < other)
    sizes = Counter(size for text in sums["label"].cast(pl.String).to_list() for size in sizes_of(text or "")[:1])
    return dict(theirs.select("number", name).iter_rows()), sizes


def _start(flow: OperatorFlow) -> int:
    return int(flow.start_ns[0]) if len(flow.start_ns) else 0


def _of_results(flow: OperatorFlow, conversions: Sequence[Conversion], kernels: Kernels) -> list[list[Conversion]]:
    """Return conversions that make the same of the same result of an operator, by the same kernels; nothing is written into them."""
    by_row = {each.row: each for each in conversions}
    size_of = result_sizes(flow, [sizes_of(text) for text in flow.size])
    value, whole = dict[int, object](), dict[int, int]()  # what a tensor is, and what a view is of
    alike, written = defaultdict[object, list[Conversion]](list), set[int]()
    for row, (name, number, made) in enumerate(zip(flow.names, flow.number, flow.made, strict=True)):
        given = made[0] if made else -1
        if is_view(name):
            whole[number] = whole.get(given, given)
        if in_place(name):
            written.add(whole.get(given, given))
        elif writes_lists(name):
            written.update(whole.get(each, each) for each in made)
        if given not in flow.row_of:
            continue
        of_given = value.get(given, given)
        if row in by_row:
            each = by_row[row]
            launched = frozenset[str]().union(*(kernels.get(inner, ()) for inner in range(row, each.end)))
            key = (of_given, flow.size[row], launched)
            alike[key].append(each)
            value[number] = key
        elif _SAME.match(name):
            value[number] = of_given
        elif _WHOLE_VIEWS.match(name) and (size := size_of.get(number)) is not None:
            value[number] = (name, of_given, size)
    return [
        same for same in alike.values() if len(same) > 1 and not any(flow.number[each.row] in written for each in same)
    ]

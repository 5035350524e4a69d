"""Values sampled of several levels one by one, put together, weighed and summed: multi-scale deformable attention in operators of torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from nsysx.events.operator_bounds import FEWEST_SAMPLED_LEVELS
from nsysx.events.operator_flow import OperatorFlow, is_view
from nsysx.events.result_readers import ResultReaders

_SAMPLES, _JOINS = re.compile(r"^aten::grid_sampler$"), re.compile(r"^aten::(stack|cat)$")
_TIMES, _SUMS = re.compile(r"^aten::mul_?$"), re.compile(r"^aten::sum$")
#: What brings values and places into the layout that sampling takes.
_LAYS_OUT = re.compile(r"^aten::(contiguous|clone|reshape|flatten)$")


class SampledLevels(NamedTuple):
    """Operators (rows of the flow): those that sample, one of each level, and those around them that one kernel for all makes needless."""

    samples: Sequence[int]
    around: Sequence[int]


def sampled_levels(flow: OperatorFlow) -> list[SampledLevels]:
    """Return such attention in the order of the flow."""
    readers, samples_of = ResultReaders(flow), dict[int, list[int]]()
    for row in flow.outermost:
        joined = readers.only_reader(row) if _SAMPLES.match(flow.names[row]) else None
        if joined is not None and _JOINS.match(flow.names[joined[0]]):
            samples_of.setdefault(joined[0], []).append(row)
    levels = list[SampledLevels]()
    for join, samples in samples_of.items():
        times = readers.only_reader(join)
        if len(samples) < FEWEST_SAMPLED_LEVELS or times is None or not _TIMES.match(flow.names[times[0]]):
            continue
        added = readers.only_reader(times[0])
        if added is None or not _SUMS.match(flow.names[added[0]]):
            continue
        around = {join, times[0], added[0], *times[1], *added[1]}
        for row in samples:
            around |= _laid_out(flow, readers, row)
        levels.append(SampledLevels(samples, sorted(around)))
    return levels


def _laid_out(flow: OperatorFlow, readers: ResultReaders, row: int) -> set[int]:
    """Return what lays out the arguments of an operator for it alone."""
    laid_out, waiting = set[int](), list(flow.made[row][:2])
    while waiting:
        maker = flow.row_of.get(waiting.pop(), -1)
        if maker < 0 or not (is_view(flow.names[maker]) or _LAYS_OUT.match(flow.names[maker])):
            continue
        if readers.readers.get(flow.number[maker], set()) <= laid_out | {row}:
            laid_out.add(maker)
            waiting += flow.made[maker][:1]
    return laid_out

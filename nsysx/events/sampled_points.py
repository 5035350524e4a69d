"""Loops that sample the farthest points: each round picks a point by number, takes the distance of all to it, keeps the smaller one, and
finds the farthest of all by it: the number of the next round.

They need one another, and each is some ten short kernels. Where a mask keeps the smaller distance, the host waits for its size, too.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import NamedTuple

from nsysx.events.operator_bounds import FEWEST_SAMPLED_POINTS, MOST_SAMPLING_OPERATORS
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.profile import Profile
from nsysx.events.result_readers import ResultReaders

_FARTHEST = re.compile(r"^aten::(max|argmax)$")
_PICKS = re.compile(r"^aten::(index|gather|index_select|select|take_along_dim)$")
_LESS = re.compile(r"^aten::(sub|rsub|cdist|_cdist_forward)$")
_SQUARES = re.compile(r"^aten::(pow|square|mul|norm|linalg_norm|linalg_vector_norm|cdist|_cdist_forward|abs)$")
_KEEPS = re.compile(r"^aten::(index_put_?|minimum|min|where|masked_scatter_?|copy_)$")
#: What a network computes with.
_NETWORK = re.compile(r"^aten::(linear|addmm|mm|bmm|matmul|conv\w*|embedding|\w*softmax|layer_norm|batch_norm)$")


class SampledPoints(NamedTuple):
    """One loop: how many rounds, the size of the distances, the outermost operators of its rounds (rows of the flow), whether a mask keeps
    the smaller distances, and whether the host reads the numbers.
    """

    rounds: int
    size: tuple[int, ...]
    rows: tuple[int, ...]
    masked: bool


def sampled_points(profile: Profile) -> list[SampledPoints]:
    """Return the loops of the X-ray step of ``flow_of``."""
    return profile.once(_loops)


def calls_of_sampling(profile: Profile) -> frozenset[int]:
    """Return the calls of all rounds."""
    return profile.once(_calls)


def _calls(profile: Profile) -> frozenset[int]:
    flow, of_calls = flow_of(profile), operator_of_calls(profile)
    rows = {row for each in sampled_points(profile) for row in each.rows}
    if flow is None or of_calls is None or not rows:
        return frozenset()
    within = of_calls.within(flow, gradients=False)
    return frozenset(call for call in profile.steady_calls["call"].to_list() if int(within[call]) in rows)


def _loops(profile: Profile) -> list[SampledPoints]:
    flow = flow_of(profile)
    if flow is None or sum(map(bool, map(_FARTHEST.match, flow.names))) < FEWEST_SAMPLED_POINTS:
        return []
    readers, loops, run = ResultReaders(flow), list[SampledPoints](), list[tuple[int, ...]]()
    outer = flow.outermost
    farthest = [
        index for index, row in enumerate(outer) if _FARTHEST.match(flow.names[row]) and len(readers.sizes[row][:1])
    ]
    size: tuple[int, ...] = ()
    for before, here in pairwise(farthest):
        rows = tuple(outer[before + 1 : here + 1])
        theirs = readers.sizes[outer[here]][0]
        if readers.sizes[outer[before]][0] != theirs or not _is_round(flow, readers, outer[before], rows):
            loops += _as_loop(flow, run, size)
            run = []
            continue
        run, size = [*run, rows], theirs
    return [*loops, *_as_loop(flow, run, size)]


def _as_loop(flow: OperatorFlow, run: list[tuple[int, ...]], size: tuple[int, ...]) -> list[SampledPoints]:
    if len(run) + 1 < FEWEST_SAMPLED_POINTS:
        return []
    first = run[0][0]
    whole = flow.outermost
    begin = max(0, whole.index(first) - len(run[0]))  # the first round, which no other one's number begins
    rows = tuple(row for row in whole[begin : whole.index(run[-1][-1]) + 1])
    masked = any(flow.names[row] == "aten::nonzero" for row in range(first, run[0][-1] + 1))
    return [SampledPoints(len(run) + 1, size, rows, masked)]


def _is_round(flow: OperatorFlow, readers: ResultReaders, before: int, rows: tuple[int, ...]) -> bool:
    """Return whether these operators take the distances to the point that the operator ``before`` found, and find the farthest one."""
    names, last = [flow.names[row] for row in rows], rows[-1]
    if len(rows) > MOST_SAMPLING_OPERATORS or any(map(_NETWORK.match, names)):
        return False
    if not all(any(map(kind.match, names)) for kind in (_PICKS, _LESS, _SQUARES, _KEEPS)):
        return False
    given, points = {flow.number[before]}, False
    for row in rows:
        name = flow.names[row]
        if not any(number in given for number in flow.made[row]):
            continue
        read = name == "aten::item"
        # Coordinates of all points less those of one: a dimension more than the distances have, or one for each coordinate.
        if _LESS.match(name):
            points = points or max(map(math.prod, readers.sizes[row]), default=0) > math.prod(readers.sizes[last][0])
        if not read:
            given.add(flow.number[row])
    linked = any(number in given for number in flow.made[last])
    by_number = any(flow.names[row] == "aten::item" and flow.number[before] in flow.made[row] for row in rows)
    return (linked and points) or by_number

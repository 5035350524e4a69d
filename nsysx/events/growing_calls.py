"""Networks that a step calls again and again on sequences that are each longer by the same few rows: all rows before are computed again.

How many rows a call computes is read from the sizes that its linear layers are given: most of them have more rows from call to call.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_bounds import (
    COPIED_AGAIN_SHARE,
    FEW_ROWS_TIMES,
    FEWEST_BEGUN_ANEW,
    FEWEST_GROWING_CATS,
    GROWING_LAYERS_SHARE,
)
from nsysx.events.operator_flow import ModuleCall, OperatorFlow, flow_of
from nsysx.events.profile import Profile
from nsysx.events.trained_operators import trained_of

_LINEAR = "aten::linear"


class GrowingCalls(NamedTuple):
    """Calls of one module, in order, how many rows each computes, and how many of them are new each time, at most.

    ``with_cache``: other calls between them compute their new rows alone, with a cache that these begin anew.
    """

    calls: tuple[ModuleCall, ...]
    rows: tuple[int, ...]
    new: int
    with_cache: bool = False


def growing_calls(profile: Profile) -> list[GrowingCalls]:
    """Return such calls of an X-ray step, of modules that lie in no other such one."""
    return profile.once(_of_report)


def _of_report(profile: Profile) -> list[GrowingCalls]:
    flow = flow_of(profile)
    return [] if flow is None else growing_in(flow, trained_of(profile))


def growing_in(flow: OperatorFlow, trained: Flags) -> list[GrowingCalls]:
    """Return such calls of a flow; ``trained``: which operators are. What is sampled and then trained on is computed for two reasons."""
    linear = [row for row in flow.outermost if flow.names[row] == _LINEAR and sizes_of(flow.size[row])]
    by_path, grown, inside = dict[str, list[ModuleCall]](), list[GrowingCalls](), set[int]()
    for call in flow.calls:
        by_path.setdefault(call.path, []).append(call)
    for calls in by_path.values():  # outer ones come first
        if len(calls) < FEWEST_GROWING_CATS or calls[0].first in inside:
            continue
        borders = [(bisect_left(linear, call.first), bisect_left(linear, call.last)) for call in calls]
        rows = [[_rows_of(flow, row) for row in linear[a:b]] for a, b in borders]
        first, last = _longest_run(rows, [bool(trained[call.first : call.last].any()) for call in calls])
        growth = _growth(rows[first:last]) if last - first >= FEWEST_GROWING_CATS else None
        if growth is None and (again := _begun_anew(flow, calls, rows)) is not None:
            grown.append(again)
            inside |= {row for call in again.calls for row in range(call.first, call.last)}
        if growth is not None:
            grown.append(GrowingCalls(tuple(calls[first:last]), *growth))
            inside |= {row for call in calls[first:last] for row in range(call.first, call.last)}
    return grown


def _begun_anew(flow: OperatorFlow, calls: Sequence[ModuleCall], rows: Sequence[Sequence[int]]) -> GrowingCalls | None:
    """Return the calls of a module that compute a whole sequence again, between calls that compute a few rows; None without.

    The sequence is the one before with more behind it, as ``cat`` makes it: drafts of which a part is kept.
    """
    most = [max(each, default=0) for each in rows]
    whole = [n for n, each in enumerate(most) if 2 * each > max(most)]
    if len(whole) < FEWEST_BEGUN_ANEW or any(b - a < 2 for a, b in pairwise(whole)) or len(rows[whole[0]]) < 2:
        return None
    if any(FEW_ROWS_TIMES * each > max(most) for n, each in enumerate(most) if whole[0] < n and n not in whole):
        return None
    given = [_sequence_of(flow, calls[n]) for n in whole]
    if any(number is None or _before(flow, number) != earlier for earlier, number in pairwise(given)):
        return None
    new = max(most[b] - most[a] for a, b in pairwise(whole))
    return GrowingCalls(tuple(calls[n] for n in whole), tuple(most[n] for n in whole), new, with_cache=True)


def _sequence_of(flow: OperatorFlow, call: ModuleCall) -> int | None:
    """Return the number of what made the tokens that a call looks up; None where it looks up none, or they are older than the step."""
    looked_up = (
        row for row in range(call.first, call.last) if flow.names[row] == "aten::embedding" and len(flow.made[row]) > 1
    )
    row = next(looked_up, None)
    return flow.made[row][1] if row is not None and flow.made[row][1] >= 0 else None


def _before(flow: OperatorFlow, number: int) -> int | None:
    """Return the number of what a sequence was before something was put behind it; None for another one."""
    row = flow.row_of.get(number)
    return flow.made[row][0] if row is not None and flow.names[row] == "aten::cat" and flow.made[row] else None


def _rows_of(flow: OperatorFlow, row: int) -> int:
    given = sizes_of(flow.size[row])[0]
    return math.prod(given[:-1])


def _longest_run(rows: Sequence[Sequence[int]], trained: Sequence[bool]) -> tuple[int, int]:
    """Return the first of the most calls in a row, and the one behind them, whose layers have each the same number of rows more than in
    the call before; ``rows``: of each call those of its linear layers, ``trained``: whether a backward runs through it.
    """
    more = [
        tuple(map(int.__sub__, b, a)) if len(a) == len(b) and before == behind else ()
        for (a, b), (before, behind) in zip(pairwise(rows), pairwise(trained), strict=True)
    ]
    longest, first = (0, 0), 0
    for n in range(len(more)):
        if more[n] != more[first] or not more[n]:
            first = n
        if n + 2 - first > longest[1] - longest[0]:
            longest = first, n + 2
    return longest


def _growth(rows: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], int] | None:
    """Return how many rows each call computes, and how many more than the one before; None where they do not grow."""
    if len(rows[0]) < 2:  # one layer alone is no network
        return None
    growing = [(layer, layer[1] - layer[0]) for layer in zip(*rows, strict=True) if layer[1] > layer[0]]
    if len(growing) < GROWING_LAYERS_SHARE * len(rows[0]):
        return None
    most, new = max(growing, key=lambda layer: layer[0][-1])
    return (most, new) if sum(most) - new * len(most) >= COPIED_AGAIN_SHARE * sum(most) else None

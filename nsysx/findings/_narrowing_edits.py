"""What goes where only the rows that are read are computed: of each operator its share, and of the gradient that is filled with zeros."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import polars as pl

from nsysx.events.narrowed_operators import ELEMENTWISE, result_sizes, sizes_of
from nsysx.events.operator_flow import OperatorFlow, is_view
from nsysx.findings._case import ops_of
from nsysx.findings._work_bounds import (
    NARROWED_MORE_TIMES,
    NUMBERS_AT_FULL_RATE,
    READS_IN_ONE_PIECE_LEFT,
    ROWS_AT_FULL_RATE,
)
from nsysx.replay.engine import ScaleOps

_PRODUCTS = ("aten::linear", "aten::matmul", "aten::mm", "aten::addmm")


class NarrowingEdits(NamedTuple):
    """The edits of least, of what is likely and of most; ``full_rate``: so much is left that each operator's rate stays."""

    least: tuple[ScaleOps, ...]
    likely: tuple[ScaleOps, ...]
    most: tuple[ScaleOps, ...]
    full_rate: bool


def edits_of_narrowing(
    flow: OperatorFlow, work: pl.DataFrame, changes: Sequence[tuple[int, Mapping[int, float]]]
) -> NarrowingEdits:
    """Return the edits of changes that come at once: of each what picks, and row -> the share that is read of it.

    ``work``: op, ns, row, backward, as `work_with_gradients` returns it.
    """
    result = result_sizes(flow, [sizes_of(text) for text in flow.size])
    left, products, strided, rows_left = dict[int, float](), set[int](), set[int](), list[int]()
    gradients, earlier = dict[int, float](), dict[int, float]()
    numbers_left = 0.0
    for pick, share_of in changes:
        before = sizes_of(flow.size[pick])[0]
        left |= share_of
        multiplying = [row for row in share_of if flow.names[row] in _PRODUCTS]
        products.update(multiplying)
        for row in multiplying:
            rows = math.prod(sizes_of(flow.size[row])[0][:-1])
            rows_left.append(round(rows * share_of[row]))
        numbers = max(
            (share * math.prod(result.get(flow.number[row], ())) for row, share in share_of.items()), default=0.0
        )
        numbers_left = min(numbers, numbers_left or numbers)
        # What is filled with zeros in backward is as large as what is picked from; what copies the items copies smaller ones.
        pick_left = _made_before(flow, result, min(share_of)) / max(math.prod(before), 1)
        (gradients if is_view(flow.names[pick]) else earlier)[pick] = min(pick_left, 1.0)
        if is_view(flow.names[pick]):
            strided.update(_elementwise_readers(flow, pick))
    forward, backward = work.filter(~work["backward"]), work.filter(work["backward"])
    of_picks = [_scaled(backward, [row], left) for row, left in gradients.items()]
    of_picks += [_scaled(work, [row], left) for row, left in earlier.items()]

    def scaled(times: float) -> tuple[ScaleOps, ...]:
        parts = {
            row: min(1.0, share * times if row in products or not products else share) for row, share in left.items()
        }
        shares = sorted(set(parts.values()))
        return tuple(_scaled(work, [row for row in parts if parts[row] == share], share) for share in shares)

    likely = (*scaled(1.0), *of_picks)
    least = (*scaled(NARROWED_MORE_TIMES), *of_picks)
    most = (*likely, _scaled(forward, strided - left.keys(), READS_IN_ONE_PIECE_LEFT))
    full_rate = min(rows_left) >= ROWS_AT_FULL_RATE if rows_left else numbers_left >= NUMBERS_AT_FULL_RATE
    return NarrowingEdits(least, likely, most, full_rate)


def _scaled(work: pl.DataFrame, rows: Sequence[int] | set[int], left: float) -> ScaleOps:
    return ScaleOps(ops_of(work.filter(pl.col("row").is_in(list(rows)))), left, less_work=True)


def _made_before(flow: OperatorFlow, result: Mapping[int, tuple[int, ...]], row: int) -> int:
    """Return of how many numbers what is narrowed instead is: what the first operator is given, or makes if that is less."""
    given = next(iter(sizes_of(flow.size[row])), ())
    return min(math.prod(given), math.prod(result.get(flow.number[row], given)))


def _elementwise_readers(flow: OperatorFlow, pick: int) -> list[int]:
    """Return the outermost elementwise operators that read what was picked as it lies."""
    number = flow.number[pick]
    return [row for row in flow.outermost if number in flow.made[row] and ELEMENTWISE.match(flow.names[row])]

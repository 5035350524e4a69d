"""What goes where only the rows that are read are computed: of each operator its share, and of the gradient that is filled with zeros."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import polars as pl

from nsysx.events.narrowed_operators import ELEMENTWISE, result_sizes, sizes_of
from nsysx.events.operator_flow import OperatorFlow, is_view
from nsysx.findings._case import ops_of
from nsysx.findings._work_bounds import NARROWED_MORE_TIMES, READS_IN_ONE_PIECE_LEFT, ROWS_AT_FULL_RATE
from nsysx.replay.engine import ScaleOps

_PRODUCTS = ("aten::linear", "aten::matmul", "aten::mm", "aten::addmm")


class NarrowingEdits(NamedTuple):
    """The edits of least, of what is likely and of most; ``many_rows``: the products have so many rows left that their rate stays."""

    least: tuple[ScaleOps, ...]
    likely: tuple[ScaleOps, ...]
    most: tuple[ScaleOps, ...]
    many_rows: bool


def edits_of_narrowing(
    flow: OperatorFlow, work: pl.DataFrame, changes: Sequence[tuple[int, Mapping[int, float]]]
) -> NarrowingEdits:
    """Return the edits of changes that come at once: of each what picks, and row -> the share that is read of it.

    ``work``: op, ns, row, backward, as `work_with_gradients` returns it.
    """
    result = result_sizes(flow, [sizes_of(text) for text in flow.size])
    left, products, strided, rows_left = dict[int, float](), set[int](), set[int](), list[int]()
    gradients = dict[int, float]()
    for pick, share_of in changes:
        before = sizes_of(flow.size[pick])[0]
        left |= share_of
        multiplying = [row for row in share_of if flow.names[row] in _PRODUCTS]
        products.update(multiplying)
        for row in multiplying:
            rows = math.prod(sizes_of(flow.size[row])[0][:-1])
            rows_left.append(round(rows * share_of[row]))
        if is_view(flow.names[pick]):
            gradients[pick] = _made_before(flow, result, min(share_of)) / max(math.prod(before), 1)
            strided.update(_elementwise_readers(flow, pick))
    forward, backward = work.filter(~work["backward"]), work.filter(work["backward"])
    of_gradients = [_scaled(backward, [row], min(part, 1.0)) for row, part in gradients.items()]

    def scaled(times: float) -> tuple[ScaleOps, ...]:
        parts = {row: min(1.0, share * times if row in products else share) for row, share in left.items()}
        shares = sorted(set(parts.values()))
        return tuple(_scaled(work, [row for row in parts if parts[row] == share], share) for share in shares)

    likely = (*scaled(1.0), *of_gradients)
    least = (*scaled(NARROWED_MORE_TIMES), *of_gradients)
    most = (*likely, _scaled(forward, strided - left.keys(), READS_IN_ONE_PIECE_LEFT))
    return NarrowingEdits(least, likely, most, many_rows=bool(rows_left) and min(rows_left) >= ROWS_AT_FULL_RATE)


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

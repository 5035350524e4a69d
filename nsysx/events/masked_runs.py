"""Networks that run in turn, each followed by kernels that compare whole numbers with one number and keep rows by that: by their launches.

What runs between steps, as a rollout does, has no operators in an X-ray. Its kernels tell as much: a network's, a comparison and a
selection, again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.event_bounds import ALIKE_RUNS_SHARE, MOST_KERNELS_OF_MASKS
from nsysx.events.nvtx_ranges import Flags
from nsysx.frames import lookup

#: A tensor of whole numbers with one number.
_COMPARES = r"[AB]UnaryFunctor<(unsigned )?(long|int|short|char), .{0,60}CompareEqFunctor<"
#: What takes several rows, or all, for a number: no mask is all that lies between.
_SUMS = r"reduce_kernel|softmax|sort|gemm"
_SELECTS = r"where_kernel_impl|masked_fill|MulFunctor"
_NETWORKS = ("evaluation", "forward")


class MaskedRun(NamedTuple):
    """GPU ops of networks that run in turn, and how many of them do."""

    ops: frozenset[int]
    networks: int


def masked_runs(ops: pl.DataFrame) -> list[MaskedRun]:
    """Return them among the GPU ops of the steps of one thread, in order of time."""
    ops = ops.filter(ops["call_start_ns"].is_not_null()).sort("call_start_ns")
    if not ops.height:
        return []
    inside = ops["phase"].cast(pl.String).is_in(_NETWORKS).fill_null(value=False).to_numpy()
    compares, selects, sums = (
        lookup.matching(ops["name"], pattern).tolist() for pattern in (_COMPARES, _SELECTS, _SUMS)
    )
    op = ops["op"].to_numpy()
    borders = np.flatnonzero(np.diff(inside, prepend=~inside[:1], append=~inside[-1:]))
    parts = list(pairwise(borders.tolist()))
    runs = list[MaskedRun]()

    def masked(a: int, b: int) -> bool:
        return any(compares[a:b]) and any(selects[a:b]) and not any(sums[a:b])

    for series in _series(parts, inside, masked):
        if len(series) > 1:
            runs.append(MaskedRun(frozenset(np.concatenate([op[a:b] for a, b in series]).tolist()), len(series)))
    return runs


def _series(
    parts: list[tuple[int, int]], inside: Flags, masked: Callable[[int, int], bool]
) -> Iterator[list[tuple[int, int]]]:
    """Yield the spans of networks that masks follow."""
    series = list[tuple[int, int]]()
    for (a, b), (c, d) in pairwise(parts):
        if not inside[a]:
            continue
        first = min(d, c + MOST_KERNELS_OF_MASKS)
        keeps = masked(c, first)
        alike = not series or abs((b - a) - (series[-1][1] - series[-1][0])) <= ALIKE_RUNS_SHARE * (b - a)
        if not keeps or not alike:
            yield series
            series = []
        if keeps:
            series.append((a, b))
            if d > first:  # more than a mask follows
                yield series
                series = []
    yield series

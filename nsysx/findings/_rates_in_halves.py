"""How fast a step's own products of 16 bits are, for others of like size that it multiplies in float32."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np
import polars as pl

from nsysx.analyses.helpers import limits_of_work
from nsysx.events.kernel_math import by_vector, number_format
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.operator_flops import flops_of_operator
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.profile import NotRecorded
from nsysx.findings._case import Case
from nsysx.findings._finding_bounds import BYTES_OF_A_CAST
from nsysx.findings._flow_work import work_of_operators
from nsysx.findings._work_bounds import (
    LIKE_FLOPS_TIMES,
    MOST_UNLIKE_SHARE,
    SHORTEST_PRODUCT_SIDE,
    SLOWER_THAN_OWN_TIMES,
)

#: How a saving at these rates is worded.
ITS_OWN = "the step's own products of 16 bits and like size"
#: What multiplies in float32 by itself: the math path of attention (NSX118), and what autocast gives float32.
_BY_TORCH = re.compile(r"^aten::(_scaled_dot_product_attention_math|_?cdist\w*|pdist|cosine_similarity)$")
_CONVOLVES = re.compile(r"conv")


class ProductsOfFlow:
    """The outermost operators of a flow, by what they multiply."""

    def __init__(self, flow: OperatorFlow) -> None:
        self._flow = flow
        self._end = dict(flow.outermost_spans)

    def work(self, row: int) -> tuple[int, int] | None:
        """Return the floating point operations of one in forward, and the numbers in its factors; None where its sizes do not tell."""
        flow, flops, numbers, until = self._flow, 0, 0, -1
        for inner in range(self._end[row] - 1, row - 1, -1):
            if (
                until >= 0 and flow.end_ns[inner] > until
            ):  # it lies around one that was counted: autocast calls that again
                continue
            here, why_not = flops_of_operator(flow.names[inner], f"[{flow.size[inner]}]", None, None)
            if why_not is not None:
                return None
            if here is not None:
                flops += here
                numbers += sum(math.prod(size) for size in sizes_of(flow.size[inner]) if len(size) > 1)
                until = int(flow.start_ns[inner])
        return (flops, numbers) if flops else None

    def is_wide_by_torch(self, row: int) -> bool:
        """Return whether torch computes one in float32 by itself, whatever it is given."""
        return any(map(_BY_TORCH.match, self._flow.names[row : self._end[row]]))

    def is_narrow(self, row: int) -> bool:
        """Return whether a product of matrices has a side that is too short for tensor cores to make it much faster."""
        if _CONVOLVES.search(self._flow.names[row]):
            return False
        sides = [side for size in sizes_of(self._flow.size[row]) if len(size) > 1 for side in size[-2:]]
        return min(sides, default=SHORTEST_PRODUCT_SIDE) < SHORTEST_PRODUCT_SIDE


def left_at_own_rates(
    case: Case, products: ProductsOfFlow, wide_ns: Mapping[int, int], half_ns: Mapping[int, int]
) -> tuple[float, float, float] | None:
    """Return which part of the time of products of float32 is left at the rates of those of 16 bits of like size: most and likely with
    conversions of all factors besides, least without; None without enough of them.

    Both are row of an outermost operator -> time in forward (ns, all steps).
    """
    rates = [(work[0], work[0] / ns) for row, ns in half_ns.items() if ns > 0 and (work := products.work(row))]
    then_ns = like_ns = casts_ns = 0.0
    for row, ns in wide_ns.items():
        flops, numbers = products.work(row) or (0, 0)
        like = sorted(
            rate for size, rate in rates if flops and 1 / LIKE_FLOPS_TIMES <= size / flops <= LIKE_FLOPS_TIMES
        )
        if flops and like:
            then_ns += flops / like[len(like) // 2]
            casts_ns += _cast_ns(case, numbers) * case.steps
            like_ns += ns
    if not like_ns or like_ns < (1 - MOST_UNLIKE_SHARE) * sum(wide_ns.values()):
        return None
    likely = (then_ns + casts_ns) / like_ns
    return min(likely * SLOWER_THAN_OWN_TIMES, 1.0), min(likely, 1.0), min(then_ns / like_ns, 1.0)


def _cast_ns(case: Case, numbers: int) -> float:
    """Return what it takes to convert so many numbers to 16 bits (ns), 0 where the rate of memory is not known."""
    try:
        rates = case.profile.once(limits_of_work.device_rates)
    except NotRecorded:
        return 0.0
    return rates.memory_ns(BYTES_OF_A_CAST * numbers) or 0.0


def multiplying(case: Case, flow: OperatorFlow) -> pl.DataFrame:
    """Return the kernels of the steady steps that multiply matrices: op, call, name, phase, module, call_start_ns, ns, format, row (of the
    outermost operator of the flow, -1 for none) and forward, which says whether that launches them itself.
    """
    ops = case.timed_ops(
        (case.ops["op_kind"] == "kernel") & case.ops["call"].is_not_null(),
        "op", "call", "name", "family", "phase", "module", "call_start_ns",
    )  # fmt: skip
    call, of_calls = ops["call"].to_numpy(), operator_of_calls(case.profile)
    ops = ops.with_columns(
        format=number_format(ops["name"], ops["family"]),
        forward=pl.Series(np.zeros(len(call), np.bool_) if of_calls is None else of_calls.forward[call] >= 0),
        phase=ops["phase"].cast(pl.String).fill_null(""),
    )
    ops = ops.filter(pl.col("format").is_not_null() & ~pl.Series(by_vector(ops["name"]), dtype=pl.Boolean))
    rows = work_of_operators(case, flow)["op", "row"]
    return ops.join(rows, on="op", how="left", maintain_order="left").with_columns(pl.col("row").fill_null(-1))


def forward_ns(kernels: pl.DataFrame) -> dict[int, int]:
    """Return row -> time in forward (ns, all steps); ``kernels``: row, ns, forward."""
    chosen = kernels.filter(kernels["forward"] & (kernels["row"] >= 0))
    return dict(chosen.group_by("row").agg(pl.col("ns").sum()).iter_rows())

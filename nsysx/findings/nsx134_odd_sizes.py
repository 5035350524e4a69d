"""NSX134 odd-sizes: products whose rows do not begin at multiples of 16 bytes, so that tensor cores cannot be fed.

What it means
    The fast kernels of cuBLAS load 16 bytes at once, 8 numbers of bfloat16. Where a size is no multiple of that, as a vocabulary of
    50257, rows begin between those multiples, and an older kernel that loads number by number takes several times as long, forward and
    in both gradients. A size that is a little larger costs nothing: what is added is never asked for.

In the trace
    Products in a format of tensor cores, with a size that is no multiple of 16 bytes, far below the fastest products of the device.

Bad
    head = nn.Linear(1024, 50257)

Good
    head = nn.Linear(1024, 50304)                      # a multiple of 64; targets stay below 50257

Harmless when
    The product is small, or other products of the program are not faster either.
"""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import limits_of_work, operator_work
from nsysx.catalogue import StepLimit, StepPart
from nsysx.events.joined_parts import joined_rows
from nsysx.events.operator_flops import sizes
from nsysx.events.operator_flow import flow_of
from nsysx.events.profile import NotRecorded
from nsysx.findings import _shared_gpu
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._flow_work import place_of_operator
from nsysx.findings._found import Found
from nsysx.findings._joined_parts import pasted
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import (
    ALIGNED_NUMBERS,
    EVEN_PRODUCT_SHARE,
    FED_AT_ONCE_BYTES,
    ODD_SIZES_SHARE,
    SLOW_PRODUCT_SHARE,
)
from nsysx.model import Finding, Row
from nsysx.replay.engine import ScaleOps
from nsysx.roofline.element_types import OF_FORMAT

RULE = Rule(
    "NSX134",
    "odd-sizes",
    "Products of odd sizes",
    cause=(StepPart.WORK,),
    about=StepLimit.GPU,
    leads=True,
    rests_on="The sizes of the operators were recorded",
)
REQUIRES = ("operators", "kernels")
_PRODUCTS = r"^aten::(addmm|mm|bmm|baddbmm|_addmm_activation)\b"


def check(case: Case) -> list[Finding]:
    """Return one finding where slow products of odd sizes take 2 % of the step or more."""
    if unknown := _shared_gpu.no_rates(case):
        return case.cannot_tell(RULE, unknown)
    try:
        operators = operator_work.numbered_operators(case.profile)
        done = case.profile.once(limits_of_work.executions)
    except NotRecorded:
        return case.cannot_tell(RULE, "operators were not recorded", operator_work.FIX)
    kinds = done.filter(
        pl.col("name").str.contains(_PRODUCTS) & pl.col("limit_ns").is_not_null() & (pl.col("flops") > 0)
    )
    kinds = kinds.group_by("name", "shapes", "number_format", maintain_order=True).agg(
        pl.col("gpu_ns", "limit_ns").sum()
    )
    odd = [odd_size(shapes, number_format) for shapes, number_format in kinds["shapes", "number_format"].iter_rows()]
    kinds = kinds.with_columns(pl.Series("size", odd, dtype=pl.Int64)).drop_nulls("size")
    kinds = kinds.filter(kinds["limit_ns"] <= SLOW_PRODUCT_SHARE * kinds["gpu_ns"])
    named = operators.join(kinds["name", "shapes", "size"], on=["name", "shapes"], how="inner")
    ops = operator_work.work_of(case.profile, named, "size")
    taken = case.per_step(int(ops["ns"].sum()))
    if not case.notable(taken, ODD_SIZES_SHARE):
        return case.clear(RULE, "no slow product has a size that is no multiple of 16 bytes")
    reached = float(kinds["limit_ns"].sum()) / float(kinds["gpu_ns"].sum())
    least, likely, most = (
        [ScaleOps(ops_of(ops), min(reached / share, 1.0))] for share in (SLOW_PRODUCT_SHARE, EVEN_PRODUCT_SHARE, 1.0)
    )
    why = f"even sizes run at {units.share(SLOW_PRODUCT_SHARE, 1)} of the fastest rate or more"
    worth = case.worth_between(least, likely, most, why, cause=RULE.cause)
    size = int(ops.group_by("size").agg(pl.col("ns").sum()).sort("ns", "size", descending=True)["size"][0])
    even = -(-size // 64) * 64
    title = f"GEMMs of a size of {size} take {units.duration(taken)} {case.per} at {units.share(reached, 1)} of what is possible"
    detail = (
        f"{size} is no multiple of 8: rows do not begin at multiples of 16 bytes, and the fast kernels cannot load them. GEMMs of such "
        f"sizes take {case.share(taken)} of the step, at {units.share(reached, 1)} of the rate of the fastest; with {even} near it."
    )
    fix = Fix.by_name("even-sizes").but(
        text=f"Make the size {size} a multiple of 64: {even}", paste=f"nn.Linear(width, {even})  # not {size}"
    )
    apart = _apart(case, size)
    where = apart[1] if apart is not None else None
    fix = fix if apart is None else apart[0]
    return [
        Found(
            RULE, title, detail, worth=worth, cost_ns=taken, fix=fix, where=where or None, takes=Takes(ops_of(ops))
        ).as_finding(case)
    ]


def _apart(case: Case, size: int) -> tuple[Fix, Row] | None:
    """Return the remedy where what has an odd size was put together from parts, the widest of which has an even one, and its line; None
    where it was not.
    """
    flow, code = flow_of(case.profile), case.profile.code()
    joined = [each for each in joined_rows(flow) if each.inner == size] if flow is not None else []
    if flow is None or code is None or not joined:
        return None
    first = joined[0]
    widest = max(part.width for part in first.parts)
    if widest % ALIGNED_NUMBERS or 2 * widest < size:
        return None
    parts = " + ".join(str(part.width) for part in first.parts)
    fix = Fix.by_name("layer-of-parts")
    text = f"Give each part of these rows a layer of its own, and add up: {size} = {parts}, and {widest} is a multiple of 8"
    where = place_of_operator(code, flow, flow.start_ns[[first.layer]])
    return fix.but(text=text, paste=pasted(case.profile, flow, code, first) or fix.paste), where


def odd_size(shapes: str | None, number_format: str | None) -> int | None:
    """Return the largest size of a product's factors whose rows are no multiple of 16 bytes, None for none."""
    width, given = OF_FORMAT.get(number_format or ""), [s for s in sizes(shapes) or [] if len(s) in (2, 3)]
    if width is None or width >= 4 or len(given) < 2:
        return None
    odd = [n for shape in given[-2:] for n in shape[-2:] if n * width % FED_AT_ONCE_BYTES and n > FED_AT_ONCE_BYTES]
    return max(odd, default=None)

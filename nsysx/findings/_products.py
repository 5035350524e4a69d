"""Products of matrices that take longer than they have to, because a side of theirs does not fit tensor cores."""

from __future__ import annotations

import json
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import operator_work
from nsysx.analyses.helpers.operator_work import HALF
from nsysx.catalogue import StepPart
from nsysx.events.profile import NotRecorded, Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving
from nsysx.findings._finding_bounds import LONG_PRODUCT_NS, MUCH_AWKWARD_SHARE, ROW_MULTIPLE, SLOW_PRODUCTS_SHARE
from nsysx.findings._once import Takes
from nsysx.replay.engine import ScaleOps

#: Which arguments of an operator are the factors.
_FACTORS = {"aten::mm": (0, 1), "aten::addmm": (1, 2), "aten::bmm": (0, 1), "aten::baddbmm": (1, 2)}
#: Formats of 16 bits.
_FORMATS = ("bf16", "fp16", HALF)


class _Product(NamedTuple):
    """A kernel that multiplies matrices of 16 bits: op, time, floating point operations, and the sides of the product."""

    op: int
    ns: int
    flops: int
    sides: tuple[int, int, int]

    @property
    def fits(self) -> bool:
        return all(side % ROW_MULTIPLE == 0 for side in self.sides)


class _SlowProducts(NamedTuple):
    """Products with an awkward side: their GPU ops, time, share of the rate of the others, and the side that most time is lost to."""

    ops: frozenset[int]
    ns: int
    rate: float
    side: int


def _products(profile: Profile) -> list[_Product]:
    try:
        rows = profile.once(operator_work.operators_of_report).rows.with_row_index("row")
    except NotRecorded:
        return []
    rows = rows.filter(
        pl.col("name").is_in(list(_FACTORS)) & pl.col("shapes").is_not_null() & pl.col("flops").is_not_null()
    )
    work = profile.once(operator_work.work).filter(pl.col("multiplies") & pl.col("format").is_in(_FORMATS))
    work = work.select("row", "op", "ns").join(
        rows.select(pl.col("row").cast(pl.Int64), operator="name", sizes="shapes", flops="flops"), on="row", how="inner"
    )
    products = []
    for _, op, ns, operator, sizes, flops in work.iter_rows():
        first, second = (json.loads(sizes)[index] for index in _FACTORS[operator])
        if len(first) >= 2 and len(second) >= 2:
            products.append(_Product(op, ns, flops, (first[-2], first[-1], second[-1])))
    return products


def _slow(profile: Profile) -> _SlowProducts | None:
    products = [each for each in _products(profile) if each.ns >= LONG_PRODUCT_NS]
    well, awkward = ([each for each in products if each.fits is fits] for fits in (True, False))
    if not well or not awkward:
        return None
    rates = [sum(each.flops for each in part) / sum(each.ns for each in part) for part in (well, awkward)]
    lost: dict[int, int] = {}
    for each in awkward:
        side = next(side for side in each.sides if side % ROW_MULTIPLE)
        lost[side] = lost.get(side, 0) + each.ns
    ops = frozenset(each.op for each in awkward)
    return _SlowProducts(
        ops, sum(each.ns for each in awkward), rates[1] / rates[0], max(lost, key=lambda side: (lost[side], side))
    )


def awkward(case: Case, settings: RecordedSettings) -> str:
    """Return what products with an awkward side take, and which side it is; "" where that is little, or they are as fast as others."""
    slow = case.profile.once(_slow)
    if (
        slow is None
        or slow.rate > SLOW_PRODUCTS_SHARE
        or not case.notable(case.per_step(slow.ns) * (1 - slow.rate), MUCH_AWKWARD_SHARE)
    ):
        return ""
    taken_by_them = units.duration(case.per_step(slow.ns))
    return (
        f"products with a side of {slow.side}, which is no multiple of {ROW_MULTIPLE}, take {taken_by_them} {case.per}: "
        f"they reach {units.share(slow.rate, 1)} of the rate of the others; pad it to {-(-slow.side // 64) * 64}"
    )


def padded(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what products with sides that fit save: the same rate as that of the others."""
    slow = case.profile.once(_slow)
    return Saving(0, "") if slow is None else case.worth(ScaleOps(slow.ops, slow.rate), cause=(StepPart.WORK,))


def taken(case: Case) -> Takes:
    """Return these products."""
    slow = case.profile.once(_slow)
    return Takes(frozenset() if slow is None else slow.ops)

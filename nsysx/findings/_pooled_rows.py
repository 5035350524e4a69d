"""Rows that a table looks up for each sample, written out, multiplied by a mask of padding and summed: one kernel adds them as it reads.

Histories of unlike length are padded to the longest, so that most of the rows are one and the same; each is written, multiplied, read and
added, and its gradient likewise. ``F.embedding_bag`` reads what counts and writes the sums.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.result_readers import ResultReaders
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.model import Finding
from nsysx.replay.engine import RemoveOps

_TIMES, _SUMS = re.compile(r"^aten::mul_?$"), re.compile(r"^aten::(sum|mean)$")
_COMPARES = re.compile(r"^aten::(ne|gt|ge|eq|logical_not|bitwise_not|not_equal|greater)$")
_WEIGHTED = (
    'sums = F.embedding_bag(ids, table, per_sample_weights=weights, mode="sum")  # ids and weights: [samples, ids]'
)


class _Pooled(NamedTuple):
    """Rows that are looked up and summed: the outermost operators that go (rows of the flow), the look-up, sizes of ids and table, and
    what makes the mask ("compared" or "weights"), "" without one; ``by``: what adds up, sum or mean.
    """

    rows: frozenset[int]
    at: int
    ids: Size
    table: Size
    mask: str
    by: str


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return the finding about such sums, where their change saves 5 % of the step or more."""
    flow = flow_of(case.profile)
    pooled = [] if flow is None or case.program.compiled else list(_pooled(flow))
    finding = _found(case, rule, flow, pooled) if flow is not None and pooled else None
    return [] if finding is None else [finding]


def _pooled(flow: OperatorFlow) -> Iterator[_Pooled]:
    readers = ResultReaders(flow)
    for row in flow.outermost:
        sizes = readers.sizes[row]
        if flow.names[row] != "aten::embedding" or len(sizes) < 2 or len(sizes[0]) != 2 or len(sizes[1]) != 2:
            continue
        behind, gone, mask = readers.only_reader(row), set[int](), ""
        if behind is not None and _TIMES.match(flow.names[behind[0]]):
            product = behind[0]
            mask = _mask_of(readers, product, sizes[1])
            gone |= {product, *behind[1]}
            behind = readers.only_reader(product) if mask else None
        if behind is None or not _SUMS.match(flow.names[behind[0]]):
            continue
        by = flow.names[behind[0]].removeprefix("aten::")
        if mask and by == "mean":  # over the padding, too
            continue
        gone |= {behind[0], *behind[1]}
        if readers.results.get(flow.number[behind[0]]) == (sizes[1][0], sizes[0][1]):
            yield _Pooled(frozenset(gone), row, sizes[1], sizes[0], mask, by)


def _mask_of(readers: ResultReaders, product: int, ids: Size) -> str:
    """Return what makes the factor of each row of a product: "compared", or "weights"; "" where it is none for each row."""
    flow = readers.flow
    for number, size in zip(flow.made[product][:2], readers.sizes[product][:2], strict=False):
        if math.prod(size) == math.prod(ids) and size[-1:] == (1,):
            made = flow.row_of.get(readers.base_of(number)[0])
            return "compared" if made is not None and _COMPARES.match(flow.names[made]) else "weights"
    return ""


def _found(case: Case, rule: Rule, flow: OperatorFlow, pooled: list[_Pooled]) -> Finding | None:
    work = work_of_operators(case, flow)
    gone = work.filter(pl.col("row").is_in(list(frozenset().union(*(each.rows for each in pooled)))))
    worth = case.worth_or_freed(RemoveOps(ops_of(gone)), cause=(StepPart.WORK,), bound=True)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    code, cost = case.profile.code(), case.per_step(int(gone["ns"].sum()))
    largest = max(pooled, key=lambda each: math.prod(each.ids) * each.table[1])
    where = {} if code is None else place_of_operator(code, flow, flow.start_ns[[largest.at]])
    there = f"{in_short(where)}: " if where else ""
    samples, longest = largest.ids
    masked = ", multiplied by a mask" if largest.mask else ""
    fix = Fix.by_name("rows-added-as-read")
    if largest.mask != "compared":
        fix = fix.but(paste=_WEIGHTED if largest.mask else f'sums = F.embedding_bag(ids, table, mode="{largest.by}")')
    return Found(
        rule,
        f"{there}{units.count(longest)} rows for each of {units.count(samples)} samples are written out{masked} and summed: "
        f"{units.duration(cost)} {case.per}",
        f"{units.several(len(pooled), 'look-up')} of a step write{'s' if len(pooled) == 1 else ''} all rows of all samples "
        f"({samples} x {longest} x {largest.table[1]}), of which only a sum over each sample is read. What follows the look-up takes "
        f"{units.duration(cost)} {case.per} with its gradients, {case.share(cost)} of the step.",
        worth=worth,
        cost_ns=cost,
        fix=fix,
        where=where or None,
        takes=Takes(ops_of(gone)),
    ).as_finding(case)

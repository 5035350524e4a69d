"""Pooling in large windows that overlap (``events.overlapping_pools``): along one dimension after the other it reads far fewer numbers.

The largest number of a window is the largest of its rows' largest. Each number of a result then costs as many reads as its window has
rows and columns, and not as many as these hold.
"""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import limits_of_work
from nsysx.analyses.lines import text_of, texts
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.overlapping_pools import OverlappingPool, overlapping_pools
from nsysx.events.profile import NotRecorded
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._instead import Instead
from nsysx.findings._once import Takes
from nsysx.findings._pool_bounds import (
    COMPUTED_WINDOW_TIMES,
    POOL_PASS_AT_MOST_TIMES,
    POOLED_NUMBER_BYTES,
    SHORTEST_COMPUTED_WINDOW,
    SHORTEST_WINDOW,
    WINDOW_READS_PER_CYCLE,
)
from nsysx.findings._pool_pastes import pooled_in_turn
from nsysx.model import Finding, Row
from nsysx.reading.trace import DeviceLimits
from nsysx.roofline.device_rates import DeviceRates

_IN_WORDS = {"max": "the largest of each", "avg": "the average of each"}


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding for each line that pools so, where pooling along one dimension after the other saves 5 % of the step or more."""
    flow = flow_of(case.profile)
    pools = [] if flow is None or case.program.compiled else list(overlapping_pools(flow))
    if flow is None or not pools:
        return []
    try:
        rates = case.profile.once(limits_of_work.device_rates)
    except NotRecorded:
        return []
    code, by_line = case.profile.code(), dict[tuple[object, object, str, int], tuple[Row, list[OverlappingPool]]]()
    for pool in pools:
        where = {} if code is None else place_of_operator(code, flow, flow.start_ns[[pool.row]])
        key = (where.get("file"), where.get("line"), pool.kind, pool.dimensions)
        by_line.setdefault(key, (where, []))[1].append(pool)
    work = work_of_operators(case, flow)
    findings = (
        _found(case, rule, flow, work, pools=here, where=where, rates=rates) for where, here in by_line.values()
    )
    return [finding for finding in findings if finding is not None]


def _window(case: Case, pool: OverlappingPool, ns: float) -> float | None:
    """Return the side of a window by how long a pooling takes (ns), with so many reads a cycle; None where the clock is not known."""
    limits = case.profile.trace.limits.get((case.profile.process, case.profile.device or 0), DeviceLimits())
    cycles = (limits.sm_count or 0) * (limits.clock_hz or 0)
    reads = ns * 1e-9 * cycles * WINDOW_READS_PER_CYCLE / pool.numbers
    return float(reads ** (1 / pool.dimensions)) if cycles else None


def _found(
    case: Case, rule: Rule, flow: OperatorFlow, work: pl.DataFrame, *, pools: list[OverlappingPool], where: Row, rates: DeviceRates
) -> Finding | None:  # fmt: skip
    """Return the finding about the poolings of a line; None where their windows are small, or lie apart."""
    gone = work.filter(pl.col("row").is_in([pool.row for pool in pools]))
    cost, first = case.per_step(int(gone["ns"].sum())), pools[0]
    if not case.notable(cost, REPORTED_SHARE):
        return None
    text = text_of(texts(case.profile), where["file"], where["line"]) if where else None
    in_text = pooled_in_turn(text, first.kind, first.dimensions) if text else None
    written = in_text.window if in_text else None
    numbers = sum(pool.numbers for pool in pools)
    side = written or _window(case, first._replace(numbers=numbers), cost)
    if side is None or side < (SHORTEST_WINDOW if written else SHORTEST_COMPUTED_WINDOW):
        return None
    if side < 2 * max(pool.stride for pool in pools):
        return None
    passes = rates.memory_ns(POOLED_NUMBER_BYTES * first.dimensions * numbers)
    if passes is None:
        return None
    apart = 1.0 if written else COMPUTED_WINDOW_TIMES
    least, most = (first.dimensions * (side * times) ** (1 - first.dimensions) * cost for times in (apart, 1 / apart))
    classes = min(pool.classes for pool in pools)
    # Labels themselves are one plane for each of their classes, pooled twice: the largest and the smallest.
    least = (least + passes) / classes if classes else least
    worth = Instead(
        gone["op", "ns"], least * case.steps, (POOL_PASS_AT_MOST_TIMES * most + passes) * case.steps, at_limit=False
    ).worth(case)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    size = f"{written} numbers a side" if written else f"about {round(side)} numbers a side (by their time)"
    there = f"{in_short(where)}: " if where else ""
    title = f"{there}pooling in windows of {size} takes {units.duration(cost)} {case.per}"
    detail = (
        f"{case.often(len(set(gone['op'].to_list())), 'kernel', 'kernels')} read all of each window for {_IN_WORDS[first.kind]}: the "
        f"{'largest of' if first.kind == 'max' else 'average of'} its rows' own is the same, and reads a row once. That takes "
        f"{case.share(cost)} of the step."
    )
    fix = Fix.by_name("pooled-in-turn")
    if in_text is not None:
        fix = fix.but(paste=in_text.line)
    if classes:
        fix = fix.but(
            condition=f"Cheaper still: what is pooled are labels compared with {classes} classes, of which only the largest is "
            "read. Pool the labels themselves: where the largest of a window, pool(y), is not its smallest, -pool(-y), it holds "
            "several. Labels of no class (ignored ones) then count as one more."
        )
    elif first.kind == "avg":
        fix = fix.but(condition="Averages of averages differ in their last bits.")
    return Found(
        rule, title, detail, worth=worth, cost_ns=cost, fix=fix, where=where or None, takes=Takes(ops_of(gone))
    ).as_finding(case)

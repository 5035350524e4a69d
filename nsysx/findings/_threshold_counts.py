"""Counts at the thresholds of a grid by cubes of all scores and thresholds (``events.threshold_counts``): a histogram holds the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import StepPart
from nsysx.events.operator_bounds import FEWEST_COUNTED_THRESHOLDS
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.threshold_counts import ThresholdCount, threshold_counts
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._counts_in_text import counted_in_cells
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import MOST_LOOP_LINES
from nsysx.model import Finding, Row
from nsysx.replay.engine import RemoveOps, ScaleOps


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding for each function that counts so, where a histogram saves 5 % of the step or more."""
    flow = flow_of(case.profile)
    counts = [] if flow is None or case.program.compiled else list(threshold_counts(flow))
    if flow is None or not counts:
        return []
    code, by_function = case.profile.code(), dict[tuple[object, object], list[tuple[ThresholdCount, Row]]]()
    for each in counts:
        where = {} if code is None else place_of_operator(code, flow, flow.start_ns[[each.compares[0]]])
        by_function.setdefault((where.get("file"), where.get("function")), []).append((each, where))
    findings = (_of_function(case, rule, flow, counts_here) for counts_here in by_function.values())
    return [finding for finding in findings if finding is not None]


def _of_function(
    case: Case, rule: Rule, flow: OperatorFlow, counts: list[tuple[ThresholdCount, Row]]
) -> Finding | None:
    """Return the finding about the cubes of a function."""
    largest, where = max(counts, key=lambda each: each[0].scores * each[0].thresholds)
    rows = frozenset[int]().union(*(each.rows for each, _ in counts))
    work = work_of_operators(case, flow).filter(pl.col("row").is_in(list(rows)))
    ops, cost = ops_of(work), case.per_step(int(work["ns"].sum()))
    share = min(1.0, FEWEST_COUNTED_THRESHOLDS / largest.thresholds)
    if not ops or not case.notable(cost, REPORTED_SHARE):
        return None
    worth = case.worth_or_freed(ScaleOps(ops, share, less_work=True), cause=(StepPart.WORK,), bound=True)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    gone = case.worth_or_freed(RemoveOps(ops), cause=(StepPart.WORK,), bound=True)
    if worth.likely_ns is not None and gone.likely_ns is not None:
        # How many scores fall into one cell decides how long they wait for each other: nothing to twice of it.
        error = max(worth.error_ns or 0, gone.likely_ns - worth.likely_ns)
        worth = replace(worth, bound=False, error_ns=error, most_ns=max(worth.likely_ns, gone.likely_ns))
    sums = sum(len(each.sums) for each, _ in counts)
    title = (
        f"{f'{in_short(where)}: ' if where else ''}{units.count(largest.scores)} scores are compared with each of "
        f"{units.count(largest.thresholds)} thresholds to be counted: {units.duration(cost)} {case.per}"
    )
    detail = (
        f"{len(rows)} operations make, weight and sum masks of scores x thresholds, of "
        f"{units.count(largest.scores * largest.thresholds)} numbers{' at most' if len(counts) > 1 else ''}, and nothing but sums over the "
        f"scores, {sums} of them, is read of these. That takes {case.share(cost)} of the step."
    )
    return Found(
        rule, title, detail, worth=worth, cost_ns=cost, fix=_fix(case, flow, [each for each, _ in counts], where), where=where or None,
        takes=Takes(ops),
    ).as_finding(case)  # fmt: skip


def _fix(case: Case, flow: OperatorFlow, counts: Sequence[ThresholdCount], where: Row) -> Fix:
    """Return the advice, in the lines of the program where these say what is summed."""
    fix, code, source = Fix.by_name("counts-by-histogram"), case.profile.code(), texts(case.profile)
    if code is None or not where.get("line"):
        return fix
    compared, summed = (
        [place_of_operator(code, flow, flow.start_ns[[row]]) for row in rows]
        for rows in ([row for each in counts for row in each.compares], [row for each in counts for row in each.sums])
    )
    if any(row.get("file") != where["file"] or not row.get("line") for row in (*compared, *summed)):
        return fix
    numbers = [row["line"] for row in (*compared, *summed)]
    near = range(min(numbers) - MOST_LOOP_LINES, max(numbers) + 1)
    lines = [text for line in near if (text := text_of(source, where["file"], line))]
    of_compared, of_summed = (
        list(dict.fromkeys(text_of(source, where["file"], row["line"]) or "" for row in places))
        for places in (compared, summed)
    )
    paste = counted_in_cells(of_compared, of_summed, lines, len(summed))
    return fix.but(paste=paste) if paste else fix

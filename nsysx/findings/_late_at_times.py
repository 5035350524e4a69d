"""A rank that is late in a few steps alone, as the ranks' table tells, and for which all others wait then: what it costs, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nsysx import units
from nsysx.catalogue import Late
from nsysx.events import bare, trend
from nsysx.findings._case import Case, Fix, Rule, Saving
from nsysx.findings._dealt_at_times import dealt_at_times
from nsysx.findings._finding_bounds import MOST_SHARE, SLOW_STEP_SHARE
from nsysx.findings._found import Found
from nsysx.findings._late_samples import LATE
from nsysx.findings._long_step_lines import line_of_long_steps
from nsysx.findings._rank_rows import rank_rows, straggler_of
from nsysx.frames.intervals import I64
from nsysx.model import Finding, Row

#: Causes of which nothing but the host is known.
_BY_HOST = (Late.HOST, Late.UNKNOWN)


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return the finding about the rank that is late at times; none where one late step was recorded, and none was long else.

    Its delay counts as often as steps were long while nothing recorded: a window of 24 steps holds two or three of those that come every
    tenth.
    """
    rows = rank_rows(case)
    late = next((row for row in rows if row["late_at_times"]), None)
    if late is None:
        return []
    at_times: Row = late["late_at_times"]
    stretches = bare.stretches(case.profile.trace.capture, case.process)
    timed = np.concatenate(stretches)
    more_ns = 0.0 if case.profile.steps.in_rounds else bare.excess_ns(case.profile.trace.capture, case.process)
    if at_times["late_steps"] == 1 and not more_ns:
        return []
    often = float(bare.long_steps(timed).mean()) if more_ns else 0.0
    cost = round(min(more_ns, at_times["ns"] * often)) if more_ns else at_times["cost_ns"]
    if not case.notable(cost):
        return []
    each = _which(case, at_times, stretches if more_ns else ())
    who, label = f"rank {late['rank']}", Late.named(at_times["cause"]).label
    recorded = f"{at_times['late_steps']} of {units.several(at_times['steps'], 'step')}"
    detail = (
        f"In {recorded} it takes {units.duration(at_times['ns'])} longer than its peers without waiting, mostly {label}; in the others "
        f"it is as fast as they are. That is {units.duration(cost)} of each step."
    )
    evidence: list[Row] = [
        {"late in": recorded, "then_ns": at_times["ns"], "cost of each step_ns": at_times["cost_ns"]}
    ]
    dealt = dealt_at_times(case, late, each, cost / at_times["ns"])
    if dealt is not None:
        detail, worth, fix, where = f"{detail} {dealt.detail}", dealt.saving, dealt.fix, dealt.where
        evidence += dealt.evidence
    else:
        line = line_of_long_steps(case, late["process"])
        worth = Saving(cost, "from step lengths: these steps would take the usual time", bound=True, source="steps")
        if line is not None and at_times["cause"] in _BY_HOST:
            worth = line.saving(cost, int(bare.long_steps(timed).sum()) if more_ns else at_times["late_steps"])
            detail += f" The probe saw {line.in_words} run in {units.share(line.share, 1)} of the time of long steps."
        fix, where = (_find(who, each), {}) if line is None else (line.fix("run-rarely"), line.where)
        if line is None and at_times["cause"] == Late.INPUT and at_times["every"] is None and case.program.loader:
            fix = Fix.by_name(LATE)
    return [
        Found(
            rule,
            f"{units.capitalized(who)} is late in {each}, by {units.duration(at_times['ns'])}; its peers wait for it",
            detail,
            worth=worth,
            cost_ns=cost,
            fix=fix,
            where={"near": who, **where},
            evidence=evidence,
        ).as_finding(case)
    ]


def in_its_steps(case: Case, finding: Finding) -> Finding:
    """Return the finding about a straggler that its host makes late in few steps alone, with what to look for in these; another as it is.

    Where a line is known to hold it, that says more.
    """
    late = straggler_of(case)
    if finding.verdict != "found" or finding.where.get("file") or late is None or not late["late_at_times"]:
        return finding
    at_times: Row = late["late_at_times"]
    if late["late_cause"] not in _BY_HOST or at_times["cost_ns"] < MOST_SHARE * late["late_ns"]:
        return finding
    line = line_of_long_steps(case, late["process"])
    fix = _find(f"rank {late['rank']}", _which(case, at_times, ())) if line is None else line.fix("run-rarely")
    return fix.into(replace(finding, where={**finding.where, **(line.where if line is not None else {})}))


def _which(case: Case, at_times: Row, stretches: Sequence[I64]) -> str:
    """Return "every 10th step", by the recorded steps or stretches of timed ones (ns), else in how many of the recorded ones.

    The shortest of them: where one late step is missing, at an end or because something was done beside it, twice the period shows.
    """
    recorded = at_times["late_steps"]
    like_these = [level for level in case.profile.steps.levels[1:] if level.count in (recorded, recorded + 1)]
    periods = [at_times["every"], *(level.every for level in like_these)]
    usual = float(np.median(np.concatenate(stretches))) if stretches else 0.0
    if (rhythm := trend.period_of_parts(stretches, SLOW_STEP_SHARE * usual)) is not None:
        periods.append(rhythm.every)
    every = min(filter(None, periods), default=None)
    if every is not None:
        return f"every {trend.ordinal(every)} step"
    return f"{recorded} of {units.several(at_times['steps'], 'recorded step')}"


def _find(who: str, each: str) -> Fix:
    """Return what to look for where no line is known."""
    these = f"in {each.replace('every', 'each', 1)}" if each.startswith("every") else "in these steps"
    return Fix(
        f"Find what {who} alone does {these}: saving, logging, an evaluation, a file that is read or written. Do it less often, in less "
        "time, beside the steps (a thread), or share it between the ranks",
        unexplained=True,
    )

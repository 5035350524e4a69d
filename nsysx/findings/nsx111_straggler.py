"""NSX111 straggler: one rank arrives last at the collectives, and all others wait for it.

What it means
    A collective ends when its last rank has come. The time that the others spend in it before is waiting, not transfer;
    faster links change nothing. What the late rank does longer than the others is listed as evidence.

In the trace
    The same NCCL kernel is long on all ranks but one.

Bad
    sampler = RandomSampler(data)                      # rank 3 gets the long sequences

Good
    sampler = DistributedSampler(data, shuffle=True)   # and batches of equal length on every rank

Harmless when
    Another rank is last in each step: that is noise, and smaller with fewer collectives.
"""

from __future__ import annotations

from typing import Literal

from nsysx import units
from nsysx.findings._case import Case, Rule
from nsysx.model import Finding, Row, Table

RULE = Rule("NSX111", "straggler", "Straggler rank")


def check(case: Case) -> list[Finding]:
    """Return what the table of ranks says, see ``of_ranks``."""
    return [of_ranks(case.tables.get("ranks"))]


def of_ranks(table: Table | None) -> Finding:
    """Return whether the ranks wait for one of them for 1 % of the step or more, from the comparison of all ranks."""
    if table is None or table.rows is None:
        reason = (table.reason if table else "") or "the report holds one rank"
        return _answer("cannot_tell", RULE.title, reason, fix="nsysx report RANK0.sqlite RANK1.sqlite ...")
    matched = [r for r in table.rows if r["wait_ns"] is not None]
    late = next((r for r in table.rows if r["straggler"]), None)
    if len(matched) < 2:
        fix = "Capture the same steps on every rank"
        return _answer("cannot_tell", RULE.title, "no collective is seen on two ranks", fix=fix)
    if late is None:
        detail = f"no rank of {len(table.rows)} lets the others wait for 1 % of the step"
        return _answer("clear", RULE.title, detail)
    wait = max(round((r["exposed_wait_ns"] or 0) / max(r["steps"], 1)) for r in matched if r is not late)
    why = list((late["late_because"] or {}).items())
    detail = f"It arrives last at {late['last_share']:.0%} of its {late['collectives']} collectives."
    if why:
        part, ns = why[0]
        detail += f" It spends {units.duration(ns)} more per step in {_words(part)} than the others."
    return _answer(
        "found",
        f"Rank {late['rank']} is late: the others wait up to {units.duration(wait)} per step",
        detail,
        cost_ns=wait,
        confidence="from the clocks of all ranks, not replayed",
        fix="Give every rank the same work: equal lengths per batch, the same loader, the same clocks",
        evidence=tuple({"part": _words(part), "more than others_ns": ns} for part, ns in why[:5]),
    )


def _words(part: str) -> str:
    return part.replace("_", " ")


def _answer(
    verdict: Literal["found", "clear", "cannot_tell"],
    title: str,
    detail: str,
    *,
    cost_ns: int | None = None,
    confidence: str = "",
    fix: str = "",
    evidence: tuple[Row, ...] = (),
) -> Finding:
    return Finding(RULE.code, RULE.slug, verdict, title, detail, {}, cost_ns, None, confidence, fix, evidence)

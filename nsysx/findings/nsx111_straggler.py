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

from nsysx import units
from nsysx.findings._ground import Ground, Rule, Worth
from nsysx.model import Finding

RULE = Rule("NSX111", "straggler", "Straggler rank")


def check(ground: Ground) -> list[Finding]:
    """Return one finding when the ranks wait for one of them for 1 % of the step or more."""
    if missing := ground.missing("ranks"):
        return ground.cannot_tell(RULE, missing, "nsysx report RANK0.sqlite RANK1.sqlite ...")
    rows = ground.rows("ranks")
    matched = [r for r in rows if r["wait_ns"] is not None]
    if len(matched) < 2:
        return ground.cannot_tell(RULE, "no collective is seen on two ranks", "capture the same steps on every rank")
    late = next((r for r in rows if r["straggler"]), None)
    if late is None:
        return ground.clear(RULE, f"no rank of {len(rows)} lets the others wait for 1 % of the step")
    waits = [round((r["exposed_wait_ns"] or 0) / max(r["steps"], 1)) for r in matched if r is not late]
    why = list((late["late_because"] or {}).items())
    title = f"Rank {late['rank']} is late: the others wait up to {units.duration(max(waits))} per step"
    detail = f"It arrives last at {late['last_share']:.0%} of its {late['collectives']} collectives."
    if why:
        part, ns = why[0]
        detail += f" It spends {units.duration(ns)} more per step in {part.replace('_', ' ')} than the others."
    evidence = [{"part": part.replace("_", " "), "more than others_ns": ns} for part, ns in why[:5]]
    fix = "give every rank the same work: equal lengths per batch, the same loader, the same clocks"
    sure = Worth(None, "from the clocks of all ranks, not replayed")
    return [ground.found(RULE, title, detail, worth=sure, cost_ns=max(waits), fix=fix, evidence=evidence)]

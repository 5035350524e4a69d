"""NSX108 kernel-spread: the same kernel takes different times, because of the cache or the clock.

What it means
    A kernel runs faster when its inputs are still in the L2 cache: repeated alone in a benchmark it looks faster than in the
    training step. All kernels slow down together when the GPU lowers its clock (power, temperature, other tenants). A
    time measured in one state does not hold in the other.

In the trace
    Executions after much other data are slower than repeats (cold_l2), or all kernels drift together (clock).

Bad
    for _ in range(100): y = F.linear(x, w)           # w stays in the L2 cache; training will not see this time

Good
    for _ in range(100):
        flush.zero_()                                 # 4 times the size of the L2 cache
        y = F.linear(x, w)
    # clocks: nvidia-smi --lock-gpu-clocks for benchmarks, nsysx run --clocks to record them

Harmless when
    It is a training step, whose cache is always cold. It matters when you compare two measurements.
"""

from __future__ import annotations

from collections.abc import Sequence

from nsysx import units
from nsysx.analyses import kernel_spread
from nsysx.findings._case import NO_SAVING, Case, Rule
from nsysx.findings._finding_bounds import SPREAD_OF_KERNELS_SHARE
from nsysx.findings._found import Found
from nsysx.findings._lines import launching
from nsysx.model import Finding

RULE = Rule("NSX108", "kernel-spread", "Cold-cache or clock spread", about="timing", picture="readings")
REQUIRES = ("kernel_spread",)
_CAUSES = {
    "cold_l2": (
        "a cold L2 cache",
        "Overwrite the L2 cache between repeats, so that it is as cold as in training",
    ),
    "clock": (
        "changing clocks",
        "Lock the clocks for benchmarks (nvidia-smi --lock-gpu-clocks); nsysx run --clocks shows them",
    ),
}


def _range_ns(row: kernel_spread.SpreadRow) -> float:
    """Return the range of its middle executions (ns), 0 for the row of all other kernels."""
    return (row["p90_ns"] or 0.0) - (row["p10_ns"] or 0.0)


def _finding(case: Case, cause: str, rows: Sequence[kernel_spread.SpreadRow]) -> Finding:
    words, fix = _CAUSES[cause]
    worst = rows[0]
    low, high = units.duration(worst["p10_ns"]), units.duration(worst["p90_ns"])
    several = len(rows) > 1
    which = "one of them " if several else ""
    title = f"{units.several(len(rows), 'kernel varies', 'kernels vary')} with {words}, {which}from {low} to {high}"
    detail = f"A rank test ties the spread of these kernels to {words}: {worst['detail']}."
    evidence = [
        {"kernel": r["name"], "count": r["count"], "p10_ns": r["p10_ns"], "p90_ns": r["p90_ns"], "why": r["detail"]}
        for r in rows[:8]
    ]
    where = launching(case.profile, worst["name"])
    return Found(
        RULE, title, detail, worth=NO_SAVING, cost_ns=None, fix=fix, where=where, evidence=evidence
    ).as_finding(case)


def check(case: Case) -> list[Finding]:
    """Return a finding per cause that a rank test supports, where the spread sums to 1 % of the kernel time."""
    rows = case.typed_rows(kernel_spread.ROWS)
    # Without steps this is a benchmark: the kernels it times may be a small share of what runs.
    least = 0 if case.stepless else SPREAD_OF_KERNELS_SHARE * sum(r["total_ns"] for r in rows)
    findings = []
    for cause in _CAUSES:
        of_cause = [r for r in rows if r["verdict"] == cause and r["count"] * _range_ns(r) >= least]
        of_cause.sort(key=lambda r: (-_range_ns(r), r["name"]))
        if of_cause:
            findings.append(_finding(case, cause, of_cause))
    if findings:
        return findings
    unclear = sum(r["verdict"] == "cannot_tell" and r["total_ns"] >= least and r["spread"] is not None for r in rows)
    if unclear and all(r["verdict"] == "cannot_tell" for r in rows if r["total_ns"] >= least):
        return case.cannot_tell(RULE, "too few executions, or nothing explains the spread", "profile more steps")
    return case.clear(RULE, "no kernel that matters spreads because of the cache or the clock")

"""How near the GPU's work is to the limits of the device, in a sentence with its figures."""

from __future__ import annotations

from nsysx import units
from nsysx.analyses import roofline
from nsysx.analyses.helpers.limits_of_work import FAR_FROM_ROOFS
from nsysx.analyses.roofline import RooflineRow
from nsysx.answer.answer_bounds import (
    KNOWN_LIMITS_SHARE,
    LEAST_LEADING_SHARE,
    NEAR_LIMIT_SHARE,
    NEAR_LIMIT_STEP_SHARE,
    OVERLAPPING_SHARE,
)
from nsysx.findings._float64 import NOT_MEANT
from nsysx.model import Finding, Summary

#: What a roof is called, with the share of it that the work reaches.
_ROOFS = {
    "products": "is compute-bound (at {} of peak)",
    "memory": "is memory-bound (at {} of peak bandwidth)",
    "instructions": "computes outside of tensor cores (SMs issue in {} of cycles)",
}
#: The rule that asks for counters of kernels of the program's own.
_OWN_KERNEL = "NSX128"


def sentence(summary: Summary) -> str:
    """Return how near the work is to its limits and what could go at most; what would tell where most of it has no limit, else ""."""
    rows = summary.typed_rows(roofline.ROWS)
    step = next((r for r in rows if r["by"] == roofline.STEP), None)
    scope = summary.tables[roofline.KEY].scope if roofline.KEY in summary.tables else None
    if step is None or scope is None:
        return unseen_kernel(summary)
    whole_ns = step["gpu_ns"]
    neither = next((r for r in rows if r["by"] == roofline.NOT_KNOWN and r["name"] == FAR_FROM_ROOFS), None)
    reached = (
        ""
        if neither is None
        else f"its counters reach {units.share(neither['counted_share'] or 0, 1)} of memory or tensor cores"
    )
    if neither is not None and 2 * neither["gpu_ns"] >= whole_ns:
        share = units.share(neither["gpu_ns"], whole_ns)
        return f"{share} of the GPU time is bound by latency, dependencies or plain arithmetic: {reached}."
    if step["limit_ns"] is None or step["could_go_ns"] is None:
        return unseen_kernel(summary)
    if whole_ns - step["unknown_ns"] < KNOWN_LIMITS_SHARE * whole_ns:
        return unseen_kernel(summary)
    under = {r["name"]: r for r in rows if r["by"] == roofline.ROOF}
    operators = [r for r in rows if r["by"] == roofline.OPERATOR]
    parts = [part for roof in _ROOFS if roof in under and (part := _part(roof, under[roof], whole_ns))]
    could_go = units.duration(scope.per_step(step["could_go_ns"]))
    under_roofs = f"Of the GPU time, {' and '.join(parts)}. " if parts else ""
    # No kernel reaches them: as a saving it would contradict that nothing was found.
    text = (
        f"{under_roofs}Kernels at full rates would take {could_go} less than {_work(summary, scope.per_step(whole_ns))}"
    )
    largest = max(operators, key=lambda r: (r["could_go_ns"] or 0, r["name"] or ""))
    if largest["name"] and not near(summary):
        text += f", {units.duration(scope.per_step(largest['could_go_ns'] or 0))} of it in {largest['name']}"
    if step["unknown_ns"] >= NEAR_LIMIT_STEP_SHARE * whole_ns:
        text += f"; for {units.share(step['unknown_ns'], whole_ns)} no limit is known"
        if neither is not None and 2 * neither["gpu_ns"] >= step["unknown_ns"]:
            text += f": {reached}, so it waits for memory or for its own results"
    return f"{text}."


def _work(summary: Summary, whole_ns: float) -> str:
    """Return the time of all kernels of a step, with why it is longer than the step that is told."""
    text, shown_ns = units.duration(whole_ns), summary.step.shown_ns
    if shown_ns is None or whole_ns <= (1 + OVERLAPPING_SHARE) * shown_ns:
        return text
    recorded_ns = summary.step.recorded_ns or shown_ns
    return f"{text} {'of kernels that overlap' if whole_ns > (1 + OVERLAPPING_SHARE) * recorded_ns else 'as recorded'}"


def unseen_kernel(summary: Summary) -> str:
    """Return which kernel of the program's own nothing is known of, and what would tell; "" where there is none."""
    unseen = next(
        (f for f in summary.findings or () if f.code == _OWN_KERNEL and f.verdict == "cannot_tell" and f.fix), None
    )
    if unseen is None:
        return ""
    return f"{unseen.detail[:1].upper()}{unseen.detail[1:]}: {unseen.fix}, or nsysx ncu REPORT."


def in_float64(summary: Summary) -> Finding | None:
    """Return the finding about float64 that a program needs or not, which only its author knows; None where it is worth little."""
    asked = (
        f for f in summary.findings or () if any(c.name == NOT_MEANT.name and c.state != "holds" for c in f.conditions)
    )
    return next(
        (f for f in asked if (f.saving.likely_ns or 0) >= LEAST_LEADING_SHARE * (summary.step.shown_ns or 0) > 0), None
    )


def near(summary: Summary) -> bool:
    """Return whether the work is so near its limits that the same operators cannot be much faster."""
    step = next((r for r in summary.typed_rows(roofline.ROWS) if r["by"] == roofline.STEP), None)
    if step is None or step["limit_share"] is None:
        return False
    return step["limit_share"] >= NEAR_LIMIT_SHARE and step["unknown_ns"] < (1 - NEAR_LIMIT_SHARE) * step["gpu_ns"]


def _part(roof: str, row: RooflineRow, whole_ns: int) -> str:
    """Return "61 % is compute-bound (at 85 % of peak)", "" for a small part."""
    if row["limit_share"] is None or row["gpu_ns"] < NEAR_LIMIT_STEP_SHARE * whole_ns:
        return ""
    return f"{units.share(row['gpu_ns'], whole_ns)} {_ROOFS[roof].format(units.share(row['limit_share'], 1))}"

"""What to do first in a program without steps: no change can be priced there."""

from __future__ import annotations

from collections.abc import Sequence

from nsysx.answer import subject
from nsysx.answer.answer_bounds import LEAST_LEADING_SHARE, UNPRICED_CAUSE_SHARE
from nsysx.catalogue import StepPart
from nsysx.findings import rule_of
from nsysx.model import Finding, Summary


def first(summary: Summary, ranked: Sequence[Finding]) -> Finding | None:
    """Return a finding about what the program's own clocks read, about the cause, or about its kernels where the GPU mostly works."""
    if summary.steps.source != "capture" or subject.ledger_row(summary) is None:
        return None
    read = next((f for f in ranked if rule_of(f.code).reading), None)
    of_kernels = next((f for f in ranked if rule_of(f.code).about == "timing"), None)
    if subject.measures(summary):
        return read or of_kernels
    about_it = [f for f in ranked if rule_of(f.code).about == summary.verdict.code and _costs_much(summary, f)]
    # What kernels wait for counts as their work: it is found by what it costs.
    much = [f for f in ranked if (f.stepless_ns or 0) >= UNPRICED_CAUSE_SHARE * sum(summary.verdict.parts.values()) > 0]
    cause, costly = (max(each, key=lambda f: f.stepless_ns or 0, default=None) for each in (about_it, much))
    return read or cause or costly or (of_kernels if _mostly_works(summary) else None)


def _costs_much(summary: Summary, finding: Finding) -> bool:
    """Return whether a finding costs enough of the time that the verdict speaks of to lead, as far as its cost is known."""
    cost_ns = finding.stepless_ns
    return cost_ns is None or cost_ns >= LEAST_LEADING_SHARE * sum(summary.verdict.parts.values())


def _mostly_works(summary: Summary) -> bool:
    """Return whether the GPU works for at least half of the time that the verdict speaks of."""
    parts = summary.verdict.parts
    return 2 * sum(ns for part, ns in parts.items() if not StepPart.named(part).idle) >= sum(parts.values())

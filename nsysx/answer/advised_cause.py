"""Which part of the limit the first advice is for, where the headline names the limit alone or another one."""

from __future__ import annotations

from nsysx.answer import subject
from nsysx.answer.answer_bounds import WHOLE_CAUSE_SHARE
from nsysx.answer.change_savings import about
from nsysx.catalogue import StepLimit, StepPart
from nsysx.findings import rule_of
from nsysx.model import Finding, Summary


def of_first_advice(summary: Summary) -> str:
    """Return what the first advice is for, "" where the headline says that, or there is no advice for a step."""
    do, findings = summary.answer.do, summary.findings or ()
    index = do[-1].finding if do else None
    if index is None or summary.step.shown_ns is None or subject.measures(summary):
        return ""
    chosen = findings[index]
    if subject.rank_waited_for(summary) is not None or chosen.unexplained:
        return ""
    if rule_of(chosen.code).whole and about(chosen) == summary.verdict.code:
        return ""
    if _is_the_limit(summary, chosen):
        return ""
    return summary.step.marks_title(chosen.title, as_recorded=chosen.title_as_recorded)


def _is_the_limit(summary: Summary, chosen: Finding) -> bool:
    """Return whether a finding is about all that the headline names; what the host does in that time, the headline never says."""
    parts = summary.verdict.parts.items()
    limit_ns = sum(ns for part, ns in parts if StepPart.named(part).limit == summary.verdict.code)
    cost = chosen.cost_ns_per_step
    if about(chosen) != summary.verdict.code or summary.verdict.code == StepLimit.LAUNCH:
        return False
    return cost is None or cost >= WHOLE_CAUSE_SHARE * limit_ns > 0

"""Findings: one file per rule, collected by walking the package. Each has RULE, ``check``, and a manual as its docstring.

``check(case)`` returns a list of Finding: one or more "found", else one "clear" or "cannot_tell". It is asked where the capture holds
what the rule's REQUIRES names, if it has one: tables by their keys, "steps", or "gpu" (GPU work in them). What a change is worth
comes from the replay wherever there is one; the length of a wait proves nothing. The time of the steps is given to findings once
(``_once``): what they cost can be added (``own_ns_per_step``), what they save cannot (``overlaps``).
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import cast

from nsysx.events.profile import NotRecorded, Profile
from nsysx.findings import _folded, _once, nsx123_python_line
from nsysx.findings._case import Case, Rule
from nsysx.findings._fix import for_anything as for_anything
from nsysx.findings._fix import may_lose as may_lose
from nsysx.findings._fix import rounds_sent as rounds_sent
from nsysx.model import Finding, Table, Verdict
from nsysx.replay.engine import Replay, Withheld

_ORDER = {"found": 0, "clear": 1, "cannot_tell": 2}


@cache
def rules() -> tuple[ModuleType, ...]:
    """Return the modules of all rules, by code."""
    names = [m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")]
    return tuple(sorted((importlib.import_module(f"{__name__}.{n}") for n in names), key=lambda m: str(m.RULE.code)))


def rule_of(code: str) -> Rule:
    """Return the names of a rule, and how it is shown; for a code of another version, in a saved Summary, no more than the code."""
    module = _by_code().get(code)
    return Rule(code, "", "") if module is None else cast(Rule, module.RULE)


def tries(code: str) -> tuple[str, ...]:
    """Return the changes that ``nsysx try`` makes where a rule found something, by name; for a code of another version none."""
    return rule_of(code).tries


def codes_of(change: str) -> tuple[str, ...]:
    """Return the codes of the rules where a change is tried."""
    return tuple(code for code, module in _by_code().items() if change in module.RULE.tries)


@cache
def _by_code() -> dict[str, ModuleType]:
    return {m.RULE.code: m for m in rules()}


def rank(finding: Finding) -> tuple[int, int, str]:
    """Return the sort key of a finding: what saves most comes first, not what waits longest; then clear, then cannot tell."""
    return _ORDER[finding.verdict], -(finding.saving.likely_ns or 0), finding.code


def judge(
    profile: Profile,
    tables: Mapping[str, Table],
    replay: Replay | Withheld | None,
    ranks: Table | None = None,
    shown_rank: int | None = None,
) -> tuple[Finding, ...]:
    """Return the findings of every rule, ranked; without a replay few of them give a saving.

    ``ranks`` compares all ranks of the job; ``shown_rank`` is the number of the one whose tables these are, None if unknown.
    """
    case = Case(profile, tables, replay, ranks, shown_rank)
    every = [f for rule in rules() for f in _findings_of_rule(rule, case)]
    return _with_claims(case, sorted(_folded.folded(case, every, nsx123_python_line.RULE.code), key=rank))


def _with_claims(case: Case, ranked: list[Finding]) -> tuple[Finding, ...]:
    """Return the findings with the time of the steps given to each once, and with the others that are about the same time."""
    claims = {index: finding for index, finding in enumerate(ranked) if isinstance(finding, _once.Claim)}
    if not claims:
        return tuple(ranked)
    places = list(claims)
    pieces = _once.pieces(case.idle, case.ops, case.device)
    given = _once.give(pieces, list(claims.values()), case.step_ns, case.steps)
    for (index, claim), part in zip(claims.items(), given, strict=True):
        ranked[index] = claim.counted(part.own_ns, tuple(sorted(places[other] for other in part.overlaps)))
    return tuple(ranked)


def _findings_of_rule(rule: ModuleType, case: Case) -> list[Finding]:
    """Return the findings of a rule; where the report lacks what it needs, one "cannot tell" with the reason."""
    try:
        return _lacking(rule, case) or list(rule.check(case))
    except NotRecorded as answer:
        return case.cannot_tell(rule.RULE, answer.reason)


def _lacking(rule: ModuleType, case: Case) -> list[Finding]:
    """Return one "cannot tell" for the first of what a rule requires that the capture does not hold, none where it holds all."""
    for required in getattr(rule, "REQUIRES", ()):
        if required == "steps" and case.stepless:
            return case.no_steps(rule.RULE)
        if required == "gpu" and case.device is None:
            return case.cannot_tell(rule.RULE, case.missing("gpu_ledger") or "the steady steps hold no GPU work")
        if required not in ("steps", "gpu") and (reason := case.missing(required)):
            return case.cannot_tell(rule.RULE, reason)
    return []


def of_experiment(verdict: Verdict, findings: Sequence[Finding]) -> Verdict:
    """Return the verdict of a capture without steps: if the program times itself, the sentence is what its clocks misread."""
    first = next((f for f in findings if f.verdict == "found" and rule_of(f.code).reading), None)
    if first is None:
        return verdict
    return replace(verdict, sentence=f"{first.title}. {first.because}".strip())


def manual(name: str) -> str | None:
    """Return the manual of a rule by its code or slug, None when there is no such rule."""
    asked = name.strip().lower()
    for rule in rules():
        if asked in (rule.RULE.code.lower(), rule.RULE.slug):
            return inspect.cleandoc(rule.__doc__ or "")
    return None

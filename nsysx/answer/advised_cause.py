"""Which part of the limit the first advice is for, where the headline names the limit alone or another one."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import NamedTuple

from nsysx.answer import subject
from nsysx.answer.answer_bounds import FIRST_OF_SEVERAL_SHARE, LEAST_LEADING_SHARE, WHOLE_CAUSE_SHARE
from nsysx.answer.change_savings import about
from nsysx.answer.line_faults import FAULTS, OF_RANKS, OF_THE_LIMIT
from nsysx.catalogue import StepLimit, StepPart
from nsysx.findings import rule_of
from nsysx.model import Finding, Row, Summary

#: What a line of the program says, where a title quotes it behind its place.
_QUOTED = re.compile(r"(:\d+) `.*`(?= )")


class AdvisedCause(NamedTuple):
    """What the first advice is for: a title, "" where the headline says that already, and a place that neither names; {} for none.

    ``another_limit``: it is no part of the limit that the headline names, so that its reader has to see it first.
    """

    title: str
    where: Row
    another_limit: bool = False


#: What the host does and what it waits for are one limit to a reader: a program is host-bound by both.
_HOST = frozenset({StepLimit.LAUNCH, StepLimit.SYNC, StepLimit.COPY, StepLimit.ALLOC, StepLimit.WARMUP})
#: What a rule may be about that is no part of a usual step of one rank.
_OUTSIDE = frozenset({"slow steps", "loop", "late rank"})

#: The headline says all of it, or there is no advice for a step.
NOTHING = AdvisedCause("", {})


def of_first_advice(summary: Summary) -> AdvisedCause:
    """Return what the first advice is for and where, as far as the headline does not say it."""
    chosen = _first(summary)
    if chosen is None or summary.step.shown_ns is None or subject.measures(summary):
        return NOTHING
    if chosen.unexplained:
        return NOTHING
    if subject.rank_waited_for(summary) is not None:
        held = _line_of(chosen.where)  # what the late rank does there, the advice says
        return (
            AdvisedCause("", _short(chosen.where)) if held and not _names(summary.verdict.sentence, held) else NOTHING
        )
    if rule_of(chosen.code).whole and about(chosen) == summary.verdict.code:
        return _within_the_limit(summary, chosen)
    line, sentence = _line_of(chosen.where), summary.verdict.sentence
    in_sentence, in_title = (_names(text, line) for text in (sentence, chosen.title))
    if in_sentence and in_title and about(chosen) == summary.verdict.code == StepLimit.LAUNCH:
        # That the host holds the device up at this line is all that the title says, too.
        return AdvisedCause(next((FAULTS[way.name] for way in chosen.remedies if way.name in FAULTS), ""), {})
    if _is_the_limit(summary, chosen):
        # How much the limit takes, its title says once more; what is wrong there, its remedy does.
        known_faults = {**FAULTS, **OF_RANKS}
        fault = next((known_faults[way.name] for way in chosen.remedies if way.name in known_faults), "")
        return NOTHING if not line or in_sentence else AdvisedCause(fault, _short(chosen.where))
    # The line itself stands in the advice.
    title = _QUOTED.sub(r"\1", summary.step.marks_title(chosen.title, as_recorded=chosen.title_as_recorded))
    shown = not line or in_title or in_sentence
    there = {} if shown else _line_alone(chosen.where)
    return AdvisedCause(title, there, not in_sentence and _of_another_limit(summary, chosen))


def _within_the_limit(summary: Summary, chosen: Finding) -> AdvisedCause:
    """Return what is wrong at the line of a change for all of the limit, where its remedy says that, and the line."""
    name, line = chosen.remedies[0].name if chosen.remedies else "", _line_of(chosen.where)
    fault = FAULTS.get(name) or OF_THE_LIMIT.get(name)
    if not fault or not line:
        return NOTHING
    shown = _names(summary.verdict.sentence, line)
    return AdvisedCause(fault, {} if shown else _line_alone(chosen.where))


def _of_another_limit(summary: Summary, chosen: Finding) -> bool:
    """Return whether a finding of a size that matters, or of none that is known, is about another limit than the headline."""
    its, named, answer = about(chosen), summary.verdict.code, summary.answer
    if its == named or {its, named} <= _HOST or its not in _OUTSIDE | set(StepLimit):
        return False
    now, then, cost = answer.now_ns, answer.then_ns, chosen.cost_ns_per_step
    if not now or then is None:
        return True
    if cost is not None and 2 * cost < now - then:
        return False  # its change is for more than its title says
    return now - then >= LEAST_LEADING_SHARE * now


def _first(summary: Summary) -> Finding | None:
    """Return the finding of the first change, where it wins much of what all win together; else that of the last, which wins most."""
    do, answer, findings = summary.answer.do, summary.answer, summary.findings or ()
    if not do:
        return None
    wins = (answer.now_ns or 0) - (answer.then_ns or 0) if answer.then_ns is not None else 0
    first = do[0] if wins and (do[0].saving_ns or 0) >= FIRST_OF_SEVERAL_SHARE * wins else do[-1]
    return None if first.finding is None else findings[first.finding]


def _line_of(where: Row) -> str:
    """Return a line as "train.py:31", "" for none."""
    return f"{PurePath(str(where['file'])).name}:{where['line']}" if where.get("file") and where.get("line") else ""


def _line_alone(where: Row) -> Row:
    """Return the line of a place, without its module and phase."""
    return _short({key: where[key] for key in ("file", "line")})


def _names(text: str, line: str) -> bool:
    """Return whether a text names a line, and not another one whose number begins alike."""
    return bool(line) and re.search(rf"{re.escape(line)}(?!\d)", text) is not None


def _short(where: Row) -> Row:
    """Return a place with its file as the headline names it, without folders."""
    return {**where, "file": PurePath(str(where["file"])).name} if where.get("file") else where


def _is_the_limit(summary: Summary, chosen: Finding) -> bool:
    """Return whether a finding is about all that the headline names; what the host does in that time, the headline never says."""
    parts = summary.verdict.parts.items()
    limit_ns = sum(ns for part, ns in parts if StepPart.named(part).limit == summary.verdict.code)
    cost = chosen.cost_ns_per_step
    if about(chosen) != summary.verdict.code or summary.verdict.code == StepLimit.LAUNCH:
        return False
    return cost is None or cost >= WHOLE_CAUSE_SHARE * limit_ns > 0

"""What to do first: which finding leads, and the lines that make its change."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nsysx import units
from nsysx.advice import Action
from nsysx.answer import factors, measured, subject, time_places, unnamed, unstepped
from nsysx.answer.answer_bounds import (
    BOUND_LEADS_TIMES,
    BOUND_OF_ANYTHING_SHARE,
    EXACT_CHANGE_SHARE,
    LEAST_LEADING_SHARE,
    UNPRICED_CAUSE_SHARE,
)
from nsysx.answer.bars import called
from nsysx.answer.change_savings import (
    about,
    by_saving,
    changes_before,
    is_bound,
    likely_alone_ns,
    likely_ns,
    margins_ns,
    nothing_to_claim,
    place_of,
    saving_ns,
    shows_likely_saving,
    violated_conditions,
)
from nsysx.answer.contest import Contest, for_anything
from nsysx.answer.timed_steps import timed_worth
from nsysx.catalogue import StepLimit
from nsysx.events.layers import bare
from nsysx.findings import rule_of
from nsysx.judging import window_checks
from nsysx.model import Finding, Row, Summary
from nsysx.saving import NOTABLE


def first(summary: Summary) -> Finding | None:
    """Return the finding for the first card: the one that saves most, or one about the verdict's cause that saves as much.

    None that the capture says cannot be made or that was tried in vain, and none at all where too little was recorded, or where the
    program waits for what comes by a clock. Without
    steps there are no savings: a finding about how the program times itself comes first, then one about the cause.
    """
    if nothing_to_claim(summary) or subject.paced(summary) is not None:
        return None
    ranked, step = [f for f in by_saving(summary) if _advisable(summary, f)], summary.step.shown_ns
    if step is None:
        return unstepped.first(summary, ranked)
    if subject.rank_waited_for(summary) is not None:
        return next((f for f in ranked if about(f) == "late rank"), None)
    if summary.verdict.code == StepLimit.UNKNOWN:
        return None
    setting = next((f for f in ranked if _certain(f, step)), None)
    if setting is not None:
        return setting
    unsaid = next((f for f in ranked if _of_the_cause_alone(summary, f, step)), None)
    if unsaid is not None:
        return unsaid
    causes = [f for f in ranked if not rule_of(f.code).striking]
    worth = [
        f
        for f in causes
        if (likely_alone_ns(summary, f) or 0) >= LEAST_LEADING_SHARE * step and not may_save_nothing(summary, f)
    ]
    best = _best(summary, worth, step) if worth else _unpriced(summary, causes, step)
    best = _before_an_option(summary, best, step) or best
    best = _striking(summary, ranked, best) or best
    between = next((f for f in ranked if about(f) == "loop"), None)
    if between is None or between_ns(between) <= (0 if best is None else likely_alone_ns(summary, best) or 0):
        return best
    # A line that costs much of each step runs between steps, too, where these are a part of every round of the loop.
    named = (
        best is not None
        and rule_of(best.code).leads
        and (likely_alone_ns(summary, best) or 0) >= EXACT_CHANGE_SHARE * step
    )
    return best if named else between


def _before_an_option(summary: Summary, best: Finding | None, step: int) -> Finding | None:
    """Return the exact change that would come before one for whatever stands there, where it is much of the step by itself: that is a fault
    with its place and price, and what the other adds is an option of any program. None else.
    """
    if best is None or not for_anything(best):
        return None
    exact = [f for f in changes_before(summary, best) if subject.names_its_change(f)]
    first = max(exact, key=lambda f: likely_alone_ns(summary, f) or 0, default=None)
    if first is None or (saves := likely_alone_ns(summary, first) or 0) < EXACT_CHANGE_SHARE * step:
        return None
    return first if BOUND_LEADS_TIMES * saves >= (likely_ns(summary, best) or 0) - saves else None


def may_save_nothing(summary: Summary, finding: Finding) -> bool:
    """Return whether a saving is not worth a word for sure: a small one by its interval, or because nobody knows how wrong it is.

    What is for whatever stands there has to save 5 % of the step at least: it is an option of a program without a fault, too.
    """
    step, saving = summary.step.shown_ns, likely_ns(summary, finding)
    if not step or not saving or saving < NOTABLE * step:
        return False
    timed = timed_worth(summary, finding)
    if timed is not None and max(timed.times) < 1 + NOTABLE:
        return True
    # A bound of what whatever stands there could gain, without code that makes the change, is no action.
    if about(finding) == StepLimit.GPU and is_bound(summary, finding) and for_anything(finding) and not finding.paste:
        return True
    if _hardly_gains(summary, finding) or _ends_overlap(summary, finding):
        return True
    small, margins = saving < LEAST_LEADING_SHARE * step, margins_ns(summary, finding)
    if margins is None or is_bound(summary, finding) or finding.saving.error_ns is None:
        return small
    # What a compiler makes of lines is as unsure as what it makes of a network, whatever the rule.
    fused = about(finding) == StepLimit.GPU and bool(finding.remedies) and not subject.names_its_change(finding)
    anything = fused or for_anything(finding)
    if not small and not anything:
        return False
    less = step / (step - saving + margins[0])
    least = min(factors.factor_bounds(summary, finding, saving, margins), default=less)
    return least < 1 + (LEAST_LEADING_SHARE if anything else NOTABLE)


def _hardly_gains(summary: Summary, finding: Finding) -> bool:
    """Return whether a finding is a small bound of what less launching could gain where the GPU works nearly always.

    Every program has launches: such a bound is no action, and no option, either. Nor is a larger one in a job: there it holds the waits for
    ranks that were late while they were recorded.
    """
    step, of_anything = summary.step.shown_ns or 0, is_bound(summary, finding) and for_anything(finding)
    small = (likely_ns(summary, finding) or 0) < BOUND_OF_ANYTHING_SHARE * step
    return summary.verdict.code == StepLimit.GPU and of_anything and (small or subject.of_a_job(summary))


def _ends_overlap(summary: Summary, finding: Finding) -> bool:
    """Return whether a compiler would fuse a whole network whose gradients are reduced while backward runs.

    A compiled backward hands over all gradients at its end: tried inside of DistributedDataParallel, it made a step 0.83 times as fast.
    """
    whole = [way.name for way in finding.remedies] == ["compile"] and about(finding) == StepLimit.GPU
    return whole and subject.of_a_job(summary)


def _striking(summary: Summary, ranked: Sequence[Finding], best: Finding | None) -> Finding | None:
    """Return the line from which most of the GPU's time could go, where no cause explains as much; None else.

    A compiler explains other time than that of such a line. A cause that is known goes before a bound that promises a few times as much,
    and before any where no limit of the line's operator is known: all of it would be gone.
    """
    lines = [f for f in ranked if rule_of(f.code).striking]
    line = max(lines, key=lambda f: saving_ns(summary, f) or 0, default=None)
    # Work that the GPU does while it would wait for the host anyway saves nothing, however long it is.
    if line is None or (saving_ns(summary, line) or 0) < LEAST_LEADING_SHARE * (summary.step.shown_ns or 0):
        return None
    if best is None:
        return line
    named = rule_of(best.code).leads and subject.names_its_change(best) and not is_bound(summary, best)
    if named and any(row.get("unlimited") for row in line.evidence):
        return None
    times = 1.0 if for_anything(best) else BOUND_LEADS_TIMES
    return line if (saving_ns(summary, line) or 0) > times * (likely_alone_ns(summary, best) or 0) else None


def between_ns(finding: Finding) -> int:
    """Return what a finding about the loop says of what runs between steps (ns a step)."""
    return sum(row.get("between_ns") or 0 for row in finding.evidence)


def _unpriced(summary: Summary, ranked: Sequence[Finding], step: int) -> Finding | None:
    """Return the costliest finding about the cause where no replay can price any change, None where one can: it found nothing then."""
    if subject.replayed(summary):
        return None
    of_cause = [
        f
        for f in ranked
        if about(f) == summary.verdict.code and (f.cost_ns_per_step or 0) >= UNPRICED_CAUSE_SHARE * step
    ]
    return max(of_cause, key=lambda f: f.cost_ns_per_step or 0, default=None)


def _best(summary: Summary, worth: Sequence[Finding], step: int) -> Finding:
    """Return the finding that saves most, or the first one that goes before it."""
    # What runs the network at a known line is no cause of its own; what was not recorded may be one.
    causes = [f for f in worth if not (f.unexplained and f.where.get("line"))]
    contest = Contest(summary, causes or worth, step)
    chosen = (
        contest.oversight()
        or contest.even_stages()
        or contest.leading()
        or contest.placed()
        or contest.exact()
        or contest.of_the_cause()
        or contest.best
    )
    return contest.specific(chosen) or contest.unrounded(chosen) or chosen


def _certain(finding: Finding, step: int) -> bool:
    """Return whether a setting that gives nothing costs time for certain, and much of it, or nobody knows how much: it comes first."""
    if not any(row.get("leads") for row in finding.evidence):
        return False
    saving_ns = finding.saving.likely_ns
    return saving_ns is None or saving_ns >= LEAST_LEADING_SHARE * step


def _of_the_cause_alone(summary: Summary, finding: Finding, step: int) -> bool:
    """Return whether launches take half of the step, and no replay can say what the change for the whole program is worth.

    More inputs in each step change what a step is: no shorter step shows what that gains.
    """
    much = 2 * (finding.cost_ns_per_step or 0) >= step
    launches = summary.verdict.code == StepLimit.LAUNCH == about(finding) and rule_of(finding.code).whole
    return subject.replayed(summary) and finding.saving.likely_ns is None and much and launches


def _advisable(summary: Summary, finding: Finding) -> bool:
    """Return whether a change can be made, as far as is known: nothing that it needs is violated, or the program can mend that first.

    A change that was tried on this program and did not make it faster is none.
    """
    if measured.in_vain(finding):
        return False
    violated = violated_conditions(finding)
    return not violated or (finding.saving.mended_ns is not None and all(c.mend for c in violated))


def to_do(summary: Summary, chosen: Finding | None) -> tuple[Action, ...]:
    """Return what to do; about the capture itself where nothing in the program can be named."""
    if chosen is None and (waiting := subject.paced(summary)) is not None:
        return (Action(unnamed.by_a_clock(summary, waiting), where=waiting.where),)
    if chosen is None:
        unsure = [f for f in by_saving(summary) if may_save_nothing(summary, f)]
        # A bound of what whatever stands there could gain is none: every program has such work.
        options = [f for f in unsure if not (f.saving.bound and for_anything(f) and not f.paste)]
        options = [f for f in options if not _hardly_gains(summary, f)]
        largest, step = max(options, key=lambda f: likely_ns(summary, f) or 0, default=None), summary.step.shown_ns
        option = largest is not None and step and (likely_ns(summary, largest) or 0) >= LEAST_LEADING_SHARE * step
        little = step is not None and any(
            _advisable(summary, f) and (likely_alone_ns(summary, f) or 0) >= NOTABLE * step for f in by_saving(summary)
        )
        text = unnamed.to_record(
            summary, unsure=bool(unsure), option=largest.fix if option and largest else "", little=little
        )
        # Where the steps lie in another report, what takes long in this one is no place to look at.
        elsewhere = window_checks.cold_report(summary.quality) is not None
        return (Action(text, where={} if elsewhere else _place_in_words(summary, time_places.of_most(summary))),)
    where = _place_in_words(summary, chosen.where or time_places.of_most(summary))
    index = place_of(summary, chosen)
    violated = violated_conditions(chosen)
    lines = (
        Action(
            _COMMAND.sub("", f.fix),
            f.code,
            finding=place_of(summary, f),
            paste=f.paste,
            where=f.where,
            condition=f.condition,
            conditions=f.conditions,
            saving_ns=summary.step.saves_ns(f.saving),
        )
        for f in changes_before(summary, chosen)
    )
    mended = (
        Action(f"{c.mend}: {c.detail}", chosen.code, index, conditions=(c,), saving_ns=c.saving_ns) for c in violated
    )
    change = Action(
        _as_option(chosen.fix) if _of_a_network_alone(summary, chosen) else chosen.fix or chosen.title,
        chosen.code,
        finding=index,
        paste=chosen.paste,
        where=where,
        condition=chosen.condition,
        conditions=tuple(c for c in chosen.conditions if c not in violated),
        saving_ns=None if violated else _of_the_change(summary, chosen),
    )
    return (*lines, *mended, change)


def _place_in_words(summary: Summary, where: Row) -> dict[str, object]:
    """Return a place with its module as people write it; a phase that stands for the module is named once."""
    module = where.get("module")
    if not module:
        return dict(where)
    told = {key: value for key, value in where.items() if key != "phase" or value != bare(str(module))}
    return {**told, "module": called(summary, str(module))}


def _of_a_network_alone(summary: Summary, chosen: Finding) -> bool:
    """Return whether a compiler may fuse what is spread over a network, and no place is known from which 5 % of the step could go."""
    if [way.name for way in chosen.remedies] != ["compile"] or about(chosen) != StepLimit.GPU or chosen.saving.bound:
        return False
    if any("written in" in row for row in chosen.evidence):
        return False
    least = LEAST_LEADING_SHARE * (summary.step.shown_ns or 0)
    others = (f for f in by_saving(summary) if f is not chosen and _advisable(summary, f) and not for_anything(f))
    return all((likely_alone_ns(summary, f) or 0) < least for f in others)


def _as_option(fix: str) -> str:
    """Return the advice as one for all of the network, behind which no single place waits to be mended."""
    least = units.bound(LEAST_LEADING_SHARE)
    return f"{fix}, as an option for the whole network: nsysx knows no change at a single place that saves {least} of the step"


def _of_the_change(summary: Summary, chosen: Finding) -> int | None:
    """Return what a change alone saves (ns): what is likely, the most where only that is known."""
    if shows_likely_saving(chosen):
        return summary.step.saves_ns(chosen.saving)
    return summary.step.saves_at_most_ns(chosen.saving)


#: A command that a remedy ends with, of no use as a step of several.
_COMMAND = re.compile(r"[;:] nsysx [^;]*")

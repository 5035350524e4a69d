"""What to do first, and what that is worth."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from nsysx.advice import Action, Condition
from nsysx.answer import factors, measured, near_limits, subject, time_places, unnamed, unstepped
from nsysx.answer.bars import called
from nsysx.catalogue import StepLimit
from nsysx.findings import rule_of
from nsysx.model import Finding, Summary

#: Below this part of the step a saving is not a line of its own.
NOTABLE = 0.01


def by_saving(summary: Summary) -> list[Finding]:
    """Return what was found, largest saving first."""
    return [f for f in summary.findings or () if f.verdict == "found"]


def first(summary: Summary) -> Finding | None:
    """Return the finding for the first card: the one that saves most, or one about the verdict's cause that saves as much.

    None that the capture says cannot be made or that was tried in vain, and none at all where too little was recorded. Without
    steps there are no savings: a finding about how the program times itself comes first, then one about the cause.
    """
    if nothing_to_claim(summary):
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
    least = _MUCH if near_limits.near(summary) else NOTABLE
    worth = [f for f in ranked if (_likely_ns(summary, f) or 0) >= least * step and not may_save_nothing(summary, f)]
    best = _best(summary, worth, step) if worth else _unpriced(summary, ranked, step)
    between = next((f for f in ranked if about(f) == "loop"), None)
    if between is None or between_ns(between) <= (0 if best is None else _likely_ns(summary, best) or 0):
        return best
    # A line that costs much of each step runs between steps, too, where these are a part of every round of the loop.
    named = best is not None and rule_of(best.code).leads and (_likely_ns(summary, best) or 0) >= _EXACT * step
    return best if named else between


def may_save_nothing(summary: Summary, finding: Finding) -> bool:
    """Return whether a saving is small and not worth a word for sure: by its interval, or because nobody knows how wrong it is."""
    step, saving = summary.step.shown_ns, likely_ns(summary, finding)
    if not step or not saving or not NOTABLE * step <= saving < _MUCH * step:
        return False
    margins = margins_ns(summary, finding)
    if margins is None or is_bound(summary, finding) or finding.saving.error_ns is None:
        return True
    less = step / (step - max(0, saving - margins[0]))
    return min(factors.factor_bounds(summary, finding, saving, margins), default=less) < 1 + NOTABLE


def between_ns(finding: Finding) -> int:
    """Return what a finding about the loop says of what runs between steps (ns a step)."""
    return sum(row.get("between_ns") or 0 for row in finding.evidence)


def _unpriced(summary: Summary, ranked: Sequence[Finding], step: int) -> Finding | None:
    """Return the costliest finding about the cause where no replay can price any change, None where one can: it found nothing then."""
    if summary.replay is not None and summary.replay.get("trusted", True):
        return None
    of_cause = [f for f in ranked if about(f) == summary.verdict.code and (f.cost_ns_per_step or 0) >= _UNPRICED * step]
    return max(of_cause, key=lambda f: f.cost_ns_per_step or 0, default=None)


#: An exact change is worth a word of its own from this share of the step on, and stands behind a bound that promises more than
#: so many times as much.
_EXACT, _FAR_MORE = 0.15, 3.0
#: A compiler that fuses what it can has to promise more than so many times what work saves that was recorded (`Rule.direct`).
_OF_A_COMPILER, _RECORDED = 2.0, 2
#: A change whose saving nobody can compute is still advised where its cause costs this share of the step.
_UNPRICED = 0.3
#: A part of the program goes before the whole of it if at best it saves more than so many times as much as is likely of the whole.
_OF_A_PART = 1.5


def _best(summary: Summary, worth: Sequence[Finding], step: int) -> Finding:
    """Return the finding that saves most; of savings that cannot be told apart, the one about the cause that the sentence names.

    A line to paste whose saving is known goes before a bound, unless that promises far more.
    """
    saves = {id(f): _likely_ns(summary, f) or 0 for f in worth}
    best = max(worth, key=lambda f: saves[id(f)])
    least = saves[id(best)] - (best.saving.error_ns or 0)
    alike = [f for f in worth if f is best or saves[id(f)] >= least]
    leading = next((f for f in alike if rule_of(f.code).leads), None)
    if leading is not None:
        return leading
    if rule_of(best.code).whole and rule_of(best.code).direct < _RECORDED and not best.saving.bound:
        # What a compiler may make of all that is left stands behind work of a place, whose change is known.
        much = max(_EXACT * step, saves[id(best)] / _OF_A_COMPILER)
        placed = [f for f in worth if rule_of(f.code).direct >= _RECORDED and saves[id(f)] >= much]
        if placed:
            return max(placed, key=lambda f: saves[id(f)])
    if best.saving.bound and best.saving.source != "steps":  # how much longer steps are was measured
        most = max(_EXACT * step, saves[id(best)] / _FAR_MORE)
        # What is likely of a change for the whole stands behind a cause that has a place.
        causes = shows_likely_saving(best)
        exact = [
            f
            for f in worth
            if (rule_of(f.code).leads if causes else f.paste) and not is_bound(summary, f) and saves[id(f)] >= most
        ]
        if exact:
            return max(exact, key=lambda f: saves[id(f)])
    if about(best) == summary.verdict.code:
        # A change for the whole program holds that of a part of it, of which only the most that it may save is replayed.
        part = best.saving.bound and not rule_of(best.code).whole and not subject.names_its_change(best)
        enough = saves[id(best)] / _OF_A_PART if part else least
        alike = [f for f in worth if saves[id(f)] >= enough and rule_of(f.code).whole and about(f) == about(best)]
        return next(iter(alike), best)
    return next((f for f in alike if about(f) == summary.verdict.code), best)


#: A setting that is known to cost this share of the step comes first, too; near the device's limits nothing does that saves less.
_MUCH = 0.05


def _certain(finding: Finding, step: int) -> bool:
    """Return whether a setting that gives nothing costs time for certain, and much of it, or nobody knows how much: it comes first."""
    if not any(row.get("leads") for row in finding.evidence):
        return False
    saving_ns = finding.saving.likely_ns
    return saving_ns is None or saving_ns >= _MUCH * step


def _of_the_cause_alone(summary: Summary, finding: Finding, step: int) -> bool:
    """Return whether launches take half of the step, and no replay can say what the change for the whole program is worth.

    More inputs in each step change what a step is: no shorter step shows what that gains.
    """
    replayed = summary.replay is not None and summary.replay.get("trusted", True)
    much = 2 * (finding.cost_ns_per_step or 0) >= step
    launches = summary.verdict.code == StepLimit.LAUNCH == about(finding) and rule_of(finding.code).whole
    return bool(replayed) and finding.saving.likely_ns is None and much and launches


def nothing_to_claim(summary: Summary) -> bool:
    """Return whether so much is missing from the capture that nothing may be said of what a change would save."""
    return any(c.status == "warn" and c.doubt == "everything" for c in summary.quality)


def _violated(finding: Finding) -> list[Condition]:
    return [c for c in finding.conditions if c.state == "violated"]


def _advisable(summary: Summary, finding: Finding) -> bool:
    """Return whether a change can be made, as far as is known: nothing that it needs is violated, or the program can mend that first.

    A change that was tried on this program and did not make it faster is none.
    """
    if measured.in_vain(finding):
        return False
    violated = _violated(finding)
    return not violated or (finding.saving.mended_ns is not None and all(c.mend for c in violated))


def saving_ns(summary: Summary, finding: Finding) -> int | None:
    """Return the most that a finding saves of the shown step (ns), together with what has to be mended or comes first."""
    saving, mended = summary.step.saves_at_most_ns(finding.saving), finding.saving.mended
    if _violated(finding) and mended is not None and mended.likely_ns is not None:
        saving = mended.most_ns or mended.likely_ns
    return _with_lines_before(summary, finding, saving)


def _with_lines_before(summary: Summary, finding: Finding, saving: int | None) -> int | None:
    """Return a saving with that of the exact changes that come before (ns)."""
    if saving is None:
        return None
    # Waits are no part of what a change for the launches saves.
    before = [f for f in _lines_before(summary, finding) if about(f) != about(finding) or _only_compiles(finding)]
    saving += sum(summary.step.saves_ns(f.saving) or 0 for f in before)
    return min(saving, summary.step.shown_ns or saving)


#: What is replayed is told beside a bound if the two steps differ by this share.
_APART = 0.1


def replayed_ns(summary: Summary, chosen: Finding | None, then: After) -> int | None:
    """Return the step (ns) that the replay gives with a change whose saving is only bounded; None where that is the bound itself."""
    now = summary.step.shown_ns
    if chosen is None or now is None or then.ns is None or not is_bound(summary, chosen) or not chosen.saving.bound:
        return None
    saving = likely_ns(summary, chosen)
    return None if saving is None or now - saving <= (1 + _APART) * then.ns else now - saving


def _only_compiles(finding: Finding) -> bool:
    """Return whether a change is for the launches of a network alone: those of the optimizer are then no part of its saving."""
    names = finding.remedies[0].name.split(",") if finding.remedies else []
    return shows_likely_saving(finding) and names[:1] != [] and names[0].startswith("compile") and "fused" not in names


def likely_ns(summary: Summary, chosen: Finding) -> int | None:
    """Return what a finding saves of the shown step by the replay alone, with what has to be mended or comes first (ns)."""
    return _with_lines_before(summary, chosen, _likely_ns(summary, chosen))


def _likely_ns(summary: Summary, finding: Finding) -> int | None:
    """Return what a finding saves by the replay alone, together with what has to be mended first (ns)."""
    mended_ns = finding.saving.mended_ns
    if not _violated(finding) or mended_ns is None:
        return summary.step.saves_ns(finding.saving)
    return min(mended_ns, summary.step.shown_ns or mended_ns)


def about(finding: Finding) -> str:
    """Return what a finding's rule is about: a verdict's code, or another word of ``Rule.about``."""
    return rule_of(finding.code).about


def place_of(summary: Summary, finding: Finding) -> int:
    """Return the place of a finding among those of the Summary."""
    return next(i for i, f in enumerate(summary.findings or ()) if f is finding)


def to_do(summary: Summary, chosen: Finding | None) -> tuple[Action, ...]:
    """Return what to do; about the capture itself where nothing in the program can be named."""
    if chosen is None:
        unsure = any(may_save_nothing(summary, f) for f in by_saving(summary))
        return (Action(unnamed.to_record(summary, unsure=unsure), where=time_places.of_most(summary)),)
    where, index = dict(chosen.where) or dict(time_places.of_most(summary)), place_of(summary, chosen)
    if where.get("module"):
        where["module"] = called(summary, str(where["module"]))
    violated = _violated(chosen)
    lines = (
        Action(
            _COMMAND.sub("", f.fix),
            f.code,
            place_of(summary, f),
            f.paste,
            f.where,
            f.condition,
            f.conditions,
            summary.step.saves_ns(f.saving),
        )
        for f in _lines_before(summary, chosen)
    )
    mended = (
        Action(f"{c.mend}: {c.detail}", chosen.code, index, conditions=(c,), saving_ns=c.saving_ns) for c in violated
    )
    change = Action(
        chosen.fix or chosen.title,
        chosen.code,
        index,
        chosen.paste,
        where,
        chosen.condition,
        tuple(c for c in chosen.conditions if c not in violated),
        None if violated else _of_the_change(summary, chosen),
    )
    return (*lines, *mended, change)


def _of_the_change(summary: Summary, chosen: Finding) -> int | None:
    """Return what a change alone saves (ns): what is likely, the most where only that is known."""
    if shows_likely_saving(chosen):
        return summary.step.saves_ns(chosen.saving)
    return summary.step.saves_at_most_ns(chosen.saving)


#: A command that a remedy ends with, of no use as a step of several.
_COMMAND = re.compile(r"[;:] nsysx [^;]*")
#: Most changes that come before one for the whole program.
_MOST_BEFORE = 2
#: Phases of a model: a wait in them is told as the condition that it violates.
_MODEL = ("forward", "backward")


def _lines_before(summary: Summary, chosen: Finding) -> list[Finding]:
    """Return the exact changes to make before a bound for the whole program, largest saving first.

    They are lines to paste that remove a part of what the bound may remove, and waits, which would end a CUDA graph.
    """
    step, rule = summary.step.shown_ns, rule_of(chosen.code)
    if step is None or not rule.whole or not chosen.saving.bound or rule.about != StepLimit.LAUNCH:
        return []

    def exact(f: Finding) -> bool:
        saving = summary.step.saves_ns(f.saving) or 0
        if f is chosen or f.saving.bound or _violated(f) or saving < NOTABLE * step or _part_of(f, chosen):
            return False
        wait = about(f) == StepLimit.SYNC and saving > (f.saving.error_ns or 0) and f.where.get("phase") not in _MODEL
        return wait or (about(f) == rule.about and bool(f.paste))

    return [f for f in by_saving(summary) if exact(f)][:_MOST_BEFORE]


def _part_of(finding: Finding, chosen: Finding) -> bool:
    """Return whether what a finding advises is in the lines of another one."""
    lines = chosen.remedies[0].parts if chosen.remedies else frozenset()
    return bool(finding.remedies) and finding.remedies[0].parts <= lines


def is_bound(summary: Summary, chosen: Finding | None) -> bool:
    """Return whether the saving is an upper bound, and nothing likely is known."""
    return chosen is not None and (chosen.saving.bound or bool(_violated(chosen))) and not shows_likely_saving(chosen)


def shows_likely_saving(chosen: Finding) -> bool:
    """Return whether a saving at best is told by what is likely: where the replay made exactly the change, as far as it can.

    Where something has to be mended first, that is the replay of both.
    """
    if about(chosen) == "late rank":  # the work of a rank may move to its peers, or go
        return False
    mended = chosen.saving.mended
    if _violated(chosen):
        return mended is not None and mended.likely_ns is not None and mended.most_ns is not None
    return chosen.saving.bound and chosen.saving.source == "replay"


#: Of changes that were tried after a replay had made them, nine in ten saved between these parts of what it said, beyond its error:
#: `tests/answer/test_tried_savings.py` holds them.
LEAST, MOST = 0.7, 1.3
#: The work that a change leaves takes this much less time in another run (share of it).
_REPEATS = 0.02


def margins_ns(summary: Summary, chosen: Finding | None) -> tuple[int, int] | None:
    """Return how much less and how much more than said a change may save (ns), never more than the best that is known for it.

    None where that is not known.
    """
    if chosen is None:
        return None
    saving, error = likely_ns(summary, chosen), chosen.saving.error_ns or 0
    if saving is None or is_bound(summary, chosen):
        return None if chosen.saving.error_ns is None else (error, error)
    less, more = round((1 - LEAST) * saving), round((MOST - 1) * saving)
    if chosen.saving.source == "replay":
        less, more = less + error, more + error
    else:  # what was computed from recorded times has no error of a replay besides
        less, more = max(less, error), max(more, error)
    if shows_likely_saving(chosen) or chosen.saving.most_ns is not None:
        most = (saving_ns(summary, chosen) if shows_likely_saving(chosen) else chosen.saving.most_ns) or saving
        repeats = round(_REPEATS * max(0, (summary.step.shown_ns or 0) - most))
        more = min(more, max(0, most + repeats - saving))
    if about(chosen) in _IDLE and not chosen.saving.bound and (real := summary.unprofiled) is not None:
        # What makes the GPU wait no more saves what it idles, and none of its work.
        now = summary.step.shown_ns or 0
        more = min(more, max(0, round(now * (1 - real.gpu_busy_ns / max(real.step_ns, 1))) - saving))
    return less, more


#: Causes of idle time alone.
_IDLE = (StepLimit.LAUNCH, StepLimit.SYNC, StepLimit.ALLOC, StepLimit.INPUT)


class After(NamedTuple):
    """The step after the change, and the least and the most that it may be; None where that is not known: an estimate has no error.

    ``best_ns``: what no change of the kind can beat, where ``ns`` is what is likely.
    """

    ns: int | None = None
    low_ns: int | None = None
    high_ns: int | None = None
    best_ns: int | None = None


def after(summary: Summary, chosen: Finding | None) -> After:
    """Return the step after the change: the step less the saving, which may be off by its error, or nothing if it is a bound."""
    now = summary.step.shown_ns
    saving = None if chosen is None else saving_ns(summary, chosen)
    if now is None or chosen is None or saving is None:
        return After()
    if is_bound(summary, chosen):
        return After(now - saving, now - saving, now)
    best = None
    if shows_likely_saving(chosen):
        best, saving = now - saving, min(saving, likely_ns(summary, chosen) or 0)
    if (margins := margins_ns(summary, chosen)) is None:
        return After(now - saving, best_ns=best)
    less, more = margins
    least = now - min(now, saving + more)
    low = least if best is None else min(now - saving, max(least, best))
    return After(now - saving, low, now - max(0, saving - less), best)

"""What the change of a finding saves of the shown step, how far off that may be, and the step after it."""

from __future__ import annotations

from typing import NamedTuple

from nsysx.advice import Condition
from nsysx.answer.answer_bounds import (
    LEAST_LEADING_SHARE,
    MOST_CHANGES_BEFORE,
    MOST_SAVED_SHARE,
    REPLAY_APART_SHARE,
    TRIED_LEAST_POWER,
    TRIED_MOST_POWER,
    WIDER_MOST_POWERS,
    WORK_REPEATS_SHARE,
)
from nsysx.catalogue import StepLimit
from nsysx.findings import for_anything, may_lose, rule_of
from nsysx.model import Finding, Summary
from nsysx.saving import NOTABLE


def by_saving(summary: Summary) -> list[Finding]:
    """Return what was found, largest saving first."""
    return [f for f in summary.findings or () if f.verdict == "found"]


def nothing_to_claim(summary: Summary) -> bool:
    """Return whether so much is missing from the capture that nothing may be said of what a change would save."""
    return any(c.status == "warn" and c.doubt == "everything" for c in summary.quality)


def violated_conditions(finding: Finding) -> list[Condition]:
    """Return what a change needs and does not find in this program."""
    return [c for c in finding.conditions if c.state == "violated"]


def saving_ns(summary: Summary, finding: Finding) -> int | None:
    """Return the most that a finding saves of the shown step (ns), together with what has to be mended or comes first."""
    saving, mended = summary.step.saves_at_most_ns(finding.saving), finding.saving.mended
    if violated_conditions(finding) and mended is not None and mended.likely_ns is not None:
        saving = mended.most_ns or mended.likely_ns
    return _with_lines_before(summary, finding, saving)


def _with_lines_before(summary: Summary, finding: Finding, saving: int | None) -> int | None:
    """Return a saving with that of the exact changes that come before (ns)."""
    if saving is None:
        return None
    # Waits are no part of what a change for the launches saves; of needless work its launches are.
    counted = (StepLimit.SYNC, StepLimit.LAUNCH) if _only_compiles(finding) else (StepLimit.SYNC,)
    before = [f for f in changes_before(summary, finding) if about(f) in counted]
    saving += sum(summary.step.saves_ns(f.saving) or 0 for f in before)
    return min(saving, summary.step.shown_ns or saving)


def replayed_ns(summary: Summary, chosen: Finding | None, then: After) -> int | None:
    """Return the step (ns) that the replay gives with a change whose saving is only bounded; None where that is the bound itself."""
    now = summary.step.shown_ns
    if chosen is None or now is None or then.ns is None or not is_bound(summary, chosen) or not chosen.saving.bound:
        return None
    saving = likely_ns(summary, chosen)
    return None if saving is None or now - saving <= (1 + REPLAY_APART_SHARE) * then.ns else now - saving


def _only_compiles(finding: Finding) -> bool:
    """Return whether a change is for the launches of a network alone: those of the optimizer are then no part of its saving."""
    names = finding.remedies[0].name.split(",") if finding.remedies else []
    return shows_likely_saving(finding) and names[:1] != [] and names[0].startswith("compile") and "fused" not in names


def likely_ns(summary: Summary, chosen: Finding) -> int | None:
    """Return what a finding saves of the shown step by the replay alone, with what has to be mended or comes first (ns)."""
    return _with_lines_before(summary, chosen, likely_alone_ns(summary, chosen))


def likely_alone_ns(summary: Summary, finding: Finding) -> int | None:
    """Return what a finding saves by the replay alone, together with what has to be mended first (ns)."""
    mended_ns = finding.saving.mended_ns
    if not violated_conditions(finding) or mended_ns is None:
        return summary.step.saves_ns(finding.saving)
    return min(mended_ns, summary.step.shown_ns or mended_ns)


def about(finding: Finding) -> str:
    """Return what a finding's rule is about: a verdict's code, or another word of ``Rule.about``."""
    return rule_of(finding.code).about


def place_of(summary: Summary, finding: Finding) -> int:
    """Return the place of a finding among those of the Summary."""
    return next(i for i, f in enumerate(summary.findings or ()) if f is finding)


#: Phases of a model: a wait in them is told as the condition that it violates.
_MODEL = ("forward", "backward")


def changes_before(summary: Summary, chosen: Finding) -> list[Finding]:
    """Return the exact changes to make before a bound for the whole program, largest saving first.

    They are lines to paste that remove a part of what the bound may remove, waits, which would end a CUDA graph, and GPU work that need not
    be done: fewer launches leave it where it is.
    """
    step, rule = summary.step.shown_ns, rule_of(chosen.code)
    if step is None or not rule.whole or not chosen.saving.bound or rule.about != StepLimit.LAUNCH:
        return []

    def exact(f: Finding) -> bool:
        saving = summary.step.saves_ns(f.saving) or 0
        if f is chosen or f.saving.bound or violated_conditions(f) or saving < NOTABLE * step or _part_of(f, chosen):
            return False
        if about(f) == StepLimit.GPU:
            needless = rule_of(f.code).leads and bool(f.paste) and not for_anything(f.remedies[0].name)
            return needless and saving >= LEAST_LEADING_SHARE * step
        wait = about(f) == StepLimit.SYNC and saving > (f.saving.error_ns or 0) and f.where.get("phase") not in _MODEL
        return wait or (about(f) == rule.about and bool(f.paste))

    return [f for f in by_saving(summary) if exact(f)][:MOST_CHANGES_BEFORE]


def _part_of(finding: Finding, chosen: Finding) -> bool:
    """Return whether what a finding advises is in the lines of another one."""
    lines = chosen.remedies[0].parts if chosen.remedies else frozenset()
    return bool(finding.remedies) and finding.remedies[0].parts <= lines


def is_bound(summary: Summary, chosen: Finding | None) -> bool:
    """Return whether the saving is an upper bound, and nothing likely is known."""
    return (
        chosen is not None
        and (chosen.saving.bound or bool(violated_conditions(chosen)))
        and not shows_likely_saving(chosen)
    )


def shows_likely_saving(chosen: Finding) -> bool:
    """Return whether a saving at best is told by what is likely: where the replay made exactly the change, as far as it can.

    Where something has to be mended first, that is the replay of both.
    """
    if about(chosen) == "late rank":  # the work of a rank may move to its peers, or go
        return False
    mended = chosen.saving.mended
    if violated_conditions(chosen):
        return mended is not None and mended.likely_ns is not None and mended.most_ns is not None
    return chosen.saving.bound and chosen.saving.source == "replay"


def margins_ns(summary: Summary, chosen: Finding | None) -> tuple[int, int] | None:
    """Return how much less and how much more than said a change may save (ns), never more than the best that is known for it.

    It saves at least nothing, but where the change may lose. None where that is not known.
    """
    if chosen is None:
        return None
    saving, error = likely_ns(summary, chosen), chosen.saving.error_ns or 0
    if saving is None or is_bound(summary, chosen):
        return None if chosen.saving.error_ns is None else (error, error)
    if chosen.saving.source == "limits":
        return min(error, saving), max(0, (chosen.saving.most_ns or saving) - saving)
    less, more = _of_tried(summary.step.shown_ns or saving, saving, _most_power(chosen))
    if chosen.saving.source == "replay":
        less, more = less + error, more + error
    else:  # what was computed from recorded times has no error of a replay besides
        less, more = max(less, error), max(more, error)
    if shows_likely_saving(chosen) or chosen.saving.most_ns is not None:
        most = (saving_ns(summary, chosen) if shows_likely_saving(chosen) else chosen.saving.most_ns) or saving
        repeats = round(WORK_REPEATS_SHARE * max(0, (summary.step.shown_ns or 0) - most))
        left = max(0, most + repeats - saving)
        # A replay that is no bound, and leaves more open than it shows, says itself how much.
        open_too = chosen.saving.source == "replay" and not chosen.saving.bound and chosen.saving.most_ns is not None
        more = max(more, left) if open_too else min(more, left)
    if about(chosen) in _IDLE and not chosen.saving.bound and (real := summary.step.estimate) is not None:
        # What makes the GPU wait no more saves what it idles, and none of its work unless it says so.
        now = summary.step.shown_ns or 0
        idle = round(now * real.idle_share)
        more = min(more, max(0, idle - saving, (chosen.saving.most_ns or 0) - saving))
    return less if may_make_longer(chosen) else min(less, saving), more


def may_make_longer(chosen: Finding) -> bool:
    """Return whether a change has work of its own, by which the step may get longer: then its error reaches below nothing."""
    return bool(chosen.remedies) and may_lose(chosen.remedies[0].name)


def margins_beside_bound_ns(summary: Summary, chosen: Finding, then: After) -> tuple[int, int] | None:
    """Return how much less and more (ns) a change may save than its replay says, which is told beside a bound; None where none is."""
    alone, now, most = replayed_ns(summary, chosen, then), summary.step.shown_ns, saving_ns(summary, chosen)
    if alone is None or now is None or most is None:
        return None
    saving, error = now - alone, chosen.saving.error_ns or 0
    less, more = _of_tried(now, saving, _most_power(chosen))
    return min(less + error, saving), min(more + error, most - saving)


def _most_power(chosen: Finding) -> float:
    """Return the power of the likely factor that holds most of what was tried of the kind of a finding's change."""
    remedy = chosen.remedies[0].name if chosen.remedies else ""
    return WIDER_MOST_POWERS.get(remedy, TRIED_MOST_POWER)


def _of_tried(step_ns: int, saving_ns: int, most_power: float) -> tuple[int, int]:
    """Return how much less and more (ns) a change may save of a step than is likely, by what was tried of its kind (``most_power``).

    Factors lie as far off as they are large: on a scale of their logarithms one pair of bounds holds small and large ones.
    """
    left = max(step_ns - saving_ns, (1 - MOST_SAVED_SHARE) * step_ns) / max(step_ns, 1)
    least, most = (round(step_ns * (1 - left**power)) for power in (TRIED_LEAST_POWER, most_power))
    return max(0, saving_ns - least), max(0, most - saving_ns)


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
    return After(now - saving, low, now - saving + less, best)

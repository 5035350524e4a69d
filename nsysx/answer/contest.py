"""Which of the findings that may lead goes before the one that saves most."""

from __future__ import annotations

from collections.abc import Sequence

from nsysx.answer import subject
from nsysx.answer.answer_bounds import (
    BOUND_LEADS_TIMES,
    COMPILER_LEADS_TIMES,
    EXACT_CHANGE_SHARE,
    LEAST_LEADING_SHARE,
    NOTABLE_BEFORE_SHARE,
    RECORDED_DIRECTNESS,
)
from nsysx.answer.change_savings import about, is_bound, likely_alone_ns, shows_likely_saving
from nsysx.catalogue import StepLimit
from nsysx.findings import rounds_sent, rule_of
from nsysx.model import Finding, Summary

#: Remedies that divide the whole program among its ranks in another way, at best: what a line saves for sure is done first.
_DIVIDES_ANEW = ("data-parallel", "replicated")
#: What evens out the work of ranks that wait for one of them.
_EVENS_OUT = "even-stages"


def for_anything(finding: Finding) -> bool:
    """Return whether a finding's change makes launches or passes fewer for whatever stands there, and its rule names no cause."""
    return not subject.names_its_change(finding) and not rule_of(finding.code).leads and bool(finding.remedies)


def _unmeant(finding: Finding) -> bool:
    """Return whether nobody meant what a finding tells (`Costly.oversight`)."""
    return any(row.get("oversight") for row in finding.evidence)


def _rounds(finding: Finding) -> bool:
    return any(rounds_sent(remedy.name) for remedy in finding.remedies)


def _divides_anew(finding: Finding) -> bool:
    return any(remedy.name in _DIVIDES_ANEW for remedy in finding.remedies)


def _line(finding: Finding) -> tuple[object, object]:
    return finding.where.get("file"), finding.where.get("line")


class Contest:
    """The findings that may lead, and the one of them that saves most; each method names another one that goes before that, or None."""

    def __init__(self, summary: Summary, worth: Sequence[Finding], step: int) -> None:
        self._summary, self._worth, self._step = summary, worth, step
        self._by_finding = {id(f): likely_alone_ns(summary, f) or 0 for f in worth}
        self.best = self._largest(worth)
        self._least = self._saves_ns(self.best) - (self.best.saving.error_ns or 0)
        self._alike = [f for f in worth if f is self.best or self._saves_ns(f) >= self._least]

    def _saves_ns(self, finding: Finding) -> int:
        return self._by_finding[id(finding)]

    def _largest(self, findings: Sequence[Finding]) -> Finding:
        return max(findings, key=self._saves_ns)

    def leading(self) -> Finding | None:
        """Return one that cannot be told apart and whose rule leads: a change that is named, with a known saving, before what a compiler
        may make of lines, or some other operation in place of a loop; and before these what nobody meant, if that saves most.
        """
        leader = next((f for f in self._alike if rule_of(f.code).leads), None)
        if leader is None:
            return None
        meant = subject.names_its_change(leader) or not _unmeant(self.best)
        return self._named_before(leader) if meant else self.best

    def _named_before(self, leader: Finding) -> Finding:
        """Return a change that is named, with a known saving, before one for whatever stands there that saves at most twice as much."""
        if subject.names_its_change(leader):
            return leader
        least = EXACT_CHANGE_SHARE if leader.saving.bound else LEAST_LEADING_SHARE
        much = max(least * self._step, self._saves_ns(leader) / COMPILER_LEADS_TIMES)
        named = [
            f
            for f in self._worth
            if rule_of(f.code).leads
            and subject.names_its_change(f)
            and not is_bound(self._summary, f)
            and self._saves_ns(f) >= much
        ]
        return self._largest(named) if named else leader

    def oversight(self) -> Finding | None:
        """Return what nobody meant (`Costly.oversight`), before a change of the whole network that is no line's, such as its layout.

        It goes before communication that is exposed at its own line, too, and before the most that the same messages may cost at the line
        that sends them: what is wrong there is known. Where its saving is known, it goes before the most that fewer launches of everything
        may save, or another way to divide the program.
        """
        at_line = bool(self.best.where.get("line"))
        if rule_of(self.best.code).leads or (at_line and about(self.best) != StepLimit.COMM):
            return None
        much = max(LEAST_LEADING_SHARE * self._step, self._saves_ns(self.best) / BOUND_LEADS_TIMES)
        unmeant = [f for f in self._worth if _unmeant(f) and self._saves_ns(f) >= much]
        if not at_line and self.best.saving.bound and (for_anything(self.best) or _divides_anew(self.best)):
            enough = NOTABLE_BEFORE_SHARE * self._step
            unmeant += [
                f for f in self._worth if _unmeant(f) and not is_bound(self._summary, f) and self._saves_ns(f) >= enough
            ]
        if at_line:
            same = self.best.overlaps if self.best.saving.bound else ()
            about_same = {id(f) for n, f in enumerate(self._summary.findings or ()) if n in same}
            unmeant = [f for f in unmeant if _line(f) == _line(self.best) or id(f) in about_same]
        return self._largest(unmeant) if unmeant else None

    def even_stages(self) -> Finding | None:
        """Return stages of a pipeline that compute for unlike times, before what a compiler may make of one stage's launches and kernels.

        All ranks wait for the longest stage, whatever its kernels are; where the compiler promises far more, that goes first.
        """
        if not for_anything(self.best):
            return None
        much = max(LEAST_LEADING_SHARE * self._step, self._saves_ns(self.best) / COMPILER_LEADS_TIMES)
        uneven = [f for f in self._worth if any(way.name == _EVENS_OUT for way in f.remedies)]
        return next((f for f in uneven if not is_bound(self._summary, f) and self._saves_ns(f) >= much), None)

    def placed(self) -> Finding | None:
        """Return work of a place, whose change is known: what a compiler may make of all that is left stands behind it."""
        rule = rule_of(self.best.code)
        if not rule.whole or rule.direct >= RECORDED_DIRECTNESS or self.best.saving.bound:
            return None
        much = max(EXACT_CHANGE_SHARE * self._step, self._saves_ns(self.best) / COMPILER_LEADS_TIMES)
        placed = [f for f in self._worth if rule_of(f.code).direct >= RECORDED_DIRECTNESS and self._saves_ns(f) >= much]
        return self._largest(placed) if placed else None

    def exact(self) -> Finding | None:
        """Return one whose saving is known, unless the bound of the best promises far more.

        What is likely of a change for the whole stands behind a cause that has a place.
        """
        if not self.best.saving.bound or self.best.saving.source == "steps":  # how much longer steps are was measured
            return None
        causes = shows_likely_saving(self.best)
        much = max(EXACT_CHANGE_SHARE * self._step, self._saves_ns(self.best) / BOUND_LEADS_TIMES)
        if _divides_anew(self.best):
            much = NOTABLE_BEFORE_SHARE * self._step
        priced = [f for f in self._worth if not is_bound(self._summary, f) and self._saves_ns(f) >= much]
        exact = [f for f in priced if (rule_of(f.code).leads if causes else f.paste)]
        if _unmeant(self.best):  # a compiler would only do faster what nobody meant
            exact = [f for f in exact if subject.names_its_change(f)]
        return self._named_before(self._largest(exact)) if exact else None

    def of_the_cause(self) -> Finding | None:
        """Return one about the cause that the sentence names; where the best is, the change for the whole program.

        That holds the change of a part: the same change of the whole program is never worth less.
        """
        cause = self._summary.verdict.code
        if about(self.best) != cause:
            return next((f for f in self._alike if about(f) == cause), None)
        general = self.best.saving.bound and not subject.names_its_change(self.best)
        part = not rule_of(self.best.code).whole and (general or for_anything(self.best))
        enough = 0.0 if part else self._least
        whole = (f for f in self._worth if self._saves_ns(f) >= enough and rule_of(f.code).whole and about(f) == cause)
        return next(whole, None)

    def unrounded(self, chosen: Finding) -> Finding | None:
        """Return one that leaves the numbers as they are, before one by which ranks send each other rounded ones, of the same messages.

        It need save only a part of what that does: who rounds has to look at the loss.
        """
        if not _rounds(chosen):
            return None
        same = [f for n, f in enumerate(self._summary.findings or ()) if n in chosen.overlaps]
        much = self._saves_ns(chosen) / COMPILER_LEADS_TIMES
        exact = [
            f for f in self._worth if f in same and not _rounds(f) and not for_anything(f) and self._saves_ns(f) >= much
        ]
        return self._largest(exact) if exact else None

    def specific(self, chosen: Finding) -> Finding | None:
        """Return one whose change is for what was recorded, where the chosen one's is for whatever kernels stand there.

        It need save only a part of what that does: fewer launches and fused kernels leave the cause where it is.
        """
        if not for_anything(chosen):
            return None
        much = max(EXACT_CHANGE_SHARE * self._step, self._saves_ns(chosen) / BOUND_LEADS_TIMES)
        causes = [f for f in self._worth if subject.names_its_change(f) and self._saves_ns(f) >= much]
        return self._largest(causes) if causes else None

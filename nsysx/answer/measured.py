"""What trying changes of the answer: a change that did not help is not advised, and the one that helped most is, with what it gave.

A measurement on the program itself goes before any prediction. ``nsysx try`` measures without a profiler, so its ratio holds for the
step as it is told here.
"""

from __future__ import annotations

from dataclasses import replace

from nsysx import units
from nsysx.advice import Action, Alternative, Answer, Certainty, Sure, Tried, in_words
from nsysx.answer import certainty
from nsysx.model import Finding, Summary

_IN_VAIN = ("slower", "same", "fails", "changes_results")


def refuted(summary: Summary, remedy: Alternative) -> bool:
    """Return whether a remedy was tried on this program and did not make it faster: all of it, or a part that made it slower.

    What is joined are names: those of ``nsysx try`` are the ones that findings advise.
    """
    verdicts: dict[frozenset[str], set[str]] = {}
    for tried in summary.tried:
        verdicts.setdefault(frozenset(tried.change.split(",")), set()).add(tried.verdict)
    if "faster" in verdicts.get(remedy.parts, ()):
        return False
    return any(
        not verdict.isdisjoint(_IN_VAIN if parts == remedy.parts else ("slower", "fails", "changes_results"))
        and "faster" not in verdict
        for parts, verdict in verdicts.items()
        if parts <= remedy.parts
    )


def without_refuted(summary: Summary) -> Summary:
    """Return the Summary whose findings advise nothing that was tried in vain; one that advised nothing else advises nothing."""
    if not summary.tried or not summary.findings:
        return summary
    return replace(summary, findings=tuple(_without_refuted(summary, f) for f in summary.findings))


def _without_refuted(summary: Summary, finding: Finding) -> Finding:
    remedies = tuple(replace(remedy, refuted=refuted(summary, remedy)) for remedy in finding.remedies)
    if remedies == finding.remedies:
        return finding
    left = [remedy for remedy in remedies if not remedy.refuted]
    in_vain = ", ".join(remedy.name for remedy in remedies)
    words = in_words(left) if left else Alternative("", f"Tried on this program, and no faster: {in_vain}")
    return replace(finding, fix=words.text, paste=words.paste, condition=words.condition, remedies=remedies)


def in_vain(finding: Finding) -> bool:
    """Return whether all that a finding advised was tried in vain."""
    return bool(finding.remedies) and all(remedy.refuted for remedy in finding.remedies)


def _ratio(tried: Tried) -> float:
    return (tried.then_ns or 1) / (tried.now_ns or 1)


def winner(summary: Summary, chosen: Finding | None, predicted_ns: int | None, step_ns: int | None) -> Tried | None:
    """Return the change that made the program fastest, None if none did or a finding that was not tried promises more.

    ``predicted_ns`` is what the chosen finding saves of a step of ``step_ns``.
    """
    faster = [t for t in summary.tried if t.verdict == "faster" and not t.other_results and t.then_ns and t.now_ns]
    best = min(faster, key=_ratio, default=None)
    if best is None or step_ns is None:
        return None
    measured = chosen is None or chosen.code in best.codes or any(chosen.code in t.codes for t in faster)
    return best if measured or (predicted_ns or 0) <= step_ns * (1 - _ratio(best)) else None


def adviser(summary: Summary, won: Tried, chosen: Finding | None) -> Finding | None:
    """Return the finding that advises a change: the chosen one if it does, else the first of the others."""
    advising = (f for f in (chosen, *(summary.findings or ())) if f is not None and f.verdict == "found")
    return next((f for f in advising if f.code in won.codes), None)


def with_measured_change(answer: Answer, won: Tried, adviser: Finding | None, index: int | None) -> Answer:
    """Return the answer with the change that won as what to do; ``adviser`` is its finding, at ``index`` among the findings."""
    now, ratio = answer.now_ns, _ratio(won)
    if now is None or won.now_ns is None or won.low_ns is None or won.high_ns is None:
        return answer
    then, low, high = (round(now * part) for part in (ratio, won.low_ns / won.now_ns, won.high_ns / won.now_ns))
    file, _, line = won.place.rpartition(":")
    where = {"file": file, "line": line} if file else dict(adviser.where) if adviser else {}
    text = won.does or won.change
    do = Action(
        f"{text[:1].upper()}{text[1:]}" if text.split()[0].isalpha() else f"Use {text}",
        adviser.code if adviser else "",
        finding=index,
        paste=won.paste,
        where=where,
        condition=won.beware,
        saving_ns=now - then,
    )
    both = f"{units.duration(won.now_ns)} to {units.duration(won.then_ns or 0)} a step"
    how = "without the profiler" if won.by == "try" else "from a recording before the change and one after it"
    reason = f"Measured by nsysx {won.by} on this program, {how}: {both}."
    cause = tuple(s for s in answer.certainty.parts if s.about not in ("How much", certainty.GAINED))
    return replace(
        answer,
        do=(do,),
        then_ns=then,
        then_low_ns=low,
        then_high_ns=high,
        bound=False,
        replayed_ns=None,
        times=(now / high, now / low) if low and high else (),
        worth=f"saves {units.duration(now - then)}",
        certainty=Certainty("certain", reason, (*cause, Sure("How much", "certain", reason))),
    )

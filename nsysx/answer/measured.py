"""What trying changes of the answer: a change that did not help is not advised, and the one that helped most is, with what it gave.

A measurement on the program itself goes before any prediction. ``nsysx try`` measures without a profiler, so its ratio holds for the
step as it is told here.
"""

from __future__ import annotations

import re
from dataclasses import replace

from nsysx import units
from nsysx.advice import Action, Answer, Certainty, Sure, Tried
from nsysx.model import Finding, Summary

#: An argument of a call by name, which tells two ways of one call apart: mode="reduce-overhead".
_ARGUMENT = re.compile(r"\b(\w+)=([\w.\"'-]+)")
_CALLED = re.compile(r"(\w+)\(")


def _made(paste: str) -> frozenset[object]:
    """Return what lines make: the functions that they call, and with which arguments by name, whatever the variables are called."""
    code = re.sub(r"#.*", "", paste)
    return frozenset((*_CALLED.findall(code), *_ARGUMENT.findall(code)))


def refuted(summary: Summary, finding: Finding) -> bool:
    """Return whether what a finding advises was tried on this program and did not make it faster."""
    wanted = _made(finding.paste)
    if not wanted:
        return False
    same = [t for t in summary.tried if finding.code in t.codes and _made(t.paste) == wanted]
    return any(t.verdict in ("slower", "same", "fails") for t in same) and not any(t.verdict == "faster" for t in same)


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


def told(answer: Answer, won: Tried, adviser: Finding | None, index: int | None) -> Answer:
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
        index,
        won.paste,
        where,
        won.beware,
        saving_ns=now - then,
    )
    both = f"{units.duration(won.now_ns)} to {units.duration(won.then_ns or 0)} a step"
    reason = f"Measured by nsysx try on this program, without the profiler: {both}."
    cause = tuple(s for s in answer.certainty.parts if s.about != "How much")
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

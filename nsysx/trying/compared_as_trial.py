"""A comparison of recordings as a change that was tried: the other way to learn what a change gives."""

from __future__ import annotations

from nsysx import findings
from nsysx.advice import Tried
from nsysx.comparing.difference_answer import Comparison
from nsysx.inject.nsysx_probe import changes


def tried_of(answer: Comparison, change: str) -> Tried:
    """Return what a comparison says of a change; ``change`` is the name of a remedy, or names with commas between.

    The times are those of the recorded steps, of which the verdict is.
    """
    names = change.split(",")
    every_change = changes.changes_by_name()
    made = [every_change[name] for name in names if name in every_change]
    low, high = (None if end is None else answer.before_ns + end for end in (answer.low_ns, answer.high_ns))
    return Tried(
        change,
        answer.verdict,  # type: ignore[arg-type]  # its words are among those of a verdict
        now_ns=answer.before_ns,
        then_ns=answer.after_ns,
        low_ns=low,
        high_ns=high,
        codes=tuple(dict.fromkeys(code for name in names for code in findings.codes_of(name))),
        other_results=False,
        reason="",
        place="",
        does=" and ".join(c.does for c in made),
        paste="\n".join(c.paste for c in made if c.paste),
        beware="; ".join(c.beware for c in made if c.beware),
        by="compare",
    )

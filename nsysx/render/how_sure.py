"""How sure one half of the answer is, in one line: the cause or the size, how sure, and why."""

from __future__ import annotations

from nsysx.advice import Sure


def half_line(sure: Sure, why: str) -> tuple[str, str]:
    """Return which half is how sure, as "Cause certain", and ``why``, one sentence, without what those words say already."""
    why = why.removeprefix("Low confidence in size, because ")
    return f"{'Size' if sure.about == 'How much' else 'Cause'} {sure.level}", f"{why[:1].upper()}{why[1:]}"

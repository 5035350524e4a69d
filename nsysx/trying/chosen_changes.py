"""Which changes are tried, and in which order."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from nsysx.advice import Answer
from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.inject.nsysx_probe.changes import Change
from nsysx.trying.result import ChangeTrial
from nsysx.trying.trial_bounds import MOST_TRIED_REMEDIES

if TYPE_CHECKING:  # changes are tried where nothing can read a report
    from nsysx.model import Finding

#: Not tried unless it is asked for.
_ONLY_ASKED = frozenset(("nothing",))


def named(names: Sequence[str], every_change: Mapping[str, Change]) -> list[tuple[Change, ...]]:
    """Return the changes of ``--change``. Raises NsysxError, exit code 2, for a name that does not exist."""
    return [
        tuple(_change_by_name(name.strip(), every_change) for name in word.split(",")) for word in dict.fromkeys(names)
    ]


def _change_by_name(name: str, every_change: Mapping[str, Change]) -> Change:
    if name in every_change:
        return every_change[name]
    near = difflib.get_close_matches(name, every_change, 1)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise NsysxError(
        f"--change {name}: no such change", slug="try-change", hint=f"{hint}nsysx try --list has all", exit_code=EXIT_USAGE
    )  # fmt: skip


def codes(answer: Answer) -> list[str]:
    """Return the codes of the findings that an answer acts on, then those of the others, as the page has them."""
    every = [*(action.code for action in answer.do), *(also.code for also in answer.also)]
    return list(dict.fromkeys(code for code in every if code))


def remedies_to_try(finding: Finding, every_change: Iterable[str]) -> list[str]:
    """Return the names of those remedies of a finding that are changes that can be made, and were not made in vain before."""
    existing = frozenset(every_change)
    return [remedy.name for remedy in finding.remedies if not remedy.refuted and remedy.parts <= existing]


def can_try_advice(answer: Answer, findings: Sequence[Finding], every_change: Iterable[str]) -> bool:
    """Return whether the change that the answer ends with can be made in the running program."""
    index = answer.do[-1].finding if answer.do else None
    return index is not None and index < len(findings) and bool(remedies_to_try(findings[index], every_change))


def remedies(
    answer: Answer, findings: Sequence[Finding], every_change: Mapping[str, Change]
) -> list[tuple[Change, ...]]:
    """Return the remedies of a report in the order of their worth, as far as they can be tried: three at most, each once.

    Of the findings that the answer names; a remedy of several changes is tried as one.
    """
    places = [*(action.finding for action in reversed(answer.do)), *(also.finding for also in answer.also)]
    named = [findings[index] for index in places if index is not None and index < len(findings)]
    possible = list(dict.fromkeys(name for finding in named for name in remedies_to_try(finding, every_change)))
    return [tuple(every_change[part] for part in name.split(",")) for name in possible[:MOST_TRIED_REMEDIES]]


def advised(
    wanted: Sequence[str], every_change: Mapping[str, Change], *, bounds: bool = False
) -> list[tuple[Change, ...]]:
    """Return the changes that findings advise, those of the first finding first; bounds are last, and only if asked for."""
    from nsysx import findings  # rules read reports, with polars: without a report a change is tried without it

    order: dict[str, Change] = {}
    for code in wanted:
        named = findings.tries(code)
        order |= {name: change for name, change in every_change.items() if name in named and name not in order}
    return _real_first(order.values(), bounds=bounds)


def every(every_change: Mapping[str, Change], *, bounds: bool = False) -> list[tuple[Change, ...]]:
    """Return all changes that are tried without a report; bounds are last, and only if asked for."""
    return _real_first((c for c in every_change.values() if c.name not in _ONLY_ASKED), bounds=bounds)


def _real_first(changes: Iterable[Change], *, bounds: bool) -> list[tuple[Change, ...]]:
    order = sorted(changes, key=lambda c: c.alters == "computation")
    return [(change,) for change in order if bounds or change.alters != "computation"]


def _codes_of(changes: Sequence[Change]) -> list[str]:
    """Return the codes of the findings that advise these changes; none without polars, which the rules need and measuring does not."""
    try:
        from nsysx.findings import codes_of
    except ImportError:  # results are joined by the names of changes
        return []
    return list(dict.fromkeys(code for change in changes for code in codes_of(change.name)))


def untried(changes: Sequence[Change], advised: Sequence[str]) -> ChangeTrial:
    """Return the record of a change, or of several at once, before it is tried; ``advised`` are the codes of a report."""
    alters = next((a for a in ("computation", "numerics", "memory") if any(c.alters == a for c in changes)), "speed")
    codes = _codes_of(changes)
    return ChangeTrial(
        ",".join(c.name for c in changes), " and ".join(c.does for c in changes), alters=alters,
        beware="; ".join(c.beware for c in changes if c.beware), paste="\n".join(c.paste for c in changes if c.paste),
        advised=any(code in advised for code in codes),
        findings=codes,
    )  # fmt: skip

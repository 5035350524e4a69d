"""Rounds of an iteration that need one another, each of which the host reads a value of to see whether it was the last: a solver.

They cannot be one batch. What the host asks can be asked in some of them: the others are launched ahead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import Call, StepPart
from nsysx.events.operator_flow import flow_of
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.profile import Profile
from nsysx.events.rounds_in_sequence import in_sequence
from nsysx.events.trend import ordinal
from nsysx.findings._case import Case, Fix, Rule, ops_of, way
from nsysx.findings._finding_bounds import FEWEST_CHECKED_ROUNDS, MOST_UNCHECKED_ROUNDS, REPORTED_SHARE
from nsysx.findings._found import Found
from nsysx.findings._loop_texts import loop_around
from nsysx.findings._once import Takes, began_in
from nsysx.frames.intervals import I64
from nsysx.judging import waiting
from nsysx.model import Finding
from nsysx.replay.engine import RemoveOps, RemoveWaits

#: A line that goes on, or ends, by a comparison; its end where what it does stands behind it.
_CHECK = re.compile(
    r"^(?P<kind>if|while)\b\s*(?P<asks>.*?[<>].*?|.*\b(?:isclose|allclose|isfinite|isnan)\(.*?)\s*:"
    r"(?P<then>\s*(?:break|return\b.*))?$"
)
_COUNTS = re.compile(r"\bin\s+(?:\w*range|count)\(")


class RoundCheck(NamedTuple):
    """A line that checks in each round whether it was the last: its text, the calls that read a value there, and those of the rounds."""

    text: re.Match[str]
    reads: I64
    rounds: I64


Checks = Mapping[tuple[str | None, int | None], RoundCheck]


def checks(profile: Profile) -> Checks:
    """Return file and line -> the check there, of rounds most of whose work needs a result of a round before."""
    return profile.once(_checks)


def is_check(profile: Profile, row: Mapping[str, Any]) -> bool:
    """Return whether a place (``file``, ``line``) is such a line."""
    return (row.get("file"), row.get("line")) in checks(profile)


def _checks(profile: Profile) -> Checks:
    code, source, flow, of_calls = profile.code(), texts(profile), flow_of(profile), operator_of_calls(profile)
    if code is None or flow is None or of_calls is None:
        return {}
    waited = profile.once(waiting.waits).calls
    waited = waited.filter((waited["asks"] == waiting.VALUE) & waited["call"].is_not_null()).sort("call")
    at_line = code.places_of(code.call[waited["call"].to_numpy()])
    row = of_calls.within(flow, gradients=False)
    launching = profile.steady_calls["call"].filter(profile.steady_calls["kind"].is_in(Call.LAUNCHES)).sort().to_numpy()
    by_line = {}
    for line_row in np.unique(at_line[at_line >= 0]).tolist():
        file, line, _ = code.places.row(line_row)
        text = _CHECK.match(text_of(source, file, line) or "")
        theirs = waited.filter(pl.Series(at_line == line_row, dtype=pl.Boolean))
        reads, step = theirs["call"].to_numpy(), theirs["index"].fill_null(-1).to_numpy()
        if text is None or len(reads) < FEWEST_CHECKED_ROUNDS * max(profile.scope.steps, 1):
            continue
        behind = np.searchsorted(reads, launching)  # calls are numbered by thread and time
        between = (
            (behind > 0)
            & (behind < len(reads))
            & (step[behind.clip(1, len(reads) - 1)] == step[behind.clip(1, len(reads)) - 1])
        )
        theirs_in_flow, ends = np.unique(row[launching[between]]), np.unique(row[reads])
        within = np.zeros(len(flow.names), np.bool_)
        within[theirs_in_flow[theirs_in_flow >= 0]] = True
        if in_sequence(flow, within, flow.start_ns[ends[ends >= 0]]):
            by_line[file, line] = RoundCheck(text, reads, launching[between])
    return by_line


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding about each line that checks whether a round was the last, where it is worth 5 % of the step to ask more rarely."""
    findings = []
    copied = case.ops.filter((case.ops["op_kind"] == "memcpy") & (case.ops["name"] == "DtoH"))
    for (file, line), check in checks(case.profile).items():
        calls = frozenset(check.reads.tolist())
        copies = copied.filter(copied["call"].is_in([*calls, *(call - 1 for call in calls)]).fill_null(value=False))
        often = max(copies.height, 1) / case.steps
        worth = case.worth(RemoveWaits(calls), RemoveOps(ops_of(copies)), cause=(*rule.cause, StepPart.COPY))
        if worth.likely_ns is None:
            continue
        works = case.ops.filter(case.ops["call"].is_in(check.rounds.tolist()).fill_null(value=False))
        each = case.per_step(int((works["end_ns"] - works["start_ns"]).sum())) / often
        # Of n rounds one asks, and (n - 1) / 2 run in vain: that is worth most for this n.
        every = round(min(max(math.sqrt(2 * max(worth.likely_ns, 0) / max(each, 1)), 2), MOST_UNCHECKED_ROUNDS))
        likely = round(worth.likely_ns * (1 - 1 / every) - (every - 1) / 2 * each)
        if not case.notable(likely, REPORTED_SHARE):
            continue
        more = units.duration(round((every - 1) * each))
        why = f"{worth.confidence}; all reads but one in {every} go, and up to {every - 1} rounds more ({more}) run"
        worth = replace(worth, likely_ns=likely, most_ns=max(worth.most_ns or 0, worth.likely_ns), confidence=why)
        waited = case.calls.filter(case.calls["call"].is_in(list(calls)))
        held = case.per_step(int((waited["end_ns"] - waited["start_ns"]).sum()))
        title = (
            f"{often:.0f} rounds {case.per} are each read back to see whether it was the last: none is launched ahead"
        )
        detail = (
            f"Each round needs the results of the one before it, and the host waits here for {units.duration(held)} {case.per}; then "
            "the GPU has nothing to do until the next launches."
        )
        where, takes = {"file": file, "line": line}, Takes(ops_of(copies), began_in(case.idle, calls))
        fix = _fix(check.text, _number(texts(case.profile), file, line), often, every, more)
        cost = case.per_step(
            float(case.idle.filter(case.idle["began_in"].is_in(list(calls)).fill_null(value=False))["real_ns"].sum())
        )
        findings.append(
            Found(
                rule, title, detail, worth=worth, cost_ns=cost, where=where, fix=fix, calls=calls, takes=takes
            ).as_finding(case)
        )
    return findings


def _number(source: Mapping[str, Any], file: str | None, line: int | None) -> str:
    """Return the variable that counts the rounds of the loop around a line; "k" where none does."""
    of_file = source.get(file or "")
    loop = loop_around(of_file, line or 0) if isinstance(of_file, Mapping) else None
    if loop is None or not _COUNTS.search(loop.header) or loop.number in ("", "_"):
        return "k"
    return loop.number


def _fix(check: re.Match[str], number: str, often: float, every: int, more: str) -> Fix:
    asks, then = check["asks"], (check["then"] or "").strip()
    text = (
        f"Ask in every {ordinal(every)} round alone whether it was the last: {often:.0f} times a step the "
        "host reads this value, and launches nothing until it has it"
    )
    bracketed = f"({asks})" if re.search(r"\bor\b", asks) else asks
    paste = f"if {number} % {every} == {every - 1} and {bracketed}:{f' {then}' if then else ''}  # {number} counts the rounds"
    if check["kind"] == "while":
        paste = f"while {number} % {every} or ({asks}):  # {number} counts the rounds, from 0 on"
    return Fix.by_name(
        way(
            "checked-in-some-rounds", text, paste, f"Up to {every - 1} rounds more run ({more}): they only come nearer."
        )
    )

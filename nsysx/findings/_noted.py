"""The lines of an X-ray that hold the CPU while the GPU waits, each with what can be done about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePath

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses import lines
from nsysx.catalogue import Call, Part
from nsysx.events.attribute import IN_STEP
from nsysx.events.lines import Lines
from nsysx.findings import _line_remedies
from nsysx.findings._case import Case, Rule, Saving
from nsysx.findings._held import guilty
from nsysx.findings._lines import by_line, share_of
from nsysx.findings._once import Takes
from nsysx.model import Finding
from nsysx.replay.engine import Fuse

#: Most lines that are named.
_LINES = 5
#: A remedy takes most of a line's time, not always all of it (share of it that may stay).
_MAY_STAY = 0.2


def found(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding for each line that costs 1 % of the step or more, and is not just launching; the costliest first."""
    code = case.profile.code()
    assert code is not None
    noted = by_line(case.profile).filter(pl.col("host"), pl.col("place") >= 0)
    costs = noted.group_by("place").agg(pl.col("real_ns").sum()).sort("real_ns", "place", descending=[True, False])
    rows = {(r["file"], r["line"], r["function"]): r for r in case.of(lines.ROWS)}
    loads, busy = _per_step(case, code, (Call.LOAD,)), set(guilty(case.profile).tolist())
    findings: list[Finding] = []
    for line_row, ns in costs.iter_rows():
        cost = min(case.per_step(ns), case.taken_by(rule.cause))
        if not case.notable(cost) or len(findings) == _LINES:
            break
        row = rows.get(code.places.row(line_row))
        if row is None:
            continue
        launches, text = row["launches"] / case.steps, str(row["text"] or "").partition("  #")[0]
        looping = _looping(case, code, line_row)
        if line_row not in busy and not looping:
            continue
        seen = _line_remedies.Seen(text, loads.get(line_row, 0), launches, row["waits"] / case.steps)
        findings += _one(case, rule, line_row, row, cost, seen, () if line_row in busy else looping)
    return findings


def _one(
    case: Case,
    rule: Rule,
    line_row: int,
    row: lines.LineRow,
    cost: int,
    seen: _line_remedies.Seen,
    looping: Iterable[int],
) -> list[Finding]:
    fix, calls = _line_remedies.fix_of(seen), frozenset(looping)
    if fix is None and calls:
        return []
    host = max(case.per_step(row["host_self_ns"]), cost)
    if calls:
        worth = case.worth(Fuse(calls), cause=rule.cause)
        if not case.notable(worth.likely_ns or 0):
            return []
    elif fix is None:
        worth = case.bound(cost, "the time the GPU idles while this line runs; what of it can go is not known")
    else:
        why = "the time the GPU idles while this line runs"
        saving = min(cost, case.step_ns)
        most = max(saving, case.taken_by(part for part in Part if part.idle))
        worth = Saving(saving, why, error_ns=round(_MAY_STAY * cost), most_ns=most, source="time")
    there = f"{PurePath(str(row['file'])).name}:{row['line']}"
    called = f" `{_line_remedies.quoted(seen.text)}`" if seen.text else f" {row['function']}"
    title = f"{there}{called} holds the CPU for {units.duration(host)} {case.per}; the GPU idles {units.duration(cost)}"
    noted = f"The X-ray noted this line{f': {seen.text}' * bool(seen.text)}."
    detail = (
        f"{noted} Outside of all modules it makes {seen.launches:.0f} launches in a step, while the GPU idles {units.duration(cost)}."
        if calls
        else f"{noted} It takes {units.duration(host)} of the host's time {case.per}, {units.duration(cost)} of that while the GPU has "
        f"nothing to do. It launches {seen.launches:.3g} kernels in a step: fewer launches would not shorten it."
    )
    if seen.loads >= 1:
        detail += f" {units.several(round(seen.loads), 'kernel')} {case.per} are built and loaded there: sizes are new in each step."
    where = {"file": row["file"], "line": row["line"]}
    takes = Takes(idle=share_of(case.profile, line_row))
    advice = fix or _line_remedies.ANY
    return [case.found(rule, title, detail, worth=worth, cost_ns=cost, where=where, fix=advice, takes=takes)]


def _per_step(case: Case, code: Lines, kinds: Iterable[str]) -> dict[int, float]:
    """Return place -> how many calls of some kinds it makes in a step."""
    calls = case.calls["call"].filter(case.calls["kind"].is_in(list(kinds))).to_numpy()
    line_row, often = np.unique(code.places_of(code.call[calls]), return_counts=True)
    return dict(zip(line_row.tolist(), (often / case.steps).tolist(), strict=True))


def _looping(case: Case, code: Lines, line_row: int) -> frozenset[int]:
    """Return the launches of a line outside of all modules and phases, empty where they are too few for a loop."""
    calls = case.calls.filter(case.calls["kind"].is_in(Call.LAUNCHES))
    outside = calls["phase"].is_null() & (calls["module"].cast(pl.String).fill_null(IN_STEP) == IN_STEP)
    theirs = calls["call"].filter(outside & pl.Series(code.places_of(code.call[calls["call"].to_numpy()]) == line_row))
    return frozenset(theirs.to_list()) if len(theirs) >= _line_remedies.LOOPS * case.steps else frozenset()


#: Rules whose findings about the time of a line are that line's, and the share of their time from which they are.
_OF_A_LINE, _MOSTLY = ("NSX114",), 0.6


def folded(case: Case, findings: list[Finding], code: str) -> list[Finding]:
    """Return findings with those about the same time as a line (rule ``code``) told with the line: two about one time are one."""
    if case.profile.code() is None or case.device is None:
        return findings
    kept = [f for f in findings if f.verdict == "found"]
    named = [f for f in kept if f.code == code]
    real = case.idle["real_ns"].to_numpy().astype(np.float64)
    gone: set[int] = set()
    for finding in named:
        own_share, also = np.asarray(case.claims.takes(finding).idle, np.float64), []
        for other in kept:
            if id(other) in gone or other.code == code:
                continue
            theirs = case.claims.takes(other).idle
            if other.code in _OF_A_LINE and theirs is not None:
                share = np.asarray(theirs, np.float64) * real
                if float(np.minimum(own_share, theirs) @ real) >= _MOSTLY * max(float(share.sum()), 1.0):
                    gone.add(id(other))
                    also.append(other.title)
            elif other.code == "NSX101" and _same_line(finding, other):
                more = (other.saving.likely_ns or 0) > (finding.saving.likely_ns or 0)
                gone.add(id(finding if more else other))
                also += [] if more else [other.title]
        if also:
            told = replace(finding, detail=f"{finding.detail} The same time: {'; '.join(also)}.")
            findings = [case.claims.instead(finding, told) if f is finding else f for f in findings]
    return [f for f in findings if id(f) not in gone]


def _same_line(named: Finding, other: Finding) -> bool:
    return all(
        named.where.get(key) is not None and named.where.get(key) == other.where.get(key) for key in ("file", "line")
    )

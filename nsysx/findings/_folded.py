"""Findings about the same time as a line that holds the CPU, told with that line."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nsysx.findings._case import Case
from nsysx.findings._finding_bounds import OF_NOTED_LINE_SHARE
from nsysx.findings._once import taken_by
from nsysx.model import Finding


def folded(case: Case, findings: list[Finding], code: str) -> list[Finding]:
    """Return findings with those about the same time as a line (rule ``code``) told with the line: two about one time are one."""
    if case.profile.code() is None or case.device is None:
        return findings
    kept = [f for f in findings if f.verdict == "found"]
    named = [f for f in kept if f.code == code]
    real = case.idle["real_ns"].to_numpy().astype(np.float64)
    gone: set[int] = set()
    for finding in named:
        own_share, also = np.asarray(taken_by(finding).idle, np.float64), []
        for other in kept:
            if id(other) in gone or other.code == code:
                continue
            theirs = taken_by(other).idle
            if other.code == "NSX114" and theirs is not None:
                share = np.asarray(theirs, np.float64) * real
                mostly = float(np.minimum(own_share, theirs) @ real) >= OF_NOTED_LINE_SHARE * max(
                    float(share.sum()), 1.0
                )
                if mostly or _same_line(finding, other):
                    gone.add(id(other))
                    also.append(other.title)
            elif other.code == "NSX101" and _same_line(finding, other):
                more = (other.saving.likely_ns or 0) > (finding.saving.likely_ns or 0)
                gone.add(id(finding if more else other))
                also += [] if more else [other.title]
        if also:
            told = replace(finding, detail=f"{finding.detail} Other findings about this time: {'; '.join(also)}.")
            findings = [told if f is finding else f for f in findings]
    return [f for f in findings if id(f) not in gone]


def _same_line(named: Finding, other: Finding) -> bool:
    return all(
        named.where.get(key) is not None and named.where.get(key) == other.where.get(key) for key in ("file", "line")
    )

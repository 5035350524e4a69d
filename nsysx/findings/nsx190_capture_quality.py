"""NSX190 capture-quality: the capture lacks something, so part of this report cannot be trusted.

What it means
    Rows were lost, ranges never arrived, GPU work has no call, graphs are opaque, steps were not found, or the profiled
    program failed. Each line says what would fix it. Record again before you act on the figures that it affects.

In the trace
    Empty tables, launches without kernels, messages from nsys about dropped events.

Bad
    nsys profile python train.py                       # 20 minutes, osrt, no steps, no ranges

Good
    nsysx run -- python train.py                       # the cold start and 24 steady steps

Harmless when
    The line is about something that you do not need.
"""

from __future__ import annotations

from nsysx.findings._case import NO_SAVING, Case, Rule
from nsysx.findings._found import Found
from nsysx.judging import capture_checks
from nsysx.model import Finding

RULE = Rule("NSX190", "capture-quality", "Quality of the capture", about="capture")
#: Missing these says what was asked for, not how well it was recorded.
_OPTIONAL = ("replay", "ranks")


def check(case: Case) -> list[Finding]:
    """Return one finding that lists every check that is not ok."""
    checks = capture_checks.checks(case.profile)
    bad = [c for c in checks if c.status != "ok" and c.check not in _OPTIONAL]
    if not bad:
        return case.clear(RULE, "the capture passes every check")
    first = bad[0]
    more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
    title = f"Capture checks not passed: {first.check}{more}"
    evidence = [{"check": c.check, "status": c.status, "detail": c.detail, "fix": c.fix} for c in bad]
    return [
        Found(RULE, title, first.detail, worth=NO_SAVING, cost_ns=None, fix=first.fix, evidence=evidence).as_finding(
            case
        )
    ]

"""What it is worth if split layers hand on plain tensors, where every operator between them goes through a subclass (DTensor)."""

from __future__ import annotations

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.events.operator_flow import flow_of
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.passed_operators import passed_on
from nsysx.findings._case import Case, Fix, Saving
from nsysx.findings._finding_bounds import LAUNCH_BOUND_SHARE
from nsysx.findings._flow_work import launching_operators
from nsysx.replay.edits import RemoveHost


def plain_tensors(case: Case) -> tuple[Fix, Saving] | None:
    """Return the advice and the most that it saves: of the host code before what these operators launch the part that passes them on."""
    flow, of_calls = flow_of(case.profile), operator_of_calls(case.profile)
    if flow is None or of_calls is None or case.program.compiled:
        return None
    passed = passed_on(flow)
    if not passed.rows:
        return None
    calls = case.calls["call"].to_numpy()[launching_operators(case, flow, passed.rows, of_calls) >= 0]
    if not len(calls):
        return None
    edit = RemoveHost(frozenset(calls.tolist()), leading=True, share=passed.share)
    worth = case.worth(edit, cause=(StepPart.HOST, StepPart.LAUNCH), bound=True)
    if not case.notable(worth.likely_ns or 0, LAUNCH_BOUND_SHARE):
        return None
    fix = Fix.by_name("local-outputs")
    text = f"{fix.text}: {units.share(passed.share, 1)} of the host's time in {len(passed.rows)} operators of a step"
    return fix.but(text=text), worth

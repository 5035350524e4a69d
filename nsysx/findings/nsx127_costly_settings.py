"""NSX127 costly-settings: settings that cost time and give nothing while training runs well.

What it means
    A switch, a variable of the environment or an option of a wrapper is on, or off, that was meant for debugging or for another
    program. The probe reads it inside the program, so that the cause is certain. What it costs is replayed where the capture
    shows it; else the change has to be tried.

In the trace
    Mostly nothing that says so: launches as long as their kernels (CUDA_LAUNCH_BLOCKING), a read-back after each operator of
    backward (anomaly detection), an all-reduce in each micro-step.

Bad
    torch.autograd.set_detect_anomaly(True)            # left on after a NaN was found

Good
    torch.autograd.set_detect_anomaly(False)

Harmless when
    You need it: for runs that are alike bit for bit, or while you look for a NaN.
"""

from __future__ import annotations

from dataclasses import replace

from nsysx import units
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix, Rule, Saving
from nsysx.findings._costly import SETTINGS
from nsysx.findings._costly_setting import Costly
from nsysx.findings._costly_when import UNKNOWN
from nsysx.findings._found import Found
from nsysx.model import Finding, Row

RULE = Rule(
    "NSX127",
    "costly-settings",
    "Settings that only cost time",
    direct=3,
    rests_on="Seen in the running program",
)


def check(case: Case) -> list[Finding]:
    """Return a finding for each setting that costs, those that matter most first."""
    settings = settings_of(case.profile)
    if settings is None:
        seen = [(each, text) for each in SETTINGS if each.seen is not None and (text := each.seen(case))]
    else:
        seen = [(each, text) for each in SETTINGS if (text := each.when(case, settings))]
    priced = [
        (each, text, each.worth(case, settings) if each.worth is not None and not case.stepless else None)
        for each, text in seen
    ]
    places = [{} if settings is None else settings.place(*each.set_by) for each, _ in seen]
    findings = [
        f
        for (each, text, replayed), set_at in zip(priced, places, strict=True)
        if (f := _finding(case, each, text, replayed, set_at)) is not None
    ]
    if findings or settings is not None:
        return findings or case.clear(RULE, _none_costs(len(seen)))
    return case.cannot_tell(RULE, "the settings of the program were not read", "nsysx run -- CMD")


def _none_costs(on: int) -> str:
    """Return that no setting costs time, of so many that are on."""
    if not on:
        return f"none of {len(SETTINGS)} settings that only cost time is on"
    are = "is" if on == 1 else "are"
    return f"{on} of {len(SETTINGS)} settings that may cost time {are} on, for less than 1 % of the step by the replay"


def _finding(case: Case, each: Costly, text: str, replayed: Saving | None, set_at: Row) -> Finding | None:
    """Return the finding about a setting, None where the replay shows that it costs nothing."""
    worth = Saving(None, UNKNOWN)
    if replayed is not None:
        if replayed.likely_ns is not None and not case.notable(replayed.likely_ns):
            return None
        worth = (
            replayed
            if replayed.likely_ns is not None or each.fewer_steps
            else Saving(None, f"{UNKNOWN} ({replayed.confidence})")
        )
    title, remedy = (each.title, each.remedy) if each.worded is None else each.worded(case, each.title, each.remedy)
    fix = Fix.by_name(remedy if case.program.python else replace(remedy, text=each.anywhere or remedy.text))
    if each.need is not None and each.need.test(case)[0] == "violated":
        fix = replace(fix, needs=(each.need,))
    # What is about certain work, none of which was seen, may cost nothing.
    leads = each.leads and (each.takes is None or replayed is not None) and not (each.yields and each.yields(case))
    return Found(
        RULE,
        title,
        f"{units.capitalized(text)}.",
        worth=worth,
        cost_ns=worth.likely_ns,
        fix=fix,
        where={"phase": each.phase, "near": each.place, **set_at, **(each.at(case) if each.at is not None else {})},
        takes=None if each.takes is None else each.takes(case),
        evidence=[
            {
                "setting": each.name,
                "seen": text,
                "leads": leads,
                "oversight": each.oversight,
                **({"fewer_steps": True} if each.fewer_steps else {}),
                "set_in_program": bool(set_at),
            }
        ],
    ).as_finding(case)

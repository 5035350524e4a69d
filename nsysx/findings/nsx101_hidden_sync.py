"""NSX101 hidden-sync: a call makes the CPU wait until the GPU has drained its queue.

What it means
    The program asked for a value or a size that only the GPU knows: .item(), float(t), if t:, nonzero, unique, a boolean
    mask, .cpu(), print(t). The CPU stalls until the GPU gets there, and then the GPU may stall until the CPU has launched
    the next work. Only the second half costs time, and the length of the wait says nothing about it: in a GPU-bound step the
    CPU merely waits here instead of later, and removing the wait moves it to the next such call.
    What counts is the saving, from a replay of the step without this wait; below 1 % of the step, leave it.
    The cost shown is the time the GPU has no work because of the wait, never the length of the wait.
    Distributions of torch that check their arguments wait for each answer (validate_args): all of these are one finding.
    Places that differ only by a number (blocks.0 and blocks.1, token_7 and token_8) are one finding.

In the trace
    A long cudaStreamSynchronize, cudaDeviceSynchronize or a copy to the host, after a short copy or a scan kernel.
    "GPU idle caused" is the idle time of the GPU that began while the thread was in the call.

Bad
    running += loss.item()                    # waits in every step
    rows = mask.nonzero()                     # waits for the number of rows
    if torch.isnan(loss): ...                 # waits for the answer

Good
    running += loss.detach()                  # stays on the GPU; .item() once in 100 steps
    out = torch.where(mask, x, 0)             # fixed shape: nothing to ask for
    loss = F.cross_entropy(y, t, ignore_index=-1)

Harmless when
    The step is GPU-bound and the CPU runs far ahead: the saving is then about zero. Once per epoch or log line is fine.
"""

from __future__ import annotations

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import StepLimit, StepPart
from nsysx.events.frozen_parameters import reads_of_map
from nsysx.findings._case import Case, Fix, Rule, Saving
from nsysx.findings._checked_arguments import checked_arguments, finding_of
from nsysx.findings._checked_rounds import is_check
from nsysx.findings._compressing_hooks import waits_of_hook
from nsysx.findings._found import Found
from nsysx.findings._host_metrics import calls_of_metrics
from nsysx.findings._line_remedies import Seen, fix_of
from nsysx.findings._once import Takes, began_in, edits_without
from nsysx.findings._rates_on_gpu import edits_of_fused, fix_of_rates, reads_by_parameter
from nsysx.findings._read_one_by_one import one_by_one, read_at_once
from nsysx.findings._rounds_of_their_own import are_of_rounds
from nsysx.judging import waiting
from nsysx.model import Finding, Row
from nsysx.replay.engine import RemoveWaits

RULE = Rule(
    "NSX101",
    "hidden-sync",
    "Hidden host synchronization",
    cause=(StepPart.SYNC,),
    about=StepLimit.SYNC,
    tries=("no-synchronize", "bound-reads"),
)
REQUIRES = ("waits",)
_KEEP, _SELECT = Fix.by_name("keep-on-gpu"), Fix.by_name("fixed-shape")
_AT_ONCE = Fix.by_name("read-at-once")
_CHECKED = Fix.by_name("checked-rarely")
_SYNCHRONIZE, _ORDER = Fix.by_name("no-synchronize"), Fix.by_name("order-streams")


def _fix(case: Case, row: Row) -> Fix:
    """Return what to change, by what the wait is for: a value, a size, or nothing that the program reads."""
    if not case.program.python and not case.program.torch:
        return Fix("Launch the next work before this wait, and wait only where the result is needed")
    if row["asks"] == waiting.NOTHING:
        return _SYNCHRONIZE if "Stream" not in row["api"] and "Event" not in row["api"] else _ORDER
    if row["asks"] == waiting.SIZE:
        return _SELECT
    return _CHECKED if _checks(case, row) else _KEEP


def _checks(case: Case, row: Row) -> bool:
    """Return whether the line of a wait only checks something, such as whether each module's output is finite."""
    text = text_of(texts(case.profile), row["file"], row["line"]) if row["file"] else None
    return fix_of(Seen(text or ""), frozenset({"checked-rarely"})) is not None


def _without_check(case: Case, row: Row, worth: Saving) -> Saving:
    """Return what it saves if a line that checks something does not run, what it computes for that included."""
    code = case.profile.code()
    if code is None or not _checks(case, row):
        return worth
    here = [n for n in range(code.places.height) if code.places.row(n)[:2] == (row["file"], row["line"])]
    rarely = case.worth(*edits_without(code.made_at(case.calls, here), case.ops))
    return rarely if (rarely.likely_ns or 0) > (worth.likely_ns or 0) else worth


_WAIT = {
    waiting.NOTHING: "An explicit host sync",
    waiting.VALUE: "A host sync",
    waiting.SIZE: "A host sync for a size (nonzero, x[mask])",
}
_FOR = {
    waiting.NOTHING: " (an explicit synchronize)",
    waiting.VALUE: " for a value",
    waiting.SIZE: " for the size of a selection (nonzero, x[mask])",
}


def check(case: Case) -> list[Finding]:
    """Return a finding per place that waits, or leaves the GPU idle, for 0.1 % of the step or more in half of the steps."""
    calls, places = case.profile.once(waiting.waits)
    findings: list[Finding] = []
    unknown: list[Row] = []
    checked = checked_arguments(case)
    of_checks = finding_of(case, RULE, checked)
    findings += [of_checks] if of_checks is not None else []
    of_metrics = calls_of_metrics(case)  # NSX123 tells them with the work that the host does behind them
    for row in places.to_dicts():
        if is_check(case.profile, row):  # asked in some rounds, it is still read: NSX126
            continue
        at_site = waiting.at(calls, row)
        if of_checks is not None and 2 * len(at_site & checked.calls) > len(at_site):
            continue
        if are_of_rounds(case.profile, at_site) or (at_site and at_site <= of_metrics):
            continue
        if reads := reads_by_parameter(case, at_site):
            if not any(
                f.fix == fix_of_rates(case, reads).text for f in findings
            ):  # a copy and the wait for it are one read
                findings.append(
                    _finding(case, row, at_site, case.worth(*edits_of_fused(case)), fix_of_rates(case, reads))
                )
            continue
        values = row["asks"] == waiting.VALUE and case.program.torch and one_by_one(case, at_site)
        worth = read_at_once(case, at_site) if values else case.worth(RemoveWaits(at_site), cause=RULE.cause)
        worth = _without_check(case, row, worth) if row["asks"] == waiting.VALUE and not values else worth
        rare = 2 * row["in_steps"] < case.steps
        if not worth.covered and case.notable(case.per_step(row["ns"])):
            unknown.append(row)
        if rare and not case.notable(worth.likely_ns or 0):
            continue
        if case.stepless and not case.notable(row["idle_caused_ns"]):
            continue  # nothing can be replayed, and the wait left the GPU no shorter of work
        findings.append(_finding(case, row, at_site, worth, _AT_ONCE if values else None))
    if not findings and unknown:
        first = unknown[0]
        return case.cannot_tell(
            RULE,
            f"{first['api']} waits {units.duration(case.per_step(first['ns']))} {case.per}, in {first['in_steps']} of {case.steps} steps, "
            "none of them in the replay",
            "nsysx report --steps A:B with the steps in which it waits",
        )
    if not findings:
        return case.clear(
            RULE, "no wait takes 0.1 % of the step in half of the steps or more, or saves 1 % when removed"
        )
    return findings


def _of_ddp(case: Case, row: Row, calls: frozenset[int]) -> str:
    """Return what to do about a wait that DistributedDataParallel itself makes; "" for any other.

    DDP times some of its first steps, and then every hundredth, with events, and waits for them: the program asks for no value. Nor does
    it where DDP looks for unused parameters: behind each backward it reads which of them any rank has used; or where a hook waits.
    """
    if 2 * len(calls & reads_of_map(case.profile)) > len(calls):
        return (
            "DistributedDataParallel reads here which parameters have been used (find_unused_parameters=True): leave that out where every "
            "parameter that requires a gradient gets one, and freeze those that nothing trains before the module is wrapped"
        )
    if 2 * len(calls & waits_of_hook(case.profile)) > len(calls):
        return (
            "The communication hook of DistributedDataParallel waits here, behind each bucket (PowerSGD): the program asks for no value, "
            "and the wait goes with the hook"
        )
    if "EventSynchronize" not in row["api"] or "DistributedDataParallel" not in str(row["module"]):
        return ""
    return (
        "DistributedDataParallel waits here for its own statistics, in its first ten steps and then in every hundredth: capture "
        "later steps, nsysx run --steps 20:30; the program needs no change"
    )


def _finding(case: Case, row: Row, calls: frozenset[int], worth: Saving, at_once: Fix | None) -> Finding:
    wait, idle = case.per_step(row["ns"]), round(case.per_step(row["idle_caused_ns"]) * case.real_part(calls))
    host = case.program.host
    detail = (
        f"{host[:1].upper() + host[1:]} waits in {row['api']} for {units.duration(wait)} {case.per}{_FOR[row['asks']]} "
        f"({case.often(row['calls'], 'call', 'calls')}), {units.duration(case.per_step(row['backlog_ns']))} of it for work queued "
        f"earlier. The wait leaves the GPU idle for {units.duration(case.lost(idle, worth))}."
    )
    harmless = worth.likely_ns is not None and not case.notable(worth.likely_ns)
    if worth.likely_ns is not None:
        detail += (
            f" Without it the step would be {units.duration(worth.likely_ns)} shorter ({case.share(worth.likely_ns)})."
        )
        if worth.moves_to:
            detail += f" The wait would move to {worth.moves_to}."
    if harmless:
        detail += " A wait while the GPU is busy costs nothing: leave it."
        fix = Fix("Leave it: removing it is worth less than 1 % of the step")
    elif own_statistics := _of_ddp(case, row, calls):
        fix = Fix(own_statistics)
    else:
        fix = at_once or _fix(case, row)
    if row["file"] is None and case.program.python:
        fix = fix.but(text=f"{fix.text}; nsysx run records the Python line")
    # The title gives no time where there is a saving: that is its cost, and other causes share the same gaps.
    title = f"{_WAIT[row['asks']]} in {row['api']}{case.in_module(row)} keeps {host} from running ahead of the GPU"
    if at_once is not None:
        title = f"{units.count(round(row['calls'] / case.steps))} values are read one by one {case.per}{case.in_module(row)}"
    if worth.likely_ns is None:
        title = (
            f"{_WAIT[row['asks']]} in {row['api']}{case.in_module(row)} leaves the GPU idle for {units.duration(idle)}"
        )
    if harmless:
        title = f"A host sync of {units.duration(wait)} in {row['api']}{case.in_module(row)} costs next to nothing"
    return Found(
        RULE,
        title,
        detail,
        worth=worth,
        cost_ns=idle,
        where=row,
        fix=fix,
        title_as_recorded=harmless,
        calls=calls,
        takes=Takes(idle=began_in(case.idle, calls)),
    ).as_finding(case)

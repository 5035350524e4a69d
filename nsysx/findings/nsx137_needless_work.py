"""NSX137 needless-work: work whose result is there already, or that nothing reads.

What it means
    A network that is called twice on the same input in one step (for the loss and for a metric, by a helper that does not hand its
    result on) computes the same twice. What begins with nothing that a step changes (masks, grids, filters, what a frozen
    network says of a fixed input) comes out the same in each step. Second outputs, auxiliary heads and averages of attention
    weights are computed even where nobody looks at them; metrics are needed when they are shown.

In the trace
    Operators of an X-ray step, each of which names what made its arguments: calls of a module with the same operators on the same
    tensors; operators without a way back to anything that the step brings; results that no operator, gradient, copy to the host or
    later step takes.

Bad
    loss = criterion(net(x), y)
    accuracy = (net(x).argmax(1) == y).float().mean()            # the network once more

Good
    out = net(x)
    loss = criterion(out, y)
    accuracy = (out.detach().argmax(1) == y).float().mean()

Harmless when
    The network is called with another mode or other Python numbers, or the result is read outside of torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import StepLimit, StepPart
from nsysx.events import thread_roles
from nsysx.events.code_lines import CodeLines
from nsysx.events.needless_operators import fixed_operators, unread_operators
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.repeated_calls import repeated_calls
from nsysx.events.trained_operators import trained_of
from nsysx.findings import nsx135_weights_in_calls
from nsysx.findings._case import Case, Fix, Rule, calls_of, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE, UNSEEN_LAUNCHES_SHARE, WEIGHT_OPERATORS_NAMED
from nsysx.findings._flow_work import copied, in_short, place_of_operator
from nsysx.findings._found import Found
from nsysx.findings._once import Takes, began_in, edits_without
from nsysx.frames.intervals import I64
from nsysx.model import Finding, Row

RULE = Rule(
    "NSX137",
    "needless-work",
    "Work whose result is there already, or that nothing reads",
    cause=(StepPart.WORK, StepPart.HOST, StepPart.LAUNCH),
    about=StepLimit.GPU,
    leads=True,
)
REQUIRES = ("steps", "gpu")


class _Needless(NamedTuple):
    """Operators (outermost rows of the flow) that can go, what they are in words behind their place, why, and where."""

    rows: Sequence[int]
    title: str
    why: str
    fix: Fix
    where: Row


def check(case: Case) -> list[Finding]:
    """Return a finding for each kind of such work at one place that takes 5 % of the step or more."""
    flow, code = flow_of(case.profile), case.profile.code()
    if flow is None or code is None:
        return case.cannot_tell(RULE, "operators were not recorded with what made their arguments", "nsysx run -- CMD")
    of_calls = operator_of_calls(case.profile)
    if of_calls is None or case.program.compiled or _unseen(case, flow):
        return case.cannot_tell(RULE, "what kernels outside of torch's operators read was not recorded")
    within = of_calls.within(flow)
    findings: list[Finding] = []
    gone: set[int] = set()
    for needless in (*_twice(flow, code), *_fixed(case, flow, code), *_unread(case, flow, code)):
        rows = [row for row in needless.rows if row not in gone]
        finding = _found(case, flow, needless._replace(rows=rows), within)
        if finding is not None:
            findings.append(finding)
            gone.update(rows)
    return findings or case.clear(RULE, f"no work that can be left out takes {units.bound(REPORTED_SHARE)} of the step")


def _unseen(case: Case, flow: OperatorFlow) -> bool:
    """Return whether GPU work belongs to no operator of the program's thread, or is another thread's: what it reads is not seen."""
    of_calls, attributed = operator_of_calls(case.profile), case.profile.attributed
    call = case.ops["call"].drop_nulls().to_numpy()
    if of_calls is None or not len(call):
        return True
    thread = attributed.api_calls["thread"].to_numpy()[call]
    theirs = [flow.thread, *(key for key, role in attributed.roles.items() if role == thread_roles.AUTOGRAD)]
    copies = case.ops.filter(case.ops["call"].is_not_null())["op_kind"].cast(pl.String).to_numpy() != "kernel"
    unseen = (thread == flow.thread) & (of_calls.forward[call] < 0) & (of_calls.backward[call] < 0) & ~copies
    return bool((unseen | ~np.isin(thread, theirs)).sum() > UNSEEN_LAUNCHES_SHARE * len(call))


def _found(case: Case, flow: OperatorFlow, needless: _Needless, within: I64) -> Finding | None:
    """Return the finding about operators, None where they take too little."""
    chosen = np.append(np.isin(np.arange(len(flow.names)), list(needless.rows)), False)
    made = case.calls.filter(pl.Series(chosen[within[case.calls["call"].to_numpy()]]))
    calls = calls_of(made)
    if not calls:
        return None
    theirs = case.ops.filter(case.ops["call"].is_in(list(calls)).fill_null(value=False))
    worth = case.worth(*edits_without(made, case.ops), cause=RULE.cause, bound=True)
    if worth.likely_ns is None or not case.notable(worth.likely_ns, REPORTED_SHARE):
        return None
    cost = case.per_step(int((theirs["end_ns"] - theirs["start_ns"]).sum()))
    launching = np.unique(within[made["call"].to_numpy()])
    names = Counter(flow.names[row].removeprefix("aten::") for row in launching.tolist())
    listed = ", ".join(
        f"{name} ({units.several(often, 'time')})" for name, often in names.most_common(WEIGHT_OPERATORS_NAMED)
    )
    detail = (
        f"{needless.why} These are {listed}: {units.duration(cost)} of the GPU's time and "
        f"{len(calls) / case.steps:.0f} calls {case.per}."
    )
    title = f"{needless.title}: up to {units.duration(worth.likely_ns)} {case.per}"
    takes = Takes(ops_of(theirs), idle=began_in(case.idle, calls))
    return Found(
        RULE,
        title,
        detail,
        worth=worth,
        cost_ns=worth.likely_ns,
        fix=needless.fix,
        where=needless.where,
        calls=calls,
        takes=takes,
    ).as_finding(case)


def _twice(flow: OperatorFlow, code: CodeLines) -> Iterator[_Needless]:
    """Yield what calls of modules compute that a call before them has computed."""
    for repeated in repeated_calls(flow):
        first, again = (_calling(code, flow, call.start_ns) for call in repeated)
        rows = flow.outermost_of(repeated.again.first, repeated.again.last)
        before = f" as {in_short(first)} did" if first and first != again else ""
        title = f"{in_short(again) or 'The step'} calls {repeated.again.cls} on the same input{before} again"
        why = "Both calls run the same operators on the same tensors, and nothing has written into any of their sizes in between."
        yield _Needless(rows, title, why, Fix.by_name("result-kept"), again)


def _calling(code: CodeLines, flow: OperatorFlow, start_ns: int) -> Row:
    """Return the line of the program that is at work when a module is called."""
    return place_of_operator(code, flow, np.array([start_ns]))


def _fixed(case: Case, flow: OperatorFlow, code: CodeLines) -> Iterator[_Needless]:
    """Yield what each step makes in the same way from nothing that a step changes, by line."""
    trained = trained_of(case.profile).tolist() or [False] * len(flow.names)
    from_host = copied(case.profile, flow, "HtoD")
    rows = fixed_operators(flow, trained, from_host)
    elsewhere = nsx135_weights_in_calls.needless_rows(case, flow, from_host)
    rows = [row for row in rows if row not in elsewhere]
    for where, theirs in _by_line(code, flow, rows):
        title = f"{in_short(where) or 'The program'} computes the same in each step"
        why = "Nothing that goes into them is of the step, or is trained, drawn or written to."
        yield _Needless(theirs, title, why, Fix.by_name("computed-once"), where)


def _unread(case: Case, flow: OperatorFlow, code: CodeLines) -> Iterator[_Needless]:
    """Yield what a training step computes and nothing reads, or only the host number by number, by line."""
    trained = trained_of(case.profile)
    if not trained.any():
        return
    unread, logged = unread_operators(flow, trained.tolist(), copied(case.profile, flow, "DtoH", many=True))
    for where, theirs in _by_line(code, flow, unread):
        title = f"{in_short(where) or 'The program'} computes what nothing reads"
        why = "No operator, gradient, copy to the host or later step takes their results."
        yield _Needless(theirs, title, why, Fix.by_name("left-out"), where)
    for where, theirs in _by_line(code, flow, logged):
        title = f"{in_short(where) or 'The program'} computes numbers that no gradient needs"
        why = "Only the host reads what comes of them, number by number."
        yield _Needless(theirs, title, why, Fix.by_name("metrics-rarely"), where)


def _by_line(code: CodeLines, flow: OperatorFlow, rows: Sequence[int]) -> Iterator[tuple[Row, list[int]]]:
    """Yield the lines that run these operators, with them."""
    lines: dict[tuple[object, object], tuple[Row, list[int]]] = {}
    for row in rows:
        where = place_of_operator(code, flow, flow.start_ns[[row]])
        lines.setdefault((where.get("file"), where.get("line")), (where, []))[1].append(row)
    yield from lines.values()

"""NSX103 first-call: one-time costs are part of the measurement.

What it means
    The first launch of each kernel loads its code, the first cuBLAS or cuDNN call loads a library, the first allocations fill
    PyTorch's cache, and benchmark modes try several kernels. This takes seconds, once. An average over all steps, or a table
    of API calls over the whole run, charges it to every step.

In the trace
    cuLibraryLoadData, cuModuleLoadData, cudaMalloc and launches of milliseconds, all before the first steady step.

Bad
    start = time.time()
    for batch in loader: train(batch)
    print((time.time() - start) / len(loader))

Good
    for batch in islice(loader, 10): train(batch)      # warm up
    torch.cuda.synchronize(); start = time.perf_counter()
    for batch in islice(loader, 100): train(batch)
    torch.cuda.synchronize(); print((time.perf_counter() - start) / 100)

Harmless when
    The program runs long: the cost is paid once. It matters for short runs, for tests, and for how you read a number.
"""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.analyses import first_calls
from nsysx.analyses.helpers import one_time_cost
from nsysx.catalogue import StepLimit
from nsysx.events.thread_roles import elsewhere
from nsysx.findings._case import NO_SAVING, Case, Rule
from nsysx.findings._finding_bounds import FIRST_CALL_SHARE
from nsysx.findings._found import Found
from nsysx.model import Finding, Row

RULE = Rule(
    "NSX103",
    "first-call",
    "First-call cost in the measurement",
    cost_as_recorded=True,
    about=StepLimit.WARMUP,
    tries=("compile-dynamic",),
)
REQUIRES = ("first_calls",)


def _clock(case: Case) -> tuple[int, int] | None:
    """Return (steps, ns per step) as read by a clock that runs from the first step to the end of the steady ones."""
    steps = case.profile.steps
    begun = steps.cpu.filter((steps.cpu["process"] == steps.process) & (steps.cpu["start_ns"] < case.window[1]))
    if steps.steady is None or not begun.height:
        return None
    count = int(begun.filter(begun["index"] <= steps.steady[1]).height)
    first = begun.select(pl.col("start_ns").min()).item()
    return (count, (case.window[1] - int(first)) // count) if count else None


def check(case: Case) -> list[Finding]:
    """Return a finding where one-time costs take 2 % of the steady steps or more, or of the whole capture if that is shown."""
    costs = one_time_cost.costs(case.profile)
    fix = "Run the first steps before the clock starts, and leave them out of every average"
    if case.profile.steps.whole:
        window = case.window[1] - case.window[0]
        # The table holds all processes, the window is that of one.
        bill = int(costs.filter(costs["process"] == case.process)["one_time_ns"].sum())
        if bill < FIRST_CALL_SHARE * window:
            return case.clear(RULE, "the window holds next to no one-time cost")
        evidence: list[Row] = [
            {"name": r["name"], "what": r["what"], "calls": r["calls"], "one_time_ns": r["one_time_ns"]}
            for r in case.typed_rows(first_calls.ROWS)[:6]
        ]
        title = f"{units.duration(bill)} of CPU time is one-time cost"
        detail = (
            f"The figures cover the whole capture ({units.duration(window)}), warm-up included; "
            f"{units.duration(bill)} of its CPU time was spent only once: loading code, first allocations."
        )
        return [
            Found(
                RULE, title, detail, worth=NO_SAVING, cost_ns=None, fix=fix, evidence=evidence, title_as_recorded=True
            ).as_finding(case)
        ]
    # What another thread pays, such as a loader's that pins memory, is no part of a step.
    aside = elsewhere(costs["thread"], case.profile.attributed.roles).is_not_null()
    costs = costs.filter(case.is_call(costs["call"]) & ~aside)
    inside = case.per_step(int(costs["one_time_ns"].sum()))
    clock = _clock(case)
    sentence = f"{units.duration(first_calls.bill_ns(case.profile))} of CPU time in this run is one-time cost"
    if clock is not None:
        sentence += f"; a clock over the first {clock[0]} steps would read {units.duration(clock[1])} per step"
        sentence += f", the steady step is {units.duration(case.recorded_ns)}"
    if not case.notable(inside, FIRST_CALL_SHARE):
        return case.clear(RULE, f"{sentence}; the steady steps hold {'next to none' if inside else 'none'} of it")
    title = f"Steady steps hold one-time costs, {units.duration(inside)} {case.per}"
    worst = costs.sort("one_time_ns", "call", descending=[True, False]).head(6)
    evidence = [
        {"call": str(name), "kernel": kernel, "one_time_ns": ns}
        for name, kernel, ns in worst["name", "kernel", "one_time_ns"].iter_rows()
    ]
    return [
        Found(
            RULE,
            title,
            f"{sentence}.",
            worth=NO_SAVING,
            cost_ns=inside,
            fix=fix,
            evidence=evidence,
            title_as_recorded=True,
        ).as_finding(case)
    ]

"""NSX104 allocator-thrash: steady steps ask the driver for memory or give it back.

What it means
    PyTorch caches device memory, so a steady step calls neither cudaMalloc nor cudaFree. If it does, sizes change from
    step to step and no cached block fits. If the device is also full, PyTorch frees its whole cache and allocates again
    (num_alloc_retries): every cudaFree waits for the GPU, which then idles.

In the trace
    cudaMalloc and cudaFree inside steady steps; a flush is a run of cudaFree followed by one cudaMalloc.

Bad
    for batch in loader:                      # another sequence length in each step
        loss = model(batch); torch.cuda.empty_cache()

Good
    batch = pad(batch, multiple_of=128)       # a few fixed shapes
    # or: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
    # and no empty_cache() in the loop

Harmless when
    It happens only in the first steps, or a few times per epoch.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses import allocator
from nsysx.analyses.helpers import allocator_retries
from nsysx.catalogue import Call, StepLimit, StepPart
from nsysx.events.thread_roles import LOADER, PIN
from nsysx.findings._case import Case, Fix, Rule, calls_of
from nsysx.findings._found import Found
from nsysx.findings._freed_caches import freed_by_program, limited
from nsysx.findings._needs import step_of
from nsysx.model import Finding, Row
from nsysx.replay.engine import RemoveCalls

RULE = Rule(
    "NSX104",
    "allocator-thrash",
    "Allocator thrash",
    cause=(StepPart.ALLOC,),
    about=StepLimit.ALLOC,
    picture="flushes",
    direct=3,
    tries=("no-empty-cache", "expandable-segments"),
)
REQUIRES = ("allocator", "steps")

#: What to do in a program of another language, which allocates by itself.
_NATIVE = (
    "Allocate before the loop and keep the memory, or let the pool of cudaMallocAsync hold what is freed "
    "(cudaMemPoolAttrReleaseThreshold)"
)
#: Where calls are made that belong to no module, by what their thread is for.
_THREADS = {PIN: "on the loader's pin thread", LOADER: "on a loader's worker thread"}


def check(case: Case) -> list[Finding]:
    """Return one finding where allocation and free calls take 1 % of the steady step or save as much."""
    if case.profile.steps.whole:
        return case.cannot_tell(
            RULE, "the window holds the first steps, which always allocate", "nsysx report without --steps all"
        )
    calls = case.of_kind(*Call.ALLOCATOR)
    if not calls.height:
        return case.clear(RULE, "no steady step allocates or frees device memory")
    taken = case.per_step(int(calls["ns"].sum()))
    emptied = freed_by_program(case, calls)
    also = emptied.edits if emptied is not None else ()
    worth = case.worth(RemoveCalls(calls_of(calls)), *also, cause=(*RULE.cause, *((StepPart.HOST,) if also else ())))
    if not case.notable(taken) and not case.notable(worth.likely_ns or 0):
        return case.clear(RULE, f"memory calls take {case.share(taken)} of the steady step")
    cost = case.lost_to(StepLimit.ALLOC)
    rows = case.typed_rows(allocator.ROWS)
    # The table has the flushes of all processes, each by its own steps.
    flushes = allocator_retries.flushes(case.profile)
    flushes = flushes.filter(case.is_call(flushes["call"]))
    detail = f"{case.often(calls.height, 'call', 'calls')} to allocate or free memory take {units.duration(taken)} of CPU time"
    detail += f" {case.per} ({case.share(taken)} of the step); the GPU idles {units.duration(cost)} for them."
    if flushes.height:
        times = units.several(flushes.height, "time")
        detail += f" The cache was flushed and refilled {times} in {case.steps} steps."
        freed = flushes["freed_bytes"].drop_nulls()
        if len(freed):
            least = "At least " if len(freed) < flushes.height else ""
            detail += f" {least}{units.size(float(freed.sum()))} was freed."
    text = [pl.col(c).cast(pl.String) for c in ("name", "module")]
    sums = calls.group_by(text).agg(pl.len().alias("calls"), pl.col("ns").sum())
    sums = sums.sort("ns", "name", "module", descending=[True, False, False], nulls_last=True)
    evidence = [
        {"call": name, "module": module, "calls": n / case.steps, "total_ns": case.per_step(ns)}
        for name, module, n, ns in sums.head(6).iter_rows()
    ]
    advice = str(rows[0]["advice"]) if rows else "fixed shapes"
    words = advice[:1].upper() + advice[1:]
    segments = advice in (allocator.FLUSHED, allocator.NEW_SIZES)
    fix = Fix.by_name("expandable-segments", "fixed-sizes", text=words) if segments else Fix(words)
    if flushes.height and (of_limit := limited(case)) is not None:
        fix = of_limit
    if emptied is not None:
        fix = emptied.fix
    if not case.program.python and not case.program.torch:
        fix = Fix(_NATIVE)
    seen = len(np.unique(step_of(case.profile, calls["start_ns"])))
    title = f"Allocator calls take {units.duration(taken)} of CPU time in each step"
    if 2 * seen < case.steps:
        whole = units.duration(int(calls["ns"].sum()))
        title = f"Allocator calls take {whole} of CPU time in {seen} of {case.steps} steps"
    where: Row = {k: rows[0][k] for k in ("module", "phase", "file", "line")} if rows else {}
    if rows and rows[0]["thread_role"]:
        where = {"near": _THREADS.get(rows[0]["thread_role"], f"on the {rows[0]['thread_role']} thread")}
    if emptied is not None:
        where = {**where, **emptied.where}
    made = calls_of(calls)
    return [
        Found(
            RULE, title, detail, worth=worth, cost_ns=cost, fix=fix, where=where, evidence=evidence, calls=made
        ).as_finding(case)
    ]

"""NSX115 wrong-timing: a CPU clock around a GPU operation reads something other than the operation.

What it means
    A launch returns before the kernel has begun. With a synchronize only after it, the clock also counts work queued
    earlier; with one only before it, the clock reads the launch; with none, it reads how fast the CPU hands work over, or
    how full the queue is. Only a synchronize on both sides times one call, and that includes launching it.

In the trace
    cudaDeviceSynchronize directly before or after a single launch, again and again. The clock itself leaves no trace, so
    the finding says what a clock there would have read.

Bad
    t = time.perf_counter(); y = op(x); torch.cuda.synchronize(); print(time.perf_counter() - t)

Good
    from torch.utils.benchmark import Timer
    print(Timer("op(x)", globals=globals()).blocked_autorange())     # many in a row: the launches hide behind the kernels

Harmless when
    The kernel takes much longer than launching it and nothing is queued, or the clock times a whole step of many operations.
"""

from __future__ import annotations

from typing import TypedDict

import polars as pl

from nsysx import units
from nsysx.analyses import stopwatch
from nsysx.analyses.helpers.module_names import kernel_called
from nsysx.analyses.stopwatch import by_way
from nsysx.catalogue import DeviceActivity
from nsysx.events.kernel_names import function_of
from nsysx.findings._case import NO_SAVING, Case, Fix, Rule
from nsysx.findings._finding_bounds import (
    FEWEST_WRONG_READINGS,
    LEAST_MISREAD_SHARE,
    MOST_LAUNCHES,
    WRONG_READING_TIMES,
)
from nsysx.findings._found import Found
from nsysx.findings._lines import launching
from nsysx.frames import lookup
from nsysx.model import Finding
from nsysx.rows import TableOf

RULE = Rule(
    "NSX115",
    "wrong-timing",
    "Wrong timing method in the script",
    about="timing",
    picture="readings",
    reading=True,
    tries=("no-synchronize",),
)
REQUIRES = ("stopwatch",)
_FIX, _FIX_SHORT = Fix.by_name("benchmark-timer"), Fix.by_name("timed-graph")
_FIX_ELSEWHERE = Fix(
    "Synchronize before and after, warm up, and take a median; or read two CUDA events around many calls"
)
#: Ways of timing a kernel, as named in the evidence: the kernel's own time, and a clock with a synchronize on both sides.
KERNEL_ITSELF, BOTH_SIDES = "the kernel itself", "a synchronize before and after"
_WAYS = {
    "both": BOTH_SIDES,
    "after": "a synchronize after only",
    "before": "a synchronize before only",
    "none": "no synchronize",
}


#: What a way of timing a kernel reads, and how that is known; the last one is the kernel itself.
Reading = TypedDict("Reading", {"way": str, "reads_ns": float, "from": str | None})
EVIDENCE: TableOf[Reading] = TableOf(RULE.code)


def _misreading(case: Case, row: stopwatch.ReadingRow, kernel_ns: float) -> dict[str, float]:
    """Return the ways (keys of ``_WAYS``) in which the program times this kernel and reads something else, with the reading (ns)."""
    measured = {way: read.ns for way, read in by_way(row).items() if read.how == "measured" and read.ns is not None}
    # Who waits for a kernel reads no less than it takes: the launches that are fenced do less work than the others.
    if min((measured[way] for way in ("both", "after") if way in measured), default=kernel_ns) < kernel_ns:
        return {}
    # A fence around a library's kernel counts as timing only if it stands alone, in several ways, outside of steps.
    fenced = [way for way in ("both", "after", "before") if way in measured]
    if not row["custom"] and (not case.stepless or "both" not in fenced or len(fenced) < 2):
        return {}
    # With both synchronize calls a reading also looks like one with the first alone; and a clock without any is not seen.
    taken = {"after", "both"} if "both" in measured else {"after", "before"}
    if not row["custom"] and "after" not in fenced:
        taken.discard("both")  # fenced in one way only: perhaps not to time it
    read = {way: ns for way, ns in measured.items() if way in taken}
    return {
        way: ns
        for way, ns in read.items()
        if not kernel_ns / WRONG_READING_TIMES <= ns <= kernel_ns * WRONG_READING_TIMES
    }


def check(case: Case) -> list[Finding]:
    """Return a finding per kernel around which the program's synchronize calls make a clock misread it by a factor of 1.5."""
    ops = case.profile.ops
    fences = case.profile.calls["name"].is_in(["cudaDeviceSynchronize", "cuCtxSynchronize"])
    if fences.sum() < FEWEST_WRONG_READINGS:
        return case.clear(RULE, "the program does not synchronize around single operations")
    communicates = (ops["process"] == case.process) & (ops["cls"] == DeviceActivity.COMM.value)
    if not case.stepless and communicates.any():
        return case.clear(RULE, "the ranks of a job synchronize for one another in its steps: that times no operation")
    findings = []
    ops = lookup.having(ops["process", "name", "cls", "start_ns", "end_ns"], process=case.process)
    kernels = ops.filter(ops["cls"] == DeviceActivity.COMPUTE.value)
    whole_ns, misread_ns = (kernels["end_ns"] - kernels["start_ns"]).sum(), 0.0
    shown_names = set(ops["name"].drop_nulls().unique().cast(pl.String))
    for row in case.typed_rows(stopwatch.ROWS):
        if row["name"] not in shown_names:
            continue
        kernel = row["kernel_ns"]
        if kernel is None or not FEWEST_WRONG_READINGS <= row["calls"] <= MOST_LAUNCHES * fences.sum():
            continue
        wrong = _misreading(case, row, kernel)
        if not wrong:
            continue
        misread_ns += row["calls"] * kernel
        ways = by_way(row)
        reads = {way: ns for way in _WAYS if (ns := ways[way].ns) is not None}
        name = function_of(row["name"])[:40]
        title = f"Clocks around {name} read {units.duration(min(reads.values()))} to "
        title += f"{units.duration(max(reads.values()))}, the kernel takes {units.duration(kernel)}"
        readings = ", ".join(f"with {_WAYS[w]} {units.duration(ns)}" for w, ns in reads.items())
        detail = f"A CPU clock around this operation reads {readings}."
        because = ""
        parts = (row["host_ns"], row["api_ns"], kernel, row["sync_return_ns"])
        alone = row["both_ns"] if row["both_ns"] is not None else sum(p or 0 for p in parts)
        if wrong.get("after", 0) > alone:
            more = units.duration(wrong["after"] - alone)
            because = f"Without a synchronize before it, {more} is work queued earlier."
        elif wrong.get("both", 0) > kernel:
            more = units.duration(wrong["both"] - kernel)
            because = f"Even with both, {more} of the reading is the launch and the return of the synchronize."
        # What hides behind kernels when the call is repeated: everything that the CPU does for one call.
        fix = _FIX_SHORT if (row["host_ns"] or 0) + (row["api_ns"] or 0) > kernel else _FIX
        if not case.program.python:
            fix = _FIX_ELSEWHERE
        evidence = [Reading({"way": _WAYS[way], "reads_ns": ns, "from": ways[way].how}) for way, ns in reads.items()]
        evidence.append(Reading({"way": KERNEL_ITSELF, "reads_ns": kernel, "from": "measured"}))
        findings.append(
            Found(
                RULE,
                title,
                detail,
                worth=NO_SAVING,
                cost_ns=None,
                fix=fix,
                where={"near": f"around {kernel_called(row['name'])}", **launching(case.profile, str(row["name"]))},
                evidence=evidence,
                because=because,
            ).as_finding(case)
        )
    if misread_ns < LEAST_MISREAD_SHARE * whole_ns:
        return case.clear(RULE, "the operations that a clock would misread are hardly any of the GPU's work")
    return findings or case.clear(RULE, "no synchronize around a single operation makes a clock misread it")

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
    print(Timer("op(x)", globals=globals()).blocked_autorange())

Harmless when
    Nothing is queued when the clock starts, or the clock times a whole step of many operations.
"""

from __future__ import annotations

import re

from nsysx import units
from nsysx.findings._case import NO_SAVING, Case, Fix, Rule
from nsysx.model import Finding

RULE = Rule("NSX115", "wrong-timing", "Wrong timing method in the script")
_FIX = Fix(
    "torch.utils.benchmark.Timer, or synchronize before and after, warm up, and take a median",
    'from torch.utils.benchmark import Timer\nprint(Timer("op(x)", globals=globals()).blocked_autorange())',
    "Nothing else may run on the GPU at the time.",
)
#: A reading is wrong when it is off by this factor, up or down.
_WRONG = 1.5
_LEAST = 3
#: Ways of timing a kernel, as named in the evidence: the kernel's own time, and a clock with a synchronize on both sides.
KERNEL_ITSELF, BOTH_SIDES = "the kernel itself", "a synchronize before and after"
_WAYS = {
    "both_ns": BOTH_SIDES,
    "after_ns": "a synchronize after only",
    "before_ns": "a synchronize before only",
    "none_ns": "no synchronize",
}


def check(case: Case) -> list[Finding]:
    """Return a finding per kernel that the program fences with synchronize calls in a way that misreads it by a factor of 1.5."""
    if missing := case.missing("stopwatch"):
        return case.cannot_tell(RULE, missing)
    fences = case.profile.calls["name"].is_in(["cudaDeviceSynchronize", "cuCtxSynchronize"])
    if fences.sum() < _LEAST:
        return case.clear(RULE, "the program does not synchronize around single operations")
    findings = []
    for row in case.rows("stopwatch"):
        kernel = row["kernel_ns"]
        if kernel is None or row["calls"] < _LEAST:
            continue
        # A fence around a library's kernel counts as timing only if it stands alone, in several ways, outside of steps.
        fenced = [w for w in ("both_ns", "after_ns", "before_ns") if row[w.replace("_ns", "_from")] == "measured"]
        if not row["custom"] and (not case.stepless or "both_ns" not in fenced or len(fenced) < 2):
            continue
        taken = {w for w in _WAYS if row[w.replace("_ns", "_from")] == "measured"}
        # With both synchronize calls a reading also looks like one with the first alone; and a clock without any is not seen.
        taken &= {"after_ns", "both_ns"} if "both_ns" in taken else {"after_ns", "before_ns"}
        parts = (row["host_ns"], row["api_ns"], kernel, row["sync_return_ns"])
        alone = row["both_ns"] if row["both_ns"] is not None else sum(p or 0 for p in parts)
        wrong = {w for w in taken - {"both_ns"} if not alone / _WRONG <= row[w] <= alone * _WRONG}
        if not wrong:
            continue
        reads = {w: row[w] for w in _WAYS if row[w] is not None}
        name = re.sub(r"^void |[<(].*", "", row["name"])[:40]
        title = f"Clocks around {name} read {units.duration(min(reads.values()))} to "
        title += f"{units.duration(max(reads.values()))}, the kernel takes {units.duration(kernel)}"
        said = ", ".join(f"with {_WAYS[w]} {units.duration(ns)}" for w, ns in reads.items())
        detail = f"A CPU clock around this operation reads {said}."
        because = ""
        if "after_ns" in wrong and row["after_ns"] > alone:
            more = units.duration(row["after_ns"] - alone)
            because = f"Without a synchronize before it, {more} is work queued earlier."
        evidence = [
            {"way": _WAYS[w], "reads_ns": row[w], "from": row[w.replace("_ns", "_from")]}
            for w in _WAYS
            if row[w] is not None
        ]
        evidence.append({"way": KERNEL_ITSELF, "reads_ns": kernel, "from": "measured"})
        findings.append(
            case.found(RULE, title, detail, worth=NO_SAVING, cost_ns=None, fix=_FIX, evidence=evidence, because=because)
        )
    return findings or case.clear(RULE, "no synchronize around a single operation makes a clock misread it")

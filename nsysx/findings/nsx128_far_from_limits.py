"""NSX128 far-from-limits: kernels of your own that use neither the memory's bandwidth nor the tensor cores.

What it means
    The kernel moves and multiplies a small part of what the device could in the same time. The rest of its
    time it waits: for addresses that lie apart and are fetched one by one, for one block after another, for numbers that the next
    instruction needs. A kernel that waits less does the same in the time that its bytes take at the memory bandwidth: that is the
    saving at best. Kernels of libraries are left out, because nobody rewrites them.

In the trace
    A kernel of Triton that does not multiply matrices takes much longer than its tensors need to move once (their sizes are those of the
    X-ray steps). Any other kernel: DRAM Read and Write Bandwidth and Tensor Active both far below their limits while it runs alone (nsysx
    run --gpu-metrics).

Bad
    v = tl.load(x + i * columns + column)              # neighbors in a block lie a row apart

Good
    v = tl.load(x + row * columns + i)                 # neighbors lie side by side: one fetch for all

Harmless when
    The kernel computes much on few bytes without tensor cores, such as simulations and random numbers, or has to read its own results
    again and again. A kernel with fewer blocks than the device has SMs is NSX122's.
"""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import gpu_counters, kernel_shapes, limits_of_work, operator_executions
from nsysx.analyses.helpers.module_names import kernel_called
from nsysx.catalogue import StepLimit, StepPart
from nsysx.events.kernel_libraries import library_of
from nsysx.events.kernel_names import computes
from nsysx.events.profile import NotRecorded
from nsysx.findings import _shared_gpu
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import FAR_FROM_LIMITS_SHARE, FAR_KERNEL_OF_STEP_SHARE, MOVES_MORE_TIMES
from nsysx.frames import frame_columns
from nsysx.model import Finding
from nsysx.replay.engine import ScaleOps
from nsysx.roofline.roofline_bounds import HIDING_OCCUPANCY

RULE = Rule(
    "NSX128", "far-from-limits", "Kernels of your own far from both limits", cause=(StepPart.WORK,), about=StepLimit.GPU
)
REQUIRES = ("kernels",)


def check(case: Case) -> list[Finding]:
    """Return one finding for the kernel of the program's own from which most could go."""
    if unknown := _shared_gpu.no_rates(case):
        return case.cannot_tell(RULE, unknown)
    kernels = case.kernels
    by_program = kernels.filter(library_of(kernels["name"]).is_null())
    every = (
        by_program.group_by(pl.col("name").cast(pl.String))
        .agg(pl.col("ns").sum())
        .sort("ns", "name", descending=[True, False])
    )
    names = every.filter(every["ns"] >= FAR_KERNEL_OF_STEP_SHARE * case.step_ns * case.steps)
    if not names.height:
        return case.clear(
            RULE, f"no kernel of the program's own takes {units.bound(FAR_KERNEL_OF_STEP_SHARE)} of the step"
        )
    seen = names.join(_limited(case), on="name", how="inner")
    seen = seen.sort(pl.col("gpu_ns") - pl.col("limit_ns"), "name", descending=[True, False])
    if not seen.height:
        # All that one function runs is one kernel to a reader, whatever it is instantiated with.
        sums: dict[str, int] = {}
        for name, ns in every.iter_rows():
            sums[computes(name)] = sums.get(computes(name), 0) + ns
        longest, ns = max(sums.items(), key=lambda item: item[1])
        # Of the work, not of the time: kernels of several streams run at once.
        share = units.share(ns, int(case.timed_ops(pl.repeat(True, case.ops.height, eager=True))["ns"].sum()))
        what = f"{kernel_called(longest)} takes {share} of the GPU time; what it moves was not sampled"
        return case.cannot_tell(RULE, what, "nsysx run --gpu-metrics -- CMD")
    far = seen.with_columns(reached=pl.col("limit_ns") / pl.col("gpu_ns")).filter(
        pl.col("reached") <= FAR_FROM_LIMITS_SHARE
    )
    few = far.filter(pl.col("name").is_in(_small_grids(case).implode()))
    if few.height == far.height > 0:
        return case.clear(RULE, f"{kernel_called(few['name'][0])} has a grid too small for the device: NSX122")
    far = far.filter(~pl.col("name").is_in(few["name"].implode()))
    if not far.height:
        best = seen.row(0, named=True)
        return case.clear(
            RULE, f"{kernel_called(best['name'])} is at {units.share(best['limit_ns'], best['gpu_ns'])} of its limit"
        )
    return [_finding_of_kernel(case, by_program, far.row(0, named=True))]


def _limited(case: Case) -> pl.DataFrame:
    """Return name, gpu_ns, limit_ns, roof, moved_bytes and by_counters of the kernels whose limit counters or their tensors tell."""
    try:
        done = case.profile.once(limits_of_work.executions)
    except NotRecorded:
        done = pl.DataFrame(schema=frame_columns.schema(limits_of_work.COLUMNS))
    # What counters saw of the program's own kernels counts here, however little that is.
    done = done.with_columns(limit_ns=pl.coalesce("limit_ns", "counted_ns"), roof=pl.coalesce("roof", "counted_roof"))
    done = done.filter(pl.col("limit_ns").is_not_null())
    return done.group_by(name="kernel").agg(
        pl.col("gpu_ns", "limit_ns").sum(),
        pl.col("roof").drop_nulls().mode().sort().first(),
        pl.col("moved_bytes").sum() / pl.len(),
        pl.col("by_counters").any(),
    )


def _small_grids(case: Case) -> pl.Series:
    """Return the kernels of which most of the time has fewer blocks than the device has SMs: more of them is what helps first."""
    rows = case.profile.once(kernel_shapes.shapes).with_columns(pl.col("name").cast(pl.String))
    small = pl.col("total_ns").filter(pl.col("limit") == kernel_shapes.SMALL_GRID).sum()
    return rows.group_by("name").agg(small * 2 > pl.col("total_ns").sum()).filter("total_ns")["name"]


def _reasons_of_counters(case: Case, name: str, needed: float | None, launch_ns: float) -> str:
    """Return what the counters say that it does instead, or may do; ``needed``: bytes that a launch must move, None where unknown."""
    try:
        shares = gpu_counters.of_kernels(case.profile).filter(pl.col("name").cast(pl.String) == name)
    except NotRecorded:
        shares = pl.DataFrame({"dram": [], "sm_issue": []})
    dram, issue = (shares[column].cast(pl.Float64).mean() for column in ("dram", "sm_issue"))
    limits = case.profile.trace.limits.get((case.process, case.device or 0))
    if not isinstance(dram, float) or limits is None or not limits.memory_bandwidth:
        return "it waits for addresses that lie apart, or for its own results"
    moved = dram * limits.memory_bandwidth * launch_ns / 1e9
    if needed and moved >= MOVES_MORE_TIMES * needed:
        return f"the memory moves {units.size(moved)} for it, because addresses that lie apart fetch what nobody uses"
    if held := _few_warps(case, name):
        return f"the memory is used to {units.share(dram, 1)}: {held}"
    issues = f", and its SMs issue in {units.share(issue, 1)} of the cycles" if isinstance(issue, float) else ""
    return f"the memory is used to {units.share(dram, 1)}{issues}: it waits, for addresses that lie apart or for its own results"


def _few_warps(case: Case, name: str) -> str:
    """Return what keeps an SM from holding enough warps of a kernel to hide what each of them waits for, "" for nothing."""
    shapes = case.profile.once(kernel_shapes.shapes).filter(pl.col("name").cast(pl.String) == name)
    few = shapes.filter(shapes["occupancy"] < HIDING_OCCUPANCY).sort("total_ns", descending=True)
    if 2 * int(few["total_ns"].sum()) < int(shapes["total_ns"].sum()) or not few.height:
        return ""
    share, limit = few["occupancy", "occupancy_limit"].row(0)
    return f"an SM holds {units.share(share, 1)} of its warps at a time ({limit}), too few to hide what each waits for"


def _finding_of_kernel(case: Case, kernels: pl.DataFrame, row: dict[str, object]) -> Finding:
    name, reached = str(row["name"]), float(str(row["reached"]))
    of_kernel = kernels.filter(pl.col("name").cast(pl.String) == name)
    cost = case.per_step(int(of_kernel["ns"].sum()))
    worth = case.worth(ScaleOps(ops_of(of_kernel), reached), cause=RULE.cause, bound=True)
    what = "memory bandwidth" if row["roof"] == operator_executions.MEMORY else "tensor cores"
    called = kernel_called(name)
    title = f"{called[:1].upper()}{called[1:]} takes {units.duration(cost)} {case.per} at {units.share(reached, 1)} of the {what}"
    needed = None if row["by_counters"] else float(str(row["moved_bytes"]))
    how = f"It takes {case.share(cost)} of the step and is far from both limits"
    if needed is not None:
        how = f"It takes {case.share(cost)} of the step, and its tensors hold {units.size(needed)} for each launch, each counted once"
    how += f": {_reasons_of_counters(case, name, needed, int(of_kernel['ns'].sum()) / of_kernel.height)}."
    detail = f"{how} At the limit the same work takes {units.duration(round(cost * reached))}."
    fix = Fix(
        f"{called[:1].upper()}{called[1:]} is at {units.share(reached, 1)} of the {what}: let neighboring threads read neighboring "
        "addresses, and give each block more work in flight. nsysx ncu REPORT shows what it waits for"
    )
    evidence = [
        {"kernel": name, "count": of_kernel.height / case.steps, "total_ns": cost, what: units.share(reached, 1)}
    ]
    return Found(
        RULE, title, detail, worth=worth, cost_ns=cost, fix=fix, where={"near": called}, evidence=evidence,
        takes=Takes(ops_of(of_kernel)),
    ).as_finding(case)  # fmt: skip

"""NSX124 memory-bound: kernels move bytes as fast as the device's memory can, so only fewer bytes make them faster.

What it means
    The GPU's own counters say that the memory reads and writes at 85 % of its bandwidth or more while these kernels run; the
    remainder is the price of switching between reads and writes. A better kernel for the same bytes, a higher clock
    or more blocks bring nothing. Moving fewer bytes does: fused operations, narrower formats, no copies.
    The capture cannot say how much that saves.

In the trace
    DRAM Read and DRAM Write Bandwidth add up to 85 % or more while the kernel runs alone (nsysx run --gpu-metrics).

Bad
    y = x.float() * scale + bias; y = y.relu()             # four kernels, each reads and writes everything

Good
    f = torch.compile(lambda x: (x.float() * scale + bias).relu())    # one kernel: read once, written once
    with torch.autocast("cuda", torch.bfloat16):           # half the bytes

Harmless when
    These bytes have to be moved, or the kernels are a small share of the step.
"""

from __future__ import annotations

from nsysx import units
from nsysx.analyses.helpers import kernel_shapes
from nsysx.catalogue import StepLimit
from nsysx.findings._case import Case, Fix, Rule, Saving
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._found import Found
from nsysx.findings._lines import launching
from nsysx.findings._work_bounds import MOST_MEMORY_BOUND_KERNELS
from nsysx.model import Finding

RULE = Rule(
    "NSX124",
    "memory-bound",
    "Kernels at the memory bandwidth",
    about=StepLimit.GPU,
    tries=("compile", "compile-reduce-overhead", "autocast-bf16"),
)
REQUIRES = ("gpu_metrics",)


def check(case: Case) -> list[Finding]:
    """Return one finding where kernels at the memory bandwidth take 5 % of the step or more."""
    shapes = case.profile.once(kernel_shapes.shapes)
    measured = shapes.drop_nulls("dram")
    if not measured.height:
        return case.cannot_tell(RULE, "no kernel ran alone for ten samples of the memory bandwidth")
    bound = measured.filter(measured["limit"] == kernel_shapes.DRAM)
    taken = case.per_step(int(bound["total_ns"].sum()))
    if not case.notable(taken, REPORTED_SHARE):
        highest = measured.row(int(measured["dram"].arg_max() or 0), named=True)
        sentence = (
            f"kernels at 85 % of the memory bandwidth or more take {case.share(taken)} of the step; the highest reaches"
        )
        return case.clear(RULE, f"{sentence} {units.share(highest['dram'], 1)}")
    share = float((bound["dram"] * bound["total_ns"]).sum()) / float(bound["total_ns"].sum())
    evidence = [
        {
            "kernel": str(row["name"]),
            "count": row["count"] / case.steps,
            "total_ns": case.per_step(row["total_ns"]),
            "memory bandwidth": units.share(row["dram"], 1),
            "samples": row["samples"],
        }
        for row in bound.head(MOST_MEMORY_BOUND_KERNELS).iter_rows(named=True)
    ]
    title = f"Kernels take {units.duration(taken)} {case.per} at {units.share(share, 1)} of the memory bandwidth: only fewer bytes help"
    detail = (
        f"For {case.share(taken)} of the step the memory reads and writes as fast as it can. Better kernels for the same bytes "
        "would gain next to nothing."
    )
    ways = [("autocast-bf16", "narrower formats (BF16)"), ("fewer-conversions", "no copies and conversions")]
    if case.program.compilable and not case.program.compiled:
        ways.insert(0, ("compile", "operations fused by torch.compile"))
    fix = Fix.listed("Move fewer bytes: ", ways, ", ")
    worth = Saving(None, "not known: it depends on which bytes need not move")
    where = launching(case.profile, str(bound["name"][0]))
    return [
        Found(RULE, title, detail, worth=worth, cost_ns=None, fix=fix, where=where, evidence=evidence).as_finding(case)
    ]

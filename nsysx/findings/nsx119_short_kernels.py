"""NSX119 short-kernels: work is always queued, but the kernels are so short that the pauses between them add up.

What it means
    Between two kernels of a stream the GPU pauses for about a microsecond, however fast the CPU launches. Kernels of a few
    microseconds therefore leave the GPU without work much of the time, even in a CUDA graph. Faster launches and
    fewer waits change nothing; fewer and larger kernels do. The saving shown is the sum of the pauses, an upper bound.

In the trace
    Hundreds of kernels of a few microseconds, back to back, with the CPU far ahead.

Bad
    for t in range(500): h = h * a[t] + b[t]               # 1,000 kernels, also as a CUDA graph

Good
    step = torch.compile(step)                             # fuses what can be fused
    # larger batches, one batched operation instead of a loop, foreach or fused optimizers

Harmless when
    The pauses are a small share of the step.
"""

from __future__ import annotations

from nsysx import units
from nsysx.catalogue import StepLimit, StepPart
from nsysx.findings._case import Case, Fix, Rule
from nsysx.findings._found import Found
from nsysx.findings._names import mostly
from nsysx.findings._work_bounds import SHORT_KERNELS_SHARE
from nsysx.model import Finding

RULE = Rule(
    "NSX119",
    "short-kernels",
    "Pauses between short kernels",
    cause=(StepPart.PAUSE,),
    about=StepLimit.GPU,
    direct=1,
    tries=("fused", "foreach", "compile", "compile-reduce-overhead"),
)
REQUIRES = ("kernels", "steps", "gpu")


def check(case: Case) -> list[Finding]:
    """Return one finding where pauses between queued kernels take 5 % of the step or more."""
    cost = case.taken_by(RULE.cause)
    if not case.notable(cost, SHORT_KERNELS_SHARE):
        least = units.bound(SHORT_KERNELS_SHARE)
        return case.clear(RULE, f"inter-kernel gaps take {case.share(cost)} of the step, less than {least}")
    median = case.kernels["ns"].median()
    each = f" of {units.duration(float(median))} (median)" if isinstance(median, (int, float)) else ""
    count = case.kernels.height / case.steps
    detail = (
        f"{count:.0f} kernels a step{each} run back to back, and the pauses between them take {units.duration(cost)} "
        f"({case.share(cost)}). They do not wait for the CPU."
    )
    ways = [("larger-batches", "larger batches"), ("batched-operation", "one batched operation instead of a loop")]
    if case.program.compilable and not case.program.compiled:
        ways.insert(0, ("compile", "torch.compile, which fuses them"))
    fix = Fix.listed("Launch fewer, larger kernels: ", ways, ", ")
    title = f"Inter-kernel gaps of short kernels take {units.duration(cost)} {case.per}"
    worth = case.bound(cost, "all inter-kernel gaps")
    return [
        Found(
            RULE, title, detail, worth=worth, cost_ns=cost, fix=fix, where=mostly(case.profile, case.kernels)
        ).as_finding(case)
    ]

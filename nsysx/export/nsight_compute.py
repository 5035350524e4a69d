"""The Nsight Compute command for the kernels that matter: which, and which of their launches."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.helpers import limits_of_work
from nsysx.analyses.helpers.operator_executions import MEMORY
from nsysx.events.profile import NotRecorded, Profile
from nsysx.export.export_bounds import MOST_LAUNCHES, SETTLING_STEPS, START_STEPS

#: What each question needs: how fast against both roofs and the launch always; memory or pipes, and why warps wait.
_ALWAYS = ("SpeedOfLight", "LaunchStats", "Occupancy", "WarpStateStats")
_OF_MEMORY, _OF_PRODUCTS = ("MemoryWorkloadAnalysis",), ("ComputeWorkloadAnalysis",)
#: What ``--import`` reads besides: bytes of the memory, share of the tensor pipe.
METRICS = (
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
)


@dataclass(frozen=True)
class ChosenKernel:
    """A kernel that is worth a look. ``per_step`` launches; ``before``: those from the start of the program to the steady steps.

    ``gpu_ns`` and ``could_go_ns`` are per step; ``could_go_ns`` is gpu_ns where no limit is known. ``roof``: null then, and
    ``why_not`` says why most of its time has none.
    """

    name: str
    mangled: str
    per_step: int
    before: int
    gpu_ns: float
    could_go_ns: float
    roof: str | None
    why_not: str | None = None


def chosen(profile: Profile, mangled: Mapping[str, str], most: int) -> list[ChosenKernel]:
    """Return the kernels of the steady steps from which most could go, at most ``most``. Raises NotRecorded without steps or kernels."""
    steps = profile.scope.steps
    if not steps:
        raise NotRecorded("no steps were found: which launches are those of one step is not known", "--step-range")
    costs = _costs(profile)
    counts = profile.steady_ops.filter(pl.col("op_kind") == "kernel").group_by(pl.col("name").cast(pl.String)).len()
    if not counts.height:
        raise NotRecorded("no kernel runs in the steady steps", "-t cuda")
    before = _launches_before(profile)
    rows = counts.join(costs, on="name", how="inner").sort("could_go_ns", "name", descending=[True, False])
    kernels = []
    for name, count, gpu_ns, could_go_ns, roof, why_not in rows.head(most).iter_rows():
        per_step = max(round(count / steps), 1)
        first = before.get(name)
        skipped = per_step * START_STEPS if first is None else first + per_step * SETTLING_STEPS
        kernels.append(
            ChosenKernel(
                name,
                mangled.get(name, ""),
                per_step=per_step,
                before=skipped,
                gpu_ns=gpu_ns / steps,
                could_go_ns=could_go_ns / steps,
                roof=roof,
                why_not=why_not,
            )
        )
    return kernels


def _costs(profile: Profile) -> pl.DataFrame:
    """Return name, gpu_ns, could_go_ns, roof and why_not of each kernel, of all its time where no operator was recorded."""
    try:
        done = profile.once(limits_of_work.executions).filter(pl.col("family").is_not_null())
    except NotRecorded:
        ops = profile.steady_ops.filter(pl.col("op_kind") == "kernel")
        ns = pl.col("end_ns") - pl.col("start_ns")
        sums = ops.group_by(pl.col("name").cast(pl.String)).agg(ns.sum().alias("gpu_ns"))
        nothing = pl.lit(None, dtype=pl.String)
        return sums.with_columns(could_go_ns="gpu_ns", roof=nothing, why_not=nothing)
    could_go = (pl.col("gpu_ns") - pl.col("limit_ns").fill_null(0.0)).sum()
    return done.group_by(name="kernel").agg(
        pl.col("gpu_ns").sum(),
        could_go.alias("could_go_ns"),
        pl.col("roof").drop_nulls().mode().sort().first(),
        pl.col("why_not").drop_nulls().mode().sort().first(),
    )


def _launches_before(profile: Profile) -> dict[str, int]:
    """Return kernel -> its launches in the part of the capture that begins with the program; empty where none was recorded."""
    if not profile.trace.seams:
        return {}
    ops = profile.whole.ops
    started = ops["start_ns"].to_numpy() < min(profile.trace.seams)
    kernels = ops.filter(pl.Series(np.asarray(started)) & (pl.col("op_kind") == "kernel"))
    return dict(kernels.group_by(pl.col("name").cast(pl.String)).len().iter_rows())


def sections(kernels: Sequence[ChosenKernel]) -> list[str]:
    """Return the sections that answer what is open."""
    roofs = {kernel.roof for kernel in kernels}
    memory = _OF_MEMORY if roofs & {MEMORY, None} else ()
    products = _OF_PRODUCTS if roofs - {MEMORY} else ()
    return [*_ALWAYS, *memory, *products]


def in_runs(kernels: Sequence[ChosenKernel], most: int = MOST_LAUNCHES) -> list[list[ChosenKernel]]:
    """Return the kernels in as many groups as there are runs: all launches of one step of a group are few enough for one."""
    runs: list[list[ChosenKernel]] = []
    for kernel in kernels:
        fits = (run for run in runs if sum(k.per_step for k in run) + kernel.per_step <= most)
        run = next(fits, None)
        if run is None:
            runs.append([kernel])
        else:
            run.append(kernel)
    return runs


def command(
    kernels: Sequence[ChosenKernel], program: Sequence[str], output: str, most: int = MOST_LAUNCHES
) -> list[str]:
    """Return the words of the command that profiles the launches of one step of these kernels.

    Launches are counted over all kernels that match. Where the sequence repeats, as many launches as one step has are one step,
    whichever comes first.
    """
    by_mangled = all(kernel.mangled for kernel in kernels)
    names = [kernel.mangled if by_mangled else function_name(kernel.name) for kernel in kernels]
    pattern = "|".join(dict.fromkeys(re.escape(name) for name in names))
    return [
        "ncu",
        "--target-processes=all",
        f"--kernel-name-base={'mangled' if by_mangled else 'function'}",
        f"--kernel-name=regex:^({pattern})$",
        f"--launch-skip={sum(kernel.before for kernel in kernels)}",
        f"--launch-count={min(sum(kernel.per_step for kernel in kernels), most)}",
        *(f"--section={section}" for section in sections(kernels)),
        f"--metrics={','.join(METRICS)}",
        "--kill=yes",
        f"--export={output}",
        *program,
    ]


def described(kernels: Sequence[ChosenKernel]) -> list[str]:
    """Return what is profiled, a line for each kernel."""
    text = []
    for kernel in kernels:
        could_go = ", no limit known"
        if kernel.roof:
            could_go = f", of which {units.duration(round(kernel.could_go_ns))} could go"
        elif kernel.why_not == limits_of_work.FAR_FROM_ROOFS:
            could_go += f": {kernel.why_not}"
        launched = units.several(kernel.per_step, "launch", "launches")
        text.append(f"{kernel.name[:100]}: {launched} and {units.duration(round(kernel.gpu_ns))} a step{could_go}")
    return text


def function_name(name: str) -> str:
    """Return a kernel's name without result, namespaces, template arguments and parameters, as Nsight Compute has it."""
    plain = re.sub(r"<unnamed>::|\(anonymous namespace\)::", "", name)
    head = re.split(r"[<(]", plain, maxsplit=1)[0]
    return head.split()[-1].split("::")[-1] if head.split() else name


def quoted(words: Sequence[str]) -> list[str]:
    """Return a command for a shell, in lines."""
    first, *others = map(shlex.quote, words)
    shown = [first, *(f"  {word}" for word in others)]
    return [*(f"{line} \\" for line in shown[:-1]), shown[-1]]

"""NSX122 small-grid: kernels with few blocks use only part of the device, and the rest waits for them.

What it means
    A block runs on one SM. A kernel with fewer blocks than the device has SMs leaves SMs without work for as long as it runs,
    however fast each block is: a reduction over few columns, a GEMM of few rows, a loop over one row. More blocks
    do the same work in less time. The saving shown spreads the work over all SMs, an upper bound: where few SMs already
    use all of the memory bandwidth, more of them bring less.

In the trace
    A kernel of 10 us or more whose grid (blocks) is smaller than the number of SMs, with nothing else beside it.

Bad
    layer_norm = torch.nn.LayerNorm(768)               # eager: the backward of its weights runs in 16 blocks
    y = x.sum(0)                                       # 8 columns: 8 blocks

Good
    model = torch.compile(model)                       # splits such reductions over the device
    y = x.view(64, -1, 8).sum(1).sum(0)                # two stages, many blocks

Harmless when
    Other kernels run beside it on another stream, or the kernel is a small share of the step.
"""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import kernel_shapes
from nsysx.catalogue import DeviceActivity, StepLimit, StepPart
from nsysx.events import concurrency
from nsysx.events.kernel_libraries import library_of
from nsysx.findings._case import Case, Fix, Rule, Saving, ops_of
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import MOST_SMALL_GRID_KERNELS, SMALL_GRID_ALONE_SHARE, SMALL_GRID_KERNEL_NS
from nsysx.model import Finding
from nsysx.replay.engine import ScaleOps

RULE = Rule("NSX122", "small-grid", "Kernels too small for the device", cause=(StepPart.WORK,), about=StepLimit.GPU)
REQUIRES = ("kernel_limits",)
#: Whose kernels they are decides how more blocks come about: by whether the program is Python's or PyTorch's.
_OWN_KERNEL = {True: "a fused or Triton kernel", False: "a launch of more blocks, in a kernel"}
#: Libraries of matrices, whose calls a compiler leaves as they are.
_CALLED_AS_THEY_ARE = ("cuSOLVER", "MAGMA", "cuBLAS", "cuSPARSE", "cuDNN", "CUTLASS")


def _alone(case: Case, small: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels of these shapes that mostly run alone, with what of their time is lost: ns, idle_part, lost."""
    wanted = ("op", "process", "device", "name", "grid", "block", "module", "start_ns", "end_ns")
    of_small = (case.ops["op_kind"] == "kernel") & case.ops["name"].is_in(small["name"].unique().implode())
    kernels = case.ops.select(wanted).filter(of_small)
    ops = kernel_shapes.with_card(case.profile, kernels).join(
        small.select(*kernel_shapes.SHAPE, "blocks", "sm_count"), on=kernel_shapes.SHAPE, how="inner", nulls_equal=True
    )
    ops = ops.filter(
        pl.Series(concurrency.alone(ops, case.profile.attributed.gpu_ops) >= SMALL_GRID_ALONE_SHARE, dtype=pl.Boolean)
    )
    return ops.with_columns(
        ns=pl.col("end_ns") - pl.col("start_ns"), idle_part=1 - pl.col("blocks") / pl.col("sm_count")
    ).with_columns(lost=pl.col("ns") * pl.col("idle_part"))


def check(case: Case) -> list[Finding]:
    """Return one finding where kernels of too few blocks cost 1 % of the step or more."""
    shapes = case.profile.once(kernel_shapes.shapes)
    if shapes["sm_count"].null_count() == shapes.height or shapes["blocks"].null_count() == shapes.height:
        return case.cannot_tell(
            RULE, "the report does not say how many SMs the device has, or how kernels were launched"
        )
    small = shapes.filter(
        (shapes["limit"] == kernel_shapes.SMALL_GRID)
        & (shapes["median_ns"] >= SMALL_GRID_KERNEL_NS)
        & (shapes["cls"] == DeviceActivity.COMPUTE.value)
    )
    ops = _alone(case, small) if small.height else None
    cost = case.per_step(float(ops["lost"].sum())) if ops is not None else 0
    if ops is None or not case.notable(cost):
        return case.clear(
            RULE, f"kernels with fewer blocks than SMs leave {case.share(cost)} of the device's time unused"
        )
    rows = ops.group_by("name", "blocks", "sm_count", "idle_part").agg(
        pl.len().alias("count"), pl.col("ns", "lost").sum(), pl.col("op"), pl.col("module").cast(pl.String).first()
    )
    rows = rows.with_columns(pl.col("name").cast(pl.String)).sort(
        "lost", "name", "blocks", descending=[True, False, False]
    )
    edits = [
        ScaleOps(ops_of(r.select(pl.col("op").explode())), 1 - r["idle_part"].item())
        for r in rows.head(MOST_SMALL_GRID_KERNELS).iter_slices(1)
    ]
    worth = case.worth(*edits, cause=RULE.cause, bound=True)
    if worth.likely_ns is not None and not case.notable(worth.likely_ns):
        return case.clear(RULE, "more blocks for small kernels would shorten the step by less than 1 %")
    return [_finding_of_kernels(case, rows, cost, worth)]


def _finding_of_kernels(case: Case, rows: pl.DataFrame, cost: int, worth: Saving) -> Finding:
    """Return the finding about these kernels, the dearest first."""
    evidence = [
        {
            "kernel": r["name"],
            "blocks": r["blocks"],
            "SMs": r["sm_count"],
            "count": r["count"] / case.steps,
            "total_ns": case.per_step(r["ns"]),
        }
        for r in rows.head(MOST_SMALL_GRID_KERNELS).iter_rows(named=True)
    ]
    worst = rows.row(0, named=True)
    taken = case.per_step(int(rows["ns"].sum()))
    most = "most" if cost >= 0.5 * taken else "some"
    title = f"Small grids leave {most} SMs idle for {units.duration(taken)} {case.per}"
    detail = (
        f"The most expensive one{case.in_module(worst)} runs {units.several(worst['blocks'], 'block')} on {worst['sm_count']} SMs. "
        f"With a block for every SM they would take at most {units.duration(case.lost(cost, worth))} less."
    )
    ways = [("larger-batches", "a larger batch, if the grid grows with it")]
    libraries = library_of(rows["name"].cast(pl.Categorical)).is_in(_CALLED_AS_THEY_ARE).fill_null(value=False)
    if 2 * float(rows["lost"].filter(libraries).sum()) <= float(rows["lost"].sum()):
        kernel = _OWN_KERNEL[case.program.python or case.program.torch]
        ways.insert(0, ("own-kernel", f"{kernel} that splits the work along another axis"))
        if case.program.compilable and not case.program.compiled:
            ways.insert(0, ("compile", "torch.compile of that part, which splits reductions over the device"))
    fix = Fix.listed("Give these kernels more blocks: ", ways, ", or ")
    where = {"module": worst["module"]}
    return Found(
        RULE,
        title,
        detail,
        worth=worth,
        cost_ns=cost,
        where=where,
        fix=fix,
        evidence=evidence,
        takes=Takes(frozenset(rows["op"].explode().to_list())),
    ).as_finding(case)

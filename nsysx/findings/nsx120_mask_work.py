"""NSX120 mask-work: sort, scan and gather kernels that a cheaper form of the operation does not need.

What it means
    Boolean masks, nonzero, unique and indexing with tensors pick rows whose number only the GPU knows. They are built
    from scans, sorts, gathers and, in backward, a scatter that sorts its indices first. These kernels are slow for what they
    do. People remove the wait that comes with them and gain nothing: the cost is in the kernels. A form with a fixed shape
    (where, masked_fill, weights of 0; ignore_index in a loss) needs none of them. Outside of a loss only the kernels of the
    mask itself count: a graph network has to scatter, a router has to sort.
    An index of numbers (x[index]) is no mask, and told by its line: its backward adds up the rows of one number one after the other, which
    an embedding's does not. Where an X-ray shows the operators, numbers are told from masks by them.

In the trace
    DeviceSelectSweepKernel, write_indices (nonzero), DeviceRadixSort (sort, unique, index backward), index_elementwise_kernel
    (indexing), indexing_backward_kernel (its backward), scatter and gather, in the module that masks.

Bad
    keep = target != IGNORE
    loss = F.cross_entropy(logits[keep], target[keep])

Good
    loss = F.cross_entropy(logits, target, ignore_index=IGNORE)
    # or: loss = (per_pixel * keep).sum() / keep.sum()

Harmless when
    The operation really is a sort or a lookup (embedding, top-k, routing to experts), or it picks so little of the data that
    later work gets cheaper by more than the picking costs.
"""

from __future__ import annotations

import re
from typing import TypedDict

import polars as pl

from nsysx import units
from nsysx.catalogue import StepLimit, StepPart
from nsysx.findings import _picked_rows
from nsysx.findings._case import Case, Fix, Rule, Saving, ops_of
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._rounds_of_their_own import calls_of_rounds
from nsysx.findings._work_bounds import ADDED_ROWS_SHARE, MOST_MASK_MODULES
from nsysx.frames import lookup
from nsysx.model import Finding, Row
from nsysx.replay.engine import RemoveOps
from nsysx.rows import TableOf

RULE = Rule(
    "NSX120",
    "mask-work",
    "Sort, scan and gather work of masks",
    cause=(StepPart.WORK,),
    about=StepLimit.GPU,
    picture="masks",
    rests_on="These kernels were recorded",
)
REQUIRES = ("kernels",)
#: One kernel, and the operation that it comes from; per step.
MaskKernel = TypedDict("MaskKernel", {"kernel": str, "from": str, "count": float, "total_ns": int})
EVIDENCE: TableOf[MaskKernel] = TableOf(RULE.code)
_FIXED_SHAPE = Fix.by_name("fixed-shape-loss")
_OF_LOSS = _FIXED_SHAPE.but(
    text="Use an operation of fixed shape: ignore_index, torch.where, masked_fill, weights of 0"
)
_FAMILY = "sort, scan and gather"
#: Kernels of other families that only these operations launch.
_HELPERS = r"write_indices|elementwise_kernel_with_index"
#: The operation that a kernel usually comes from.
_ORIGINS = (
    (r"DeviceSelect|DeviceCompactInit|write_indices|nonzero", "nonzero or a boolean mask"),
    (r"indexing_backward|index_put|elementwise_kernel_with_index", "backward of indexing"),
    (r"index_elementwise|index_kernel|index_?Select|masked_", "indexing with a tensor or a mask"),
    (r"DeviceRunLength|DeviceReduceByKey|unique", "unique, or backward of an embedding"),
    (r"(?<!ten)sort|radix", "sort: unique, or backward of indexing"),
    (r"scatter|gather", "scatter or gather"),
)
#: Kernels that show that a module masks; a sort, a lookup or the backward of an embedding does not.
_SIGN = r"DeviceSelect|write_indices|nonzero|indexing_backward|masked_(select|scatter)"


def _origin(kernel: str) -> str:
    return next((origin for pattern, origin in _ORIGINS if re.search(pattern, kernel, re.IGNORECASE)), "scan")


#: Work that comes with indexing whether or not anything is masked: lookups, message passing, routing.
_NEUTRAL = ("scatter or gather", "sort: unique, or backward of indexing", "unique, or backward of an embedding", "scan")
#: Kernels and module names that mark a loss.
_LOSS_KERNEL = r"nll_loss|cross_?entropy|LogSoftMax|mse_|smooth_l1|bce_|binary_cross"
_LOSS_NAME = re.compile(r"loss|criterion", re.IGNORECASE)


#: Kernels that add the gradients of rows which were picked by number, equal ones one after the other, and those that pick by a mask.
_ADDS, _PICKS_BY_MASK = r"indexing_backward", r"DeviceSelect|write_indices|nonzero|masked_"


def _mostly_adds(work: pl.DataFrame) -> bool:
    """Return whether most of this work adds gradients of rows that numbers picked, and none picks by a mask."""
    if work["name"].str.contains(_PICKS_BY_MASK).any():
        return False
    adds = work.filter(pl.col("name").str.contains(_ADDS))
    return int(adds["ns"].sum()) >= ADDED_ROWS_SHARE * int(work["ns"].sum())


def _is_loss(case: Case, module: str | None, phases: pl.Series, names: pl.Series) -> bool:
    """Return whether a mask here selects the inputs of a loss: by the module's name, the phase, or a loss's own kernels."""
    if (module and _LOSS_NAME.search(module)) or "loss" in phases.cast(pl.String).to_list():
        return True
    return bool(lookup.matching(names, _LOSS_KERNEL).any())


def check(case: Case) -> list[Finding]:
    """Return a finding per line whose index adds equal rows in turn, and per module whose mask kernels take 1 % of the step or more."""
    picked, of_numbers = _picked_rows.findings_of(case, RULE)
    rounds = calls_of_rounds(case.profile)
    of_rounds = ops_of(case.ops.filter(pl.col("call").is_in(list(rounds)))) if rounds else frozenset()
    kernels = case.kernels.filter(~case.kernels["op"].is_in([*of_numbers, *of_rounds]))
    mask_kernels = kernels.filter(
        (kernels["family"] == _FAMILY) | pl.Series(lookup.matching(kernels["name"], _HELPERS))
    )
    findings = picked + (_of_modules(case, mask_kernels) if mask_kernels.height else [])
    return findings or case.clear(RULE, "kernels of masks take less than 1 % of the step in every module")


def _of_modules(case: Case, mask_kernels: pl.DataFrame) -> list[Finding]:
    """Return a finding for each of the modules with most of these kernels."""
    mask_kernels = mask_kernels.with_columns(pl.col("name", "module").cast(pl.String))
    modules = (
        mask_kernels.group_by("module")
        .agg(pl.col("ns").sum(), pl.col("name").str.contains(_SIGN).any().alias("masks"))
        .filter("masks")
        .sort("ns", "module", descending=[True, False], nulls_last=True)
        .head(MOST_MASK_MODULES)
    )
    return [f for row in modules.select("module").to_dicts() if (f := _of_module(case, mask_kernels, row)) is not None]


def _of_module(case: Case, mask_kernels: pl.DataFrame, row: Row) -> Finding | None:
    """Return the finding of one module, None where masks are not worth a word."""
    work = mask_kernels.filter(lookup.same_values(row, ("module",)))
    chosen = case.ops["module"].is_null() if row["module"] is None else case.ops["module"] == row["module"]
    of_module = case.ops["phase", "name"].filter(chosen & (case.ops["op_kind"] == "kernel"))
    loss = _is_loss(case, row["module"], of_module["phase"].unique(), of_module["name"])
    if not loss:  # a graph network scatters, a router sorts: only the kernels of the mask itself could go
        neutral = [name for name in work["name"].unique() if _origin(name) in _NEUTRAL]
        work = work.filter(~pl.col("name").is_in(neutral))
    cost = case.per_step(int(work["ns"].sum()))
    if not case.notable(cost):
        return None
    whole = case.timed_ops(chosen, "op")
    whole_ns = case.per_step(int(whole["ns"].sum()))
    # Where a loss mostly masks, the rest of its work is on what the mask picked.
    all_of_it = loss and 2 * cost >= whole_ns and row["module"] is not None
    worth: Saving = case.worth(RemoveOps(ops_of(whole if all_of_it else work)), cause=RULE.cause, bound=True)
    detail = f"Sort, scan and gather kernels take {units.duration(cost)} {case.per} ({case.share(cost)} of it)"
    if all_of_it:
        detail += (
            f", of {units.duration(whole_ns)} that {row['module']} runs on the GPU; the rest works on what they select, "
            "and fixed shapes do without that, too. The saving counts all of it: an upper bound."
        )
    else:
        detail += ", an upper bound for what fixed shapes save."
    if worth.next_limit:
        detail += f" After that the limit is {worth.next_limit}."
    by_kernel = work.group_by("name").agg(pl.len().alias("count"), pl.col("ns").sum())
    by_kernel = by_kernel.sort("ns", "name", descending=[True, False])
    evidence = [
        MaskKernel({"kernel": k, "from": _origin(k), "count": n / case.steps, "total_ns": case.per_step(ns)})
        for k, n, ns in by_kernel.head(8).iter_rows()
    ]
    title = f"Kernels for masks take {units.duration(cost)}{case.in_module(row)}"
    if all_of_it:
        title = f"Masking and the work on what it selects take {units.duration(whole_ns)}{case.in_module(row)}"
        cost = whole_ns
    fix = _OF_LOSS if loss else _FIXED_SHAPE
    if not all_of_it and _mostly_adds(work):
        fix = Fix.by_name("rows-by-embedding")
        title = f"Rows that indices pick take {units.duration(cost)} in backward: equal ones are added in turn"
    takes = Takes(ops_of(whole if all_of_it else work))
    return Found(
        RULE,
        title,
        detail,
        worth=worth,
        cost_ns=cost,
        where=row,
        fix=fix,
        evidence=evidence,
        title_as_recorded=True,
        takes=takes,
    ).as_finding(case)

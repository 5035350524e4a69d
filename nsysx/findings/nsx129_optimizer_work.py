"""NSX129 optimizer-work: the kernels of the optimizer take a large part of the step.

What it means
    An optimizer reads and writes every parameter, gradient and state in each step, whatever the batch. Without fused=True it does
    so once for each of its operations: foreach kernels of Adam move the same numbers 18 times, a fused one 7 times. Where few rows
    of a large embedding are used in a step, its dense gradient and the update of all other rows are work for nothing. Where an update
    consists of GEMMs (Muon, Shampoo, SOAP), all ranks of a data-parallel job make the same ones: they can share them. Eigenvectors
    and inverses of averages over many steps (Shampoo, SOAP, K-FAC) need not be made anew in each step.

In the trace
    multi_tensor_apply kernels, or elementwise ones, in the phase of the optimizer, that take 10 % of the step or more; or GEMMs and
    solvers there, 5 % of the step or more, and nothing that goes between the ranks behind them.

Bad
    optimizer = torch.optim.Adam(model.parameters())           # tables of millions of rows
    table = torch.nn.Embedding(1_000_000, 64)

Good
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    table = torch.nn.Embedding(1_000_000, 64, sparse=True)     # and torch.optim.SparseAdam for it

Harmless when
    The optimizer is fused and all of its parameters are used in each step, and ranks share its GEMMs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import StepLimit, StepPart
from nsysx.findings import _refreshed_factors, _same_updates
from nsysx.findings._case import Case, Fix, Rule, Saving, ops_of, way
from nsysx.findings._found import Found
from nsysx.findings._needs import FUSABLE, fused_code, merged_groups
from nsysx.findings._once import Takes
from nsysx.findings._rates_on_gpu import all_reads, edits_of_fused, fix_of_rates
from nsysx.findings._sparse_tables import made_at, sparse_way
from nsysx.findings._tables_of_ranks import FewRows, most_of_optimizers
from nsysx.findings._work_bounds import (
    FUSED_UPDATE_LEFT,
    MOSTLY_TABLES_TIMES,
    OPTIMIZER_WORK_SHARE,
    SPARSE_ROW_TIMES,
    SPARSE_ROWS_SHARE,
    SPARSE_TABLE_NS,
    SPARSE_UPDATE_LEFT,
)
from nsysx.frames import lookup
from nsysx.model import Finding, Row
from nsysx.replay.edits import Edit, RemoveOps, ScaleOps

RULE = Rule(
    "NSX129",
    "optimizer-work",
    "The optimizer's own work on the GPU",
    cause=(StepPart.WORK,),
    about=StepLimit.GPU,
    tries=("fused",),
    rests_on="These kernels run in the optimizer's step",
)
REQUIRES = ("steps", "kernels")
#: Kernels of the backward of an embedding: its optimizer updates all rows, those that a step did not use, too.
_EMBEDDING = r"embedding_(dense_)?backward|compute_grad_weight|sum_and_scatter"


#: What clips sparse gradients: torch's function does not take them.
_CLIPPED = (
    "g = table.weight.grad = table.weight.grad.coalesce()  # behind backward, in place of clip_grad_norm_\n"
    "g.values().mul_((1.0 / (g.values().norm() + 1e-6)).clamp(max=1.0))  # 1.0: the norm that is allowed"
)
_NO_CLIPPING = "torch.nn.utils.clip_grad_norm_ does not take sparse gradients: take the norm of their values()."


def check(case: Case) -> list[Finding]:
    """Return a finding where factors are made anew in each step, else where all ranks repeat the products of an update, else where kernels
    of the optimizer take long and need not.
    """
    return _refreshed_factors.findings_of(case, RULE) or _same_updates.findings_of(case, RULE) or _passes(case)


def _passes(case: Case) -> list[Finding]:
    """Return one finding where kernels of the optimizer take 10 % of the step or more and need not."""
    phase = case.kernels["phase"].cast(pl.String)
    kernels = case.kernels.filter(phase == "optimizer")
    taken = case.per_step(int(kernels["ns"].sum()))
    if not case.notable(taken, OPTIMIZER_WORK_SHARE):
        least = units.bound(OPTIMIZER_WORK_SHARE)
        return case.clear(RULE, f"kernels of the optimizer take {case.share(taken)} of the step, less than {least}")
    program = case.program
    fusable = program.optimizer in ("foreach", "loop") and program.optimizer_class in FUSABLE
    embeds = _dense_embeddings(case)
    if not fusable and not embeds:
        return case.clear(
            RULE, f"the optimizer takes {units.duration(taken)} {case.per}: it is fused, or has no fused form"
        )
    tables = _mostly_tables(case) if embeds else None
    left = SPARSE_UPDATE_LEFT if embeds else FUSED_UPDATE_LEFT
    if tables is not None:
        left = min(max(left, SPARSE_ROW_TIMES * tables.share), 1.0)
    why = "what fewer passes over the same numbers save"
    updates, written = ops_of(kernels), ops_of(_dense_gradients(case)) if embeds else frozenset[int]()
    edits: list[Edit] = [ScaleOps(updates, left, less_work=True)]
    if written:
        edits.append(RemoveOps(written))
    clipped = case.kernels.filter(phase == "clip") if embeds else case.kernels.clear()
    clips = ops_of(clipped)
    clipped_ns = case.per_step(int(clipped["ns"].sum())) if tables is not None else 0
    if clipped_ns:  # norms of the rows' gradients alone
        edits.append(ScaleOps(clips, left, less_work=True))
    if (reads := 0 if embeds else all_reads(case)) and fusable:
        edits += edits_of_fused(case)
    worth = case.worth_or_time((taken + clipped_ns) * (1 - left), why, *edits, cause=RULE.cause)
    if embeds:
        worth = _less_tables(case, worth, left)
    if worth.likely_ns is not None and not case.notable(worth.likely_ns):
        return case.clear(RULE, "a shorter update would shorten the step by less than 1 %")
    detail = (
        f"{kernels.height / case.steps:.0f} kernels of {program.optimizer_class or 'the optimizer'} take {units.duration(taken)} "
        f"{case.per} ({case.share(taken)}), whatever the batch holds."
    )
    if embeds:
        detail += " Gradients of embeddings are dense: rows that no input of a step used are updated, too."
    if tables is not None:
        some = f", in {tables.tables} of {tables.of_tables} tables" if tables.tables < tables.of_tables else ""
        detail += f" A step looks up {units.count(tables.looked_up)} of {units.count(tables.rows)} rows at most{some}."
    title = f"The optimizer's kernels take {units.duration(taken)} {case.per}"
    takes = Takes(updates | written | (clips if clipped_ns else frozenset()))
    fix = fix_of_rates(case, reads) if reads and fusable else _fix(case, fusable, embeds, tables, clips=bool(clips))
    where: Row = {"phase": "optimizer", **({} if tables is None else made_at(case, tables) or tables.where)}
    long_update = Found(RULE, title, detail, worth=worth, cost_ns=taken, fix=fix, where=where, takes=takes)
    return [long_update.as_finding(case)]


def _fix(case: Case, fusable: bool, embeds: bool, tables: FewRows | None, *, clips: bool) -> Fix:
    fused = way("fused", paste=fused_code(case) if fusable else None)
    if not embeds:
        return Fix.by_name((merged_groups(case) or fused) if fusable else fused)
    sparse = sparse_way(case, tables)
    if clips:
        sparse = replace(
            sparse, paste=f"{sparse.paste}\n{_CLIPPED}", condition=f"{_NO_CLIPPING} {sparse.condition}".rstrip()
        )
    return Fix.by_name(sparse, fused) if fusable else Fix.by_name(sparse)


def _dense_embeddings(case: Case) -> bool:
    """Return whether embeddings have dense gradients, as the kernels that make them say, and hold most of the parameters."""
    made = bool(np.any(lookup.matching(case.kernels["name"], _EMBEDDING)))
    return made and (_moves_much(case) or _mostly_tables(case) is not None)


def _mostly_tables(case: Case) -> FewRows | None:
    """Return the tables of which a step looks up few rows, if they are most of what optimizers hold; None where that is not known."""
    most = most_of_optimizers(case.profile, SPARSE_ROWS_SHARE)
    return None if most is None else most[0]


def _less_tables(case: Case, worth: Saving, left: float) -> Saving:
    """Return a saving less what the host needs for sparse gradients: of each table equal rows are found and added up, their number is read,
    and its moments are updated in many short kernels. The GPU waits for all of that. ``left``: which share of the update stays.
    """
    if worth.likely_ns is None:
        return worth
    kernels = case.kernels.filter(pl.Series(lookup.matching(case.kernels["name"], _EMBEDDING), dtype=pl.Boolean))
    tables = max(1, kernels["module"].n_unique())
    taken = tables * SPARSE_TABLE_NS
    likely = max(0, worth.likely_ns - taken)
    least = max(0, worth.likely_ns - 2 * taken)
    why = (
        f"it rests on the estimates that {units.share(left, 1)} of the dense update stay and that the host needs "
        f"{units.duration(SPARSE_TABLE_NS)} for each of {units.several(tables, 'sparse table')}; {worth.confidence}"
    )
    most = max(worth.likely_ns, worth.most_ns or 0)
    return replace(
        worth,
        likely_ns=likely,
        confidence=why,
        bound=False,
        error_ns=max(likely - least, worth.error_ns or 0),
        most_ns=most,
        source="time",  # no replay made this change: its own error holds more than that of what was tried
    )


def _dense_gradients(case: Case) -> pl.DataFrame:
    """Return the ops of backward that write the gradients of embeddings out for all rows, used or not."""
    kernels, ops = case.kernels, case.ops
    theirs = kernels.filter(pl.Series(lookup.matching(kernels["name"], _EMBEDDING), dtype=pl.Boolean))["module"]
    modules = theirs.cast(pl.String).drop_nulls().unique()
    writes = ops["family"].cast(pl.String).is_in(["elementwise", "memset"])
    backward = (ops["phase"].cast(pl.String) == "backward") & ops["module"].cast(pl.String).is_in(modules.implode())
    return ops.filter((writes & backward).fill_null(value=False))


def _moves_much(case: Case) -> bool:
    """Return whether the optimizer moves far more than the products of the step do, as one over tables does."""
    products = case.kernels.filter(case.kernels["family"].cast(pl.String) == "gemm")
    of_optimizer = case.kernels.filter(case.kernels["phase"].cast(pl.String) == "optimizer")
    return int(of_optimizer["ns"].sum()) >= MOSTLY_TABLES_TIMES * int(products["ns"].sum())

"""NSX121 page-migration: unified memory moves between CPU and GPU because both sides touch it.

What it means
    Memory from cudaMallocManaged lives where it was last touched. A kernel that touches pages on the other side stalls until they have
    moved, a few pages at a time: far slower than one copy, and no call in the program asks for it. Data that is prefetched, or advised
    to stay, does not move then. The cost shown is the time in which only pages move to either side, and in which kernels wait for pages
    to come. What the host reads or writes meanwhile is its own code.

In the trace
    Copies of the kind "UM HtoD" and "UM DtoH" without an API call, before kernels or in the middle of them.

Bad
    cudaMallocManaged(&x, n); fill_on_cpu(x); kernel<<<...>>>(x); read_on_cpu(x);   // back and forth

Good
    cudaMemPrefetchAsync(x, n, device, stream); kernel<<<...>>>(x);                 // one transfer, ahead of time
    // data that only the GPU uses: cudaMalloc. Read by both: cudaMemAdviseSetReadMostly

Harmless when
    The data is larger than the GPU's memory and has to move, or it moves only once.
"""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.analyses import gpu_ledger
from nsysx.catalogue import StepLimit, StepPart
from nsysx.findings._case import Case, Rule
from nsysx.findings._found import Found
from nsysx.frames import lookup
from nsysx.judging.idle_parts import MIGRATIONS, TO_DEVICE, pages_moving
from nsysx.judging.limits import limits_of
from nsysx.model import Finding

RULE = Rule(
    "NSX121",
    "page-migration",
    "Page migrations of unified memory",
    cause=(StepPart.MIGRATION,),
    about=StepLimit.COPY,
    direct=3,
)


def check(case: Case) -> list[Finding]:
    """Return one finding where only pages move for 1 % of the step or more."""
    rows = tuple(case.typed_rows(gpu_ledger.ROWS))
    if not rows or case.device is None:
        return case.cannot_tell(RULE, case.missing("gpu_ledger") or "the steady steps hold no GPU work")
    ops = case.profile.ops
    moves = ops.filter((ops["process"] == case.process) & ops["copy_kind"].is_in(list(MIGRATIONS)).fill_null(False))
    if not moves.height:
        return case.clear(RULE, "no page of unified memory moves")
    alone = case.per_step(limits_of(case.profile).parts[StepPart.MIGRATION])
    # A kernel that touches a page on the host stands still until it has moved.
    beneath = case.per_step(pages_moving(case.profile, case.process, case.device, (TO_DEVICE,), beneath=True))
    cost = alone + beneath
    if not case.notable(cost):
        return case.clear(RULE, f"page migrations take {case.share(cost)} of the step")
    size = int(moves["bytes"].sum())
    both = moves.group_by(pl.col("copy_kind")).agg(pl.col("bytes").sum()).height > 1
    only = f"the GPU only moves pages of unified memory, or waits for them{f' ({units.duration(alone)})' if beneath else ''}"
    under = f", or kernels wait for pages ({units.duration(beneath)})" if beneath else ""
    prefetched = bool(lookup.matching(case.calls["name"], "MemPrefetch").any())
    asked = "The program prefetches some of them already." if prefetched else "No API call asks for them."
    detail = (
        f"For {units.duration(cost)} {case.per} ({case.share(cost)}) {only}{under}: "
        f"{units.several(moves.height, 'transfer')} of {units.size(size / moves.height)} on average in the whole capture"
        f"{', back and forth' if both else ''}. {asked}"
    )
    ways = "cudaMemAdvise for data that stays, or cudaMalloc and one copy"
    fix = ways if prefetched else f"cudaMemPrefetchAsync before the kernels that use the data, {ways}"
    title = f"Page migration of unified memory takes {units.duration(cost)}"
    worth = case.bound(cost, "all the time in which pages move")
    return [Found(RULE, title, detail, worth=worth, cost_ns=cost, fix=fix).as_finding(case)]

"""NSX112 fusion: chains of elementwise kernels, each of which reads and writes memory again.

What it means
    Elementwise kernels are limited by memory bandwidth: five in a row move the same tensor through memory five times. Fused
    into one kernel they move it once. The bound given assumes that a chain takes as long as its longest kernel. What a
    compiler makes of it cannot be known from a capture, so it is a bound and no prediction.

In the trace
    Kernels named elementwise, vectorized or unrolled directly one after the other on a stream, in one module.

Bad
    y = (x * scale + shift).sigmoid() * gate           # four kernels

Good
    @torch.compile
    def act(x, scale, shift, gate): return (x * scale + shift).sigmoid() * gate      # one kernel

Harmless when
    The tensors fit into the L2 cache and the GPU is not the limit.
"""

from __future__ import annotations

import polars as pl

from nsysx import columns, units
from nsysx.findings._ground import Ground, Rule, Worth, ops_of
from nsysx.model import Finding
from nsysx.replay import RemoveOps

RULE = Rule("NSX112", "fusion", "Fusion candidates")
#: A chain is listed from this length on.
_CHAIN = 2
#: A bound has to promise more than a prediction before it is worth a word.
_FOUND = 0.10


def _chains(ground: Ground) -> pl.DataFrame:
    """Return the elementwise kernels with ``run``: neighbours on one stream in one module and phase; and ``longest``."""
    ops = ground.ops.filter(columns.matching(ground.ops["op_kind"], "^(kernel|memset|memcpy)$")).sort(
        "device", "stream", "start_ns", "op"
    )
    ops = ops.with_columns(
        (pl.col("family").cast(pl.String) == "elementwise").alias("_own"),
        *(pl.col(c).cast(pl.String).fill_null("") for c in ("module", "phase")),
    )
    place = ("device", "stream", "module", "phase", "_own")
    new = pl.any_horizontal((pl.col(c) != pl.col(c).shift(1)).fill_null(True) for c in place)
    ops = ops.with_columns(new.cum_sum().alias("run")).filter("_own").filter(pl.len().over("run") >= _CHAIN)
    rank = pl.col("ns").rank("ordinal", descending=True).over("run")
    return ops.with_columns((rank == 1).alias("longest"))


def check(ground: Ground) -> list[Finding]:
    """Return one finding where fusing all chains is bounded by no less than 10 % of the step."""
    if ground.stepless:
        return ground.no_steps(RULE)
    if missing := ground.missing("kernels"):
        return ground.cannot_tell(RULE, missing)
    chains = _chains(ground)
    extra = chains.filter(~pl.col("longest"))
    cost = ground.per_step(int(extra["ns"].sum()))
    worth = ground.worth(RemoveOps(ops_of(extra)), bound=True) if extra.height else Worth(0, "")
    bound = cost if worth.saving_ns is None else worth.saving_ns
    if not ground.notable(bound, _FOUND):
        return ground.clear(
            RULE, f"fusing every chain of elementwise kernels is worth {ground.share(bound)} of the step at most"
        )
    rows = chains.group_by("module", "phase").agg(
        pl.col("run").n_unique().alias("chains"),
        pl.len().alias("kernels"),
        pl.col("ns").sum().alias("total_ns"),
        pl.col("ns").filter(~pl.col("longest")).sum().alias("at most_ns"),
    )
    rows = rows.sort("at most_ns", "module", "phase", descending=[True, False, False])
    evidence = [
        {
            **{k: r[k] for k in ("module", "phase")},
            **{k: r[k] / ground.steps for k in ("chains", "kernels")},
            **{k: ground.per_step(r[k]) for k in ("total_ns", "at most_ns")},
        }
        for r in rows.head(6).to_dicts()
    ]
    count = chains["run"].n_unique() / ground.steps
    title = f"Elementwise chains: fusing them saves {units.duration(bound)} at most"
    detail = (
        f"{count:.0f} chains of {chains.height / ground.steps:.0f} elementwise kernels per step take "
        f"{units.duration(ground.per_step(int(chains['ns'].sum())))}. If each chain took as long as its longest kernel, the step "
        f"would be {units.duration(bound)} shorter ({ground.share(bound)}): a bound, since a compiler makes other kernels."
    )
    where = {k: v for k, v in evidence[0].items() if k in ("module", "phase") and v}
    fix = "torch.compile of these modules"
    sure = Worth(None, "a bound, not a prediction")
    return [ground.found(RULE, title, detail, worth=sure, cost_ns=cost, fix=fix, where=where, evidence=evidence)]

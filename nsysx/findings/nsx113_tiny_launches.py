"""NSX113 tiny-launches: one part of the model launches many tiny kernels, and the GPU idles meanwhile.

What it means
    A loop over parameters, heads or time steps in Python launches a kernel per element. Each kernel is shorter than its
    launch, so the GPU waits for Python. One batched, foreach or fused operation does the same work in a few launches. The
    saving given is that of these launches in CUDA graphs, an upper bound for what batching brings.

In the trace
    Tens to thousands of kernels of a few us in one module, each preceded by a gap.

Bad
    optimizer = torch.optim.AdamW(params, foreach=False)
    for head in heads: out.append(head(x))

Good
    optimizer = torch.optim.AdamW(params, fused=True)
    out = torch.bmm(x.expand(len(heads), -1, -1), weights)

Harmless when
    The GPU has work queued meanwhile: launches then cost only the CPU.
"""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.findings._ground import Ground, Rule, calls_of
from nsysx.model import Finding
from nsysx.replay import Graph

RULE = Rule("NSX113", "tiny-launches", "Many tiny launches in one module")
_LAUNCHES, _TINY_NS = 20, 10_000
_MODULES = 3


def _pattern(column: str) -> pl.Expr:
    """Return module paths with numbered parts as one: layers.3.norm and layers.4.norm are layers.*.norm."""
    return pl.col(column).cast(pl.String).str.replace_all(r"(^|\.)\d+(\.|$)", "${1}*${2}").alias("part")


def check(ground: Ground) -> list[Finding]:
    """Return a finding per part of the model whose tiny launches let the GPU idle for 1 % of the step or more."""
    if ground.stepless:
        return ground.no_steps(RULE)
    if missing := ground.missing("kernels"):
        return ground.cannot_tell(RULE, missing)
    kernels = ground.ops.filter((pl.col("op_kind").cast(pl.String) == "kernel") & pl.col("call").is_not_null())
    if not kernels.height:
        return ground.cannot_tell(RULE, "the calls that launch the kernels were not recorded", "-t cuda")
    if not kernels["module"].drop_nulls().len():
        return ground.cannot_tell(RULE, "modules were not recorded", "nsysx run -- CMD")
    # A kernel of a graph is not launched by itself.
    single = ground.calls.filter(pl.col("gpu_ops") == 1).select("call")
    kernels = kernels.join(single, on="call", how="semi").with_columns(_pattern("module"))
    tiny = (
        kernels.drop_nulls("part")
        .group_by("part", "phase")
        .agg(pl.len().alias("launches"), pl.col("ns").median().alias("median_ns"))
        .filter((pl.col("launches") >= _LAUNCHES * ground.steps) & (pl.col("median_ns") < _TINY_NS))
    )
    idle = ground.idle().join(ground.ops.select("op", "phase", _pattern("module")), on="op", how="inner")
    blamed = idle.group_by("part", "phase").agg(pl.col("ns").sum().alias("idle_ns"))
    rows = tiny.join(blamed, on=["part", "phase"], how="left", nulls_equal=True).with_columns(
        pl.col("phase").cast(pl.String)
    )
    rows = rows.filter(pl.col("idle_ns") > 0).sort(
        "idle_ns", "part", "phase", descending=[True, False, False], nulls_last=True
    )
    found = []
    for row in rows.head(_MODULES).to_dicts():
        cost = ground.per_step(row["idle_ns"])
        calls = ground.calls.with_columns(_pattern("module")).filter(
            (pl.col("part") == row["part"])
            & pl.col("phase").cast(pl.String).eq_missing(pl.lit(row["phase"], dtype=pl.String))
        )
        worth = ground.worth(Graph(calls_of(calls)), bound=True)
        if not ground.notable(cost) or (worth.saving_ns is not None and not ground.notable(worth.saving_ns)):
            continue
        each = row["launches"] / ground.steps
        title = f"{row['part']}: {each:.0f} tiny launches per step, the GPU idles {units.duration(cost)}"
        detail = (
            f"Half of these kernels take less than {units.duration(row['median_ns'])}; the GPU idles {ground.share(cost)} of "
            "the step before them."
        )
        fix = "one batched, foreach or fused operation instead of a loop; torch.compile or a CUDA graph of this part"
        where = {"module": row["part"], "phase": row["phase"]}
        found.append(ground.found(RULE, title, detail, worth=worth, cost_ns=cost, where=where, fix=fix))
    return found or ground.clear(
        RULE, "no part of the model lets the GPU idle behind tiny launches for 1 % of the step"
    )

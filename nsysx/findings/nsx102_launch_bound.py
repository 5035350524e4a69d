"""NSX102 launch-bound: the GPU runs out of work because the CPU launches it too slowly.

What it means
    Each kernel needs Python, the framework and a launch call, 5 to 20 us together. Where kernels are shorter than that the
    GPU idles between them. Faster kernels change nothing; fewer launches do: torch.compile fuses kernels, a CUDA graph
    launches a whole step with one call. The saving given is that of a graph: everything between two waits becomes one
    launch. What breaks a capture (waits, allocations, copies from pageable memory) is listed as evidence.
    Profiling itself makes launches slower, so an unprofiled step idles less: time the step without a profiler too.

In the trace
    Short gaps before most kernels; each kernel starts right after its launch; idle causes "launch latency" and "host code".

Bad
    for x, y in loader:                       # 900 kernels of 3 us, each launched alone
        loss = model(x); loss.backward(); optimizer.step()

Good
    model = torch.compile(model, mode="reduce-overhead")
    # or capture the whole step by hand:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph): step()
    graph.replay()

Harmless when
    The idle time is small against the step, or the program runs a handful of such steps only.
"""

from __future__ import annotations

import polars as pl

from nsysx import units, verdict
from nsysx.findings._ground import SITE, Ground, Rule
from nsysx.model import Finding, Row
from nsysx.replay import Graph, RemoveWaits

RULE = Rule("NSX102", "launch-bound", "Bound by launches")
_FOUND = 0.05


def _blockers(ground: Ground) -> list[Row]:
    """Return what would break the capture of a graph, most frequent first."""
    calls = ground.of_kind("sync", "alloc", "free", "host_alloc", "copy")
    waits = ground.facts.ledgers.waits.select("call", pl.lit(True).alias("_blocks"))
    calls = calls.join(waits, on="call", how="left", maintain_order="left").with_columns(
        pl.col("kind", "name", "module", "phase").cast(pl.String)
    )
    blocks = (pl.col("kind") != "copy") | pl.col("_blocks").fill_null(False)
    rows = calls.filter(blocks).group_by("name", *SITE).agg(pl.len().alias("calls"))
    rows = rows.sort("calls", "name", *SITE, descending=[True] + [False] * 5, nulls_last=True)
    return [
        {"blocks capture": name, "module": module, "phase": phase, "line": line, "calls": calls_ / ground.steps}
        for name, module, phase, _, line, calls_ in rows.head(8).iter_rows()
    ]


def check(ground: Ground) -> list[Finding]:
    """Return one finding where launches and host code let the GPU idle for 5 % of the step or more."""
    if ground.stepless:
        return ground.no_steps(RULE)
    if ground.device is None:
        return ground.cannot_tell(RULE, ground.missing("gpu_ledger") or "the steady steps hold no GPU work")
    if missing := ground.missing("launches"):
        return ground.cannot_tell(RULE, missing)
    groups = verdict.idle_groups(ground.facts, ground.process, ground.device)
    cost = ground.per_step(groups.get("launch_bound", 0))
    if not ground.notable(cost, _FOUND):
        share = ground.share(cost)
        return ground.clear(RULE, f"launches and host code let the GPU idle for {share} of the step, less than 5 %")
    launches = int(ground.calls["kind"].is_in(["launch", "graph_launch"]).sum())
    median = ground.kernels["ns"].median()
    each = f", kernels of {units.duration(float(median))} (median)" if isinstance(median, (int, float)) else ""
    worth = ground.worth(Graph(), bound=True)
    detail = (
        f"The GPU idles {units.duration(cost)} per step ({ground.share(cost)}) behind launches and host code: "
        f"{launches / ground.steps:.0f} launches a step{each}."
    )
    blockers = _blockers(ground)
    if worth.saving_ns is not None:
        detail += f" Between its waits, the step as CUDA graphs saves at most {units.duration(worth.saving_ns)}."
        if blockers:
            whole = ground.worth(Graph(), RemoveWaits(), bound=True)
            if whole.saving_ns is not None and ground.notable(whole.saving_ns - worth.saving_ns):
                detail += f" Without the waits as well: {units.duration(whole.saving_ns)}."
    detail += " Profiling slows launches, so the unprofiled step idles less."
    fix = "torch.compile(model, mode='reduce-overhead'), or capture the step in a CUDA graph; fused=True for the optimizer"
    title = f"The GPU waits {units.duration(cost)} per step for launches"
    return [ground.found(RULE, title, detail, worth=worth, cost_ns=cost, fix=fix, evidence=blockers)]

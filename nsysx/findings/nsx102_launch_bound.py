"""NSX102 launch-bound: the GPU runs out of work because the CPU launches it too slowly.

What it means
    Launching a kernel takes Python, the framework and a CUDA call: 5 to 20 us in all. Where kernels are shorter than that,
    the GPU idles between them. Faster kernels change nothing; fewer launches do: torch.compile fuses kernels, a CUDA graph
    launches a whole step with one call. The saving shown is for CUDA graphs: everything between two waits becomes one
    launch. Calls that break graph capture (waits, allocations, copies from pageable memory) are listed as evidence.
    Where ranks work together, compile what a wrapper wraps: its hooks start collectives while the model runs.
    Profiling itself slows launches, so a step without the profiler idles less: nsysx gives that step beside the recorded one.

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
    The idle time is a small share of the step, or the program runs only a handful of such steps.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from nsysx import units
from nsysx.analyses import host_lines
from nsysx.catalogue import Call, StepLimit, StepPart
from nsysx.findings import _needs, _pasted, _requests
from nsysx.findings._case import SITE, Case, Rule, Saving, calls_of
from nsysx.findings._fewer_launches import graph_advice, no_graphs
from nsysx.findings._finding_bounds import LAUNCH_BOUND_SHARE
from nsysx.findings._found import Found
from nsysx.findings._held import held, idle_ns
from nsysx.findings._lines import calling_networks
from nsysx.findings._names import launched_by, mostly
from nsysx.findings.nsx112_fusion import fusible_ns
from nsysx.findings.nsx126_round_trips import rounds
from nsysx.judging import line_of_most
from nsysx.model import Finding, Row
from nsysx.replay.engine import Graph, RemoveWaits

RULE = Rule(
    "NSX102",
    "launch-bound",
    "Bound by launches",
    cause=(StepPart.HOST, StepPart.LAUNCH), about=StepLimit.LAUNCH, whole=True, direct=1,
    tries=("fused", "foreach", "compile", "compile-reduce-overhead", "cuda-graph", "near-gpu"),
)  # fmt: skip
REQUIRES = ("steps", "gpu", "launches")
_GRAPH_OF_A_CALL = (
    "A CUDA graph (torch.cuda.graph, mode='reduce-overhead') may not help, so measure it: each call of a compiled model pays for "
    "guards and a copy of its inputs."
)


def _blockers(case: Case) -> list[Row]:
    """Return the calls that would break graph capture, most frequent first."""
    calls = case.of_kind(Call.SYNC, Call.ALLOC, Call.FREE, Call.HOST_ALLOC, Call.COPY)
    waits = case.profile.ledgers.waits.select("call", pl.lit(True).alias("_blocks"))
    calls = calls.join(waits, on="call", how="left", maintain_order="left").with_columns(
        pl.col("kind", "name", "module", "phase").cast(pl.String)
    )
    blocks = (pl.col("kind") != Call.COPY) | pl.col("_blocks").fill_null(False)
    rows = calls.filter(blocks).group_by("name", *SITE).agg(pl.len().alias("calls"))
    rows = rows.sort("calls", "name", *SITE, descending=[True] + [False] * 5, nulls_last=True)
    return [
        {
            "blocks capture": name,
            "module": module,
            "phase": phase,
            "file": file,
            "line": line,
            "calls": calls_ / case.steps,
        }
        for name, module, phase, file, line, calls_ in rows.head(8).iter_rows()
    ]


def check(case: Case) -> list[Finding]:
    """Return one finding where the GPU idles for launches and host code for 5 % of the step or more."""
    # What a line runs besides is no part of launching; of a pause whose line is not known only the saving is left out.
    other = 0 if case.profile.code() is None else case.per_step(idle_ns(case.profile))
    cost = max(0, case.lost_to(StepLimit.LAUNCH) - other)
    if not case.notable(cost, LAUNCH_BOUND_SHARE):
        share, beside = case.share(cost), (" besides what other host code takes" if case.notable(other) else "")
        least = units.bound(LAUNCH_BOUND_SHARE)
        return case.clear(
            RULE, f"the GPU idles {share} of the step waiting for kernel launches{beside}, less than {least}"
        )
    # Rounds whose answers are read one by one are no launches that a graph could take together.
    trips = case.profile.once(rounds)
    kept = held(case.profile) | (frozenset() if trips is None else frozenset(trips.calls.tolist()))
    graph = Graph(calls_of(case.replayed) - kept) if kept else Graph()
    worth = case.worth(graph, cause=RULE.cause, bound=True)
    alone, worth = worth.likely_ns or 0, _fused(case, worth)
    detail = _described(case, cost, other)
    blockers, unblocked, mended = _blockers(case), None, None
    inside = calls_of(_needs.waits_inside(case))
    if inside and worth.likely_ns is not None:
        mended = case.worth(RemoveWaits(inside))
        unblocked = case.worth(graph, RemoveWaits(inside), cause=(*RULE.cause, StepPart.SYNC), bound=True)
        unblocked = _fused(case, unblocked)
    if worth.likely_ns is not None and not no_graphs(case):
        detail += f" A CUDA graph for all launches between two waits saves at most {units.duration(worth.likely_ns)}."
        if blockers:
            whole = case.worth(graph, RemoveWaits(), bound=True)
            if whole.likely_ns is not None and case.notable(whole.likely_ns - worth.likely_ns):
                detail += f" Without the waits it saves {units.duration(whole.likely_ns)}."
    if not case.limits.unprofiled:
        detail += " Profiling slows every launch; without it the GPU idles less."
    title = f"The GPU idles {units.duration(cost)} {case.per} waiting for kernel launches{_mostly_at(case, cost)}"
    if case.notable(other):  # the step's picture has both as one part
        title += f", and {units.duration(other)} for other host code"
    where = _place(case)
    if _requests.served(case, cost):
        detail += f" {_GRAPH_OF_A_CALL}"
        return [
            Found(
                RULE,
                title,
                detail,
                worth=_requests.batched(case),
                cost_ns=cost,
                fix=_requests.BATCH,
                evidence=blockers,
                where=where,
            ).as_finding(case)
        ]
    fix, worth = graph_advice(case, alone, worth, unblocked)
    worth = _pasted.likely(case, fix, worth, kept)
    unblocked = unblocked and _pasted.likely(case, fix, unblocked, kept, RemoveWaits(inside))
    return [
        Found(
            RULE,
            title,
            detail,
            worth=replace(worth, mended=unblocked),
            cost_ns=cost,
            fix=replace(fix, mending=mended),
            evidence=blockers,
            where=where,
        ).as_finding(case)
    ]


def _described(case: Case, cost: int, other: int) -> str:
    """Return how long the GPU waits, for how many launches, and of what kernels; ``other`` is how long it does for lines of the program."""
    launches = int(case.calls["kind"].is_in(Call.LAUNCHES).sum())
    median = case.kernels["ns"].median()
    each = f", with a median kernel of {units.duration(float(median))}" if isinstance(median, (int, float)) else ""
    beside = f" It waits another {units.duration(other)} for what lines do besides." if case.notable(other) else ""
    return (
        f"For {units.duration(cost)} {case.per} ({case.share(cost)}) the GPU idles, waiting for {case.program.host} to launch kernels: "
        f"{units.count(launches / case.steps)} a step{each}.{beside}"
    )


def _mostly_at(case: Case, cost: int) -> str:
    """Return the place at which the GPU waits for most of these launches, ", mostly in train.py:31"; "" where none has so much."""
    line = line_of_most.idle(case.profile)
    idle = case.taken_by(part for part in StepPart if part.idle)
    return f", mostly in {line.short}" if line is not None and 2 * line.share * idle > cost else ""


def _fused(case: Case, worth: Saving) -> Saving:
    """Return a graph's worth where a compiler also fuses kernels: at best all that it can fuse goes, and that is not replayed."""
    if worth.most_ns is None or not _compiles(case):
        return worth
    fusible = min(fusible_ns(case), max(0, case.step_ns - worth.most_ns))
    if not case.notable(fusible):
        return worth
    more = f"; kernels that a compiler can fuse take {units.duration(fusible)} of it"
    return replace(worth, most_ns=worth.most_ns + fusible, confidence=f"{worth.confidence}{more}")


def _compiles(case: Case) -> bool:
    """Return whether the advice is to compile the model."""
    program = case.program
    return program.torch and not program.graphs and not program.compiled


def _place(case: Case) -> Row:
    """Return what the launches belong to; without a network the lines that run while the GPU idles, else what is launched most."""
    # What is compiled or captured is what this line calls, not where most of it is launched.
    calling = calling_networks(case.profile)
    where = launched_by(case.profile)
    if any(where.values()):
        return {**where, **calling}
    lines = [r for r in case.typed_rows(host_lines.ROWS) if r["file"] and r["line"]]
    line = max(lines, key=lambda r: r["idle_ns"], default=None)
    return {"file": line["file"], "line": line["line"]} if line else {**mostly(case.profile, case.kernels), **calling}

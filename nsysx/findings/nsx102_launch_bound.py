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

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses import host_lines, modules
from nsysx.catalogue import Call, StepLimit, StepPart
from nsysx.findings import _needs, _pasted, _requests
from nsysx.findings._case import SITE, Case, Fix, Rule, Saving, calls_of, way
from nsysx.findings._finding_bounds import (
    FUSION_LEADS_TIMES,
    LAUNCH_BOUND_SHARE,
    SEQUENCE_CELL_CALLS,
    SEVERAL_MODEL_CALLS,
)
from nsysx.findings._found import Found
from nsysx.findings._held import held, idle_ns
from nsysx.findings._names import launched_by, mostly, networks_called
from nsysx.findings.nsx112_fusion import fusible_ns
from nsysx.findings.nsx126_round_trips import rounds
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
_GRAPHED, _FUSED, _FUSED_FOR_ALL_SHAPES = way("compile-reduce-overhead"), way("compile"), way("compile-dynamic")
#: A model that is called several times a step overwrites its last output.
_MARK = "torch.compiler.cudagraph_mark_step_begin()  # before each call of the model"
_KEPT = "The model is called {count:.0f} times a step: clone what is kept of an output until after the next call."
_COMPILED = 'model = torch.compile(model, mode="reduce-overhead")  # where it is compiled'
_DDP = "DistributedDataParallel"
_IN_A_GRAPH = "Shapes must stay the same, and nothing in the graph may wait, allocate or read a value back."


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
        return case.clear(RULE, f"the GPU idles {share} of the step waiting for kernel launches{beside}, less than 5 %")
    # Rounds whose answers are read one by one are no launches that a graph could take together.
    trips = case.profile.once(rounds)
    kept = held(case.profile) | (frozenset() if trips is None else frozenset(trips.calls.tolist()))
    graph = Graph(calls_of(case.replayed) - kept) if kept else Graph()
    worth = case.worth(graph, cause=RULE.cause, bound=True)
    alone, worth = worth.likely_ns or 0, _fused(case, worth)
    detail = _described(case, cost)
    blockers, unblocked, mended = _blockers(case), None, None
    inside = calls_of(_needs.waits_inside(case))
    if inside and worth.likely_ns is not None:
        mended = case.worth(RemoveWaits(inside))
        unblocked = case.worth(graph, RemoveWaits(inside), cause=(*RULE.cause, StepPart.SYNC), bound=True)
        unblocked = _fused(case, unblocked)
    if worth.likely_ns is not None:
        detail += f" A CUDA graph for all launches between two waits saves at most {units.duration(worth.likely_ns)}."
        if blockers:
            whole = case.worth(graph, RemoveWaits(), bound=True)
            if whole.likely_ns is not None and case.notable(whole.likely_ns - worth.likely_ns):
                detail += f" Without the waits it saves {units.duration(whole.likely_ns)}."
    if not case.limits.unprofiled:
        detail += " Profiling slows every launch; without it the GPU idles less."
    title = f"The GPU idles {units.duration(cost)} {case.per} waiting for kernel launches"
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
    fix, worth = _advised(case, alone, worth, unblocked)
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


def _described(case: Case, cost: int) -> str:
    """Return how long the GPU waits, for how many launches, and of what kernels."""
    launches = int(case.calls["kind"].is_in(Call.LAUNCHES).sum())
    median = case.kernels["ns"].median()
    each = f", with a median kernel of {units.duration(float(median))}" if isinstance(median, (int, float)) else ""
    return (
        f"For {units.duration(cost)} {case.per} ({case.share(cost)}) the GPU idles, waiting for {case.program.host} to launch kernels: "
        f"{launches / case.steps:.0f} a step{each}."
    )


def _advised(case: Case, alone: int, worth: Saving, unblocked: Saving | None) -> tuple[Fix, Saving]:
    """Return what to do and what that is worth: where no graph is possible, larger micro-batches still are."""
    fix, count = _fix(case, alone), _calls_of_network(case)
    blocked = unblocked is not None or any(need.test(case)[0] == "violated" for need in fix.needs)
    if blocked and _accumulates(case, count):  # one call needs nothing of what a graph needs
        return Fix.by_name("larger-batches", text=_larger(case, count)), _in_one_call(case, count)
    return fix, worth


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
    where = launched_by(case.profile)
    if any(where.values()):
        return where
    lines = [r for r in case.typed_rows(host_lines.ROWS) if r["file"] and r["line"]]
    line = max(lines, key=lambda r: r["idle_ns"], default=None)
    return {"file": line["file"], "line": line["line"]} if line else mostly(case.profile, case.kernels)


def _fix(case: Case, saving_ns: int) -> Fix:
    """Return how this program can make fewer launches: nothing that it already does. ``saving_ns``: what a CUDA graph alone saves."""
    program = case.program
    if not program.torch or not (program.compilable or program.graphs):
        return Fix(
            "Capture the launches of a step in a CUDA graph, or do more work in each kernel",
            condition=_IN_A_GRAPH,
            needs=(_needs.REPEATS,),
        )
    if program.graphs:
        return Fix.by_name("larger-graphs", condition=_IN_A_GRAPH, needs=_needs.GRAPH)
    if program.compiled:
        text = "torch.compile(model, mode='reduce-overhead') puts what is already compiled into CUDA graphs"
        return Fix.by_name(_GRAPHED.name, text=text, paste=_COMPILED, needs=_needs.GRAPH)
    if not program.networks and (once := _needs.numbers_copied(case)) is not None:
        return Fix.by_name(once)
    if _needs.DIFFERENTIATED_ONCE.test(case)[0] == "violated":  # nothing that compiles has a second derivative
        return Fix.by_name("cuda-graph", needs=_needs.GRAPH)
    if (instead := _no_graph(case) or _wrapped(case)) is not None:
        return instead
    text = f"{_GRAPHED.text}, or capture the step in a CUDA graph: {_launches(case)}"
    ways = [way(_GRAPHED.name, paste=f"{_GRAPHED.paste}{_which(case)}"), way("cuda-graph")]
    count = _calls_of_network(case)
    if fusible := _mostly_fusible(case, saving_ns):
        text = (
            f"torch.compile(model): kernels that it can fuse take {units.duration(fusible)} a step; mode='reduce-overhead' takes the "
            "launches, too"
        )
        ways.append(way(_FUSED.name, paste=f"{_FUSED.paste}{_which(case)}"))
    elif cell := _cell(case):
        whole = f"nn.{_CELLS[cell.cls]} on the whole sequence in place of {cell.calls:.0f} calls of {cell.cls} a step"
        text = f"{whole}, where each input is known before; else {text}"
        ways.append(way("sequence-at-once", f"{whole}, where each input is known before"))
    elif _accumulates(case, count):
        saves = units.duration(_in_one_call(case, count).likely_ns or 0)
        text = f"{_larger(case, count)} (saves up to {saves}); then {text}"
        ways.append(way("larger-batches", _larger(case, count)))
    if program.optimizer == "foreach" and program.optimizer_class in _needs.FUSABLE:
        text = f"{text}; fused=True for the optimizer"
        ways = _with_fused(case, ways)
    if count >= SEVERAL_MODEL_CALLS:
        first, kept = ways[0], _KEPT.format(count=count)
        ways[0] = replace(first, paste=f"{first.paste}\n{_MARK}", condition=f"{first.condition} {kept}")
    return Fix.by_name(*ways, text=text, needs=_needs.GRAPH)


def _with_fused(case: Case, ways: Sequence[Alternative]) -> list[Alternative]:
    """Return remedies, the first with a fused optimizer as well, which is one of its own, too."""
    first, code = ways[0], _needs.fused_code(case)
    both = replace(
        first,
        name=f"{first.name},fused",
        text=f"{first.text}; fused=True for the optimizer",
        paste=f"{first.paste}\n{code}",
    )
    return [both, *ways[1:], way("fused", paste=code)]


class _Cell(NamedTuple):
    """A module that handles one element of a sequence: where, its class, and how often a step calls it."""

    path: str
    cls: str
    calls: float


#: Recurrent cells of PyTorch, and what runs them over a whole sequence in one call. From so many calls a step on.
_CELLS = {"LSTMCell": "LSTM", "GRUCell": "GRU", "RNNCell": "RNN"}


def _launches(case: Case) -> str:
    """Return how many launches a step makes, and of which network."""
    asked = networks_called(case.profile)
    count = round(int(case.calls["kind"].is_in(Call.LAUNCHES).sum()) / case.steps)
    return f"{units.several(count, 'launch', 'launches')} a step{f' of your {asked}' if asked else ''}"


def _mostly_fusible(case: Case, saving_ns: int) -> int:
    """Return what kernels take that a compiler can fuse (ns a step) where that is far more than a graph saves, else 0."""
    fusible = fusible_ns(case)
    return fusible if case.notable(fusible, LAUNCH_BOUND_SHARE) and fusible > FUSION_LEADS_TIMES * saving_ns else 0


def _cell(case: Case) -> _Cell | None:
    """Return the recurrent cell that the program calls for each element of a sequence, None where it calls none."""
    cells = (
        _Cell(str(r["path"]), str(r["cls"]), (r["calls"] or 0) / case.steps)
        for r in case.typed_rows(modules.ROWS)
        if r["cls"] in _CELLS
    )
    most = max(cells, key=lambda cell: cell.calls, default=None)
    return most if most is not None and most.calls >= SEQUENCE_CELL_CALLS else None


def _accumulates(case: Case, count: float) -> bool:
    """Return whether a step calls one network several times, backward after each, for one optimizer step, and mostly idles."""
    if (
        count < SEVERAL_MODEL_CALLS
        or len(case.program.networks) != 1
        or 2 * case.lost_to(StepLimit.LAUNCH) < case.step_ns
    ):
        return False
    parts = _parts(case).group_by("name").len()
    often: dict[str, float] = dict(parts.select(pl.col("name").cast(pl.String), pl.col("len") / case.steps).iter_rows())
    return often.get("backward", 0) >= count and often.get("optimizer", 0) == 1


def _larger(case: Case, count: float) -> str:
    called = f"{networks_called(case.profile)} is called {count:.0f} times a step"
    return f"Use fewer, larger micro-batches: {called}, and one call makes the same launches for all of their inputs"


def _in_one_call(case: Case, count: float) -> Saving:
    """Return what it is worth if a step makes the launches of one micro-batch: that, and at best as much of the GPU's work.

    What a call does with the weights alone (casts, their gradients' sums) is done once, and small kernels work better on more inputs.
    """
    why = "one call makes the launches of all micro-batches; how much of the GPU's work goes is not known"
    least, most = (round((1 - 1 / count) * ns) for ns in (case.lost_to(StepLimit.LAUNCH), case.step_ns))
    return Saving((least + most) // 2, why, error_ns=(most - least) // 2, most_ns=most, source="time")


def _parts(case: Case) -> pl.DataFrame:
    """Return the probe's ranges in the steady steps of the shown process: name, cls."""
    steps, ranges = _needs.steady_steps(case.profile), case.profile.ranges.ranges
    within = pl.col("start_ns").is_between(steps["start_ns"].min(), steps["end_ns"].max(), closed="left")
    return ranges.filter(pl.col("own") & within & (pl.col("process") == case.profile.process)).select("name", "cls")


def _no_graph(case: Case) -> Fix | None:
    """Return what to do where a CUDA graph of the model is ruled out, or cannot be judged; None where it is not."""
    tested = [(need, *need.test(case)) for need in _needs.GRAPH]
    if any(need is _needs.NO_MEMORY_CALL and state == "violated" for need, state, _ in tested):
        return None  # calls that allocate are what to remove: no graph is advised before that
    shapes = next((seen for need, state, seen in tested if need is _needs.SAME_SHAPES and state == "violated"), None)
    if shapes:
        return Fix.by_name(
            _FUSED_FOR_ALL_SHAPES.name,
            text="torch.compile(model, dynamic=True), which does not compile again for each shape; with inputs padded to few lengths, "
            f"mode='reduce-overhead': {shapes}",
            paste=f"{_FUSED_FOR_ALL_SHAPES.paste}{_which(case)}",
        )
    for state, words in (("violated", "no CUDA graph, because"), ("unknown", "a CUDA graph only if")):
        for need, is_, seen in tested:
            if is_ == state and not (state == "violated" and need.mend):
                because = seen if state == "violated" else f"{need.name}: {seen}"
                return Fix.by_name(
                    _FUSED.name,
                    text=f"torch.compile(model), for fewer kernels ({_launches(case)}); {words} {because}",
                    paste=f"{_FUSED.paste}{_which(case)}",
                )
    return None


def _wrapped(case: Case) -> Fix | None:
    """Return how the ranks of a job make fewer launches: what is compiled is what a wrapper wraps. None without such a wrapper.

    The wrapper's hooks start collectives while the model runs: a CUDA graph of the wrapped model would have to hold them.
    """
    program = case.program
    if _DDP in program.networks:
        compiled = way("compile-wrapped")
    elif _needs.shards(case):
        compiled = way("compile-blocks")
    else:
        return None
    ways = [replace(compiled, text=f"{compiled.text}: {_launches(case)}")]
    if program.optimizer == "foreach" and program.optimizer_class in _needs.FUSABLE:
        ways = _with_fused(case, ways)
    return Fix.by_name(*ways, text=ways[0].text)


def _which(case: Case) -> str:
    """Return a comment that says what ``model`` stands for: the program's networks, by their classes."""
    asked = networks_called(case.profile)
    each = "each of: " if len(case.program.networks) > 1 else ""
    return f"  # {each or 'your '}{asked}" if asked else "  # your network"


def _calls_of_network(case: Case) -> float:
    """Return how often a step calls the network that it calls most, by the probe's ranges; 0 where they were not recorded."""
    called = _parts(case).filter(pl.col("name").cast(pl.String) == "forward")
    return max(called.group_by("cls").len()["len"].to_list(), default=0) / case.steps

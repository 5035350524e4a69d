"""What to do about launches that a GPU waits for: a graph, a compiler, one call for many, larger micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.catalogue import Call, StepLimit
from nsysx.findings import _needs
from nsysx.findings._case import Case, Fix, Saving, way
from nsysx.findings._compiled_shapes import for_all_shapes
from nsysx.findings._finding_bounds import FUSION_LEADS_TIMES, LAUNCH_BOUND_SHARE, SEVERAL_MODEL_CALLS
from nsysx.findings._names import networks_called
from nsysx.findings._plain_tensors import plain_tensors
from nsysx.findings._rank_rows import rank_rows
from nsysx.findings._recurrent_cells import recurrent_cell
from nsysx.findings.nsx112_fusion import fusible_ns

_GRAPHED, _FUSED = way("compile-reduce-overhead"), way("compile")
#: A model that is called several times a step overwrites its last output.
_MARK = "torch.compiler.cudagraph_mark_step_begin()  # before each call of the model"
#: A schedule of micro-batches calls it again before the backward of the last call: a mark in between would free what that needs.
_MARK_OF_SCHEDULE = "torch.compiler.cudagraph_mark_step_begin()  # once a step, before schedule.step(...)"
_IN_FLIGHT = "The model is called {count:.0f} times a step: each call has a graph and memory of its own."
_KEPT = "The model is called {count:.0f} times a step: clone each output that is still needed after the next call."
_COMPILED = 'model = torch.compile(model, mode="reduce-overhead")  # where it is compiled'
_DDP = "DistributedDataParallel"
_IN_A_GRAPH = "Shapes must stay the same, and nothing in the graph may wait, allocate or read a value back."


def graph_advice(case: Case, alone: int, worth: Saving, unblocked: Saving | None) -> tuple[Fix, Saving]:
    """Return what to do and what that is worth: where no graph is possible, larger micro-batches still are.

    They are more than a graph of what is compiled already: one call makes the launches of all, and larger kernels besides.
    """
    if (plain := plain_tensors(case)) is not None:
        return plain
    fix, count = _fix(case, alone), _calls_of_network(case)
    blocked = unblocked is not None or any(need.test(case)[0] == "violated" for need in fix.needs)
    if (blocked or case.program.compiled) and _accumulates(case, count):  # one call needs nothing of what a graph needs
        return Fix.by_name("larger-batches", text=_larger(case, count)), _in_one_call(case, count)
    return fix, worth


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
    ways = [way(_GRAPHED.name, paste=f"{_GRAPHED.paste}{_networks_comment(case)}"), way("cuda-graph")]
    count = _calls_of_network(case)
    if fusible := _mostly_fusible(case, saving_ns):
        text = (
            f"torch.compile(model): kernels that it can fuse take {units.duration(fusible)} a step; mode='reduce-overhead' takes the "
            "launches, too"
        )
        ways.append(way(_FUSED.name, paste=f"{_FUSED.paste}{_networks_comment(case)}"))
    elif cell := recurrent_cell(case):
        text = f"{cell.whole.text}; else {text}"
        ways.append(cell.whole)
    elif _accumulates(case, count):
        saves = units.duration(_in_one_call(case, count).likely_ns or 0)
        text = f"{_larger(case, count)} (saves up to {saves}); then {text}"
        ways.append(way("larger-batches", _larger(case, count)))
    if program.optimizer == "foreach" and program.optimizer_class in _needs.FUSABLE:
        text = f"{text}; fused=True for the optimizer"
        ways = _with_fused(case, ways)
    if count >= SEVERAL_MODEL_CALLS:
        first, (mark, told) = ways[0], _kept_between_calls(case, count)
        ways[0] = replace(first, paste=f"{first.paste}\n{mark}", condition=f"{first.condition} {told}")
    return Fix.by_name(*ways, text=text, needs=_needs.GRAPH)


def _kept_between_calls(case: Case, count: float) -> tuple[str, str]:
    """Return the line that says where outputs of graphs may be overwritten, and what has to be done for that."""
    staged = any(row.get("bubble_ns") is not None for row in rank_rows(case))
    mark, told = (_MARK_OF_SCHEDULE, _IN_FLIGHT) if staged else (_MARK, _KEPT)
    return mark, told.format(count=count)


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


def _launches(case: Case) -> str:
    """Return how many launches a step makes, and of which network."""
    asked = networks_called(case.profile)
    count = round(int(case.calls["kind"].is_in(Call.LAUNCHES).sum()) / case.steps)
    return f"{units.several(count, 'launch', 'launches')} a step{f' of your {asked}' if asked else ''}"


def _mostly_fusible(case: Case, saving_ns: int) -> int:
    """Return what kernels take that a compiler can fuse (ns a step) where that is far more than a graph saves, else 0."""
    fusible = fusible_ns(case)
    return fusible if case.notable(fusible, LAUNCH_BOUND_SHARE) and fusible > FUSION_LEADS_TIMES * saving_ns else 0


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
    return Saving.between(least, most, why)


def _parts(case: Case) -> pl.DataFrame:
    """Return the probe's ranges in the steady steps of the shown process: name, cls."""
    steps, ranges = _needs.steady_steps(case.profile), case.profile.ranges.ranges
    within = pl.col("start_ns").is_between(steps["start_ns"].min(), steps["end_ns"].max(), closed="left")
    return ranges.filter(pl.col("own") & within & (pl.col("process") == case.profile.process))["name", "cls"]


def no_graphs(case: Case) -> bool:
    """Return whether a CUDA graph of this program's launches is ruled out: by what a wrapper's hooks do, or by a condition of graphs."""
    tested = ((need, need.test(case)[0]) for need in _needs.GRAPH)
    return _wrapped(case) is not None or any(state == "violated" and not need.mend for need, state in tested)


def _no_graph(case: Case) -> Fix | None:
    """Return what to do where a CUDA graph of the model is ruled out, or cannot be judged; None where it is not."""
    tested = [(need, *need.test(case)) for need in _needs.GRAPH]
    if any(need is _needs.NO_MEMORY_CALL and state == "violated" for need, state, _ in tested):
        return None  # calls that allocate are what to remove: no graph is advised before that
    shapes = next((seen for need, state, seen in tested if need is _needs.SAME_SHAPES and state == "violated"), None)
    if shapes:
        return for_all_shapes(
            case,
            text=f"torch.compile(model, dynamic=True), compiled once for all shapes ({shapes}); with inputs padded to few lengths, "
            "mode='reduce-overhead' takes the launches, too",
            comment=_networks_comment(case),
        )
    for state, words in (("violated", "no CUDA graph, because"), ("unknown", "a CUDA graph only if")):
        for need, is_, seen in tested:
            if is_ == state and not (state == "violated" and need.mend):
                because = seen if state == "violated" else f"{need.name}: {seen}"
                return Fix.by_name(
                    _FUSED.name,
                    text=f"torch.compile(model), for fewer kernels ({_launches(case)}); {words} {because}",
                    paste=f"{_FUSED.paste}{_networks_comment(case)}",
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


def _networks_comment(case: Case) -> str:
    """Return a comment that says what ``model`` stands for: the program's networks, by their classes."""
    asked = networks_called(case.profile)
    each = "each of: " if len(case.program.networks) > 1 else ""
    return f"  # {each or 'your '}{asked}" if asked else "  # your network"


def _calls_of_network(case: Case) -> float:
    """Return how often a step calls the network that it calls most, by the probe's ranges; 0 where they were not recorded."""
    called = _parts(case).filter(pl.col("name").cast(pl.String) == "forward")
    return max(called.group_by("cls").len()["len"].to_list(), default=0) / case.steps

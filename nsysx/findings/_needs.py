"""What remedies need of the program, each tested on the capture: holds, violated (where, how often), or unknown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses import compilations, copy_sites, lines
from nsysx.analyses.helpers.module_names import by_class, folded
from nsysx.catalogue import Call
from nsysx.events.attribute import IN_STEP
from nsysx.events.layers import PATHLESS, bare
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Need, State, way
from nsysx.findings._finding_bounds import (
    LAUNCHES_PER_NUMBER_COPY,
    MANY_NUMBER_COPIES,
    MANY_PARAMETER_GROUPS,
    NUMBER_COPY_BYTES,
    TENSORS_OF_SMALL_GROUP,
    THREADS_WITH_AUTOGRAD,
)
from nsysx.findings._names import called
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.model import Row

#: Phases whose work a compiled model holds.
_MODEL = ("forward", "backward")
#: What tells where a call was made, and what it calls.
_PLACE = ("module", "phase", "name")


def _of_model(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls made inside a module of the model, in its forward or backward; the network itself is one, without a path."""
    module, phase = (pl.col(c).cast(pl.String) for c in ("module", "phase"))
    no_module = module.is_null() | (module == IN_STEP) | (module == pl.format(PATHLESS, phase))
    inside = phase.is_in(_MODEL) & ~no_module
    return calls.filter(inside.fill_null(False))


# Several remedies have the same needs, so what a test reads of all calls is found out once: see ``Profile.once``.


def _has_phases(profile: Profile) -> bool:
    return bool((lookup.coded(profile.steady_calls["phase"], dict.fromkeys(_MODEL, 1)) == 1).any())


class _Inside(NamedTuple):
    """Calls inside of the model, and where it makes most of them; ``paths``: of the modules there."""

    calls: int
    module: str = ""
    phase: str = ""
    name: str = ""
    paths: Sequence[str] = ()


def _inside_model(calls: pl.DataFrame) -> _Inside:
    inside, columns = _of_model(calls), list(_PLACE)
    if not inside.height:
        return _Inside(0)
    places = inside.select(pl.col(columns).cast(pl.String), path=pl.col("module").cast(pl.String)).with_columns(
        pl.col("module").map_elements(folded, pl.String)
    )
    most = places.group_by(columns).agg(pl.len(), pl.col("path").unique())
    module, phase, name, _, paths = most.sort("len", *columns, descending=[True, False, False, False]).row(0)
    return _Inside(inside.height, module, phase, name, paths)


def _waits_inside_model(profile: Profile) -> _Inside:
    return _inside_model(profile.once(waits))


def _memory_calls_inside_model(profile: Profile) -> _Inside:
    return _inside_model(profile.once(_memory_calls))


def _calls_inside_model(
    case: Case, calls: pl.DataFrame, find: Callable[[Profile], _Inside], singular: str, several: str
) -> tuple[State, str]:
    """Return whether the model makes such calls in half of the steps or more, and where it makes most."""
    if 2 * calls.height < case.steps:
        return "holds", f"no {singular} in half of the steady steps"
    if not case.profile.once(_has_phases):
        return "unknown", f"{case.often(calls.height, singular, several)}; whether inside the model is not recorded"
    inside = case.profile.once(find)
    if 2 * inside.calls < case.steps:
        return "holds", f"no {singular} inside the model in half of the steps"
    often = case.often(inside.calls, singular, several)
    modules = _modules_in_words(case, inside.module, inside.paths)
    return (
        "violated",
        f"{often}, {'' if often.startswith('1 ') else 'most '}in {modules}.{inside.phase} ({inside.name})",
    )


def _modules_in_words(case: Case, module: str, paths: Sequence[str]) -> str:
    """Return what modules are called whose paths fold into one: by the class of these alone where the path says nothing."""
    if module.strip("*."):
        return called(case.profile, bare(module))
    tree = case.profile.attributed.modules.select(pl.col("module").cast(pl.String), "cls")
    return by_class(module, tree.filter(tree["module"].is_in(paths))["cls"].to_list())


def _of_kinds(profile: Profile, kinds: Iterable[str], *columns: str) -> pl.DataFrame:
    calls = profile.steady_calls
    chosen = lookup.coded(calls["kind"], dict.fromkeys(kinds, 1)) == 1
    return calls.select(columns).filter(pl.Series(chosen, dtype=pl.Boolean))


def waits(profile: Profile) -> pl.DataFrame:
    """Return the synchronizing calls and copies that wait for the GPU; memory calls are a condition of their own."""
    calls = _of_kinds(profile, Call.WAITS, "call", *_PLACE)
    return calls.join(profile.ledgers.waits.select("call"), on="call", how="semi", maintain_order="left")


def _memory_calls(profile: Profile) -> pl.DataFrame:
    return _of_kinds(profile, Call.ALLOCATOR, *_PLACE)


def waits_inside(case: Case) -> pl.DataFrame:
    """Return the calls of the model that wait for the GPU."""
    return _of_model(case.profile.once(waits))


def _no_wait(case: Case) -> tuple[State, str]:
    return _calls_inside_model(case, case.profile.once(waits), _waits_inside_model, "wait", "waits")


def _no_memory_call(case: Case) -> tuple[State, str]:
    calls = case.profile.once(_memory_calls)
    return _calls_inside_model(case, calls, _memory_calls_inside_model, "allocation or free", "allocations and frees")


def steady_steps(profile: Profile) -> pl.DataFrame:
    """Return the steady steps of the shown process, as they began."""
    return profile.once(_steady_steps)


def _steady_steps(profile: Profile) -> pl.DataFrame:
    steps = profile.steps.cpu
    return steps.filter((steps["process"] == profile.process) & steps["steady"]).sort("start_ns")


def step_of(profile: Profile, called: pl.Series) -> I64:
    """Return the steady step in which each of these times lies: 1 is the first, 0 before it."""
    return np.searchsorted(steady_steps(profile)["start_ns"].to_numpy(), called.to_numpy(), side="right")


def _launches_of_steps(profile: Profile) -> I64:
    """Return how many launches each steady step makes, of those that make any."""
    windows = steady_steps(profile)
    starts, ends = windows["start_ns"].to_numpy(), windows["end_ns"].to_numpy()
    launch_ns = np.sort(_of_kinds(profile, Call.LAUNCHES, "start_ns")["start_ns"].to_numpy(), kind="stable")
    counts = np.searchsorted(launch_ns, ends) - np.searchsorted(launch_ns, starts)
    return np.asarray(counts[counts > 0], np.int64)


def _forward_threads(profile: Profile) -> int:
    """Return how many threads launch work of the forward pass."""
    launches = _of_kinds(profile, Call.LAUNCHES, "thread", "phase")
    return int(launches["thread"].filter(launches["phase"] == "forward").n_unique())


def _repeats(case: Case) -> tuple[State, str]:
    """Return whether half of the steps or more make the same number of launches."""
    counts = case.profile.once(_launches_of_steps)
    if len(counts) < 2:
        return "unknown", "not checked, fewer than two steady steps have launches"
    values, often = np.unique(counts, return_counts=True)
    if 2 * int(often.max()) >= len(counts):
        return (
            "holds",
            f"{int(often.max())} of {len(counts)} steps make {units.count(int(values[often.argmax()]))} launches",
        )
    return "violated", f"steps make {units.count(int(values[0]))} to {units.count(int(values[-1]))} launches"


def _unlike_steps(profile: Profile) -> tuple[int, int] | None:
    """Return how many steady steps launch kernels with grids that fewer than half of the steps launch, and of how many steps.

    None where fewer than two steps have launches whose grids are recorded.
    """
    ops, steps = profile.steady_ops, steady_steps(profile).height
    launched = ops["name", "grid", "call"].filter(ops["grid"].is_not_null() & ops["call"].is_not_null())
    if not launched.height or steps < 2:
        return None
    launch_ns = profile.attributed.api_calls["start_ns"].gather(launched["call"])
    kinds = launched.select("name", "grid", step=step_of(profile, launch_ns)).unique()
    often = kinds.select(pl.len().over("name", "grid")).to_series()
    return kinds.filter(2 * often < steps)["step"].n_unique(), steps


def _same_shapes(case: Case) -> tuple[State, str]:
    """Return whether half of the steps or more launch their kernels with the same grids, as inputs of one shape do."""
    seen = case.profile.once(_unlike_steps)
    if seen is None:
        return "unknown", "fewer than two steady steps whose grids are recorded"
    unlike, steps = seen
    if 2 * unlike <= steps:
        return "holds", f"{steps - unlike} of {steps} steps launch the same kernels with the same grids"
    return "violated", f"shapes change: {unlike} of {steps} steps launch grids of their own"


def _no_recompilation(case: Case) -> tuple[State, str]:
    if not case.program.compiled:
        return "holds", "the program compiles nothing yet"
    table = case.tables.get(compilations.KEY)
    if table is None or table.rows is None:
        return "unknown", "compilations were not recorded"
    again = [r for r in table.rows if r["steady"]]
    if not again:
        return "holds", "no compilation in the steady steps"
    reason = next((f": {r['reason']}" for r in again if r["reason"]), "")
    return "violated", f"{units.several(len(again), 'compilation')} in the steady steps{reason}"


def _one_thread(case: Case) -> tuple[State, str]:
    """Return whether one thread drives the model's forward; autograd has a thread of its own, which a graph takes."""
    if not case.profile.once(_has_phases):
        if case.calls["thread"].filter(case.calls["kind"].is_in(Call.LAUNCHES)).n_unique() <= THREADS_WITH_AUTOGRAD:
            return "holds", "no more threads launch than the program's and that of autograd"
        return "unknown", "the phases of a step are not recorded"
    threads = case.profile.once(_forward_threads)
    return (
        ("violated", f"{threads} threads launch the forward pass")
        if threads > 1
        else ("holds", "one thread launches it")
    )


NO_WAIT = Need(
    "nothing waits or reads a value back inside the model",
    _no_wait,
    "Remove host syncs from the model: no .item(), nonzero(), x[mask] or synchronize() in forward",
)
NO_MEMORY_CALL = Need("nothing allocates or frees device memory inside the model", _no_memory_call)
REPEATS = Need("each step makes the same launches", _repeats)
SAME_SHAPES = Need("each step has inputs of the same shapes", _same_shapes)
NO_RECOMPILATION = Need("nothing is compiled again in steady steps", _no_recompilation)
ONE_THREAD = Need("one thread drives the model", _one_thread)

#: A line that asks for gradients which are differentiated again.
_TWICE = re.compile(r"\bcreate_graph\s*=\s*True|\b(hessian|jacrev|hvp|vhp)\(")


def _differentiated_once(case: Case) -> tuple[State, str]:
    rows = case.typed_rows(lines.ROWS)
    if not rows:
        return "unknown", "the lines of the program were not recorded"
    twice = next((r for r in rows if _TWICE.search(str(r["text"] or ""))), None)
    if twice is None:
        return "holds", "no line asks for a graph of gradients"
    return (
        "violated",
        f"{PurePath(str(twice['file'])).name}:{twice['line']} asks for gradients that are differentiated again",
    )


#: torch.compile makes a backward, and none of that.
DIFFERENTIATED_ONCE = Need("no gradient is differentiated again", _differentiated_once)
#: What a CUDA graph of the model needs.
GRAPH = (NO_WAIT, NO_MEMORY_CALL, REPEATS, SAME_SHAPES, NO_RECOMPILATION, ONE_THREAD)


def _not_fused(case: Case) -> tuple[State, str]:
    program = case.program
    if program.optimizer is None:
        return "unknown", "no optimizer was seen"
    if program.optimizer == "fused":
        return "violated", "the optimizer is fused already"
    how = "a kernel per parameter" if program.optimizer == "loop" else "foreach kernels"
    if program.optimizer_class is None:
        return "unknown", f"the optimizer runs {how}; its class is not recorded"
    if program.optimizer_class not in FUSABLE:
        return "violated", f"{program.optimizer_class} has no fused form"
    return "holds", f"{program.optimizer_class} runs {how}"


#: Optimizers of PyTorch that take fused=True on a GPU. Adagrad has kernels for CPUs alone up to 2.11 at least (pytorch/pytorch#177672).
FUSABLE = ("Adam", "AdamW", "SGD")
NOT_FUSED = Need("the optimizer has a fused form and does not use it", _not_fused)


def _loader_seen(case: Case) -> tuple[State, str]:
    return ("holds", "a DataLoader was seen") if case.program.loader else ("unknown", "no DataLoader was seen")


LOADER = Need("the program uses a DataLoader", _loader_seen)


def _pageable(case: Case) -> tuple[State, str]:
    sources = {r["obstacle"] for r in case.typed_rows(copy_sites.ROWS) if r["direction"] in ("HtoD", "DtoH")}
    return (
        ("holds", "copies from pageable memory were seen")
        if "pageable" in sources
        else ("violated", "all copies are pinned")
    )


PAGEABLE = Need("the copied memory is pageable", _pageable)


#: Collectives of parameters that are sharded.
_SCATTERED, GATHERED = r"ncclDevKernel_ReduceScatter|reduce_?scatter", r"ncclDevKernel_AllGather|all_?gather"


def shards(case: Case) -> bool:
    """Return whether the ranks gather parameters and scatter gradients, as those of a sharded model do.

    Layers that are split over the ranks without a wrapper gather what they compute.
    """
    settings = settings_of(case.profile)
    if settings is not None and settings.rows("wrappers") == () and settings.divides_network():
        return False
    return all(lookup.matching(case.ops["name"], kind).any() for kind in (_SCATTERED, GATHERED))


def fused_code(case: Case) -> str:
    """Return the line that makes the program's optimizer, of a class that is FUSABLE, a fused one."""
    return f"optimizer = torch.optim.{case.program.optimizer_class}(model.parameters(), fused=True)"


def groups_of_one(case: Case) -> int | None:
    """Return the number of an optimizer's groups of parameters where there are many of hardly more than a tensor each, else None."""
    settings = settings_of(case.profile)
    for row in (settings.rows("optimizers") if settings else None) or ():
        groups, tensors = row.get("groups"), row.get("parameters")
        if (
            isinstance(groups, int)
            and isinstance(tensors, int)
            and MANY_PARAMETER_GROUPS < groups <= tensors <= TENSORS_OF_SMALL_GROUP * groups
        ):
            return groups
    return None


def merged_groups(case: Case) -> Alternative | None:
    """Return the remedy for an optimizer whose groups hold hardly more than a tensor each, None for any other."""
    groups, program = groups_of_one(case), case.program
    if groups is None:
        return None
    merged = way("groups-merged")
    fusable, cls = program.optimizer_class in FUSABLE, program.optimizer_class or "the optimizer"
    text = merged.text.replace("the optimizer's groups", f"the {groups} groups of {cls}")
    paste = merged.paste.replace("torch.optim.AdamW", f"torch.optim.{cls}" if fusable else cls)
    return replace(merged, text=text, paste=paste if program.optimizer_class else "")


def numbers_copied(case: Case, rows: Iterable[Row] | None = None) -> Alternative | None:
    """Return the remedy for single numbers that are copied to the GPU one by one, each with a wait; None where they are few."""
    every = case.rows(copy_sites.KEY) if rows is None else rows
    tiny = [
        r
        for r in every
        if r["direction"] == "HtoD" and r["obstacle"] == "pageable" and r["bytes"] <= NUMBER_COPY_BYTES * r["count"]
    ]
    count, size = sum(r["count"] for r in tiny), sum(r["bytes"] for r in tiny)
    launches = int(case.calls["kind"].is_in(Call.LAUNCHES).sum())
    if case.stepless or count < MANY_NUMBER_COPIES * case.steps or launches > LAUNCHES_PER_NUMBER_COPY * count:
        return None
    once = way("constants-once")
    copies = f"{case.often(count, 'copy', 'copies')} of {units.size(size / count)} to the GPU {case.per}, each of which waits"
    return replace(once, text=f"{once.text}: {copies}")

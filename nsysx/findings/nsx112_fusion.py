"""NSX112 fusion: chains of kernels that compute little, each of which reads and writes memory again.

What it means
    Elementwise, normalization and reduction kernels are limited by memory bandwidth: five in a row move the same tensor
    through memory five times. Fused into one kernel they move it once. The estimate assumes that a fused chain takes as long
    as its longest kernel. A capture cannot say what a compiler will achieve: on a small GPT the estimate was 6.8 ms of 29.9
    and torch.compile saved 10.9. So its interval reaches from half of the estimate to all that these kernels take.

In the trace
    Kernels named elementwise, vectorized, unrolled, layer_norm, softmax or reduce, one directly after the other on a stream, in the
    modules of a network and over tensors of one size. Neighbors outside of modules, or in an optimizer, prove nothing: a
    capture does not hold which tensor a kernel reads.

Bad
    y = (x * scale + shift).sigmoid() * gate           # four kernels

Good
    @torch.compile
    def act(x, scale, shift, gate): return (x * scale + shift).sigmoid() * gate      # one kernel

Harmless when
    The tensors fit in the L2 cache and the GPU is not the limit.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.helpers import kernel_shapes
from nsysx.catalogue import StepLimit, StepPart
from nsysx.events.attribute import IN_STEP
from nsysx.events.layers import PATHLESS
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.profile import Profile
from nsysx.findings._case import Case, Fix, Rule, Saving, calls_of, ops_of
from nsysx.findings._compiled_shapes import for_all_shapes
from nsysx.findings._found import Found
from nsysx.findings._names import module_of_most, networks_called
from nsysx.findings._needs import DIFFERENTIATED_ONCE, SAME_SHAPES
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import (
    FEWEST_CHAIN_KERNELS,
    FUSED_LEAST_SHARE,
    FUSION_BOUND_SHARE,
    HAND_WRITTEN_KERNELS,
    HAND_WRITTEN_SHARE,
    SAME_SIZE_TIMES,
)
from nsysx.frames import lookup
from nsysx.judging.program import program_of
from nsysx.model import Finding
from nsysx.replay.engine import Fuse, RemoveOps

RULE = Rule(
    "NSX112",
    "fusion",
    "Fusion candidates",
    cause=(StepPart.WORK,),
    about=StepLimit.GPU,
    whole=True,
    direct=1,
    tries=("fused", "compile", "compile-reduce-overhead"),
)
REQUIRES = ("steps", "kernels")
_COMPILE = Fix.by_name("compile")
#: Kernels that a compiler fuses with their neighbors: each reads and writes a tensor, and computes little.
FUSIBLE = ("elementwise", "norm", "reduction", "random", "softmax and loss")
#: Kernels of such a family that no compiler makes faster: they join tensors.
JOINS = "CatArray"
#: Phases in which no network runs: ``torch.compile(model)`` reaches none of their kernels.
_NO_NETWORK = ("optimizer", "zero_grad", "clip", "data", "h2d")


def chains_of(profile: Profile) -> pl.DataFrame:
    """Return the kernels that a compiled network fuses, see ``chains_among``."""
    return chains_among(profile, of_networks(profile, profile.steady_ops))


def chains_among(profile: Profile, chosen: Flags) -> pl.DataFrame:
    """Return those of the chosen steady GPU ops that can be fused: runs of neighbors on one stream that can share data.

    Columns: op, ns, module, phase (null outside of any), run (number of the chain), longest (of its chain).
    """
    ops = profile.steady_ops  # sorted by start
    rows = np.flatnonzero((ops["op_kind"] != "graph").to_numpy())
    rows = rows[np.lexsort([ops[c].to_numpy()[rows] for c in ("stream", "device")])]
    family = lookup.coded(ops["family"], {name: i for i, name in enumerate(FUSIBLE)})[rows]
    fusible = (family >= 0) & chosen[rows]
    keys = [ops[c].to_numpy()[rows] for c in ("device", "stream")]
    keys.append(ops["phase"].to_physical().cast(pl.Int64).fill_null(-1).to_numpy()[rows])
    new = np.logical_or.reduce([np.diff(p, prepend=-2) != 0 for p in (*keys, fusible.astype(np.int8))])
    # It writes numbers of its own and reads nothing that the kernel before it wrote.
    new |= family == FUSIBLE.index("random")
    new |= _other_size(ops["name", "grid", "block"][rows])
    # Two in a row put together tensors that have nothing in common, as keys and values.
    puts = lookup.matching(ops["name"], JOINS)[rows]
    new[1:] |= puts[1:] & puts[:-1]
    run = np.cumsum(new)
    rows, run = rows[fusible], run[fusible]
    long = np.bincount(run)[run] >= FEWEST_CHAIN_KERNELS
    rows, run = rows[long], run[long]
    ns = (ops["end_ns"].to_numpy() - ops["start_ns"].to_numpy())[rows]
    first = np.flatnonzero(np.diff(run, prepend=0))
    longest = np.zeros(len(run), np.bool_)
    if len(first):
        most = np.repeat(np.maximum.reduceat(ns, first), np.diff(first, append=len(run)))
        candidates = np.flatnonzero(ns == most)
        longest[candidates[np.diff(run[candidates], prepend=0) != 0]] = True  # of equal ones the first
    chains: pl.DataFrame = ops["op", "module", "phase"][rows]
    return chains.with_columns(ns=ns, run=run, longest=longest)


def _other_size(ops: pl.DataFrame) -> Flags:
    """Return which kernels work on a tensor of another size than the kernel before them; False where that is not known.

    It is known of PyTorch's elementwise kernels, which handle 4 to 16 elements a thread, more of small types: up to a factor of
    4 says nothing. Others, such as those that concatenate, choose their grid by the GPU.
    """
    by_size = lookup.matching(ops["name"], "elementwise_kernel")
    shaped = np.flatnonzero(by_size & (ops["grid"].is_not_null() & ops["block"].is_not_null()).to_numpy())
    sized = np.full(ops.height, np.nan)
    sized[shaped] = kernel_shapes.threads(ops[shaped])
    other = np.zeros(ops.height, np.bool_)
    ratio = sized[1:] / sized[:-1]
    other[1:] = (ratio > SAME_SIZE_TIMES) | (ratio < 1 / SAME_SIZE_TIMES)  # of an unknown size neither is true
    return other


def of_networks(profile: Profile, ops: pl.DataFrame) -> Flags:
    """Return which ops or calls belong to a network that the program calls; a loss is a module, and ``torch.compile(model)`` leaves it.

    Where the networks are not known, any module is a part of one.
    """
    outside = profile.once(_modules_outside_networks)
    modules, module = lookup.distinct(ops["module"])
    return of_modules(ops) & ~np.array([m in outside for m in modules], np.bool_)[module]


def _modules_outside_networks(profile: Profile) -> frozenset[str]:
    """Return the modules that are no part of the program's networks, none where no network is known."""
    networks, roots = program_of(profile).networks, outermost(profile)
    any_network = any(cls in networks for _, cls in roots.values())
    return frozenset(m for m, (_, cls) in roots.items() if any_network and cls not in networks)


def outermost(profile: Profile) -> dict[str, tuple[str, str | None]]:
    """Return module -> the outermost module that it is a part of, and the class of that."""
    tree = profile.attributed.modules.select(pl.col("module", "cls", "parent").cast(pl.String))
    roots: dict[str, tuple[str, str | None]] = {}
    for module, cls, parent in tree.drop_nulls("module").iter_rows():  # parents come first
        roots[module] = roots.get(parent, (module, cls))
    return roots


def of_modules(ops: pl.DataFrame) -> Flags:
    """Return which GPU ops belong to a module."""
    modules, module = lookup.distinct(ops["module"])
    phases, phase = lookup.distinct(ops["phase"])
    belongs = np.array([[_belongs(m, p) for p in phases] for m in modules], np.bool_)
    return np.asarray(belongs[module, phase], np.bool_)


def _belongs(module: str | None, phase: str | None) -> bool:
    if module is None or module == IN_STEP:
        return False
    if phase is None:
        return True
    # A lone name is shown without parentheses.
    return module not in (phase, PATHLESS.format(phase)) and phase not in _NO_NETWORK


def fusible_ns(case: Case) -> int:
    """Return what all kernels of such chains take per step (ns): no compiler saves more of the GPU's work."""
    return case.per_step(int(case.profile.once(chains_of)["ns"].sum()))


def _hand_written(case: Case, chains: pl.DataFrame) -> tuple[str, int] | None:
    """Return the class of modules whose own chains could save most, and how much per step (ns); None where that is little.

    The rest is spread over a network: what a compiler fuses there is an option for each, and no fault.
    """
    classes = case.profile.attributed.modules.select(pl.col("module", "cls").cast(pl.String)).unique("module")
    inner = chains.with_columns(pl.col("module").cast(pl.String), kernels=pl.len().over("run", "module"))
    inner = inner.filter((inner["kernels"] >= HAND_WRITTEN_KERNELS) & ~inner["longest"]).join(classes, on="module")
    sums = inner.group_by("cls").agg(pl.col("ns").sum()).drop_nulls().sort("ns", "cls", descending=[True, False])
    if not sums.height or not case.notable(case.per_step(int(sums["ns"][0])), HAND_WRITTEN_SHARE):
        return None
    return str(sums["cls"][0]), case.per_step(int(sums["ns"][0]))


def check(case: Case) -> list[Finding]:
    """Return one finding where fusing all chains may save 10 % of the step or more."""
    if case.program.compiled:
        return case.clear(RULE, "the program is already compiled")
    once, seen = DIFFERENTIATED_ONCE.test(case)
    if once == "violated":
        return case.clear(RULE, f"torch.compile makes one backward, and {seen}")
    if case.ops.height and not of_modules(case.ops).any():
        return case.cannot_tell(RULE, "which kernels share data is unknown: no module is marked", "nsysx run -- CMD")
    chains = case.profile.once(chains_of)
    extra = chains.filter(~chains["longest"])
    cost = case.per_step(int(extra["ns"].sum()))
    # A chain in one kernel has one launch, without the host code between: a step that is nearly launch-bound gains by both.
    fused = Fuse(calls_of(case.ops["op", "call"].filter(case.ops["op"].is_in(chains["op"].implode()))))
    worth = case.worth(RemoveOps(ops_of(extra)), fused, cause=RULE.cause, bound=True) if extra.height else Saving(0, "")
    # How many launches a compiler leaves is not known: no more than time on the GPU counts.
    bound = min(cost if worth.likely_ns is None else min(cost, worth.likely_ns), case.step_ns)
    if not case.notable(bound, FUSION_BOUND_SHARE):
        return case.clear(
            RULE, f"fusing every chain of elementwise kernels is worth at most {case.share(bound)} of the step"
        )
    text = (pl.col(c).cast(pl.String).fill_null("") for c in ("module", "phase"))
    rows = chains.group_by("module", "phase").agg(
        pl.col("run").n_unique().alias("chains"),
        pl.len().alias("kernels"),
        pl.col("ns").sum().alias("total_ns"),
        pl.col("ns").filter(~pl.col("longest")).sum().alias("at most_ns"),
    )
    rows = rows.with_columns(text).sort("at most_ns", "module", "phase", descending=[True, False, False])
    evidence = [
        {
            **{k: r[k] for k in ("module", "phase")},
            **{k: r[k] / case.steps for k in ("chains", "kernels")},
            **{k: case.per_step(r[k]) for k in ("total_ns", "at most_ns")},
        }
        for r in rows.head(6).to_dicts()
    ]
    count = chains["run"].n_unique() / case.steps
    title = f"Unfused kernels: about {units.duration(bound)} {case.per} of avoidable memory traffic"
    detail = (
        f"{chains.height / case.steps:.0f} elementwise, normalization and reduction kernels {case.per}, in {count:.0f} chains, take "
        f"{units.duration(case.per_step(int(chains['ns'].sum())))}. If each chain took as long as its longest kernel, the step "
        f"would be {units.duration(bound)} shorter ({case.share(bound)}). A compiler writes its own kernels: it may do better "
        "or worse, but cannot save more than these kernels take."
    )
    # A whole network is compiled at once.
    asked = networks_called(case.profile)
    part, part_ns = module_of_most(case.profile, extra)
    most_of = {"near": f"most of it in {part}"} if 2 * part_ns > extra["ns"].sum() else {}
    where = (
        {"module": asked} | most_of
        if asked
        else {k: v for k, v in evidence[0].items() if k in ("module", "phase") and v}
    )
    compiled = for_all_shapes(case) if SAME_SHAPES.test(case)[0] == "violated" else _COMPILE
    fix = compiled if case.program.compilable else Fix("Fuse these kernels into one per chain")
    written = _hand_written(case, chains)
    if written is not None:
        evidence[0]["written in"] = written[0]
        fix = fix.but(text=f"{fix.text}: {units.share(written[1], cost)} of what can go is in {written[0]}")
    # A compiler may leave some chains as they are, and cannot save more than their kernels take.
    most = max(bound, min(case.per_step(int(chains["ns"].sum())), case.step_ns))
    why = "an estimate: each chain takes as long as its longest kernel"
    sure = Saving(bound, why, error_ns=round((1 - FUSED_LEAST_SHARE) * bound), most_ns=most, source="limits")
    takes = Takes(ops_of(extra))
    return [
        Found(
            RULE, title, detail, worth=sure, cost_ns=cost, fix=fix, where=where, evidence=evidence, takes=takes
        ).as_finding(case)
    ]

"""NSX113 tiny-launches: one part of the model launches many tiny kernels, and the GPU idles meanwhile.

What it means
    A loop over parameters, heads or time steps in Python launches a kernel per element. Each kernel is shorter than its
    launch, so the GPU waits for Python. One batched, foreach or fused operation does the same work in a few launches. The
    saving shown is for putting these launches into CUDA graphs, an upper bound for what batching brings.

In the trace
    Tens to thousands of kernels of a few us in one module, each preceded by a gap.

Bad
    optimizer = torch.optim.AdamW(params, foreach=False)
    for head in heads: out.append(head(x))

Good
    optimizer = torch.optim.AdamW(params, fused=True)
    out = torch.bmm(x.expand(len(heads), -1, -1), weights)

Harmless when
    The GPU has work queued meanwhile: launches then cost only CPU time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.helpers.module_names import folded
from nsysx.catalogue import StepLimit, StepPart
from nsysx.events.nvtx_ranges import Flags
from nsysx.findings._case import Case, Fix, Need, Rule, calls_of
from nsysx.findings._finding_bounds import MANY_TINY_LAUNCHES, MOST_TINY_MODULES, TINY_KERNEL_NS
from nsysx.findings._found import Found
from nsysx.findings._held import held
from nsysx.findings._looped_parameters import loop_of_most
from nsysx.findings._names import called
from nsysx.findings._needs import FUSABLE, GRAPH, NOT_FUSED, REPEATS, merged_groups
from nsysx.findings._once import Takes
from nsysx.frames import lookup
from nsysx.model import Finding, Row
from nsysx.replay.engine import Fuse, Graph

RULE = Rule(
    "NSX113",
    "tiny-launches",
    "Many tiny launches in one module",
    cause=(StepPart.HOST, StepPart.LAUNCH, StepPart.SYNC),
    about=StepLimit.LAUNCH,
    tries=("fused", "foreach", "set-to-none", "compile", "compile-reduce-overhead", "bound-optimizer"),
)
REQUIRES = ("steps", "kernels")
_FUSED = Fix.by_name("fused", needs=(NOT_FUSED,))
_LARGER = Fix.by_name(
    "larger-batches",
    text="Use larger batches: a recurrent layer makes the same launches for any; in BF16 cuDNN has kernels for the whole sequence",
)
_MERGED = "groups-merged"
_CLEAR = "no part of the model lets the GPU idle behind tiny launches for 1 % of the step"


def _part(frame: pl.DataFrame) -> pl.DataFrame:
    """Add ``part``: module paths with numbers folded, so that layers.3.norm and layers.4.norm are both layers.*.norm."""
    return frame.with_columns(lookup.changed(frame["module"], folded).alias("part"))


def check(case: Case) -> list[Finding]:
    """Return a finding per part of the model whose tiny launches let the GPU idle for 1 % of the step or more."""
    launched = (case.ops["op_kind"] == "kernel") & case.ops["call"].is_not_null()
    kernels = case.timed_ops(launched, "call", "module", "phase")
    if not kernels.height:
        return case.cannot_tell(RULE, "the calls that launch the kernels were not recorded", "-t cuda")
    if kernels["module"].null_count() == kernels.height:
        return case.cannot_tell(RULE, "modules were not recorded", "nsysx run -- CMD")
    # Kernels of a graph are not launched one by one.
    single = case.profile.attributed.api_calls["gpu_ops"].gather(kernels["call"]) == 1
    key = ["part", "phase"]
    tiny = (
        _part(kernels["module", "phase", "ns"].filter(single).drop_nulls("module"))
        .group_by(key)
        .agg(
            pl.len().alias("launches"), pl.col("ns").median().alias("median_ns"), pl.col("ns").sum().alias("kernel_ns")
        )
        .filter((pl.col("launches") >= MANY_TINY_LAUNCHES * case.steps) & (pl.col("median_ns") < TINY_KERNEL_NS))
        .with_columns(pl.col(key).cast(pl.String))
    )
    if not tiny.height:
        return case.clear(RULE, _CLEAR)
    idle = case.idle.select("op", ns="real_ns").filter(case.is_op(case.idle["op"]))
    idle = idle.with_columns(case.profile.attributed.gpu_ops[c].gather(idle["op"]) for c in ("module", "phase"))
    blamed = (
        _part(idle).group_by(key).agg(pl.col("ns").sum().alias("idle_ns")).with_columns(pl.col(key).cast(pl.String))
    )
    rows = tiny.join(blamed, on=key, how="inner", nulls_equal=True)
    rows = rows.sort("idle_ns", *key, descending=[True, False, False], nulls_last=True)
    findings = []
    for row in rows.head(MOST_TINY_MODULES).to_dicts():
        cost = min(case.per_step(row["idle_ns"]), case.taken_by(RULE.cause))
        if not case.notable(cost):
            continue
        there = _part(case.replayed).filter(lookup.same_values(row, key))
        loop = (
            loop_of_most(case, there) if row["phase"] == "optimizer" else None
        )  # a hook, or an optimizer of the program
        fix, calls = (
            (_fix(case, row["phase"], row["part"]), calls_of(there)) if loop is None else (loop.fix, loop.calls)
        )
        # One launch in place of them, or a few: no bound.
        fuses = loop is not None or fix.needs == _FUSED.needs or fix.ways[0].name == _MERGED
        graph = Graph(calls - held(case.profile))  # what other host code lies between stays
        worth = case.worth(Fuse(calls) if fuses else graph, cause=RULE.cause, bound=not fuses)
        if worth.likely_ns is not None and not case.notable(worth.likely_ns):
            continue
        if (
            fix.ways[0].name == _MERGED and worth.likely_ns is not None
        ):  # kernels of single tensors mostly begin and end
            worth = replace(worth, most_ns=worth.likely_ns + case.per_step(row["kernel_ns"]))
        each, cost = row["launches"] / case.steps, case.lost(cost, worth)
        name = called(case.profile, row["part"])
        title = f"{name}: the GPU idles {units.duration(cost)} between {each:,.0f} tiny launches {case.per}"
        detail = (
            f"Half of these kernels take less than {units.duration(row['median_ns'])}; the GPU idles {case.share(cost)} of "
            "the step before them."
        )
        where = {"module": row["part"], "phase": row["phase"]}
        takes = Takes(idle=_before_part(case, row))
        findings.append(
            Found(RULE, title, detail, worth=worth, cost_ns=cost, where=where, fix=fix, takes=takes).as_finding(case)
        )
    return findings or case.clear(RULE, _CLEAR)


def _before_part(case: Case, row: Row) -> Flags:
    """Return which pieces of idle time lie before the work of a part (part, phase)."""
    ended, ops = case.idle["op"].fill_null(-1).to_numpy(), case.profile.attributed.gpu_ops
    part = lookup.coded(lookup.changed(lookup.at(ops["module"], ended), folded), {row["part"]: 1})
    phase = lookup.at(ops["phase"], ended)
    in_phase = phase.is_null().to_numpy() if row["phase"] is None else lookup.coded(phase, {row["phase"]: 1}) == 1
    return np.asarray((part == 1) & in_phase, np.bool_)


#: Layers of cuDNN that make their launches in one call: no compiler looks inside.
_RECURRENT = ("LSTM", "GRU", "RNN")


def recurrent(case: Case) -> frozenset[str]:
    """Return the paths of the modules that are recurrent layers of torch."""
    modules = case.profile.attributed.modules.select(pl.col("module").cast(pl.String), pl.col("cls").cast(pl.String))
    return frozenset(modules.filter(modules["cls"].is_in(_RECURRENT))["module"].drop_nulls().to_list())


def _fix(case: Case, phase: str | None, part: str | None) -> Fix:
    """Return how this part can make fewer launches: nothing that it already does, and no CUDA graph where something forbids one."""
    program = case.program
    if part in recurrent(case):
        return _LARGER
    merged = merged_groups(case) if phase == "optimizer" else None
    if merged is not None:
        return Fix.by_name(merged)
    if phase == "optimizer" and program.optimizer in ("loop", "foreach"):
        if program.optimizer_class not in (None, *FUSABLE):
            return _FUSED
        comment = "" if program.optimizer_class else "  # or the class that the program uses: it is not recorded"
        code = (
            f"optimizer = torch.optim.{program.optimizer_class or FUSABLE[0]}(model.parameters(), fused=True){comment}"
        )
        return _FUSED.but(paste=code)
    ways = [("batched-operation", "Use one batched or fused operation instead of a loop")]
    if program.compilable and not program.compiled:
        ways.append(("compile", "torch.compile of this part"))
    needs: tuple[Need, ...] = GRAPH if program.torch else (REPEATS,)
    if any(need.test(case)[0] == "violated" for need in needs):
        needs = ()
    else:
        ways.append(("cuda-graph", "a CUDA graph of it"))
    return Fix.listed("", ways, ", or ", needs)

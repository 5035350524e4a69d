"""NSX126 round-trips: a step asks the GPU the same small question many times, and reads each answer before it asks again.

What it means
    A policy that is called for each action, or a loop over images with a mask, a few kernels and .cpu() for each: the GPU gets
    a few launches, the CPU waits for the result, and only then come the next ones. No launch can be made ahead, so each round
    costs its launches, its copy and its wakeup, however fast the kernels are. A CUDA graph makes each round shorter; fewer rounds
    help more, because one round for many inputs makes as many launches as a round for one input.
    The saving removes all rounds but one with their kernels, except products of groups of rows. It is an upper bound: a question that
    depends on the answer before it cannot be asked earlier, and one large kernel may take longer than one of many small ones.
    The same inside a module: an expert layer that asks for each expert which rows are its own (nonzero) does in sixteen rounds,
    forward and backward, what one sort and one batched product do at once.
    An optimizer that keeps pairs of old vectors (L-BFGS) reads two numbers of each for a direction: fewer pairs are fewer reads.
    A loop that samples the farthest points in single operations is told likewise: one kernel goes through all of its rounds.

In the trace
    A copy to the host after every few launches, many times a step, with the same launches between two copies.

Bad
    for obs in environment:                   # 32 rounds a step
        action = policy(obs.to("cuda")).argmax(-1).cpu()
    for boxes, scores in images:              # 16 rounds a step
        kept.append(boxes[nms(boxes, scores, 0.5)].cpu())
    for expert in experts:                    # 16 rounds in each layer
        rows = (chosen == expert.number).nonzero()

Good
    actions = policy(torch.stack(observations).to("cuda")).argmax(-1).cpu()    # 64 environments in each round
    kept = batched_nms(boxes.view(-1, 4), scores.view(-1), image, 0.5).cpu()   # one round
    y = torch.bmm(x[chosen.argsort()].view(experts, -1, dim), weight)          # all experts in one product

Harmless when
    The GPU has other work queued meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.helpers.module_names import folded
from nsysx.analyses.lines import texts
from nsysx.catalogue import Call, StepLimit, StepPart
from nsysx.events.attribute import IN_STEP
from nsysx.events.kernel_math import PRODUCTS
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import flow_of
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.profile import Profile
from nsysx.findings import _checked_rounds, _history_rounds, _rounds_in_modules, _sampled_points, _tables_in_line
from nsysx.findings._asked_one_by_one import asked_at_once
from nsysx.findings._case import Case, Fix, Rule, way
from nsysx.findings._finding_bounds import (
    ALIKE_ROUNDS_SHARE,
    FEWEST_ROUND_LAUNCHES,
    FEWEST_ROUNDS,
    ROUND_TRIPS_SHARE,
    SIZES_ASKED_SHARE,
)
from nsysx.findings._found import Found
from nsysx.findings._names import called, networks_called
from nsysx.findings._once import Takes
from nsysx.findings._read_in_rounds import fix_at
from nsysx.findings._rounds_of_their_own import are_of_rounds, calls_of_rounds
from nsysx.findings.nsx135_weights_in_calls import calls_for_constants
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.frames.lookup import matching
from nsysx.judging import waiting
from nsysx.model import Finding, Row

RULE = Rule(
    "NSX126",
    "round-trips",
    "Many small round trips to the GPU",
    cause=(StepPart.HOST, StepPart.LAUNCH, StepPart.SYNC),
    about=StepLimit.LAUNCH,
    leads=True,
    direct=3,
    rests_on="The rounds were recorded call by call",
)
REQUIRES = ("steps", "gpu", "waits")
#: Phases of a step that trains, and of rounds that only ask a network.
_TRAINS, _CALLS = "^(backward|optimizer)$", "^(forward|evaluation)$"
_CLEAR = "no step asks the GPU the same four times or more and reads each answer before it asks again"


class Rounds(NamedTuple):
    """Rounds that are alike, in order of time: begin and end on the CPU (ns), the calls made in them, and what a round does.

    ``launches`` is the usual number of one; ``network``: it calls a network; ``uploads``: it copies its input to the device.
    ``reads`` counts the answers that are read, those of rounds with other work included.
    """

    start_ns: I64
    end_ns: I64
    calls: I64
    launches: int
    network: bool
    uploads: bool
    reads: int


def rounds(profile: Profile) -> Rounds | None:
    """Return the rounds of the steady steps that are alike, None where there are fewer than four a step.

    A round ends with a copy to the host, outside of every module, that its thread waits for; it trains nothing. Tokens that a model
    makes one by one are no rounds: such a round calls a network and gives it nothing that the CPU has.
    """
    reads = _reads(profile)
    steps = max(profile.scope.steps, 1)
    if len(reads) < FEWEST_ROUNDS * steps:
        return None
    calls = profile.attributed.api_calls
    thread = calls["thread"].to_numpy()
    reads = reads[thread[reads] == np.bincount(thread[reads] - thread.min()).argmax() + thread.min()]
    begin, end = reads[:-1] + 1, reads[1:] + 1  # calls are numbered by thread and time

    def within(chosen: Flags) -> I64:
        sums = np.concatenate(([0], np.cumsum(chosen)))
        return np.asarray(sums[end] - sums[begin], np.int64)

    copied = profile.attributed.gpu_ops.filter(pl.col("name").cast(pl.String) == "HtoD")["call"].drop_nulls()
    uploads = np.zeros(calls.height, np.bool_)
    uploads[copied.to_numpy()] = True
    launches = within(calls["kind"].is_in(Call.LAUNCHES).to_numpy())
    candidate = (launches >= FEWEST_ROUND_LAUNCHES) & (within(matching(calls["phase"], _TRAINS)) == 0)
    if not candidate.any():
        return None
    usual = float(np.median(launches[candidate]))
    alike = candidate & (np.abs(launches - usual) <= ALIKE_ROUNDS_SHARE * usual)
    network, upload = (
        2 * int((within(chosen)[alike] > 0).sum()) >= int(alike.sum())
        for chosen in (matching(calls["phase"], _CALLS), uploads)
    )
    if alike.sum() < FEWEST_ROUNDS * steps or (network and not upload):
        return None
    first, last = begin[alike], end[alike] - 1
    made = np.concatenate([np.arange(a, b + 1) for a, b in zip(first.tolist(), last.tolist(), strict=True)])
    ends = calls["end_ns"].to_numpy()
    return Rounds(
        ends[first - 1],
        ends[last],
        calls=made,
        launches=round(usual),
        network=network,
        uploads=upload,
        reads=len(reads),
    )


def _reads(profile: Profile) -> I64:
    """Return the copies to the host outside of every module that the host waits for, in order of threads and time."""
    waiting_calls = profile.once(waiting.waits).calls
    places = pl.col("module").cast(pl.String)
    outside = places.is_null() | (places == IN_STEP) | places.is_in(list(profile.attributed.without_path))
    reads = waiting_calls.filter((pl.col("kind") == Call.COPY) & (pl.col("asks") == waiting.VALUE) & outside)
    return np.sort(reads["call"].to_numpy())


def check(case: Case) -> list[Finding]:
    """Return a finding where the GPU idles in such rounds for 15 % of the step or more."""
    loops = [*_sampled_points.findings_of(case, RULE), *_history_rounds.findings_of(case, RULE)]
    loops += _tables_in_line.findings_of(case, RULE)
    findings = [*_in_modules(case), *loops, *_checked_rounds.findings_of(case, RULE), *_outside(case)]
    return findings or case.clear(RULE, _CLEAR)


class _Loop(NamedTuple):
    """A loop in a module: the modules that have one like it, how often a step goes round in each, and what it waits for."""

    modules: tuple[str, ...]
    name: str
    each: float
    asks: str
    calls: tuple[int, ...]


def _loops(case: Case) -> list[_Loop]:
    """Return the modules whose forward waits for the GPU four times a step or more, those of one class and path as one.

    An operator that waits several times, as ``bincount`` does for the least and the largest number, asks once.
    """
    api = case.profile.attributed.api_calls
    waited = case.profile.once(waiting.waits).calls["call", "asks", "index"]
    of_rounds = calls_of_rounds(case.profile)
    waited = waited.filter(~pl.col("call").is_in(list(of_rounds)))
    for constants in calls_for_constants(case).values():  # no loop: the same is asked in each layer
        waited = waited.join(constants, on="call", how="anti", maintain_order="left")
    waited = waited.with_columns(
        lookup.at(api[c], waited["call"].to_numpy()).cast(pl.String) for c in ("module", "phase")
    )
    without = list(case.profile.attributed.without_path)
    module = pl.col("module")
    inside = waited.filter(
        (pl.col("phase") == "forward")
        & (pl.col("asks") != waiting.NOTHING)
        & module.is_not_null()
        & ~module.is_in(without)
    )
    if not inside.height:
        return []
    each = (
        inside.with_columns(asking=_asking(case, inside["call"]))
        .group_by("module")
        .agg(
            pl.struct("index", "asking").n_unique().alias("len"),
            pl.col("index").n_unique().alias("steps"),
            # Whether any row is of a group is asked beside which ones these are.
            pl.when((pl.col("asks") == waiting.SIZE).mean() >= SIZES_ASKED_SHARE)
            .then(pl.lit(waiting.SIZE))
            .otherwise(pl.col("asks").mode().sort().first())
            .alias("asks"),
            pl.col("call"),
        )
    )
    often = each.filter((each["len"] >= FEWEST_ROUNDS * case.steps) & (2 * each["steps"] >= case.steps))
    often = often.with_columns(module.map_elements(folded, pl.String).alias("name")).sort("module")
    return [
        _Loop(
            tuple(rows["module"]), called(case.profile, str(name)), int(rows["len"].sum()) / case.steps / rows.height,
            str(rows["asks"][0]), tuple(rows["call"].explode().to_list()),
        )
        for (name,), rows in often.group_by("name", maintain_order=True)
    ]  # fmt: skip


def _asking(case: Case, calls: pl.Series) -> pl.Series:
    """Return a number for each call that those of one run of an operator share; where no operators were recorded each has its own."""
    flow, of_calls = flow_of(case.profile), operator_of_calls(case.profile)
    numbers = calls.to_numpy().astype(np.int64)
    operators = np.full(len(numbers), -1) if flow is None or of_calls is None else of_calls.within(flow)[numbers]
    return pl.Series(np.where(operators < 0, -1 - numbers, operators), dtype=pl.Int64)


def _in_modules(case: Case) -> list[Finding]:
    """Return a finding for modules that wait again and again in one forward, where that is 15 % of the step or more."""
    findings = []
    for loop in _loops(case):
        in_loop, sized = pl.col("module").cast(pl.String).is_in(loop.modules), loop.asks == waiting.SIZE
        kernels = case.timed_ops(case.ops["op_kind"] == "kernel", "module", "family").filter(in_loop)
        works = case.per_step(int(kernels["ns"].sum()))
        # One product over the rows of all groups multiplies as much as the products of its groups.
        products = kernels["family"].is_in(PRODUCTS).fill_null(value=False) & sized
        goes = works - case.per_step(int(kernels.filter(products)["ns"].sum()))
        ops = lookup.at(case.profile.attributed.gpu_ops["module"], case.idle["op"].fill_null(-1).to_numpy())
        before = _in_or_below(ops.cast(pl.String), loop.modules)
        idle = case.per_step(float(case.idle.filter(before)["real_ns"].sum()))
        idle = min(idle, case.taken_by(RULE.cause))
        if not case.notable(idle, ROUND_TRIPS_SHARE):
            continue
        count = f"{loop.each:.0f}"
        what = "for a size (nonzero, x[mask])" if sized else "for a value"
        title = f"{loop.name} waits {count} times in each forward {what}: the GPU idles {units.duration(idle)}"
        detail = (
            f"Each round makes a few launches and cannot begin before the one before it is done; the backward repeats them. The modules' "
            f"kernels take {units.duration(works)} {case.per}, the GPU idles between them for {units.duration(idle)}."
        )
        kept = ", those that multiply left out" if goes < works else ""
        worth = case.bound(
            (goes + idle) * (1 - 1 / loop.each), f"assumes that all rounds but one go, with their kernels{kept}"
        )
        # Fewer, longer kernels also let the host get ahead, wherever the GPU idles for it.
        ahead = goes * (1 - 1 / loop.each) + case.taken_by(RULE.cause)
        worth = replace(worth, most_ns=case.bound(ahead, "").likely_ns)
        fix = _rounds_in_modules.fix_of(case, loop.modules, loop.calls, loop.each) if sized else _BATCH_VALUES
        where = {"module": folded(loop.modules[0]), "phase": "forward"}
        text = fix.text.format(name=loop.name, count=count)
        findings.append(
            Found(
                RULE,
                title,
                detail,
                worth=worth,
                cost_ns=idle,
                where=where,
                fix=fix.but(text=text),
                calls=loop.calls,
                takes=Takes(idle=before.to_numpy()),
            ).as_finding(case)
        )
    return findings


def _in_or_below(paths: pl.Series, modules: Sequence[str]) -> pl.Series:
    """Return which paths of modules are some of these, or lie in one: experts wait for what their layer asks."""
    below = tuple(f"{module}." for module in modules)
    inside = [path for path in paths.unique().drop_nulls() if path in modules or path.startswith(below)]
    return paths.is_in(inside).fill_null(value=False)


#: What a loop in a module that waits for values becomes.
_BATCH_VALUES = Fix(
    "Do all {count} rounds of {name} on the GPU: keep what decides in tensors (torch.where, masks, torch.cond) instead of reading it "
    "back in each round",
    condition="What the host decides from the values must be expressible on the GPU.",
)


def _outside(case: Case) -> list[Finding]:
    """Return a finding for round trips outside of the model's modules, where they are 15 % of the step or more."""
    seen = case.profile.once(rounds)
    # Rounds of a solver, and others that need one another, cannot be one batch.
    if seen is None or _checked_rounds.checks(case.profile) or are_of_rounds(case.profile, seen.calls.tolist()):
        return []
    last = np.searchsorted(seen.start_ns, case.idle["start_ns"].to_numpy(), side="right") - 1
    inside = (last >= 0) & (case.idle["start_ns"].to_numpy() < seen.end_ns[np.maximum(last, 0)])
    idle = case.per_step(float(case.idle["real_ns"].to_numpy()[inside].sum()))
    cost = min(idle, case.taken_by(RULE.cause))
    if not case.notable(cost, ROUND_TRIPS_SHARE):
        return []
    count = seen.reads / case.steps
    often, asked = f"{count:.0f} times {case.per}", networks_called(case.profile)
    what = f"{asked or 'the network'} is called" if seen.network else "the same few kernels are launched"
    title = f"{often[:1].upper() + often[1:]} {what} and read back: the GPU idles {units.duration(cost)}"
    detail = (
        f"Each round makes {units.several(seen.launches, 'launch', 'launches')}"
        f"{' and copies its input to the GPU' if seen.uploads else ''}; the CPU waits for its result before it begins the next. In "
        f"these rounds the GPU idles for {case.share(cost)} of the step."
    )
    made = case.timed_ops(case.ops["call"].is_in(seen.calls.tolist()).fill_null(value=False), "op")
    works = case.per_step(int(made["ns"].sum()))
    saved = 1 - 1 / count
    worth = case.bound(cost * saved, "assumes that all rounds but one go, at best with their kernels")
    # Other rounds are as long at most; no more than all that the GPU idles for the host can go.
    others = min((cost + works) * seen.reads / len(seen.start_ns), case.taken_by(RULE.cause) + works)
    worth = replace(worth, most_ns=case.bound(others * saved, "").likely_ns)
    where: Row = {"module": asked, "phase": "evaluation"} if seen.network and asked else {}
    code, of_loop = case.profile.code(), None
    read_at = {} if code is None else code.where_most(code.places_of(code.call[_reads(case.profile)]))
    if not seen.network:
        of_loop = fix_at(texts(case.profile), read_at.get("file"), read_at.get("line"))
        where = read_at if of_loop is not None else where
    return [
        Found(
            RULE,
            title,
            detail,
            worth=worth,
            cost_ns=cost,
            where=where,
            fix=of_loop or _fix(case, seen, f"{count:.0f}", asked, read_at),
            calls=seen.calls.tolist(),
            takes=Takes(idle=inside),
        ).as_finding(case)
    ]


def _fix(case: Case, seen: Rounds, count: str, asked: str, read_at: Row) -> Fix:
    """Return how to make fewer rounds: more inputs in each where a network answers, else all in one. ``read_at``: the line that reads."""
    if seen.network:
        paste = asked_at_once(texts(case.profile), read_at.get("file"), read_at.get("line"))
        if paste:
            return Fix.by_name(way("inputs-at-once", paste=paste))
        return Fix(
            f"Make fewer, larger rounds: {asked or 'the network'} is called {count} times a step, each time for an input from the CPU, and "
            "read back. Give each call more inputs (more environments or requests at once), or run a network this small on the CPU",
            condition="Inputs of one round must not depend on each other's results.",
        )
    return Fix.by_name(
        "rounds-at-once",
        text=f"Process all {count} as one batch: now each makes the same {seen.launches} launches and a read back. Use operations "
        "on the whole batch (a mask over all, torchvision.ops.batched_nms) and one .cpu() at the end",
    )

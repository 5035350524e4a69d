"""NSX132 models-in-turn: models of one class, or calls of one model, run one after the other, each with launches of its own.

What it means
    An ensemble, one model for each class or agent, a table for each column, a head for each task, or one network that is called for
    each frame, crop or request: each call is small, and the GPU waits for the launches of every one of them. Where no call needs what
    another one computes, one batched operation serves all: inputs in one batch, one table with an offset for each column, stacked
    parameters (torch.func.stack_module_state and vmap). The saving keeps the launches of as many calls as have to come one after the
    other, and the GPU's work as it is; of calls of one network short kernels go, too, which take as long for the inputs of all. Where
    each call exchanges something with other ranks, as tables do whose rows are divided over them, all ranks meet for each: one exchange
    for all is one meeting and one wait.

In the trace
    The same launches again and again, for modules of one class that are no part of each other. The operators of an X-ray say which
    made their arguments, and so which calls need the result of another one.

Bad
    for model, opt in zip(models, opts): loss_of(model(x)).backward(); opt.step()

Good
    params, buffers = torch.func.stack_module_state(models)
    y = torch.vmap(lambda p, b: torch.func.functional_call(base, (p, b), (x,)))(params, buffers)

Harmless when
    The models are large enough to keep the GPU busy, or one needs the result of another.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.helpers.module_names import folded
from nsysx.catalogue import Call, DeviceActivity, StepLimit, StepPart
from nsysx.events.event_bounds import UNSEEN_READERS_SHARE
from nsysx.events.layers import bare
from nsysx.events.needs_of_calls import depth, looks_up, signature
from nsysx.events.operator_flow import ModuleCall, OperatorFlow, flow_of
from nsysx.findings._calls_in_loop import in_names_of_loop
from nsysx.findings._calls_in_one import in_one_call
from nsysx.findings._case import Case, Fix, Rule, Saving, calls_of, ops_of
from nsysx.findings._finding_bounds import TINY_KERNEL_NS
from nsysx.findings._found import Found
from nsysx.findings._held import idle_ns
from nsysx.findings._job_bounds import SMALL_KERNEL_NS
from nsysx.findings._lines import calling_line
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import (
    CALLS_IN_TURN_SAVING_SHARE,
    FEWEST_CALLS_IN_TURN,
    MODELS_IN_TURN_LAUNCHES_SHARE,
    STACKED_MODELS_MAY_STAY_SHARE,
)
from nsysx.findings.nsx112_fusion import outermost
from nsysx.frames.intervals import I64, interval_of
from nsysx.model import Finding, Row
from nsysx.replay.engine import RemoveCalls, RemoveHost, RemoveOps, RemoveWaits

RULE = Rule(
    "NSX132",
    "models-in-turn",
    "Models and calls that run in turn",
    cause=(StepPart.HOST, StepPart.LAUNCH),
    about=StepLimit.LAUNCH,
    leads=True,
)
REQUIRES = ("steps", "gpu", "launches")


class _Turns(NamedTuple):
    """Calls that run one after the other: class, how often in a step, and how many have to; of several modules, or of one; whether
    these are networks of their own; whose launches (modules), and the calls of one step where an X-ray shows them.
    """

    cls: str
    times: int
    deep: int
    several: bool
    networks: bool
    modules: frozenset[str]
    calls: Sequence[ModuleCall] = ()
    looks_up: bool = False

    @property
    def goes(self) -> float:
        """The share of their launches that one call for all does not make."""
        return 1 - self.deep / self.times


def check(case: Case) -> list[Finding]:
    """Return one finding about the calls that wait most for launches of their own."""
    flow = flow_of(case.profile)
    turns = _models(case) if flow is None else _independent(case, flow)
    calls = case.calls.filter(case.calls["kind"].is_in(Call.LAUNCHES)).select("module")
    made = dict(calls.group_by("module").len().iter_rows())

    def launches(each: _Turns) -> int:
        return sum(made.get(module, 0) for module in each.modules)

    best = max(turns, key=lambda each: (launches(each) * each.goes, len(each.modules), each.cls), default=None)
    if best is None:
        return case.clear(
            RULE,
            f"fewer than {FEWEST_CALLS_IN_TURN} calls of one kind run in turn, or each needs the result of another",
        )
    # What host code between takes that no launch explains stays, however many calls there are.
    lost = max(0, case.lost_to(StepLimit.LAUNCH) - case.per_step(idle_ns(case.profile)))
    cost = round(lost * launches(best) / max(calls.height, 1))
    if best.networks and launches(best) >= MODELS_IN_TURN_LAUNCHES_SHARE * calls.height:
        cost = lost  # the loss and the optimizer of each run in turn, too
    saved = round(cost * best.goes)
    if not case.notable(saved, CALLS_IN_TURN_SAVING_SHARE) or (best.networks and cost < lost):
        return case.clear(RULE, f"calls in turn make the GPU idle {case.share(cost)} of the step waiting for launches")
    exchanges = _exchanges(case, best)
    worth = _exchanged_once(case, best) if exchanges else None
    if worth is None or worth.likely_ns is None:
        stays = "one call" if best.deep == 1 else f"{best.deep} calls"
        worth = Saving(
            saved,
            f"the launches of {stays} stay, and the GPU's work as it is",
            error_ns=round(STACKED_MODELS_MAY_STAY_SHARE * saved),
            most_ns=round(best.goes * case.step_ns),
            source="time",
        )
        worth = worth if best.several else _in_large_kernels(case, best, worth)
    detail = (
        f"{_described(best)} They make {launches(best) / case.steps:.0f} of {calls.height / case.steps:.0f} launches {case.per}; the GPU "
        f"idles {units.duration(cost)} ({case.share(cost)}) waiting for these."
    )
    if exchanges:
        detail += (
            f" Each makes {units.several(exchanges, 'exchange')} with the other ranks of its own, where all ranks meet."
        )
    takes = Takes(ops_of(_work_of(case, best)))
    where = _calling(case, best) or calling_line(case.profile, takes, of_one=1.1) or {"module": best.cls}
    what = f"{best.times} {'models' if best.networks else 'modules'} of class {best.cls} run one after the other"
    if not best.several:
        what = f"{best.cls} is called {best.times} times in turn"
    each = f", each with {units.several(exchanges, 'exchange')}" if exchanges else ""
    title = f"{what}{each}; the GPU idles {units.duration(cost)} for launches"
    fix = _in_names(case, best, _fix(best, exchanges))
    return [Found(RULE, title, detail, worth=worth, cost_ns=cost, fix=fix, where=where, takes=takes).as_finding(case)]


def _work_of(case: Case, turns: _Turns) -> pl.DataFrame:
    """Return the GPU work of the modules that take turns."""
    return case.ops.filter(pl.col("module").cast(pl.String).is_in(list(turns.modules)))


def _in_large_kernels(case: Case, turns: _Turns, worth: Saving) -> Saving:
    """Return what one call for the inputs of several saves: their launches (``worth``), and the GPU's work that many small kernels add.

    A kernel of a few microseconds takes nearly as long for the inputs of all calls, and gradients of weights are added up no more: these
    go but for one call's. At most that is so of all kernels that start and end for a notable part of their time.
    """
    computing = pl.col("cls") != DeviceActivity.COMM.value
    work = _work_of(case, turns).filter(computing).select(ns=pl.col("end_ns") - pl.col("start_ns"))
    tiny, small = (
        round(turns.goes * case.per_step(int(work["ns"].filter(work["ns"] <= longest).sum())))
        for longest in (TINY_KERNEL_NS, SMALL_KERNEL_NS)
    )
    idle = case.taken_by(part for part in StepPart if part.idle)
    saved = worth.likely_ns or 0
    likely = min(saved + tiny, case.step_ns)
    # The calls that stay take as long as now at least, of the host and of the GPU: no more than the time of the others goes.
    most = max(likely, min(max(idle, saved) + small, round(turns.goes * case.step_ns)))
    why = "the launches of one call stay, and of its small kernels, which take nearly as long for all inputs"
    error = likely - saved + (worth.error_ns or 0)
    return replace(worth, likely_ns=likely, confidence=why, error_ns=error, most_ns=most, source="limits")


def _exchanges(case: Case, turns: _Turns) -> int:
    """Return how many collectives each of some modules makes in a step, with those of its backward; 0 for calls of one module."""
    sends = _work_of(case, turns).filter(pl.col("cls") == DeviceActivity.COMM.value).height
    return round(sends / case.steps / turns.times) if turns.several else 0


def _exchanged_once(case: Case, turns: _Turns) -> Saving:
    """Return what it saves if only the first ones of some modules launch, wait and exchange, with the work of all.

    Kernels of a few microseconds take as long for the work of all of them; at best all kernels do.
    """
    first = [bare(call.path) for call in sorted(turns.calls, key=lambda call: call.start_ns)[: turns.deep]]
    later = [each for each in turns.modules if not any(f"{bare(each)}.".startswith(f"{path}.") for path in first)]
    gone = calls_of(case.calls.filter(case.calls["module"].cast(pl.String).is_in(later).fill_null(value=False)))
    ops = case.ops.filter(case.ops["call"].is_in(list(gone)).fill_null(value=False))
    short = ops.filter(ops["end_ns"] - ops["start_ns"] <= TINY_KERNEL_NS)
    once = (RemoveWaits(gone), RemoveCalls(gone), RemoveHost(gone, leading=True))
    least, most = case.worth(*once), case.worth(*once, RemoveOps(ops_of(ops)), bound=True)
    told = case.worth(*once, RemoveOps(ops_of(short)))
    if told.likely_ns is None or least.likely_ns is None or most.most_ns is None:
        return told
    why = "one call waits, exchanges and launches for all; how much of the GPU's work goes is not known"
    error = max(told.error_ns or 0, told.likely_ns - least.likely_ns)
    return replace(told, confidence=why, error_ns=error, most_ns=max(most.most_ns, told.likely_ns), source="limits")


def _described(turns: _Turns) -> str:
    """Return what is known of what the calls need, in a sentence."""
    each = f"{turns.times} {f'modules of class {turns.cls}' if turns.several else f'calls of {turns.cls}'}"
    if not turns.calls:
        return f"{each} run one after the other."
    if turns.deep == 1:
        return f"Of {each} none needs what another one makes."
    return f"Of {each} at most {turns.deep} need what another one makes, one after the other."


#: Classes of torch whose work for several of them is one operator.
_TABLES, _LAYERS = ("Embedding", "EmbeddingBag"), ("Linear", "Conv1d", "LayerNorm")
_LOOKED_UP_AT_ONCE = "rows = table((ids + offsets).flatten()).view(*ids.shape, -1)  # all columns of ids in one call"
#: Of tables that are divided over the ranks.
_ONE_EXCHANGE = (
    "Look all {times} tables up at once, with one exchange and one wait for all: one table that holds the rows of all, with an offset for "
    "each column"
)


def _fix(turns: _Turns, exchanges: int) -> Fix:
    if not turns.several:
        return Fix.by_name("inputs-in-one-call")
    if exchanges and turns.looks_up:
        paste = f"table = {turns.cls}(sum(sizes), dim)  # offsets: where the rows of each begin\n{_LOOKED_UP_AT_ONCE}"
        return Fix.by_name("one-table", text=_ONE_EXCHANGE.format(times=turns.times), paste=paste)
    if exchanges:
        text = f"Exchange for all {turns.times} {turns.cls} at once: put together what each of them sends, and take it apart behind"
        return Fix.by_name("packed-exchange", text=text)
    remedies = {**dict.fromkeys(_TABLES, "one-table"), **dict.fromkeys(_LAYERS, "layers-at-once")}
    return Fix.by_name(remedies.get(turns.cls, "stacked-models"))


def _in_names(case: Case, turns: _Turns, fix: Fix) -> Fix:
    """Return the advice about calls of one network with the line that makes those as one that need nothing of each other."""
    code, together = case.profile.code(), turns.times // max(turns.deep, 1)
    if code is None or turns.several or not turns.calls or together * turns.deep != turns.times:
        return fix
    first = sorted(turns.calls, key=lambda call: call.start_ns)[:together]
    of_loop = in_names_of_loop(case.profile, code, first, fix, trains=case.program.trains)
    if of_loop is not None:
        return of_loop
    paste = in_one_call(case.profile, code, first)
    return fix.but(paste=paste) if paste else fix


def _models(case: Case) -> list[_Turns]:
    """Return the classes of several outermost models: without operators it is not known whether one needs what another one makes."""
    roots: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module, (root, cls) in outermost(case.profile).items():
        if cls is not None:
            roots[cls][root].add(module)
    return [
        _Turns(cls, len(models), deep=1, several=True, networks=True, modules=frozenset().union(*models.values()))
        for cls, models in roots.items()
        if len(models) >= FEWEST_CALLS_IN_TURN
    ]


def _independent(case: Case, flow: OperatorFlow) -> list[_Turns]:
    """Return the calls of one kind in an X-ray step, of models or of modules at alike places, at most half of which need another one."""
    kinds: dict[tuple[str, str, int], list[ModuleCall]] = defaultdict(list)
    ends = -1
    for call in flow.calls:
        root = call.first >= ends
        ends = max(ends, call.last)
        # Tables of one width can be one whatever they hold; all else has to be alike.
        alike = 0 if call.cls in _TABLES else signature(flow, call)
        kinds["" if root else _unnumbered(call.path), call.cls, alike].append(call)
    api = case.profile.attributed.api_calls
    ops = case.profile.attributed.gpu_ops
    sends = ops.filter(ops["cls"] == DeviceActivity.COMM.value)["call"].drop_nulls()
    launches = api.filter(
        (api["thread"] == flow.thread) & api["kind"].is_in(Call.LAUNCHES) & ~api["call"].is_in(sends.implode())
    )["start_ns"].to_numpy()
    turns = []
    for (path, cls, _), calls in kinds.items():
        paths = {call.path for call in calls}
        if len(paths) < len(calls) and _needs_rest(case, calls):
            calls = _first_round(calls)
        if len(calls) < FEWEST_CALLS_IN_TURN:
            continue
        if _launch_unseen(launches, flow, calls):
            continue
        deep = depth(flow, calls)
        if 2 * deep <= len(calls):
            several = len(paths) > 1
            turns.append(
                _Turns(
                    cls,
                    len(calls),
                    deep=deep,
                    several=several,
                    networks=several and not path,
                    modules=_alike(case, path, cls),
                    calls=calls,
                    looks_up=looks_up(flow, calls[0]),
                )
            )
    return turns


def _first_round(calls: list[ModuleCall]) -> list[ModuleCall]:
    """Return the calls of one round, as of an update of several in a step; none where rounds call other modules, or one alone."""
    again = next(i for i, call in enumerate(calls) if call.path in {each.path for each in calls[:i]})
    rounds = [calls[i : i + again] for i in range(0, len(calls), again)]
    first = [call.path for call in rounds[0]]
    return rounds[0] if all([call.path for call in each] == first for each in rounds) else []


def _launch_unseen(launches: I64, flow: OperatorFlow, calls: Sequence[ModuleCall]) -> bool:
    """Return whether some of the ``launches`` (ns) in these calls are outside of operators, as those of compiled code: what these need has
    no name there.
    """
    inside = launches[interval_of(launches, *np.array([(c.start_ns, c.end_ns) for c in calls], np.int64).T) >= 0]
    rows = [row for c in calls for row in flow.outermost_of(c.first, c.last)]
    seen = interval_of(inside, flow.start_ns[rows], flow.end_ns[rows]) >= 0
    return bool((~seen).sum() > UNSEEN_READERS_SHARE * max(len(inside), 1))


def _unnumbered(path: str) -> str:
    """Return the path of a module without the numbers that tell alike ones apart."""
    return re.sub(r"#\*", "", folded(path))


def _needs_rest(case: Case, calls: Sequence[ModuleCall]) -> bool:
    """Return whether something between calls of the same module stands for a need that operators do not show.

    That is a backward, which the calls of an accumulation have each of their own, an optimizer, or an answer that the host reads before
    it makes the next input.
    """
    first, last = calls[0], calls[-1]
    api = case.profile.attributed.api_calls
    between = (api["start_ns"] >= first.end_ns) & (api["start_ns"] < last.start_ns) & (api["thread"] == first.thread)
    rows = api.filter(between)
    if rows["phase"].cast(pl.String).is_in(["backward", "optimizer"]).any():
        return True
    ops = case.profile.attributed.gpu_ops
    copies = ops.filter((ops["op_kind"] == "memcpy") & ops["call"].is_in(rows["call"].implode()))["name"].cast(
        pl.String
    )
    return all(int((copies == way).sum()) >= len(calls) // 2 for way in ("HtoD", "DtoH"))


def _alike(case: Case, path: str, cls: str) -> frozenset[str]:
    """Return the modules of a class at alike places ("": outermost ones), in all steps, and all that are parts of them."""
    tree = case.profile.attributed.modules.select(pl.col("module", "cls", "parent").cast(pl.String))
    chosen: set[str] = set()
    for module, its_class, parent in tree.drop_nulls("module").iter_rows():  # parents come first
        alike = its_class == cls and (parent is None if not path else _unnumbered(bare(module)) == path)
        if alike or parent in chosen:
            chosen.add(module)
    return frozenset(chosen)


def _calling(case: Case, turns: _Turns) -> Row:
    """Return file and line at which the calls are made, empty where no X-ray noted lines."""
    code = case.profile.code()
    if code is None or not turns.calls:
        return {}
    starts = np.array([call.start_ns for call in turns.calls], np.int64)
    return code.where_most(code.places_of(code.at(turns.calls[0].thread, starts)))

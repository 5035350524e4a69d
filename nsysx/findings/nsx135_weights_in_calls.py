"""NSX135 weights-in-calls: each call computes its weights anew, from tensors that no step changes.

What it means
    Weights that are normalized, converted, dequantized or put together in forward have to be made anew while they are trained. In
    inference the same comes out each time: weight normalization that was left in, autocast over float32 weights, stored vectors that
    a search normalizes for each question. Once, after loading, is enough.
    In training it is so with what layers make from tensors that nothing changes: a graph that each layer of a graph network normalizes
    anew.

In the trace
    Operators of an X-ray step whose arguments are all older than the step, and whose result is the second factor of a product or the
    weight of a convolution. Nothing of the step goes into them.

Bad
    scores = F.normalize(question) @ F.normalize(stored).T       # for each question

Good
    stored = F.normalize(stored)                                 # once
    scores = F.normalize(question) @ stored.T

Harmless when
    The weights change between the calls.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import StepLimit, StepPart
from nsysx.events.made_weights import made_weights
from nsysx.events.operator_flow import OperatorFlow, flow_of, is_drawn, outermost_rows
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.repeated_constants import repeated_constants
from nsysx.events.trained_operators import trained_of
from nsysx.findings._case import Case, Fix, Rule, calls_of, ops_of
from nsysx.findings._finding_bounds import FEWEST_ROUNDS, REPORTED_SHARE
from nsysx.findings._flow_work import copied
from nsysx.findings._found import Found
from nsysx.findings._frozen_norms import applied_rows, calls_of_rows
from nsysx.findings._kept_results import NAMED, to_keep
from nsysx.findings._once import Takes, began_in, edits_without
from nsysx.findings._work_bounds import CONSTANTS_OF_LINE_SHARE, WEIGHT_OPERATORS_NAMED
from nsysx.model import Finding, Row

RULE = Rule(
    "NSX135",
    "weights-in-calls",
    "Weights that each call recomputes",
    cause=(StepPart.WORK, StepPart.HOST, StepPart.LAUNCH),
    about=StepLimit.GPU,
    leads=True,
    rests_on="What makes these weights was followed",
)
REQUIRES = ("steps", "gpu")
_ONCE = "constants = make(inputs)  # once, before the loop: only what never changes"
#: A call that is given nothing but what an object keeps: what ranks tell each other in it is nothing of the step.
_GIVEN_NOTHING = re.compile(r"=\s*[\w.]+\(\s*(?:(?:self\.[\w.]+|\d+)\s*,?\s*)*\)\s*$")
_NORMALIZED = "aten::_weight_norm"
_CONSTANTS = "Compute once, before the loop, what each call of {cls} recomputes from unchanged tensors, and pass it in"
_NEED_NOTHING = "These operators need nothing of the step and have no gradient; they make"
_FOLDED = (
    "Fold each {cls} into the convolution in front of it, once, after the weights are loaded: its factor and bias never change, and a bias "
    "costs the convolution nothing"
)
_PASSES = (
    "A factor and a bias for each channel are made of tensors that never change, and applied in a product and a sum over the whole "
    "activation, with a product in backward. That is"
)
#: Layers of torch_geometric that keep what they compute of a graph.
_CACHED = ("GCNConv", "GCN2Conv", "SGConv", "SSGConv", "APPNP", "ARMAConv", "ClusterGCNConv", "LGConv", "TAGConv")


def check(case: Case) -> list[Finding]:
    """Return one finding where a program that trains nothing makes weights for 5 % of the step or more."""
    flow = flow_of(case.profile)
    if flow is None:
        return case.cannot_tell(RULE, "operators were not recorded with what made their arguments", "nsysx run -- CMD")
    if _trains(case):
        return _of_training(case, flow) or case.clear(RULE, "the program trains its weights")
    rows = made_weights(flow, copied(case.profile, flow, "HtoD"))
    made = _calls(case, flow, rows)
    calls = calls_of(made)
    theirs = case.ops.filter(case.ops["call"].is_in(list(calls)).fill_null(value=False))
    worth = case.worth(*edits_without(made, case.ops), cause=RULE.cause) if calls else None
    if worth is None or not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return case.clear(RULE, f"computing weights anew takes less than {units.bound(REPORTED_SHARE)} of the step")
    outer = [rows[i] for i in outermost_rows(flow.start_ns[rows], flow.end_ns[rows])]
    names = Counter(flow.names[row].removeprefix("aten::") for row in outer)
    told = ", ".join(
        f"{name} ({units.several(often, 'time')})" for name, often in names.most_common(WEIGHT_OPERATORS_NAMED)
    )
    cost = case.per_step(int((theirs["end_ns"] - theirs["start_ns"]).sum()))
    detail = (
        f"{told} compute weights from tensors that no step changes: {units.duration(cost)} of the GPU's time and "
        f"{len(calls) / case.steps:.0f} calls {case.per}."
    )
    fix = Fix.by_name(
        "weights-folded" if any(flow.names[row].startswith(_NORMALIZED) for row in rows) else "computed-once"
    )
    title = f"Weights are computed anew in each call: up to {units.duration(worth.likely_ns or 0)} {case.per}"
    return [
        Found(
            RULE, title, detail, worth=worth, cost_ns=worth.likely_ns, fix=fix, calls=calls, takes=Takes(ops_of(theirs))
        ).as_finding(case)
    ]


def _trains(case: Case) -> bool:
    """Return whether the steps train; transposed convolutions run kernels of a backward."""
    return bool(case.ops["phase"].cast(pl.String).is_in(["backward", "optimizer"]).any())


def needless_rows(case: Case, flow: OperatorFlow, from_host: list[bool]) -> frozenset[int]:
    """Return the outermost operators that this rule is about; ``from_host``: those that copy from the host."""
    if _trains(case):
        constants = repeated_constants(flow, trained_of(case.profile).tolist(), from_host, FEWEST_ROUNDS)
        rows = {row for of_class in constants.values() for row in of_class}
    else:
        rows = set(made_weights(flow, from_host))
    return frozenset(flow.outermost) & rows


def calls_for_constants(case: Case) -> dict[str, pl.DataFrame]:
    """Return class of a module -> the rows of ``case.calls`` that several of its calls in a step make for the same constants."""
    flow = flow_of(case.profile)
    if flow is None:
        return {}
    trained = trained_of(case.profile)
    if not trained.any():
        return {}
    constants = repeated_constants(flow, trained.tolist(), copied(case.profile, flow, "HtoD"), FEWEST_ROUNDS)
    # Of modules within modules the inner one is named.
    return {cls: _calls(case, flow, rows) for cls, rows in sorted(constants.items(), key=lambda item: item[0])}


def _of_training(case: Case, flow: OperatorFlow) -> list[Finding]:
    """Return one finding where modules of one class make the same constants again in each of their calls, for 5 % of the step or more."""
    made = calls_for_constants(case)
    if not made:
        return []
    constants = repeated_constants(
        flow, trained_of(case.profile).tolist(), copied(case.profile, flow, "HtoD"), FEWEST_ROUNDS
    )
    inner = {call.cls: call.last - call.first for call in sorted(flow.calls, key=lambda call: call.first - call.last)}
    cls = min(made, key=lambda name: (-made[name].height, inner.get(name, 0), name))
    where = _line_of_all(case, flow, constants[cls])
    below = _below(case, made[cls], where)
    passes = calls_of_rows(case, flow, applied_rows(flow, constants[cls], cls))
    if passes.height:
        below = case.calls.filter(pl.col("call").is_in([*below["call"], *passes["call"]]))
    calls = calls_of(below)
    theirs = case.ops.filter(case.ops["call"].is_in(list(calls)).fill_null(value=False))
    worth = case.worth(*edits_without(below, case.ops), cause=RULE.cause) if calls else None
    if worth is None or not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return []
    often = sum(call.cls == cls for call in flow.calls)
    saved = units.duration(worth.likely_ns or 0)
    title = f"Each of {often} calls of {cls} computes the same constants: up to {saved} {case.per}"
    detail = (
        f"{_PASSES if passes.height else _NEED_NOTHING} {len(calls) / case.steps:.0f} calls {case.per}, and "
        f"kernels of {units.duration(case.per_step(int((theirs['end_ns'] - theirs['start_ns']).sum())))}."
    )
    how = f": {cls}(..., cached=True), as the graph stays the same" if cls in _CACHED else ""
    fix = Fix.by_name("constants-of-layers", text=_CONSTANTS.format(cls=cls) + how)
    if passes.height:
        title = f"{often} calls of {cls} normalize by constants, in passes of their own: up to {saved} {case.per}"
        fix = Fix.by_name("norms-folded", text=_FOLDED.format(cls=cls))
    line = NAMED.match(text_of(texts(case.profile), where.get("file"), where.get("line")) or "")
    if cls not in _CACHED and not passes.height:
        fix = fix.but(paste=_ONCE if line is None else _kept(line[1], line[2]))
    takes = Takes(ops_of(theirs), idle=began_in(case.idle, calls))
    again = Found(
        RULE,
        title,
        detail,
        worth=worth,
        cost_ns=worth.likely_ns,
        fix=fix,
        where=where or None,
        calls=calls,
        takes=takes,
    )
    return [again.as_finding(case)]


def _kept(names: str, value: str) -> str:
    """Return the lines that make a value once and give it these names; each object may make another one."""
    if re.search(r"\bself\b", value):
        return to_keep([(names, value)])
    return f"kept = {value}  # once, before the loop\n{names} = kept  # in place of this line"


def _line_of_all(case: Case, flow: OperatorFlow, rows: Sequence[int]) -> Row:
    """Return the innermost line that makes most of some constants (rows), itself or in what it calls, and nothing of the step; {} for none.

    What an exchange brings, and what the host reads to make room for it, is made of the same there: all that it is given is made below the
    line, or older than the step, and nothing of it is trained.
    """
    code, trained = case.profile.code(), trained_of(case.profile)
    outer = np.array(sorted(frozenset(flow.outermost).intersection(rows)), np.int64)
    if code is None or not len(outer):
        return {}
    stacks = code.at(flow.thread, flow.start_ns[outer])
    often = Counter(line for stack in stacks.tolist() for line in dict.fromkeys(code.own_chain(stack)))
    depth = {line: n for stack in stacks.tolist() for n, line in enumerate(code.own_chain(stack))}
    most = [line for line, times in often.items() if times >= CONSTANTS_OF_LINE_SHARE * len(outer)]
    line_row = min(most, key=lambda line: (depth[line], line), default=-1)
    every = code.at(flow.thread, flow.start_ns[flow.outermost])
    below = np.flatnonzero(code.passing(every, frozenset((line_row,))))
    theirs = frozenset(flow.outermost[n] for n in below.tolist())
    drawn = copied(case.profile, flow, "HtoD")
    inside = frozenset(row for begin, end in flow.outermost_spans if begin in theirs for row in range(begin, end))
    text = text_of(texts(case.profile), *code.places.row(line_row)[:2]) if line_row >= 0 else None
    given_nothing = bool(_GIVEN_NOTHING.search(text or ""))
    brought = set[int]()  # made of what a collective brings
    for row in sorted(inside):
        unseen = [number for number in flow.made[row] if number >= 0 and number not in flow.row_of]
        of_exchange = bool(unseen or brought.intersection(flow.makers[row]))
        if given_nothing and of_exchange and all(_row_before(flow, number) in inside for number in unseen):
            brought.add(row)
            continue
        older = bool(unseen)
        if trained[row] or drawn[row] or is_drawn(flow.names[row]) or older or not inside.issuperset(flow.makers[row]):
            return {}
    return code.where(line_row)


def _row_before(flow: OperatorFlow, number: int) -> int:
    """Return the last operator (row) before a number that no operator of the flow has, -1 for none."""
    return bisect_right(flow.number, number) - 1


def _below(case: Case, made: pl.DataFrame, where: Row) -> pl.DataFrame:
    """Return the calls that constants make (``made``), with what else their line makes: exchanges, and waits for what the host reads."""
    code = case.profile.code()
    there = (
        frozenset(number for number in range(code.places.height) if where and code.where(number) == where)
        if code
        else frozenset[int]()
    )
    if code is None or not there:
        return made
    below = code.passing(code.call[case.calls["call"].to_numpy()], there)
    both = below | case.calls["call"].is_in(made["call"].implode()).to_numpy()
    return case.calls.filter(pl.Series(both, dtype=pl.Boolean))


def _calls(case: Case, flow: OperatorFlow, rows: list[int]) -> pl.DataFrame:
    """Return the rows of ``case.calls`` that these operators make, and what lies in them, by the step in which they were recorded."""
    of_calls = operator_of_calls(case.profile)
    if of_calls is None or not rows:
        return case.calls.clear()
    inside = np.zeros(len(flow.names) + 1, np.bool_)
    for index in outermost_rows(flow.start_ns[rows], flow.end_ns[rows]):
        first = rows[index]
        inside[first : int(np.searchsorted(flow.start_ns, flow.end_ns[first]))] = True
    return case.calls.filter(pl.Series(inside[of_calls.forward[case.calls["call"].to_numpy()]]))

"""Work whose result is there already, or that nothing reads: operators that can go, by kind and place, and what that saves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.converted_again import Conversion, Kernels, converted_again
from nsysx.events.flow_behind_another import flow_with_collectives
from nsysx.events.frozen_operators import frozen_operators
from nsysx.events.layers import layer_of
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.operator_of_calls import OperatorOfCalls, calls_of_flow_with_collectives, operator_of_calls
from nsysx.events.repeated_operators import RepeatedOperator, repeated_operators
from nsysx.events.trained_operators import trained_of
from nsysx.findings._called_again import called_again, parametrized_again
from nsysx.findings._case import Case, Fix, Rule, calls_of, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import host_code_shared, in_short, launching_operators, place_of_group, place_of_operator
from nsysx.findings._found import Found
from nsysx.findings._gradient_penalties import lazy_penalties
from nsysx.findings._handed_on import handed_on
from nsysx.findings._layer_masks import masks_of_layers
from nsysx.findings._numbers_of_lines import numbers_beside_tensors_written_out
from nsysx.findings._once import Takes, began_in, edits_without
from nsysx.findings._one_output import findings_of as of_one_output
from nsysx.findings._pairs_of_all_ranks import pairs_of_all_ranks
from nsysx.findings._passes_over_batches import same_in_passes, saved_in_passes, to_keep_with_batch
from nsysx.findings._repeated_backwards import repeated_backwards
from nsysx.findings._same_in_each_step import on_all_ranks, ranks_beside, same_in_each_step
from nsysx.findings._summed_metrics import summed_metrics
from nsysx.findings._unread_results import logged_statistics, unread_results
from nsysx.findings._unread_tails import tails_of_networks
from nsysx.findings._unseen_launches import launched_unseen
from nsysx.findings._work_bounds import WEIGHT_OPERATORS_NAMED
from nsysx.findings._zeroed_results import zeroed_results
from nsysx.frames import lookup
from nsysx.model import Finding, Row
from nsysx.replay.engine import Edit, RemoveOps, ScaleOps

_UNSEEN = "what kernels outside of torch's operators read was not recorded"
_COPIES = r"copy"
#: What makes other data of a sample each time.
_AUGMENTS = re.compile(
    r"(?i)augment|jitter|mixup|cutmix|cutout|random\w*(crop|flip|rotat|eras|resiz|affine|mask)|(crop|flip)\w*rand"
)
_AUTOCAST = re.compile(r"\bautocast\b")


class _Needless(NamedTuple):
    """Operators (rows of the flow, none in another) that can go, what they are in words behind their place, why, and where.

    ``halved``: what their gradients launch besides what goes with them takes half the time. ``kept``: of each of them the share of its
    work, and of its gradients', that stays; nothing where all goes. ``share``: of the steps in which they can go. ``on_every_rank``: the
    other ranks do the same for sure; ``ranks_alike``: so many programs have it, but lines of other ranks do not count with its own.
    ``kernels_alone``: that the host waits for them is another finding's, and no more than their own time is theirs.
    """

    rows: Sequence[int]
    title: str
    why: str
    fix: Fix
    where: Row
    halved: bool = False
    kept: Mapping[int, float] = {}
    on_every_rank: bool = False
    ranks_alike: bool = False
    share: float = 1.0
    kernels_alone: bool = False


def findings_of(case: Case, rule: Rule, flow: OperatorFlow, code: CodeLines) -> list[Finding]:
    """Return a finding for each kind of such work at one place that takes 5 % of the step or more."""
    of_calls = operator_of_calls(case.profile)
    if of_calls is None or case.program.compiled:
        return case.cannot_tell(rule, _UNSEEN)
    needless, fixed = list[tuple[_Needless, OperatorFlow, OperatorOfCalls]](), list(_fixed(case, code))
    unseen = launched_unseen(case, flow, of_calls)
    gradients = OperatorOfCalls(np.full(len(of_calls.forward), -1), of_calls.backward)
    if not unseen:  # First, as its score may be one that is computed again.
        for penalty, kept, shared in lazy_penalties(case.profile, flow, code):
            needless.append((_Needless(*penalty, kept=kept), flow, gradients if shared else of_calls))
    # What collectives read matters to those rules alone that ask whether anything does.
    if not (unseen and launched_unseen(case, flow, of_calls, but_collectives=True)):
        kernels = _kernels(case, of_calls)
        of_line = (
            *(_Needless(*each) for each in called_again(case.profile, flow, code)),
            *(_Needless(*each) for each in parametrized_again(flow, code)),
            *(_Needless(*each) for each in masks_of_layers(case.profile, flow, code)),
            *_in_passes(case, flow, code),
            *_in_each_call(case, flow, code, kernels),
            *_converted(case, flow, code, kernels),
            *(_Needless(*each, kept=kept) for each, kept in pairs_of_all_ranks(case, flow, code)),
        )
        needless += [(each, flow, of_calls) for each in of_line]
    if not unseen:
        again = (_Needless(*each, kept=kept) for each, kept in repeated_backwards(case.profile, flow, code))
        needless += [(each, flow, gradients) for each in again]
    needless += fixed
    needless += _logged(case, code, unseen=unseen)
    if not unseen:
        unread = (_Needless(*each) for each in (*unread_results(case, flow, code), *zeroed_results(case, flow, code)))
        needless += [(each, flow, of_calls) for each in (*unread, *_frozen(case, flow, code))]
    findings = of_one_output(case, rule, flow, code)
    gone: set[int] = set()  # the calls of these
    small = list[tuple[_Needless, OperatorFlow, OperatorOfCalls]]()
    for each, of_flow, calls in needless:
        call, outer = case.calls["call"].to_numpy(), launching_operators(case, of_flow, each.rows, calls)
        told = {*outer[np.isin(call, list(gone))].tolist()}
        each = each._replace(rows=[row for row in each.rows if row not in told])
        finding = _found(case, rule, of_flow, each, calls)
        if finding is not None:
            findings.append(finding)
            gone.update(call[(outer >= 0) & ~np.isin(outer, list(told))].tolist())
        elif each.on_every_rank:
            small.append((each, of_flow, calls))
    if len(small) > 1:
        finding = _found(case, rule, small[0][1], _together([each for each, *_ in small]), small[0][2])
        findings += [finding] if finding is not None else []
    if unseen and not findings:
        return case.cannot_tell(rule, _UNSEEN)
    return findings or case.clear(rule, f"no work that can be left out takes {units.bound(REPORTED_SHARE)} of the step")


def _found(
    case: Case, rule: Rule, flow: OperatorFlow, needless: _Needless, of_calls: OperatorOfCalls
) -> Finding | None:
    """Return the finding about operators, None where they take too little of the step, and of the GPU."""
    outer = launching_operators(case, flow, needless.rows, of_calls)
    made = case.calls.filter(pl.Series(outer >= 0, dtype=pl.Boolean))
    edits: list[Edit] = []
    if needless.halved:
        ops = case.ops.filter(case.ops["call"].is_in(list(calls_of(made))).fill_null(value=False))
        sums = ops.filter(~pl.Series(lookup.matching(ops["name"], _COPIES), dtype=pl.Boolean))
        edits = [ScaleOps(ops_of(sums), 0.5)] if sums.height else []
        made = made.filter(~made["call"].is_in(sums["call"].to_list()))
    calls = calls_of(made)
    if not calls:
        return None
    theirs = case.ops.filter(case.ops["call"].is_in(list(calls)).fill_null(value=False))
    shared, share = host_code_shared(case, flow, needless.rows, of_calls, calls)
    changes = [*edits_without(made, case.ops, shared=shared, theirs=share), *edits]
    if needless.kernels_alone:
        changes = [RemoveOps(ops_of(theirs))]
    if needless.kept:
        row_of_call = pl.DataFrame({"call": case.calls["call"], "outer": outer})
        placed = theirs.join(row_of_call, on="call", how="left", maintain_order="left")
        shares = placed["outer"].replace_strict(needless.kept, default=1.0, return_dtype=pl.Float64)
        changes = [
            ScaleOps(ops_of(theirs.filter(shares == share)), share, less_work=True)
            for share in sorted(set(shares.to_list()))
            if share < 1
        ]
    whole = not needless.halved and not needless.kept and needless.share == 1
    worth = saved_in_passes(case.worth_or_freed(*changes, cause=rule.cause, bound=whole), needless.share)
    cost, began = case.per_step(int((theirs["end_ns"] - theirs["start_ns"]).sum())), began_in(case.idle, calls)
    if worth.likely_ns is not None and (needless.on_every_rank or (needless.ranks_alike and ranks_beside(case))):
        worth = on_all_ranks(case, worth, theirs, case.idle.filter(pl.Series(began, dtype=pl.Boolean)))
    if needless.kernels_alone and worth.likely_ns is not None:
        worth, began = (
            replace(worth, likely_ns=min(worth.likely_ns, cost), most_ns=None, bound=True),
            np.zeros_like(began),
        )
    if worth.likely_ns is None:
        return None
    much = case.notable(worth.likely_ns, REPORTED_SHARE)
    # Where the step waits for the host, all of it counts once that is mended.
    if not much:
        if not (whole and case.notable(cost, REPORTED_SHARE) and case.notable(worth.likely_ns)):
            return None
        worth = case.worth_or_freed(*changes, cause=rule.cause)  # no bound: less may wait for the host then
    launching = np.unique(outer[outer >= 0])
    names = Counter(flow.names[row].removeprefix("aten::") for row in launching.tolist())
    listed = ", ".join(
        f"{name} ({units.several(often, 'time')})" for name, often in names.most_common(WEIGHT_OPERATORS_NAMED)
    )
    detail = (
        f"{needless.why} These are {listed}: {units.duration(cost)} of the GPU's time and "
        f"{len(calls) / case.steps:.0f} calls {case.per}."
    )
    saved = f"{'up to ' if worth.bound else ''}{units.duration(worth.likely_ns)}"
    title = f"{needless.title}: {saved if much else f'{units.duration(cost)} of the GPU'} {case.per}"
    takes = Takes(ops_of(theirs), idle=began)
    return Found(
        rule,
        title,
        detail,
        worth=worth,
        cost_ns=worth.likely_ns if much else cost,
        fix=needless.fix,
        where=needless.where,
        calls=calls,
        takes=takes,
    ).as_finding(case)


def _in_passes(case: Case, flow: OperatorFlow, code: CodeLines) -> Iterator[_Needless]:
    """Yield what frozen networks compute again in each pass over one batch."""
    for same in same_in_passes(case.profile, flow, code, trained_of(case.profile)):
        title = f"{in_short(same.where) or 'The step'} computes the same in {same.passes:.3g} steps in a row"
        fix = to_keep_with_batch(case.profile, same)
        yield _Needless(same.rows, title, same.sentence(), fix, same.where, share=same.share)


def _kernels(case: Case, of_calls: OperatorOfCalls) -> Kernels:
    """Return the names of the kernels that each operator of the flow launches (rows of the flow)."""
    kernels = case.ops.filter(pl.col("op_kind") == "kernel", pl.col("call").is_not_null())["call", "name"]
    forward = of_calls.forward[kernels["call"].to_numpy()]
    named = kernels.select(pl.col("name").cast(pl.String), row=pl.Series(forward)).filter(pl.col("row") >= 0).unique()
    return {row: frozenset(theirs) for row, theirs in named.group_by("row").agg("name").iter_rows()}


def _in_each_call(case: Case, flow: OperatorFlow, code: CodeLines, kernels: Kernels) -> Iterator[_Needless]:
    """Yield what calls of modules of a class compute though the call of one before them has, by line."""
    start_ns = flow.start_ns[flow.outermost]
    phases = case.profile.ranges.ranges.filter(kind="phase", name="backward", process=case.process)
    forward = layer_of(phases).at(flow.thread, start_ns) < 0  # checkpoints compute again on purpose
    line_rows = np.where(forward, code.places_of(code.at(flow.thread, start_ns)), -1)
    lines: dict[tuple[object, object], tuple[Row, list[RepeatedOperator]]] = {}
    source = texts(case.profile)
    innermost = np.append(code.place, -1)[code.at(flow.thread, start_ns)]
    written_out = [
        numbers_beside_tensors_written_out(text_of(source, *code.places.row(each)[:2]) or "?") if each >= 0 else False
        for each in innermost.tolist()
    ]
    for group in repeated_operators(flow, kernels, line_rows.tolist(), written_out):
        where = place_of_group(code, flow, [row for each in group for row in (each.first, *each.again)], kernels)
        lines.setdefault((where.get("file"), where.get("line")), (where, []))[1].extend(group)
    for where, theirs in lines.values():
        often = 1 + max(len(each.again) for each in theirs)
        title = f"{in_short(where) or 'The step'} computes the same {often} times"
        why = "Modules of one class run the same operators on the same tensors, and nothing has written into these in between."
        rows = [row for each in theirs for row in each.again]
        yield _Needless(rows, title, why, handed_on(case.profile, code, flow, rows), where)


def _converted(case: Case, flow: OperatorFlow, code: CodeLines, names: Kernels) -> Iterator[_Needless]:
    """Yield the conversions of what is converted already: those of weights together, others by line."""
    lines: dict[tuple[object, object], tuple[Row, list[Conversion], list[Conversion]]] = {}
    for same in converted_again(case.profile, names):
        where = place_of_operator(code, flow, flow.start_ns[[same.again[-1].row]])
        if not same.weights:
            _, first, again = lines.setdefault((where.get("file"), where.get("line")), (where, [], []))
            first += same.first
            again += same.again
            continue
        rows = [each.row for each in same.again]
        entered = _entered(case, code, flow, rows) if same.by_autocast else {}
        every = f"{len(rows)} of {len(rows) + len(same.first)}"
        title = (
            f"{in_short(entered or where) or 'The step'}: {every} conversions of weights in a step make the same again"
        )
        why = f"Gradients of {units.several(len(same.first), 'weight')} of their sizes are accumulated, so no more are different ones."
        why += " Autocast forgets what it has converted when it ends, and is entered anew." if same.by_autocast else ""
        fix = Fix.by_name("autocast-once" if same.by_autocast else "converted-once")
        yield _Needless(rows, title, why, fix, entered or where, halved=True)
    for where, first, again in lines.values():
        title = f"{in_short(where) or 'The step'} converts again what {_before(code, flow, where, first)} has converted"
        why = f"{units.several(len(again), 'conversion')} of tensors that nothing has written into since they were converted."
        yield _Needless([each.row for each in again], title, why, Fix.by_name("converted-once"), where)


def _before(code: CodeLines, flow: OperatorFlow, where: Row, first: Sequence[Conversion]) -> str:
    """Return the line that converts first, "it" where it is this one or not known."""
    before = place_of_operator(code, flow, flow.start_ns[[first[0].row]])
    return in_short(before) if before and before != where else "it"


def _entered(case: Case, code: CodeLines, flow: OperatorFlow, rows: Sequence[int]) -> Row:
    """Return the line that enters autocast last before most of these operators; empty where none is seen."""
    open_on = code.open.get(flow.thread)
    if open_on is None:
        return {}
    source = texts(case.profile)
    names = [text_of(source, *code.places.row(n)[:2]) or "" for n in range(code.places.height)]
    enters = np.array([_AUTOCAST.search(name) is not None for name in names], np.bool_)
    line_row = code.places_of(open_on.labels.astype(np.int64))
    there = np.flatnonzero((line_row >= 0) & np.append(enters, False)[line_row])
    before = np.searchsorted(open_on.times[there], flow.start_ns[list(rows)], side="right") - 1
    return code.where_most(line_row[there][before[before >= 0]])


def _calling(code: CodeLines, flow: OperatorFlow, start_ns: int) -> Row:
    """Return the line of the program that is at work when a module is called."""
    return place_of_operator(code, flow, np.array([start_ns]))


def _fixed(case: Case, code: CodeLines) -> Iterator[tuple[_Needless, OperatorFlow, OperatorOfCalls]]:
    """Yield what each step makes in the same way from nothing that a step changes, by line; nothing of it has a gradient."""
    flow, of_calls = flow_with_collectives(case.profile), calls_of_flow_with_collectives(case.profile)
    if flow is None or of_calls is None or launched_unseen(case, flow, of_calls):
        return
    forward = OperatorOfCalls(of_calls.forward, np.full(len(of_calls.backward), -1))
    for same in same_in_each_step(case, flow, code, forward):
        inside, words = same.inside_package, same[:5]
        yield _Needless(*words, on_every_rank=not inside, kernels_alone=inside), flow, forward


def _logged(case: Case, code: CodeLines, *, unseen: bool) -> Iterator[tuple[_Needless, OperatorFlow, OperatorOfCalls]]:
    """Yield what each step computes for a log that few steps write, by place, and networks behind what is read of them; collectives may be
    all that is ``unseen`` among operators.
    """
    flow, of_calls = flow_of(case.profile), operator_of_calls(case.profile)
    if unseen:
        flow, of_calls = flow_with_collectives(case.profile), calls_of_flow_with_collectives(case.profile)
    if flow is None or of_calls is None or (unseen and launched_unseen(case, flow, of_calls)):
        return
    for each in (*logged_statistics(case, flow, code), *tails_of_networks(case, flow, code)):
        yield _Needless(*each), flow, of_calls
    for summed in summed_metrics(case, flow, code):
        yield _Needless(*summed.operators, ranks_alike=True, share=summed.share), flow, of_calls


def _together(several: Sequence[_Needless]) -> _Needless:
    """Return what several lines make in the same way in each step, the one with the most of it first."""
    rows = sorted({row for each in several for row in each.rows})
    lines = ", ".join(dict.fromkeys(in_short(each.where) for each in several if each.where))
    title = f"{units.several(len(several), 'line')} compute the same in each step"
    why = f"No input of these operators changes from step to step: none is data, trained, random or written to. They are in {lines}."
    return _Needless(rows, title, why, Fix.by_name("computed-once"), several[0].where, on_every_rank=True)


def _frozen(case: Case, flow: OperatorFlow, code: CodeLines) -> Iterator[_Needless]:
    """Yield what networks that nothing trains make of the data of the step alone."""
    frozen = frozen_operators(flow, trained_of(case.profile))
    source = texts(case.profile)
    written = (text_of(source, *code.places.row(n)[:2]) or "" for n in range(code.places.height))
    if frozen is None or any(_AUGMENTS.search(text) for text in written):
        return
    longest = max(frozen.calls, key=lambda call: call.last - call.first)
    names = " and ".join(dict.fromkeys(call.cls or call.path for call in frozen.calls))
    where = _calling(code, flow, longest.start_ns)
    title = f"{in_short(where) or 'The step'} runs frozen networks on the data of each step"
    why = f"Nothing trains {names}, and nothing on the way from the data to it is drawn: of the same sample comes the same."
    yield _Needless(frozen.rows, title, why, Fix.by_name("encoded-once"), where)

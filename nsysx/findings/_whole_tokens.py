"""What each rank of a network of split layers does for all tokens: norms, dropout, residuals and conversions between the layers.

The layers' products are shared out over the ranks, these are not. With tokens that are shared out as well (sequence parallelism) each
rank does its part of them; the reduction behind a layer becomes a reduction of parts, and a gather in front of the next: as many bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses import lines
from nsysx.events.operator_flow import ModuleCall, OperatorFlow, flow_of
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.events.whole_tokens import WholeTokens, whole_tokens
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._finding_bounds import TINY_KERNEL_NS
from nsysx.findings._flow_work import place_of_operator
from nsysx.findings._once import Takes
from nsysx.findings._repeated_work import RepeatedOperators, RepeatedWork, repeated_work, worth_of_own_part
from nsysx.model import Row

#: A line of a plan that adds the output of a layer up for all ranks.
_ADDED_BY_PLAN = re.compile(r"\bRowwiseParallel\(\s*\)")
_BY_HAND = re.compile(r"reduce", re.IGNORECASE)
_GROUP = re.compile(r"\bgroup\s*=\s*([A-Za-z_][\w.]*)")


def _tokens(profile: Profile) -> WholeTokens | None:
    """Return the operators of the flow that work on all tokens, None where none do."""
    flow = flow_of(profile)
    whole = None if flow is None else whole_tokens(flow, profile)
    return whole if whole is not None and whole.between and whole.products else None


def _repeated(case: Case) -> RepeatedWork | None:
    """Return their work, with that of their gradients, without kernels that fewer tokens make no shorter, as when one is decoded."""
    whole = None if case.program.compiled else case.profile.once(_tokens)
    work = None if whole is None else repeated_work(case, [RepeatedOperators(whole.between, (), whole.ranks)])
    return work and work._replace(between=work.between.filter(work.between["ns"] > TINY_KERNEL_NS))


def worked_on_whole(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that every rank works on all tokens between layers that are split over the ranks."""
    repeated, whole = _repeated(case), case.profile.once(_tokens)
    if repeated is None or whole is None or not case.notable(case.per_step(repeated.needless_ns)):
        return ""
    ns = case.per_step(int(repeated.between["ns"].sum()))
    return (
        f"{units.several(len(whole.sent_ns), 'layer output')} in each step {'are' if len(whole.sent_ns) > 1 else 'is'} added up over "
        f"{whole.ranks} ranks; each of them then works on all {units.count(whole.tokens)} tokens (norms, dropout, residuals, conversions: "
        f"{units.duration(ns)} with gradients, {case.share(ns)} of the step) until the next layer is split"
    )


def shared_out(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it saves if each rank does its part of that: the messages carry as many bytes as before."""
    repeated = _repeated(case)
    if repeated is None:
        return None
    needless = case.per_step(repeated.needless_ns)
    why = f"each rank works on 1 of {repeated.ranks} parts of the tokens, {units.duration(needless)} less on the GPU"
    worth = worth_of_own_part(case, ops_of(repeated.between), repeated.ranks, why)
    return case.bound(needless, why) if worth.likely_ns is None else worth


def taken(case: Case) -> Takes:
    """Return this work."""
    repeated = _repeated(case)
    return Takes(frozenset() if repeated is None else ops_of(repeated.between))


# ---- words and places ----------------------------------------------------------------------------------------------------


def _around(flow: OperatorFlow, at_ns: int) -> list[ModuleCall]:
    """Return the calls of modules at an instant, the outermost first."""
    return [call for call in flow.calls if call.start_ns <= at_ns < call.end_ns]


def _in_block(path: str) -> str:
    """Return the end of a path that a plan names: without the number of the block and what is before that."""
    return re.sub(r"^.*\.\d+\.", "", path)


def innermost(flow: OperatorFlow, at_ns: int) -> str:
    """Return the innermost module at an instant as a plan names it, "" outside of all."""
    around = _around(flow, at_ns)
    return _in_block(around[-1].path) if around else ""


def place_in_plan(case: Case, flow: OperatorFlow, whole: WholeTokens) -> Row:
    """Return the line of a plan that has the output of such a layer added up for all ranks; empty where its text is not known."""
    names = {innermost(flow, each).rpartition(".")[2] for each in whole.sent_ns} - {""}
    for noted in (lines.texts_of_ranks(case.profile), lines.texts(case.profile)):
        for file, text_of_line in noted.items():
            for line, text in text_of_line.items():
                named = any(re.search(rf"[\"'.]{re.escape(name)}[\"']", str(text)) for name in names)
                if named and str(line).isdigit() and _ADDED_BY_PLAN.search(str(text)):
                    return {"file": file, "line": int(line)}
    return {}


def _line_of_sum(case: Case, flow: OperatorFlow, whole: WholeTokens) -> Row:
    """Return the line that adds the first of these outputs up."""
    code = case.profile.code()
    return {} if code is None else place_of_operator(code, flow, np.array(whole.sent_ns[:1]))


def place_of_sum(case: Case) -> Row:
    """Return the line of the plan that asks for the sum, else the one that makes it."""
    flow, whole = flow_of(case.profile), case.profile.once(_tokens)
    if flow is None or whole is None:
        return {}
    return place_in_plan(case, flow, whole) or _line_of_sum(case, flow, whole)


def _text_of_sum(case: Case, flow: OperatorFlow, whole: WholeTokens) -> str:
    where = _line_of_sum(case, flow, whole)
    text = lines.text_of(lines.texts(case.profile), where["file"], where["line"]) if where else ""
    return text if text and _BY_HAND.search(text) else ""


def _norms(flow: OperatorFlow, whole: WholeTokens) -> Iterator[str]:
    """Yield the names of the modules that work on all tokens alone, of those with weights of their own as a rule: norms."""
    outer = set(flow.outermost)
    for call in flow.calls:
        inside = [row for row in range(call.first, call.last) if row in outer]
        computing = whole.between.intersection(inside)
        if "norm" in call.cls.lower() and computing and not whole.products.intersection(inside):
            yield _in_block(call.path)


def _plan(flow: OperatorFlow, whole: WholeTokens) -> str:
    """Return the entries of a plan, "" where the names of the layers are not known."""
    sums = dict.fromkeys(innermost(flow, each) for each in whole.sent_ns)
    given = dict.fromkeys(innermost(flow, int(flow.start_ns[each])) for each in sorted(whole.products))
    inside = {name.rpartition(".")[0] for name in given if name} & {name.rpartition(".")[0] for name in sums}
    parents = [name for name in dict.fromkeys(name.rpartition(".")[0] for name in given) if name and name in inside]
    if not all(sums) or not parents:
        return ""
    norms = [f'"{name}": SequenceParallel()' for name in dict.fromkeys(_norms(flow, whole))]
    to_all = "PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))"
    inputs = [f'"{name}": {to_all}' for name in parents]
    outputs = [f'"{name}": RowwiseParallel(output_layouts=Shard(1))' for name in sums]
    entries = [*norms, *inputs, *outputs]
    return "\n".join(
        [
            *(f"{entry}," for entry in entries),
            "# embedding: output_layouts=Shard(1); the norm before the head: SequenceParallel(); head: input_layouts=Shard(1)",
        ]
    )


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy with the names of the program: of its group where a line adds up, else of the layers of its plan."""
    flow, whole = flow_of(case.profile), case.profile.once(_tokens)
    if flow is None or whole is None:
        return title, remedy
    text = _text_of_sum(case, flow, whole)
    if text:
        group = _GROUP.search(text)
        return title, replace(remedy, paste=remedy.paste.replace("tp)", f"{group[1]})")) if group else remedy
    plan = _plan(flow, whole)
    return title, replace(remedy, paste=plan) if plan else remedy

"""Layers that every rank of a network of split layers computes whole: attention, or an expert, that the plan of the network leaves out.

Each rank then does all of it, in forward and backward. Split over the ranks as the other layers are it needs more sums: of the
outputs of the last layer of a branch, and of the gradients that each of its first layers has for what it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.events.message_calls import with_messages
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.events.whole_branches import WholeBranch, whole_branches
from nsysx.events.whole_tokens import WholeTokens, whole_tokens
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._flow_work import place_of_operator
from nsysx.findings._once import Takes
from nsysx.findings._repeated_work import RepeatedOperators, RepeatedWork, repeated_work, with_less, worth_of_own_part
from nsysx.findings._whole_tokens import innermost, place_in_plan
from nsysx.model import Row


class _Whole:
    """The branches that every rank computes whole, in a network of split layers."""

    def __init__(self, flow: OperatorFlow, tokens: WholeTokens, branches: Sequence[WholeBranch]) -> None:
        self.flow, self.tokens, self.branches = flow, tokens, branches

    def names(self) -> tuple[list[str], list[str]]:
        """Return the modules of the first and of the last layers of the branches, as a plan names them; "" for layers without one."""
        first = [row for each in self.branches for row in each.first]
        last = [row for each in self.branches for row in each.last]
        return self._modules(first), self._modules(last)

    def _modules(self, rows: Sequence[int]) -> list[str]:
        return list(dict.fromkeys(innermost(self.flow, int(self.flow.start_ns[row])) for row in rows))


def _branches(profile: Profile) -> _Whole | None:
    """Return the branches of the flow that can be split over the ranks, None without any."""
    flow = flow_of(profile)
    tokens = None if flow is None else whole_tokens(flow, profile)
    if flow is None or tokens is None:
        return None
    theirs = [each for each in whole_branches(flow, profile, tokens) if each.heads % tokens.ranks == 0]
    return _Whole(flow, tokens, theirs) if theirs else None


def _repeated(case: Case) -> RepeatedWork | None:
    whole = None if case.program.compiled else case.profile.once(_branches)
    if whole is None:
        return None
    return repeated_work(case, [RepeatedOperators(each.rows, (), whole.tokens.ranks) for each in whole.branches])


def _more_sums_ns(case: Case) -> float:
    """Return how long the sums take that split branches need (ns a step): as long each as those of the outputs that are added up now."""
    whole, sent = case.profile.once(_branches), case.profile.once(with_messages)
    likes = sent.filter(sent["bytes"] == sent["bytes"].max())
    timed = case.ops.select("op", ns=pl.col("end_ns") - pl.col("start_ns")).join(likes, on="op")
    if whole is None or not timed.height:
        return 0.0
    back = bool((timed["phase"] == "backward").any())
    more = sum(len(each.last) + (len(each.first) if back else 0) for each in whole.branches)
    return more * float(np.median(timed["ns"].to_numpy()))


def _needless_ns(case: Case, repeated: RepeatedWork) -> float:
    return case.per_step(repeated.needless_ns) - _more_sums_ns(case)


def computed_whole(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that every rank computes layers whole between layers that are split over the ranks."""
    repeated, whole = _repeated(case), case.profile.once(_branches)
    if repeated is None or whole is None or not case.notable(_needless_ns(case, repeated)):
        return ""
    ns = case.per_step(int(repeated.between["ns"].sum()))
    heads = max(each.heads for each in whole.branches)
    first, last = whole.names()
    names = ", ".join(name for name in dict.fromkeys([*first, *last]) if name)
    sums = units.several(len(whole.tokens.sent_ns), "output of a layer", "outputs of layers")
    return (
        f"{sums} in each step {'are' if len(whole.tokens.sent_ns) > 1 else 'is'} added up over {whole.tokens.ranks} ranks, so that all of "
        f"them have the same numbers. What each of them then makes of these with whole weights{f' ({names})' if names else ''} is added to "
        f"the residual without a sum, so it is the same work on every rank: {units.duration(ns)} of a step with gradients, "
        f"{case.share(ns)} of it{f', attention over all {heads} heads with it' if heads else ''}"
    )


def split_too(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it saves if each rank computes its part of these layers, less what the sums take that this needs."""
    repeated = _repeated(case)
    if repeated is None:
        return None
    needless, more = _needless_ns(case, repeated), _more_sums_ns(case)
    why = (
        f"each rank computes 1 of {repeated.ranks} parts: {units.duration(needless + more)} of GPU work go and "
        f"{units.duration(more)} of sums come"
    )
    worth = worth_of_own_part(case, ops_of(repeated.between), repeated.ranks, why)
    return case.bound(needless, why) if worth.likely_ns is None else with_less(worth, more)


def taken(case: Case) -> Takes:
    """Return this work."""
    repeated = _repeated(case)
    return Takes(frozenset() if repeated is None else ops_of(repeated.between))


# ---- words and places ----------------------------------------------------------------------------------------------------


def place_of_plan(case: Case) -> Row:
    """Return the line of the plan that splits the other layers, else that of the first layer that is computed whole."""
    whole, code = case.profile.once(_branches), case.profile.code()
    if whole is None:
        return {}
    planned = place_in_plan(case, whole.flow, whole.tokens)
    if planned or code is None:
        return planned
    return place_of_operator(code, whole.flow, np.array([whole.flow.start_ns[whole.branches[0].first[0]]]))


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy with the names of the program's layers, and as entries of its plan where it has one."""
    whole = case.profile.once(_branches)
    if whole is None:
        return title, remedy
    first, last = whole.names()
    if not all((*first, *last)) or set(first) & set(last):
        return title, remedy
    title = f"{title}: {', '.join(dict.fromkeys([*first, *last]))}"
    if not place_in_plan(case, whole.flow, whole.tokens):
        return title, remedy
    block = first[0].rpartition(".")[0]
    prepared = (
        f'# and "{block}": PrepareModuleInput: one sum in backward, not {len(first)}'
        if block and len(first) > 1
        else ""
    )
    paste = "\n".join(filter(None, (_entries(first, "ColwiseParallel"), _entries(last, "RowwiseParallel"), prepared)))
    text = f"Add {', '.join(first)} (ColwiseParallel) and {', '.join(last)} (RowwiseParallel) to the plan: each rank computes its part"
    return title, replace(remedy, text=text, paste=paste)


def _entries(names: Sequence[str], kind: str) -> str:
    """Return the entries of a plan for some modules, those of one block on one line."""
    block, ends = names[0].rpartition(".")[0], [name.rpartition(".")[2] for name in names]
    if len(names) < 2 or not block or any(name.rpartition(".")[0] != block for name in names):
        return "\n".join(f'"{name}": {kind}(),' for name in names)
    listed = ", ".join(f'"{end}"' for end in ends)
    return f'**{{f"{block}.{{name}}": {kind}() for name in ({listed})}},'

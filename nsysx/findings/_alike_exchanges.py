"""Tokens that every rank of a group sends to the experts, though all ranks of the group have the same: each could send its part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.events.alike_exchanges import AlikeExchange, alike_exchanges
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import flow_of
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._exposed_transfer import communication, exposed_transfer_ns
from nsysx.findings._once import Takes
from nsysx.findings._repeated_work import RepeatedOperators, RepeatedWork, repeated_work, with_more, worth_of_own_part
from nsysx.frames import lookup
from nsysx.model import Row

_SENDS = r"(?i)SendRecv|AllToAll"


def _alike(case: Case) -> list[AlikeExchange]:
    """Return these exchanges; none of a compiled program, of which it is not seen what reads what."""
    flow, settings = flow_of(case.profile), settings_of(case.profile)
    if flow is None or settings is None or case.program.compiled:
        return []
    return alike_exchanges(flow, case.profile, settings.groups_of_ranks())


def _work(case: Case, exchanges: list[AlikeExchange]) -> RepeatedWork | None:
    return repeated_work(case, [RepeatedOperators(each.between, (), each.alike) for each in exchanges])


def _sent(case: Case, exchanges: list[AlikeExchange]) -> Flags:
    """Return which of the `communication` such lines exchange, with what goes back through them."""
    comm, code, flow = communication(case), case.profile.code(), flow_of(case.profile)
    sends = lookup.matching(comm["name"], _SENDS)
    if code is None or flow is None:
        return np.zeros(comm.height, np.bool_)
    back = (comm["phase"].cast(pl.String) == "backward").fill_null(value=False).to_numpy()
    times = np.array(sorted(ns for each in exchanges for ns in each.sent_ns), np.int64)
    places = code.places_of(code.at(flow.thread, times))
    there: Flags = np.isin(code.places_of(code.op[comm["op"].to_numpy()]), places[places >= 0])
    return np.asarray(sends & (back | there), np.bool_)


def _less_sent_ns(case: Case, exchanges: list[AlikeExchange]) -> int:
    """Return how much exposed transfer goes (ns a step): each rank's share stays, and at most as much again gathers what came back."""
    alike = min(each.alike for each in exchanges)
    return round(max(0.0, 1 - 2 / alike) * exposed_transfer_ns(case, _sent(case, exchanges)))


def sent_alike(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that all ranks of a group send the same tokens to the experts."""
    exchanges = _alike(case)
    repeated = _work(case, exchanges) if exchanges else None
    if repeated is None:
        return ""
    needless = case.per_step(repeated.needless_ns) + _less_sent_ns(case, exchanges)
    if not case.notable(needless):
        return ""
    ns = case.per_step(int(repeated.between["ns"].sum()))
    return (
        f"{units.several(repeated.ranks, 'rank')} have the same tokens (they add up the outputs of layers that they share) and each sends "
        f"all of them to experts{_on_more(exchanges)}, {units.several(len(exchanges), 'time')} in a step: the experts compute each token "
        f"{units.several(repeated.ranks, 'time')}, {units.duration(ns)} with gradients"
    )


def _on_more(exchanges: list[AlikeExchange]) -> str:
    return " on more ranks" if any(each.among > each.alike for each in exchanges) else ""


def own_tokens(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it saves if each rank sends its part: of the experts' work, and of the transfer."""
    exchanges = _alike(case)
    repeated = _work(case, exchanges) if exchanges else None
    if repeated is None:
        return None
    less_sent = _less_sent_ns(case, exchanges)
    needless = case.per_step(repeated.needless_ns)
    why = f"each token is computed once, {units.duration(needless)} less on the GPU, and {units.duration(less_sent)} of transfer goes"
    worth = worth_of_own_part(case, ops_of(repeated.between), repeated.ranks, why)
    if worth.likely_ns is None:
        return case.bound(needless + less_sent, why)
    most = max(worth.likely_ns, worth.most_ns or 0) + less_sent
    return replace(with_more(worth, less_sent, most), confidence=why)


def taken(case: Case) -> Takes:
    """Return the experts' work and the exchanges."""
    exchanges = _alike(case)
    repeated = _work(case, exchanges) if exchanges else None
    sent = ops_of(communication(case).filter(_sent(case, exchanges))) if exchanges else frozenset[int]()
    return Takes(sent if repeated is None else sent | ops_of(repeated.between))


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy, without functions of autograd where nothing is trained."""
    settings = settings_of(case.profile)
    trains = settings is None or settings.number("backwards") != 0 or bool(settings.rows("optimizers"))
    return title, remedy if trains else replace(remedy, paste=_UNTRAINED)


_UNTRAINED = (
    "# in front of the router, of x: [..., width]; tp: the group of the ranks that share the layers\n"
    "own = x.flatten(0, -2).chunk(dist.get_world_size(tp))[dist.get_rank(tp)].contiguous()  # then router, exchanges, experts: out\n"
    "y = out.new_empty(dist.get_world_size(tp) * len(out), *out.shape[1:])\n"
    "dist.all_gather_into_tensor(y, out, group=tp)\n"
    "y = y.view_as(x)"
)


def place_of_exchange(case: Case) -> Row:
    """Return the line of the layer that asks for the first exchange."""
    code, flow, exchanges = case.profile.code(), flow_of(case.profile), _alike(case)
    if code is None or flow is None or not exchanges:
        return {}
    at_ns = exchanges[0].sent_ns[0]
    stack = int(code.at(flow.thread, np.array([at_ns], np.int64))[0])
    layers = {f"{call.cls}.forward" for call in flow.calls if call.start_ns <= at_ns < call.end_ns}
    functions = code.places["function"].to_list()
    inside = next((n for n in reversed(code.chain(stack)) if functions[n] in layers), -1) if stack >= 0 else -1
    return code.where(inside) if inside >= 0 else code.where_of(stack)

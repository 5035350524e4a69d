"""A sharded network that several calls of a step go through before one backward (``events.forwards_in_turn``): one call gathers once."""

from __future__ import annotations

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.events.forwards_in_turn import forwards_in_turn
from nsysx.events.operator_flow import flow_of
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving
from nsysx.findings._exposed_transfer import exposed_share
from nsysx.findings._flow_work import in_short, place_of_operator
from nsysx.findings._once import Takes
from nsysx.model import Row
from nsysx.replay.edits import RemoveOps


def called_in_turn(case: Case, settings: RecordedSettings) -> str:
    """Return that calls of a sharded network, none of which needs another one, gather its parameters each."""
    in_turn = forwards_in_turn(case.profile)
    if in_turn is None:
        return ""
    lines = ", ".join(dict.fromkeys(in_short(each) for each in _places(case) if each))
    calls = f"{units.count(len(in_turn.calls))} calls of {in_turn.calls[0].cls or 'the network'}"
    return (
        f"{calls}{f' ({lines})' if lines else ''} need nothing of each other, and each gathers the parameters of "
        f"{units.several(in_turn.units, 'unit')}, again in the one backward behind them, which scatters gradients as often: "
        f"{units.count(round(len(in_turn.ops) / case.steps))} messages of a step bring what was there, or could be added up before"
    )


def gathered_for_all(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it saves at best if one call computes all rows: the messages of one call are left."""
    in_turn = forwards_in_turn(case.profile)
    if in_turn is None:
        return None
    worth = case.worth(RemoveOps(in_turn.ops), bound=True)
    exposed = round(exposed_share(case, in_turn.ops) * case.taken_by((StepPart.COMM,)))
    why = "all that is exposed of these messages is gone"
    return worth if worth.likely_ns is not None else case.bound(exposed, why)


def taken(case: Case) -> Takes:
    """Return these messages."""
    in_turn = forwards_in_turn(case.profile)
    return Takes(frozenset() if in_turn is None else in_turn.ops)


def place_of_calls(case: Case) -> Row:
    """Return the line of the second call."""
    lines = _places(case)
    return next((each for each in lines[1:] if each), {})


def _places(case: Case) -> list[Row]:
    in_turn, flow, code = forwards_in_turn(case.profile), flow_of(case.profile), case.profile.code()
    if in_turn is None or flow is None or code is None:
        return []
    starts = [flow.start_ns[[call.first]] for call in in_turn.calls]
    chains = [code.around(int(code.at(flow.thread, start)[0]))[::-1] for start in starts]  # outer lines first
    shared = set(chains[0]).intersection(*chains[1:])
    calling = [next((line for line in chain if line not in shared), None) for chain in chains]
    return [
        code.where_of(line) if line is not None else place_of_operator(code, flow, start)
        for line, start in zip(calling, starts, strict=True)
    ]

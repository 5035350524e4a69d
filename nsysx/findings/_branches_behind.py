"""Branches of layers that are called behind the exchanges of their experts, and need nothing of these: they could run beside them."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses import lines
from nsysx.events.branches_behind import BranchBehind, branches_behind
from nsysx.events.code_lines import CodeLines
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._costly_jobs import hidden_beside
from nsysx.findings._exposed_transfer import communication, exposed_transfer_ns
from nsysx.findings._flow_work import work_with_gradients
from nsysx.findings._once import Takes
from nsysx.findings._pieces_in_text import parsed
from nsysx.frames import lookup
from nsysx.model import Row

_SENDS = r"(?i)SendRecv|AllToAll"


def _branches(profile: Profile) -> list[BranchBehind]:
    flow = flow_of(profile)
    return [] if flow is None else branches_behind(flow, profile)


def _theirs(case: Case, branches: list[BranchBehind]) -> tuple[Flags, Flags]:
    """Return which of the `communication` of forward such layers' lines exchange, and which of backward goes back through them."""
    comm, code, flow = communication(case), case.profile.code(), flow_of(case.profile)
    none = np.zeros(comm.height, np.bool_)
    if code is None or flow is None or not branches:
        return none, none
    sent_ns = np.array(sorted(each for branch in branches for each in branch.sent_ns), np.int64)
    places = code.places_of(code.at(flow.thread, sent_ns))
    place_of_op = code.places_of(code.op[comm["op"].to_numpy()])
    sends = lookup.matching(comm["name"], _SENDS)
    back = (comm["phase"].cast(pl.String) == "backward").fill_null(value=False).to_numpy()
    return sends & ~back & np.isin(place_of_op, places[places >= 0]), sends & back


def _hidden(case: Case) -> tuple[int, int]:
    """Return how much of these exchanges could run beside the branches (ns a step): of forward, and of backward."""
    branches, flow = [] if case.program.compiled else case.profile.once(_branches), flow_of(case.profile)
    if not branches or flow is None:
        return 0, 0
    rows = {row for each in branches for row in flow.outermost_of(each.branch.first, each.branch.last)}
    work = work_with_gradients(case, flow).filter(pl.col("row").is_in(list(rows)))
    behind = work["backward"].to_numpy().astype(np.bool_)
    ns, (forward, backward) = work["ns"].to_numpy(), _theirs(case, branches)
    both = (
        (int(ns[~behind].sum()), exposed_transfer_ns(case, forward)),
        (int(ns[behind].sum()), exposed_transfer_ns(case, backward)),
    )
    there, back = (min(case.per_step(computes), transfer) for computes, transfer in both)
    return there, back


def called_behind(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that branches which need nothing of exchanges are called behind them."""
    there, back = _hidden(case)
    if not case.notable(there + back):
        return ""
    branches = case.profile.once(_branches)
    exchanges, first = sum(len(each.sent_ns) for each in branches), branches[0]
    return (
        f"Beside {units.several(exchanges, 'exchange')} of a step nothing runs; {first.attribute} ({first.branch.cls}), which "
        f"{first.layer.cls} calls behind them, needs nothing of what they bring: {units.duration(there + back)} of transfer with "
        "backward could run beside it"
    )


def beside(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what it saves if the branch runs meanwhile: in forward for sure, in backward as far as autograd launches it in time."""
    there, back = _hidden(case)
    worth = hidden_beside(there + back / 2, "the branch runs beside the exchanges")
    error = (worth.error_ns or 0) + back // 2
    return replace(worth, error_ns=min(error, worth.likely_ns or 0), most_ns=there + back)


def taken(case: Case) -> Takes:
    """Return these exchanges."""
    forward, backward = _theirs(case, case.profile.once(_branches))
    return Takes(ops_of(communication(case).filter(forward | backward)))


def _line_of_call(code: CodeLines, flow: OperatorFlow, branch: BranchBehind) -> Row:
    return code.where_of(int(code.at(flow.thread, np.array([branch.branch.start_ns], np.int64))[0]))


def place_of_call(case: Case) -> Row:
    """Return the line that calls the first of the branches."""
    code, flow, branches = case.profile.code(), flow_of(case.profile), case.profile.once(_branches)
    return {} if code is None or flow is None or not branches else _line_of_call(code, flow, branches[0])


def _beside_exchanges(case: Case) -> bool:
    """Return whether the line that calls the first branch calls what exchanges, too."""
    code, flow, branches = case.profile.code(), flow_of(case.profile), case.profile.once(_branches)
    if code is None or flow is None or not branches:
        return False
    called, *sent = code.at(
        flow.thread, np.array([branches[0].branch.start_ns, *branches[0].sent_ns], np.int64)
    ).tolist()
    chain = code.own_chain(called)
    return bool(chain) and all(chain[0] in code.own_chain(each) for each in sent)


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy with the line that calls the branch."""
    where, branches = place_of_call(case), case.profile.once(_branches)
    if not branches:
        return title, remedy
    name = branches[0].attribute
    text = lines.text_of(lines.texts(case.profile), where["file"], where["line"]) if where else None
    paste = moved_ahead(text or "", name, exchanges=_beside_exchanges(case))
    return title.replace("A branch", name), replace(remedy, paste=paste) if paste else remedy


def moved_ahead(text: str, name: str, *, exchanges: bool = False) -> str:
    """Return the call of a branch in a line on a stream of its own, ahead of the exchanges, "" where the line does not show it whole.

    ``exchanges``: the line calls what exchanges, too, which then has to come before what waits for the branch.
    """
    call = re.search(rf"[\w.]*\b{re.escape(name)}\(([^()]|\([^()]*\))*\)", text)
    if call is None:
        return ""
    branch = f"{name.strip('_')}_out"
    rest = f"{text[: call.start()]}{branch}{text[call.end() :]}".strip()
    last = "" if re.fullmatch(rf"[\w.]+\s*=\s*{branch}", rest) else f"\n{rest}"
    branch = rest.partition("=")[0].strip() if not last else branch
    between = "# exchange, experts and exchange as they are, then:"
    if exchanges:
        exchanging = _other_call(rest, branch)
        if not exchanging:
            return ""
        between, last = f"routed = {exchanging}", f"\n{rest.replace(exchanging, 'routed', 1)}"
    return (
        "side.wait_stream(torch.cuda.current_stream())  # ahead of the first exchange; side = torch.cuda.Stream(), made once\n"
        f"with torch.cuda.stream(side):\n    {branch} = {call[0]}\n"
        f"{between}\ntorch.cuda.current_stream().wait_stream(side){last}"
    )


def _other_call(text: str, branch: str) -> str:
    """Return the only outermost call of a line that is not given ``branch``, as it is written; "" where there are several, or none."""
    tree = parsed(text)
    calls = [] if tree is None else [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    others = [call for call in calls if not any(getattr(node, "id", "") == branch for node in ast.walk(call))]
    inner = {id(node) for call in others for node in ast.walk(call) if node is not call}
    outer = [call for call in others if id(call) not in inner]
    return (ast.get_source_segment(text, outer[0]) or "") if len(outer) == 1 else ""

"""Messages that the layers of a network send to the same layers on other ranks, such as blocks of a sequence that go around in a ring.

A stage of a pipeline sends what its layers have made, between their calls. What is sent within the calls of several layers is no schedule
of micro-batches, and more of these shorten nothing. Where a layer's ranks exchange blocks of keys and values, the block that is there
can be attended to while the next one comes: each needs nothing of the other.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.collective_operators import CollectiveOperator, collective_operators
from nsysx.events.narrowed_messages import picked_gathers
from nsysx.events.narrowed_operators import Size
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.profile import Profile
from nsysx.events.result_readers import ResultReaders
from nsysx.findings._case import Case, Saving
from nsysx.findings._costly_jobs import hidden_beside
from nsysx.findings._exposed_transfer import communication, exposed_ns, exposed_transfer_ns, in_passes
from nsysx.findings._finding_bounds import MOST_SHARE, OWN_REMEDY_SHARE
from nsysx.findings._work_bounds import ALONE_IN_LINE_SHARE
from nsysx.frames import lookup
from nsysx.model import Row
from nsysx.reading import nccl_notes
from nsysx.replay import peers

_SENDS = r"(?i)SendRecv"
_SEND, _BETWEEN_TWO = "c10d::send", re.compile(r"^c10d::(send|recv_|recv_any_source_)$")
_GATHERS = re.compile(r"^c10d::(_allgather_base_|allgather_)$")
#: What a block of keys and values is attended to with.
_ATTENDS = re.compile(r"^aten::(\w*attention\w*|matmul|bmm|baddbmm|einsum|mm|linear|addmm)$")


def _messages(case: Case) -> tuple[pl.DataFrame, Flags]:
    """Return all `communication`, and which of it sends and receives within the calls of several layers."""
    comm = communication(case)
    inside = comm["module"].is_not_null() & in_passes(comm)
    chosen = lookup.matching(comm["name"], _SENDS) & inside.to_numpy()
    several = comm.filter(pl.Series(chosen, dtype=pl.Boolean))["module"].n_unique() > 1
    return comm, chosen if several else np.zeros(len(chosen), np.bool_)


def between_layers(case: Case) -> bool:
    """Return whether most of what is sent and received in the forward is sent by several layers, within their calls."""
    comm, chosen = _messages(case)
    ns = (comm["end_ns"] - comm["start_ns"]).to_numpy()
    forward = (comm["phase"].cast(pl.String) != "backward").fill_null(value=True).to_numpy()
    sends = lookup.matching(comm["name"], _SENDS) & forward
    return bool(ns[chosen].sum() > MOST_SHARE * ns[sends].sum())


class Exchanges(NamedTuple):
    """Exchanges of layers: what is saved where they are made in another way, and the line that makes them."""

    saving: Saving
    where: Row


def exchanged_in_line(case: Case) -> Exchanges | None:
    """Return the exchanges of layers with nothing beside them, behind each of which comes work that needs nothing of it; else None."""
    code = case.profile.code()
    comm, chosen = _messages(case)
    if code is None or not chosen.any() or not case.profile.once(_attends_without):
        return None
    ns, exposed = (comm["end_ns"] - comm["start_ns"]).to_numpy(), exposed_ns(case, comm)
    if exposed[chosen].sum() < ALONE_IN_LINE_SHARE * ns[chosen].sum():
        return None
    # Those of backward go around in the same way.
    behind = (comm["phase"].cast(pl.String) == "backward").fill_null(value=False).to_numpy()
    every = chosen | (lookup.matching(comm["name"], _SENDS) & behind)
    attends = case.kernels["family"].cast(pl.String).is_in(["attention", "gemm"]).fill_null(value=False)
    work_ns = case.per_step(int(case.kernels.filter(attends)["ns"].sum()))
    saving = hidden_beside(
        min(exposed_transfer_ns(case, every), work_ns), "it runs beside the attention to the block before"
    )
    return Exchanges(saving, code.where_most(code.places_of(code.op[comm["op"].to_numpy()[chosen]]), ns[chosen]))


def _attends_without(profile: Profile) -> bool:
    """Return whether beside most exchanges of the flow's thread a product could run: the next one needs nothing of what comes, or the one
    before makes nothing of what is sent.
    """
    flow = flow_of(profile)
    if flow is None:
        return False
    products = [row for row in flow.outermost if _ATTENDS.match(flow.names[row])]
    times, groups = flow.start_ns[products], dict[int, list[CollectiveOperator]]()
    for each in collective_operators(flow, profile):
        if _BETWEEN_TWO.match(each.name):
            groups.setdefault(int(np.searchsorted(times, each.start_ns)), []).append(each)
    if not groups:
        return False
    sizes = ResultReaders(flow).sizes
    free = 0
    for behind_products, group in groups.items():
        sent = {each.given[0] for each in group if each.given and each.name == _SEND}
        received = {each.given[0] for each in group if each.given and each.name != _SEND}
        after, before = (products[i] if 0 <= i < len(products) else -1 for i in (behind_products, behind_products - 1))
        of_next, of_last = _named(flow, sizes, after), _named(flow, sizes, before)
        waits_for_nothing = of_next and received and -1 not in received and not received & _behind(flow, of_next)
        made_before = of_last and sent and -1 not in sent and flow.number[before] not in _behind(flow, sent)
        free += bool(waits_for_nothing or made_before)
    return free >= MOST_SHARE * len(groups)


def _named(flow: OperatorFlow, sizes: list[list[Size]], row: int) -> set[int]:
    """Return what made the factors of a product, nothing where one of them has no name, as weights have none."""
    made = (
        [] if row < 0 else [number for number, size in zip(flow.made[row], sizes[row], strict=False) if len(size) > 1]
    )
    return set(made) if len(made) > 1 and -1 not in made else set()


def _behind(flow: OperatorFlow, numbers: set[int]) -> set[int]:
    """Return the operators (numbers) that tensors are made of, themselves included."""
    seen, waiting = set[int](), list(numbers)
    while waiting:
        each = waiting.pop()
        row = flow.row_of.get(each)
        if each in seen:
            continue
        seen.add(each)
        waiting += [] if row is None else [made for made in flow.made[row] if made >= 0]
    return seen


def gathered_to_pick(case: Case) -> Exchanges | None:
    """Return the gathers of a network from which rows are taken by number alone, at most all of their transfer; None where they are few."""
    flow, code = flow_of(case.profile), case.profile.code()
    if flow is None or code is None or case.program.compiled:
        return None
    picked, gathers = picked_gathers(flow, case.profile)
    if not picked or len(picked) < MOST_SHARE * gathers:
        return None
    line_rows = code.places_of(code.at(flow.thread, np.array([each.start_ns for each in picked])))
    comm = communication(case)
    ns, line_of_comm = (comm["end_ns"] - comm["start_ns"]).to_numpy(), code.places_of(code.op[comm["op"].to_numpy()])
    theirs = np.isin(line_of_comm, line_rows[line_rows >= 0])
    if ns[theirs].sum() < OWN_REMEDY_SHARE * ns.sum():
        return None
    why = "rows that no rank takes are not sent; how many these are was not recorded"
    return Exchanges(
        case.bound(exposed_transfer_ns(case, theirs), why), code.where_most(line_of_comm[theirs], ns[theirs])
    )


def gathers_columns(profile: Profile) -> bool | None:
    """Return whether most of what the flow's thread gathers is put together by its last dimension, as the outputs of layers that are split
    are; None where no sizes are noted.

    A gather puts the ranks' parts one behind the other: rows of all ranks need nothing else.
    """
    flow = flow_of(profile)
    every = [] if flow is None else [each for each in collective_operators(flow, profile) if _GATHERS.match(each.name)]
    members = nccl_notes.members(profile.trace).get(profile.process, {}).values()
    among = max((member.size or 0 for member in members), default=0) or len(peers.ranks(profile))
    parts = [part for each in every if (part := _part(each, among))]
    if flow is None or not parts:
        return None
    given = {size for sizes in ResultReaders(flow).sizes for size in sizes if size}
    numbers: dict[int, set[int]] = {}  # of a tensor of so many numbers how long its last dimension may be
    for size in given:
        numbers.setdefault(_numbers(size), set()).add(size[-1])
    columns = sum(ranks * part[-1] in numbers.get(ranks * _numbers(part), ()) for part, ranks in parts)
    return columns > MOST_SHARE * len(parts)


def _part(each: CollectiveOperator, among: int) -> tuple[Size, int] | None:
    """Return the size of a rank's part of what is gathered, and of how many, into a list of those ``among`` the job's; None where that is
    not noted, or flat.
    """
    whole, part = each.sizes[:2] if len(each.sizes) > 1 else ((), ())
    ranks = _numbers(whole) // _numbers(part) if whole and _numbers(part) else among
    return (part, ranks) if ranks > 1 and len(part) > 1 else None


def _numbers(size: Size) -> int:
    return math.prod(size) if size else 0

"""Tables of embeddings that lie apart on the ranks, one rank's looked up far more: a mix of the data does not even that out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import Late, Surplus
from nsysx.events.narrowed_operators import Size, sizes_of
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.profile import Profile
from nsysx.findings._case import Case, Fix
from nsysx.findings._finding_bounds import LOOKED_UP_MORE_TIMES, MOST_SHARE
from nsysx.findings._flow_work import place_of_operator
from nsysx.findings._rank_rows import rank_rows, straggler_of
from nsysx.model import Finding, Row
from nsysx.replay import peers

_LOOKS_UP = ("aten::embedding", "aten::embedding_bag")
#: The kinds of kernels that look rows up, make their gradients and add these to the table.
_LOOKUP_KINDS = ("embedding", "sort, scan and gather")
_ALL_TO_ALL = "c10d::alltoall"


class Lookups(NamedTuple):
    """What a rank looks up in one step: the sizes of its tables, rows, numbers in them, and the line that looks up most.

    ``exchanges``: all-to-alls are in the step; ``between``: all lookups lie between two of them.
    """

    tables: Counter[Size]
    rows: int
    numbers: int
    where: Row
    exchanges: bool
    between: bool


def lookups(profile: Profile) -> Lookups | None:
    """Return what the shown process looks up in a step of the X-ray, None where no lookups with sizes were recorded."""
    flow, code = flow_of(profile), profile.code()
    if flow is None:
        return None
    looked_up = {}
    for row in flow.outermost:
        sizes = sizes_of(flow.size[row]) if flow.names[row] in _LOOKS_UP else []
        if len(sizes) > 1 and len(sizes[0]) == 2:
            looked_up[row] = sizes[0], math.prod(sizes[1])
    if not looked_up:
        return None
    numbers = {row: rows * table[1] for row, (table, rows) in looked_up.items()}
    most = max(numbers, key=lambda row: numbers[row])
    exchanges = _exchanges(profile, flow)
    when = flow.start_ns[list(looked_up)]
    return Lookups(
        Counter(table for table, _ in looked_up.values()),
        sum(rows for _, rows in looked_up.values()),
        sum(numbers.values()),
        {} if code is None else place_of_operator(code, flow, flow.start_ns[[most]]),
        exchanges=bool(len(exchanges)),
        between=bool(len(exchanges)) and bool(exchanges.min() < when.min() and exchanges.max() > when.max()),
    )


def _exchanges(profile: Profile, flow: OperatorFlow) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return when the all-to-alls of the flow's step begin on its thread."""
    ranges = profile.ranges.ranges
    return ranges.filter(
        (pl.col("process") == profile.process)
        & (pl.col("kind") == "op")
        & (pl.col("thread") == flow.thread)
        & pl.col("name").cast(pl.String).str.starts_with(_ALL_TO_ALL)
        & pl.col("start_ns").is_between(int(flow.start_ns[0]), int(flow.end_ns[-1]))
    )["start_ns"].to_numpy()


def placed_by_cost(case: Case, finding: Finding) -> Finding | None:
    """Return a finding about a rank with more GPU work where that is lookups in tables of its own, with how to place them; else None.

    Tables are a rank's own if the ranks' are of unlike sizes, or ids are sent to them: looked up between two all-to-alls. Replicas of one
    network have the same tables, and look them up before their experts, say, exchange anything.
    """
    rows = rank_rows(case)
    late = straggler_of(case)
    if finding.verdict != "found" or late is None or not _by_lookups(late):
        return None
    profiles = [case.profile, *peers.others(case.profile)]
    shown = next((each for each in profiles if each.process == late["process"]), None)
    others = [seen for each in profiles if each is not shown and (seen := each.once(lookups)) is not None]
    here = None if shown is None else shown.once(lookups)
    if here is None or not others or len(others) < len(rows) - 1 or not _apart(here, others):
        return None
    usual = float(np.median([each.numbers for each in others]))
    if here.numbers < LOOKED_UP_MORE_TIMES * usual:
        return None
    theirs = units.count(float(np.median([each.rows for each in others])))
    detail = (
        f"{finding.detail} The ranks have tables of their own, and exchange what is looked up: rank {late['rank']} looks up "
        f"{units.count(here.rows)} rows a step, {units.share(here.numbers, here.numbers + sum(each.numbers for each in others))} of all "
        f"numbers, its peers {theirs} rows each."
    )
    return Fix.by_name("tables-by-cost").into(
        replace(finding, detail=detail, where={**finding.where, **here.where} if here.where else finding.where)
    )


def _by_lookups(late: Row) -> bool:
    """Return whether most of the GPU work that a rank has more of is of the kinds that lookups are."""
    kinds = late["late_work"] or ()
    more = {kind["kind"]: kind["ns"] - kind["others_ns"] for kind in kinds}
    looked_up = sum(more.get(kind, 0) for kind in _LOOKUP_KINDS)
    compute = late["late_cause"] == Late.COMPUTE and late["late_spread"] != Surplus.LONE
    return bool(compute and looked_up > 0 and looked_up >= MOST_SHARE * sum(more.values()))


def _apart(here: Lookups, others: Sequence[Lookups]) -> bool:
    """Return whether ranks that exchange what they look up have tables of their own."""
    every = (here, *others)
    return all(each.exchanges for each in every) and (
        all(each.between for each in every) or any(each.tables != here.tables for each in others)
    )

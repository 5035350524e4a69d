"""GPU work that every rank does for the parts of all ranks, of which each needs its own part alone: what it takes, and what goes."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.operator_flow import flow_of
from nsysx.findings._case import Case, Saving
from nsysx.findings._flow_work import work_of_operators
from nsysx.replay.edits import Edit, ScaleOps


class RepeatedOperators(NamedTuple):
    """Operators (rows of the flow) that work on the parts of so many ``ranks`` (``between``), and that put these together (``joins``)."""

    between: Collection[int]
    joins: Collection[int]
    ranks: int


class RepeatedWork(NamedTuple):
    """GPU work (op, ns) that every rank does for all parts (``between``), and that puts the parts together (``joins``); of ``ranks``."""

    between: pl.DataFrame
    joins: pl.DataFrame
    ranks: int

    @property
    def needless_ns(self) -> float:
        """What goes where each rank has its own part alone (ns, all steps)."""
        return (1 - 1 / self.ranks) * int(self.between["ns"].sum()) + int(self.joins["ns"].sum())


def repeated_work(case: Case, operators: Sequence[RepeatedOperators]) -> RepeatedWork | None:
    """Return the work of such operators and of their gradients, without what is sent; None without any."""
    flow = flow_of(case.profile)
    if not operators or flow is None:
        return None
    work = work_of_operators(case, flow)
    sends = case.ops.filter(case.ops["cls"] == DeviceActivity.COMM.value)["op"]
    work = work.filter(~work["op"].is_in(sends.implode()))
    between, joins = (
        work.filter(work["row"].is_in(sorted(set[int]().union(*rows))))
        for rows in ([each.between for each in operators], [each.joins for each in operators])
    )
    return RepeatedWork(between, joins, min(each.ranks for each in operators))


def own_part(ops: frozenset[int], ranks: int) -> tuple[Edit, Edit]:
    """Return the edits with which each of so many ranks does its part of the work of these ops: what saves least, and what saves most.

    At least a part takes as much longer as the root says: a small grid leaves a GPU idle.
    """
    share = 1 / ranks
    return ScaleOps(ops, math.sqrt(share), less_work=True), ScaleOps(ops, share, less_work=True)


def worth_of_own_part(case: Case, ops: frozenset[int], ranks: int, why: str) -> Saving:
    """Return what it saves if each of so many ranks does its part of the work of these ops alone; not known without a replay."""
    least, part = own_part(ops, ranks)
    return case.worth_between([least], [part], [part], why)


def with_less(worth: Saving, less_ns: float) -> Saving:
    """Return a saving of which so much is lost again to what the change adds; at best as much as before."""
    if worth.likely_ns is None:
        return worth
    likely = max(0, round(worth.likely_ns - less_ns))
    return replace(worth, likely_ns=likely, error_ns=min(worth.error_ns or 0, likely))


def with_more(worth: Saving, more_ns: int, most_ns: int) -> Saving:
    """Return a saving that may be so much larger, and is at most ``most_ns``: what no replay says goes into the error, too."""
    if worth.likely_ns is None:
        return worth
    likely = min(worth.likely_ns + more_ns, most_ns)
    error = (worth.error_ns or 0) + likely - worth.likely_ns
    return replace(worth, likely_ns=likely, error_ns=min(error, likely), most_ns=most_ns)

"""Parameters with an owner each, which alone updates them and sends them to the others: one rank owns what costs more to update.

Matrices of Shampoo or Muon cost far more than biases of as many numbers. Owners by number give one rank all of them where weights and
biases stand in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import DeviceActivity, Late, Surplus
from nsysx.events.message_calls import with_messages
from nsysx.events.profile import Profile
from nsysx.findings._case import Case, Fix
from nsysx.findings._finding_bounds import MOST_METRIC_BYTES, MOST_SHARE
from nsysx.findings._rank_rows import profiles_of_ranks, rank_rows, straggler_of
from nsysx.model import Finding, Row

_REDUCES, _BROADCASTS, _GATHERS = (
    ("reduce", "allreduce", "reducescatter", "gather"),
    ("broadcast", "bcast"),
    ("allgather",),
)
#: Phases in which no update runs.
_OF_NETWORKS = ("forward", "backward", "evaluation")


class Owned(NamedTuple):
    """What a rank computes between a reduction and what it sends behind that (ns a step): what it updates for all.

    ``lines``: those of the program, callers included, below which that runs and no message is sent: (file, line); ``most``: those of most
    of it, innermost first. ``roots``: the ranks that broadcast more than a few numbers in a step; ``gathers``: parts are gathered there.
    """

    ns: int
    lines: frozenset[tuple[str, int]]
    most: tuple[tuple[str, int], ...]
    roots: frozenset[int]
    gathers: bool


def owned(profile: Profile) -> Owned | None:
    """Return what the shown process computes between a reduction and what it sends behind that, None where it sends nothing so."""
    code = profile.code()
    if code is None or not profile.scope.steps:
        return None
    ops = profile.steady_ops.filter((pl.col("process") == profile.process) & pl.col("call").is_not_null()).sort("call")
    sent = profile.once(with_messages).filter(pl.col("op").is_in(ops["op"].to_list())).sort("call")
    if not sent.height:
        return None
    gives, gathers = (sent["kind"].is_in(kinds).to_numpy() for kinds in (_BROADCASTS + _GATHERS, _GATHERS))
    passes = gives | sent["kind"].is_in(_REDUCES).to_numpy()
    # Ranks that divide rows gather within a network, too.
    of_network = pl.col("phase").cast(pl.String).is_in(_OF_NETWORKS).fill_null(value=False)
    work = ops.filter((pl.col("cls") == DeviceActivity.COMPUTE.value) & ~of_network)
    behind = np.searchsorted(sent["call"].to_numpy(), work["call"].to_numpy())
    between = np.append(gives, False)[behind] & np.append(passes, False)[behind - 1]
    if not between.any():
        return None
    ns = (work["end_ns"] - work["start_ns"]).to_numpy()[between]
    stacks = code.op[work["op"].to_numpy()[between]]

    def lines(stack: int) -> list[tuple[str, int]]:
        rows = (code.places.row(row)[:2] for row in code.own_chain(stack))
        return [(file, line) for file, line in rows if file and line]

    sending = {site for stack in set(code.op[sent["op"].to_numpy()].tolist()) for site in lines(stack)}
    distinct, number = np.unique(stacks, return_inverse=True)
    longest = lines(int(distinct[np.bincount(number.ravel(), ns).argmax()]))
    size = sent.filter(pl.Series(gives & ~gathers)).group_by("root").agg(pl.col("bytes").sum()).drop_nulls()
    least = MOST_METRIC_BYTES * profile.scope.steps
    return Owned(
        round(profile.scope.per_step(int(ns.sum()))),
        frozenset(site for stack in distinct.tolist() for site in lines(stack)) - sending,
        tuple(site for site in longest if site not in sending),
        frozenset(size.filter(size["bytes"] > least)["root"].to_list()),
        bool(gathers[np.unique(behind[between])].any()),
    )


def owned_unevenly(case: Case, finding: Finding) -> Finding | None:
    """Return a finding about a rank that is late by what it updates for all, where its peers update their own and send it; else None."""
    late, rows = straggler_of(case), rank_rows(case)
    if finding.verdict != "found" or late is None or late["late_cause"] != Late.COMPUTE:
        return None
    profiles = profiles_of_ranks(case)
    shown = next((each for each in profiles if each.process == late["process"]), None)
    here = None if shown is None else shown.once(owned)
    there = [each.once(owned) for each in profiles if each is not shown]
    others = [each for each in there if each is not None]
    if here is None or not others or len(others) < len(rows) - 1:
        return None
    usual = round(float(np.median([each.ns for each in others])))
    if here.ns - usual < MOST_SHARE * late["late_ns"] or not _have_owners(late, here, others):
        return None
    site = next((each for each in here.most if all(each in other.lines for other in others)), None)
    where = {} if site is None else {"file": site[0], "line": site[1]}
    updates = f"rank {late['rank']} updates for {units.duration(here.ns)} a step, its peers for {units.duration(usual)}"
    fix = Fix.by_name(
        "dealt-by-cost", text=f"Give the parameters owners by what their update costs, not by their number: {updates}"
    )
    detail = f"{finding.detail} Each rank updates the parameters that it owns, and sends them to the others: {updates}."
    saving = replace(
        finding.saving, bound=True, confidence=f"a parameter goes whole to one rank; {finding.saving.confidence}"
    )
    return fix.into(replace(finding, detail=detail, saving=saving, where={**finding.where, **where}))


def _have_owners(late: Row, here: Owned, others: Sequence[Owned]) -> bool:
    """Return whether all ranks send what they have updated: they broadcast in turn, or their parts are gathered.

    What one rank runs alone before its network is gathered anew (pictures, metrics) is no update.
    """
    if len(here.roots) > 1:
        return True
    shared = any(each in other.lines for each in here.most for other in others)
    return here.gathers and shared and late["late_spread"] != Surplus.LONE

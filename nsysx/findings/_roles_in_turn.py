"""Ranks with work of their own kind, one that trains and others that do not, of which each waits while the other one works.

An actor that needs the newest weights for its next episodes, and a learner that needs these, take turns; so do a teacher and the student
that it sends its answers to. Where results may be one step older, both work at once. Stages of a pipeline all train.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import DeviceActivity
from nsysx.events.profile import Profile
from nsysx.findings._case import Case, Saving
from nsysx.findings._exposed_transfer import communication
from nsysx.findings._names import mostly
from nsysx.findings._work_bounds import LEAST_IN_TURN_SHARE, MOST_AT_ONCE_SHARE
from nsysx.frames.intervals import I64, coverage
from nsysx.model import Row
from nsysx.replay import peers, rank_alone


class RolesInTurn(NamedTuple):
    """Of the time of the steps the shares in which each of two ranks waits for the other one, the shown rank first."""

    shares: tuple[float, float]


def in_turn(profile: Profile) -> RolesInTurn | None:
    """Return how long two ranks of a report wait for each other, one of which trains; None where they do not take turns."""
    return profile.once(_in_turn)


def _in_turn(profile: Profile) -> RolesInTurn | None:
    ranks, (start, end) = peers.first_of_ranks(profile, profile.process), profile.window
    if len(ranks) != 2 or end <= start:
        return None
    ops = profile.attributed.gpu_ops
    ops = ops.filter((ops["end_ns"] > start) & (ops["start_ns"] < end) & ops["process"].is_in(ranks))
    trains = set(ops.filter(ops["phase"].cast(pl.String) == "backward")["process"].to_list())
    if len(trains & set(ranks)) != 1:
        return None
    sets: list[tuple[I64, I64]] = []
    for rank in ranks:
        theirs = ops.filter(ops["process"] == rank)
        for kinds in (
            [DeviceActivity.COMM.value],
            [each.value for each in DeviceActivity if each is not DeviceActivity.COMM],
        ):
            chosen = theirs.filter(theirs["cls"].cast(pl.String).is_in(kinds))
            sets.append((chosen["start_ns"].to_numpy(), chosen["end_ns"].to_numpy()))
    times = coverage(sets, start, end).shares(np.array([start]), np.array([end]))
    waits, both = [0, 0], 0
    for label, ns in times.items():
        waiting = [bool(label >> 2 * n & 1) and not label >> (2 * n + 1) & 1 for n in range(2)]
        both += int(ns[0]) * all(waiting)
        for n in range(2):
            waits[n] += int(ns[0]) * waiting[n]
    first, second = ((ns - both) / (end - start) for ns in waits)
    at_once = 1 - first - second - both / (end - start)
    takes_turns = min(first, second) >= LEAST_IN_TURN_SHARE and at_once <= MOST_AT_ONCE_SHARE
    return RolesInTurn((first, second)) if takes_turns else None


def worth(case: Case, turns: RolesInTurn) -> Saving:
    """Return the most that it saves if both ranks work at once: a step is then as long as the longer work.

    What a rank does while the other one waits holds what tracing adds to its host. Without that the step is shorter by as much, too, and
    what is saved of it is a larger share. So the longer work counts with the least that is left of it without tracing.
    """
    ns = [round((1 - share) * case.step_ns) for share in turns.shares]
    least = _least_without_tracing(case.profile, ns)
    longer = ns.index(max(ns))
    shared, other = sum(ns) - case.step_ns, ns[1 - longer]
    work = max(min(least[longer] + max(shared, 0), ns[longer]), other)
    whole = work + other - shared
    why = "both ranks work at once, and a step takes as long as the longer of the two"
    return case.bound((1 - work / whole) * case.step_ns if whole > 0 else 0, why)


def _least_without_tracing(profile: Profile, recorded_ns: Sequence[int]) -> list[int]:
    """Return the least that the work of each rank takes in a step of the shown one without tracing (ns), as recorded where not known."""
    ranks = [profile, *peers.others(profile)]
    cpu, (start, end) = profile.steps.cpu, profile.window
    begun = cpu.filter((cpu["start_ns"] >= start) & (cpu["start_ns"] < end))["process"]
    often = [int((begun == rank.process).sum()) for rank in ranks]
    models = [rank_alone.by_itself(rank) for rank in ranks]
    return [
        ns if model is None or not often[0] else round(model.at(0.0).low_ns * count / often[0])
        for ns, model, count in zip(recorded_ns, models, often, strict=True)
    ]


def place(case: Case) -> Row:
    """Return the line at which the shown rank waits most, else what it waits in."""
    code, comm = case.profile.code(), communication(case).with_columns(ns=pl.col("end_ns") - pl.col("start_ns"))
    where = (
        {} if code is None else code.where_most(code.places_of(code.op[comm["op"].to_numpy()]), comm["ns"].to_numpy())
    )
    return where or mostly(case.profile, comm)


def title(turns: RolesInTurn) -> str:
    """Return in words that the ranks take turns."""
    shown, other = (units.share(each, 1) for each in turns.shares)
    return f"The ranks work in turn: this one waits for {shown} of the time, the other one for {other}"

"""Ranks that have as much GPU work over all steps and not in each of them, so that another one is waited for every time.

Batches of other lengths on each rank are such work: no rank is late, and all wait. That it is the work and not the hosts shows step by
step: the rank with less of it waits for as long as another one computes more. Where hosts are late, a rank with more work waits as often.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from nsysx.catalogue import DeviceActivity
from nsysx.frames.statistics import F64
from nsysx.judging.judging_bounds import STRAGGLER_FEWEST_STEPS
from nsysx.ranks import straggler
from nsysx.ranks.collective_costs import waiting_per_step
from nsysx.ranks.job_compared import JobCompared
from nsysx.ranks.own_time import own_times
from nsysx.ranks.rank_bounds import STRAGGLER_SHARE, WAITS_FOR_WORK_SHARE


class WorkInTurn(NamedTuple):
    """What a rank waits in each step for the work that others have more of then, and what all ranks save without that (ns a step)."""

    wait_ns: int
    even_ns: int


def of_each(compared: JobCompared, at_times: Collection[int] = ()) -> dict[int, WorkInTurn]:
    """Return the place of a rank -> its work in turn, for the ranks of groups that wait for each other's work, none of them always last.

    ``at_times``: the places of ranks for whose GPU work alone their groups wait in a few steps.
    """
    if compared.late is not None and compared.late.named:
        return {}
    in_turn: dict[int, WorkInTurn] = {}
    for group in straggler.groups(compared.costs):
        if not set(group).isdisjoint(at_times):
            continue
        per_step = _work_and_waits(compared, group)
        if per_step is None:
            continue
        work, waits = per_step
        explained = waits_for_work(work, waits)
        even = 0.0 if explained is None else _even_ns(compared, group, work)
        if explained is not None and even >= STRAGGLER_SHARE * _step_ns(compared, group):
            each = explained.mean(axis=1).tolist()
            in_turn |= {r: WorkInTurn(round(ns), round(even)) for r, ns in zip(group, each, strict=True)}
    return in_turn


def waits_for_work(work: F64, waits: F64) -> F64 | None:
    """Return how long each rank waits in each step for the work of another one (ns); None where that explains little of its waiting.

    ``work`` and ``waits`` are of shape (ranks, steps).
    """
    explained: F64 = np.minimum(waits, work.max(axis=0) - work)
    by_chance = np.minimum(waits, work - work.min(axis=0))
    return explained if explained.sum() - by_chance.sum() >= WAITS_FOR_WORK_SHARE * waits.sum() else None


def _work_and_waits(compared: JobCompared, group: Sequence[int]) -> tuple[F64, F64] | None:
    """Return how long each rank of a group computes, and waits for the others of it, in each common step (ns): shape (ranks, steps).

    Of ranks that share a GPU it is how long such kernels take usually: those that one slows in the other are no more work.
    """
    work, waits = [], []
    for r in group:
        tiles = compared.ranks[r].tiles
        if tiles is None:
            return None
        together = [i for i, a in enumerate(compared.costs[r].among) if a.together and a.ranks == group]
        work.append(tiles.parts[DeviceActivity.COMPUTE.column] if tiles.usual_ns is None else tiles.usual_ns)
        waits.append(waiting_per_step(compared.ranks[r], compared.costs[r], together))
    if len({len(row) for row in work}) != 1 or len(work[0]) < STRAGGLER_FEWEST_STEPS:
        return None
    made = np.array(work, np.float64), np.array(waits, np.float64)
    return made if made[1].sum() else None


def _step_ns(compared: JobCompared, group: Sequence[int]) -> float:
    steps = [(t.end_ns - t.start_ns).mean() for r in group if (t := compared.ranks[r].tiles) is not None]
    return float(np.mean(steps))


def _even_ns(compared: JobCompared, group: Sequence[int], work: F64) -> float:
    """Return what a step saves if in each step all ranks compute as long (ns): replayed, else of steps as long as their longest work.

    A replay holds a few of the steps, and in turn they are unlike: what it saves of the time by which ranks are apart there, all of the
    recorded steps save of theirs.
    """
    apart = float((work.max(axis=0) - work.mean(axis=0)).mean())
    times = own_times(compared.aligned, group)
    if times is None:
        return apart
    saves, there = times.even_in_each_step_ns(), times.apart_in_each_step_ns()
    # Between their exchanges ranks may be apart where in sum they are not: then more is saved than the work of whole steps shows.
    return saves + (apart - there) * (min(saves / there, 1.0) if there else 1.0)

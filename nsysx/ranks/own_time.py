"""What each rank takes for itself, and what the job takes with some of its ranks replaced by others: replays of all ranks together.

A rank's *own* time in a step is what the rank would take if its peers were never late: its host code and GPU work without tracing
and without waiting for others, so that host code which hides behind a collective that waits counts, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64
from nsysx.frames.statistics import F64
from nsysx.ranks import even_work, late_lines, late_work, lone_work
from nsysx.ranks.match import Aligned
from nsysx.ranks.other_reports import ops_of
from nsysx.ranks.rank_bounds import (
    ALIKE_STEPS_SHARE,
    FAR_MORE_TIMES,
    FEWEST_REPLAYED_STEPS,
    MOST_JOB_ERROR_SHARE,
    MOST_REPLAYED_RANKS,
    REPLAYED_TOGETHER_SHARE,
)
from nsysx.ranks.rank_record import Rank
from nsysx.replay import job_changes, peers
from nsysx.replay.chain_columns import Columns
from nsysx.replay.replay_bounds import HIDDEN_SLOWS_SHARES
from nsysx.replay.slowed_kernels import slowed_ns
from nsysx.replay.together import Played, ReplayedRank, played, step_lengths


def with_replays(ranks: Sequence[Rank], profile: Profile) -> tuple[Rank, ...]:
    """Return the ranks of a report, each with the replay of its steps where there is one."""
    if not any(len(rank.start_ns) or rank.host_calls.series for rank in ranks):
        return tuple(ranks)
    made = []
    shown = {each.process: each for each in (profile, *peers.others(profile, MOST_REPLAYED_RANKS))}
    for rank in ranks:
        if rank.process in shown:
            alone = shown[rank.process]
            rank = replace(
                rank,
                host_lines=late_lines.host_lines(alone),
                calls_of_work=late_lines.calls_of_work(alone),
                compute_by_place=late_work.compute_by_place(alone, rank.device),
                compute_outside=late_work.compute_outside(alone, rank.device),
                evaluations=lone_work.evaluations(alone),
                slowed_ns=slowed_ns(alone) / max(alone.scope.steps or 0, 1),
            )
        played_rank = played(shown[rank.process]) if rank.process in shown and len(rank.start_ns) else None
        if played_rank is not None and played_rank.device == rank.device:
            row = {op: i for i, op in enumerate(ops_of(profile, rank))}
            rows = np.array([row.get(op, -1) for op in played_rank.op.tolist()], np.int64)
            rank = replace(rank, played=replace(played_rank, op=rows))
        made.append(rank)
    return tuple(made)


@dataclass(frozen=True)
class OwnTimes:
    """The ranks of a group in replay. Times are ns without tracing, of shape (ranks, steps) or per rank and step.

    ``step_ns``: what each takes if no other is late. ``code``, ``loading``, ``work``: the host code, waiting for data and GPU work in
    it. ``gpu_ns``: what each takes if, besides, its host takes no time. ``step`` is the job's step; ``measured``: what the ranks measured
    without a profiler, None if one did not. ``error``: how far the replay of all ranks as recorded is off the recorded step (share).
    """

    step_ns: F64
    gpu_ns: F64
    code: F64
    loading: F64
    work: F64
    step: float
    measured: float | None
    error: float
    members: tuple[ReplayedRank, ...]
    transfer: Mapping[int, int]

    @property
    def real(self) -> float:
        """The job's step without a profiler (ns): as measured, where that is shorter than the replayed one."""
        return self.step if self.measured is None else min(self.measured, self.step)

    def usual(self, r: int) -> int:
        """Return the peer of a rank whose own time is the median of its peers, the longer one of two."""
        others = [i for i in np.argsort(self.step_ns.mean(axis=1), kind="stable").tolist() if i != r]
        return int(others[len(others) // 2])

    def price_ns(self, r: int) -> float:
        """Return by how much the job's step is shorter if the rank does, at the same time, what that peer does (ns)."""
        members = list(self.members)
        members[r] = members[self.usual(r)]
        step = _job_step(members, self.transfer)
        return self._measured(step)

    def _measured(self, step: float | None) -> float:
        """Return what a replayed step of the job saves (ns). A replay that is longer than the measured step is so in each part of it."""
        return 0.0 if step is None or not self.step else max(self.step - step, 0.0) * min(self.real / self.step, 1.0)

    def transferred_ns(self, factor: float) -> float:
        """Return by how much the job's step is shorter if collectives, once all ranks are there, take ``factor`` times as long (ns)."""
        then = _job_step(list(self.members), {number: round(ns * factor) for number, ns in self.transfer.items()})
        return self._measured(then)

    def hidden_ns(self) -> float:
        """Return by how much the job's step is shorter if all transfer runs beside computation, which that slows (ns).

        Late ranks are still waited for.
        """
        nothing = dict.fromkeys(self.transfer, 0)
        free, steps = _job_step(list(self.members), nothing), self.step_ns.shape[1]
        if free is None:
            return 0.0
        slower = steps * HIDDEN_SLOWS_SHARES[1] * max(self.step - free, 0.0)
        work = [int(m.cols.op_duration[m.own].sum()) for m in self.members]
        then = _job_step([m.scaled(1 + slower / max(w, 1)) for m, w in zip(self.members, work, strict=True)], nothing)
        return self._measured(then)

    def changed_ns(self, asked: Callable[[str], bool] = lambda _: True) -> dict[str, float]:
        """Return by how much the job's step is shorter with each change that its ranks can make, see ``job_changes`` (ns); those that are
        ``asked`` for.
        """
        saved = {
            name: self._measured(_job_step([member.changed(name) for member in self.members], self.transfer))
            for name in dict.fromkeys(name for member in self.members for name in (*member.left, *member.unheld))
            if asked(name)
        }
        if job_changes.OF_HOSTS in saved and self.measured is not None:
            # Hosts that are slower than tracing alone explains are so in each of their lines.
            saved[job_changes.OF_HOSTS] *= max(self.measured / self.step, 1.0)
        return saved

    def even_ns(self, *, without_host: bool = False) -> float:
        """Return by how much the job's step is shorter if all ranks have as much GPU work of their own as they have on average (ns).

        That is so between each two of their exchanges, see ``even_work``, else as a whole.

        ``without_host``: no host code limits that. What one rank alone has at times, see ``_has_more_at_times``, is evened in each step.
        """
        if not without_host and self._has_more_at_times():
            return self.even_in_each_step_ns()
        members = [m.without_host() for m in self.members] if without_host else list(self.members)
        between = even_work.factors(members)
        if between is not None:
            return self._then(members, [m.lengthened(each) for m, each in zip(members, between, strict=True)])
        work = np.array([m.own_work_ns.sum() for m in members], np.float64)
        return self._with_work(members, work[:, None], work.mean())

    def _has_more_at_times(self) -> bool:
        """Return whether the rank with most GPU work has far more in some steps, while its peers have as much in all of them.

        On average over the steps its peers would take over a part in each of them, and it would still be late in those.
        """
        work = np.array([member.own_work_ns for member in self.members], np.float64)
        most = int(work.sum(axis=1).argmax())
        others = np.delete(work, most, axis=0)
        alike = bool((np.ptp(others, axis=1) <= ALIKE_STEPS_SHARE * others.mean(axis=1)).all())
        return alike and bool(work[most].max() >= FAR_MORE_TIMES * np.median(work[most]))

    def even_in_each_step_ns(self) -> float:
        """Return by how much the job's step is shorter if all ranks have as much GPU work of their own in each step as on average (ns).

        That is so between each two of their exchanges, see ``even_work``, else in the step as a whole.
        """
        members = list(self.members)
        between = even_work.factors(members, in_each_step=True)
        if between is not None:
            return self._then(members, [m.lengthened(each) for m, each in zip(members, between, strict=True)])
        work = np.array([m.own_work_ns for m in members], np.float64)
        return self._with_work(members, work, work.mean(axis=0))

    def apart_in_each_step_ns(self) -> float:
        """Return how much more GPU work of its own the rank with most of it has in a replayed step than they have on average (ns)."""
        work = np.array([member.own_work_ns for member in self.members], np.float64)
        return float((work.max(axis=0) - work.mean(axis=0)).mean())

    def _with_work(self, members: Sequence[ReplayedRank], work: F64, then_work: F64 | np.floating[Any]) -> float:
        """Return what a step saves if the GPU work of each rank, of shape (ranks, steps or 1), takes as long as ``then_work`` (ns)."""
        factors = np.where(work > 0, then_work / np.maximum(work, 1), 1.0)
        return self._then(members, [m.scaled(factor) for m, factor in zip(members, factors, strict=True)])

    def _then(self, members: Sequence[ReplayedRank], changed: Sequence[ReplayedRank]) -> float:
        """Return what a step saves if ranks are changed to these (ns)."""
        now, then = _job_step(members, self.transfer), _job_step(changed, self.transfer)
        if now is None or then is None or not now:
            return 0.0
        # A replay that is longer than the measured step is so in the GPU's work, too.
        return max(now - then, 0.0) * min(self.real / now, 1.0)


def own_times(aligned: Aligned, group: Sequence[int], fewest: int = FEWEST_REPLAYED_STEPS) -> OwnTimes | None:
    """Return the ranks of a group in replay; None if one has none, their replayed steps are not the same, too few, or it misses them."""
    asked = own_times, tuple(group), fewest  # by half a dozen, and a job is replayed five times for each
    if asked not in aligned.made:
        aligned.made[asked] = _own_times(aligned, group, fewest)
    times: OwnTimes | None = aligned.made[asked]
    return times


def _own_times(aligned: Aligned, group: Sequence[int], fewest: int) -> OwnTimes | None:
    replays = [aligned.ranks[r].played for r in group]
    if len(group) > MOST_REPLAYED_RANKS or any(p is None for p in replays):
        return None
    played_ranks = [p for p in replays if p is not None]
    numbers = sorted(set[int].intersection(*(set(p.numbers) for p in played_ranks)))
    if len(numbers) < fewest or not _in_a_row(numbers, played_ranks):
        return None
    number, transfer, shared = _collectives(aligned, group)
    members = {
        what: [_member(p, getattr(p, what), number[r], numbers) for r, p in zip(group, played_ranks, strict=True)]
        for what in ("bare", "recorded")
    }
    if not _hold_same_collectives(members["bare"], shared):
        return None
    alone = [member.alone(transfer) for member in members["bare"]]
    lengths_alone, on_gpu = _lengths_by_rank(alone), _lengths_by_rank([member.without_host() for member in alone])
    step, recorded = _job_step(members["bare"], transfer), _job_step(members["recorded"], transfer)
    truth = float(np.mean([p.recorded_ns for p in played_ranks]))
    if step is None or recorded is None or min(len(lengths_alone), len(on_gpu)) < len(played_ranks):
        return None
    if abs(recorded - truth) > MOST_JOB_ERROR_SHARE * truth:
        return None
    measured = [p.measured_ns for p in played_ranks if p.measured_ns is not None]
    cols, count = [member.cols for member in alone], len(numbers)
    return OwnTimes(
        np.array(lengths_alone, np.float64),
        np.array(on_gpu, np.float64),
        code=np.array([(c.gap - c.loading + c.cost).sum() / count for c in cols], np.float64),
        loading=np.array([c.loading.sum() / count for c in cols], np.float64),
        work=np.array([c.op_duration.sum() / count for c in cols], np.float64),
        step=step,
        measured=float(np.mean(measured)) if len(measured) == len(played_ranks) else None,
        error=abs(recorded - truth) / truth,
        members=tuple(members["bare"]),
        transfer=transfer,
    )


def _in_a_row(numbers: Sequence[int], played_ranks: Sequence[Played]) -> bool:
    """Return whether no step lies between those of these numbers; of several parts each has the number of its first."""
    every = sorted(set[int].union(*(set(p.numbers) for p in played_ranks)))
    return len(every) == 1 or set(np.diff(numbers).tolist()) == {int(np.diff(every).min())}


def _lengths_by_rank(members: Sequence[ReplayedRank]) -> list[I64]:
    """Return the lengths of the steps (ns) of each rank, without any other; those that can be replayed."""
    return [lengths[0] for member in members if (lengths := step_lengths([member], {})) is not None]


def _job_step(members: Sequence[ReplayedRank], transfer: Mapping[int, int]) -> float | None:
    """Return the mean step of ranks that run together (ns), None if they cannot."""
    lengths = step_lengths(members, transfer)
    return None if lengths is None else max(float(of_rank.mean()) for of_rank in lengths)


def _collectives(aligned: Aligned, group: Sequence[int]) -> tuple[dict[int, I64], dict[int, int], frozenset[int]]:
    """Return rank -> the number of each of its collectives (-1: without a counterpart), number -> its transfer (ns), and the
    numbers that several ranks of the group have together: with ranks outside of it a collective takes its transfer.
    """
    number = {r: np.full(len(aligned.ranks[r].start_ns), -1, np.int64) for r in group}
    transfer: dict[int, int] = {}
    shared: set[int] = set()
    for _, together in aligned.groups:
        here = [r for r in together if r in number]
        length = np.stack(
            [aligned.ranks[r].end_ns[rows] - aligned.ranks[r].start_ns[rows] for r, rows in together.items()]
        )
        numbers = range(len(transfer), len(transfer) + length.shape[1])
        for r in here:
            number[r][together[r]] = numbers
        transfer |= dict(zip(numbers, length.min(axis=0).tolist(), strict=True))
        shared |= set(numbers) if len(here) > 1 else set()
    return number, transfer, frozenset(shared)


def _member(played_rank: Played, cols: Columns, number: I64, numbers: Sequence[int]) -> ReplayedRank:
    """Return a rank of the joint replay over these steps."""
    joint = (
        np.where(played_rank.op >= 0, number[np.maximum(played_rank.op, 0)], -1)
        if len(number)
        else np.full(len(played_rank.op), -1)
    )
    return played_rank.over(numbers, cols, joint)


def _hold_same_collectives(members: Sequence[ReplayedRank], shared: frozenset[int]) -> bool:
    """Return whether the replayed steps of all ranks hold the same ones of the collectives that they share."""
    sets = [shared.intersection(member.joint.tolist()) for member in members]
    everywhere = frozenset[int].intersection(*sets)
    return bool(everywhere) and all(len(everywhere) >= REPLAYED_TOGETHER_SHARE * len(numbers) for numbers in sets)

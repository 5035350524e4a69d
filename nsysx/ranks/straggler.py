"""Which rank the others wait for: tested over steps, with its cause and its cost.

A rank's *own* time in a step is what it would take if its peers were never late: a replay without tracing and without waiting, so
that host code which hides behind a collective that waits counts (``own_time``). Ranks of a group that do the same work have the
same own time; the straggler's is longer in step after step (paired with the median of its peers), by more than the host code of
two healthy processes differs.

The price compares jobs, as in "Understanding Stragglers in Large Model Training" (ByteDance, OSDI 2025, arXiv 2505.05713): all
ranks are replayed together, now and with the straggler doing what the median of its peers does. Both attributions of the paper
are given for synchronous steps (a step takes as long as the longest own time), as shares of the whole excess t - ideal: what
mending the rank removes, (t - t_without) / (t - ideal), and what the rank causes alone, (t_only - ideal) / (t - ideal).

Where tracing makes the hosts of all ranks the slowest part of a step, own times do not show that one rank computes for longer: then the
GPU work alone is compared (``uneven``).

Hosts of equal ranks drift apart, too, and stay so for seconds. A report with an earlier window shows the same processes at another
time: who is late in host code only in one of them is no straggler.

Where a rank cannot be replayed, its own time is the recorded step without exposed waiting. That is too short for host code that
hides, so nobody is named for being late in host code then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nsysx.catalogue import Cause, DeviceActivity, Late, Trait
from nsysx.frames.frame_bounds import PROCESS_DRIFT
from nsysx.frames.statistics import F64
from nsysx.judging.judging_bounds import STRAGGLER_FEWEST_STEPS
from nsysx.ranks import few_steps, late_lines, late_work, uneven
from nsysx.ranks.behind import behind_peers, half_of_all, late_by, median_of_others
from nsysx.ranks.collective_costs import CollectiveCosts, waiting_per_step
from nsysx.ranks.match import Aligned
from nsysx.ranks.own_time import OwnTimes, own_times
from nsysx.ranks.rank_bounds import (
    FEWEST_COLLECTIVES_BEFORE,
    LAST_BEFORE_SHARE,
    LATE_BY_CLOCK_SHARE,
    LOWER_CLOCK_SHARE,
    SAME_KERNELS_UNLIKE_SHARE,
    SLOWER_CLOCK_SHARE,
    SLOWEST_CLOCK_SHARE,
    STRAGGLER_SHARE,
)
from nsysx.ranks.rank_record import Rank
from nsysx.reading import nccl_notes

#: Causes of a rank's excess: parts of its ledger and causes of its idle time.
_IDLE = "idle: "
_WORK = {Late.COMPUTE: (DeviceActivity.COMPUTE, DeviceActivity.COPY, DeviceActivity.MEMSET)}
CAUSES: Mapping[Late, tuple[str, ...]] = {
    late: (*_WORK.get(late, ()), *(_IDLE + cause for cause in Cause if cause.late is late)) for late in Late
}
#: Causes that drift from process to process, or that a profiler makes longer.
_DRIFTING = tuple(_IDLE + cause for cause in Cause if Trait.DRIFTS in cause.trait)


@dataclass(frozen=True)
class Straggler:
    """The rank at ``place`` in the group ``peers`` (places, itself included). Times are ns per step.

    ``late_ns`` with ``low_ns`` and ``high_ns``: by how much its own time exceeds the median of its peers. ``drift_ns``: the
    part of that by which two healthy processes may differ. ``price_ns``: what a step saves if the rank is like its peers;
    ``without`` and ``alone`` are its two shares of the whole excess; ``error``: how far the replay of all ranks is off the
    recorded steps (share). ``even_ns``: what a step saves if the GPU work is the same on all peers, None where it is late for another
    reason; ``by_work``: the recorded steps do not show it, because tracing slows the hosts, and both savings are bounds.
    """

    place: int
    peers: tuple[int, ...]
    late_ns: int
    low_ns: int
    high_ns: int
    drift_ns: int
    cause: str
    price_ns: int
    without: float
    alone: float
    error: float
    even_ns: int | None = None
    by_work: bool = False

    @property
    def named(self) -> bool:
        """Whether it may be called a straggler; otherwise it is behind by no more than healthy processes differ."""
        return self.drift_ns < self.late_ns


def per_step(rank: Rank) -> dict[str, float]:
    """Return the time of a rank per step apart from communication (ns): the ledger, and idle time by cause."""
    named: dict[str, int] = {a.value: rank.parts[a.column] for a in _WORK[Late.COMPUTE]}
    named |= {_IDLE + cause: ns for cause, ns in rank.idle_causes.items() if cause != Cause.HOST_COMM}
    return {k: v / max(rank.steps, 1) for k, v in named.items()}


def excesses(ranks: Sequence[Rank], peers: Sequence[int]) -> dict[int, dict[str, float]]:
    """Return by how much each of the peers exceeds the median of the others per step (ns), by part of the ledger, largest first."""
    steps = [per_step(ranks[r]) for r in peers]
    keys = list(dict.fromkeys(k for step in steps for k in step))
    more = {}
    for key in keys:
        of_rank = np.array([step.get(key, 0.0) for step in steps], np.float64)
        more[key] = (of_rank - median_of_others(of_rank)).tolist()
    return {r: dict(sorted(((k, more[k][i]) for k in keys), key=lambda item: -item[1])) for i, r in enumerate(peers)}


def groups(costs: Sequence[CollectiveCosts]) -> list[tuple[int, ...]]:
    """Return the sets of peers, the largest first: ranks that have collectives together in their steady steps.

    Ranks that hand messages to one another there, two by two, are stages of a pipeline: their work differs, and each waits for
    the others by nature, so that none of them is what another should be. A barrier before the steps makes no peers.
    """
    among = {a.ranks for c in costs for a in c.among if a.together and a.inside}
    handed = [set(a.ranks) for c in costs for a in c.among if a.between_two and a.inside]
    peers = [group for group in among if not any(pair <= set(group) for pair in handed)]
    return sorted(peers, key=lambda g: (-len(g), g))


def without_waiting(
    ranks: Sequence[Rank],
    costs: Sequence[CollectiveCosts],
    group: tuple[int, ...],
    fewest: int = STRAGGLER_FEWEST_STEPS,
) -> F64 | None:
    """Return the own time of each rank of a group in each common step (ns), shape (ranks, steps); None with fewer steps."""
    rows = []
    for r in group:
        tiles = ranks[r].tiles
        if tiles is None:
            return None
        chosen = [i for i, a in enumerate(costs[r].among) if a.together and a.ranks == group]
        rows.append((tiles.end_ns - tiles.start_ns) - waiting_per_step(ranks[r], costs[r], chosen))
    if len({len(row) for row in rows}) != 1 or len(rows[0]) < fewest:
        return None
    return np.array(rows, np.float64)


def _ideal(step_ns: F64) -> F64:
    """Return own times in which no rank takes longer than the median of its peers."""
    result: F64 = np.minimum(step_ns, np.apply_along_axis(median_of_others, 0, step_ns))
    return result


def _shares(step_ns: F64, r: int) -> tuple[int, float, float]:
    """Return what the rank costs per step if the steps are synchronous (ns), and its two shares of the whole excess."""
    ideal = _ideal(step_ns)
    without, alone = step_ns.copy(), ideal.copy()
    without[r], alone[r] = ideal[r], step_ns[r]
    t, t_without, t_only, t_ideal = (float(x.max(axis=0).mean()) for x in (step_ns, without, alone, ideal))
    whole = t - t_ideal
    if whole <= 0:
        return 0, 0.0, 0.0
    return round(t - t_without), (t - t_without) / whole, (t_only - t_ideal) / whole


def _slower(rank: Rank, others: Sequence[Rank], late_ns: float) -> float:
    """Return how much longer kernels of equal shape and number take than on the others (share), 0 if that is not why a rank is late.

    Nearly all have to take longer, and nearly all of its work has to be of equal kernels, launch by launch: matrix products often run as
    many blocks as there are SMs, whatever the matrices are, so that more rows show in the grids and numbers of other kernels alone.
    """
    if uneven.unlike(rank, others) > SAME_KERNELS_UNLIKE_SHARE:
        return 0.0
    ratios, weight, steps_there = [], [], others[0].steps_of_kernels if others else 0
    for key, (count, ns) in rank.kernels.items():
        same = [x.kernels[key] for x in others if key in x.kernels]
        there = [t / n for n, t in same if n * rank.steps_of_kernels == count * steps_there or n == count]
        if len(there) == len(others) and ns:
            ratios.append(ns / count / float(np.median(there)))
            weight.append(ns)
    if len(ratios) < 3:
        return 0.0
    order = np.argsort(ratios)
    share = np.cumsum(np.array(weight)[order]) / sum(weight)
    low, middle = (np.array(ratios)[order][min(int(np.searchsorted(share, q)), len(order) - 1)] for q in (0.2, 0.5))
    explained_ns = per_step(rank)[DeviceActivity.COMPUTE.value] * (1 - 1 / middle)
    slower = low > 1 + SLOWER_CLOCK_SHARE and middle < 1 + SLOWEST_CLOCK_SHARE
    return float(middle - 1) if slower and explained_ns >= LATE_BY_CLOCK_SHARE * late_ns else 0.0


def cause_of(more: Mapping[str, float]) -> Late:
    """Return why a rank is late, by what it has more of (ns): parts of the ledger and idle time by cause, as in ``per_step``."""
    sums = {cause: sum(max(0.0, more.get(k, 0.0)) for k in parts) for cause, parts in CAUSES.items()}
    return max(sums, key=lambda c: sums[c]) if max(sums.values()) > 0 else Late.UNKNOWN


@dataclass(frozen=True)
class _Excess:
    """By how much a rank's own time exceeds that of its peers: the step (ns), the part that may be drift, the cause, the price.

    ``code``: its own host code (ns), 0 where that is not known.
    """

    step: float
    drift: float
    cause: Late
    price: int | None
    error: float
    code: float = 0.0


def _replayed(times: OwnTimes, r: int) -> _Excess:
    """Return the excess of a rank by the replay of all: host code drifts by a share of what the peers take for theirs."""
    more = {}
    for cause, figures in ((Late.HOST, times.code), (Late.INPUT, times.loading), (Late.COMPUTE, times.work)):
        more[cause] = float(figures[r] - np.median(np.delete(figures, r)))
    drift = min(max(more[Late.HOST], 0.0), PROCESS_DRIFT * float(np.median(np.delete(times.code, r))))
    cause = max(more, key=lambda c: more[c]) if max(more.values()) > 0 else Late.UNKNOWN
    return _Excess(times.step, drift, cause, round(times.price_ns(r)), times.error, float(times.code[r]))


def _held_down(rank: Rank, others: Sequence[Rank], late_ns: float) -> bool:
    """Return whether a rank is late mostly because its GPU worked at a lower clock than those of its peers: both were sampled.

    What runs at a clock takes longer in proportion to it at most, whatever the kernels are.
    """
    clocks = [x.clock.share for x in others if x.clock is not None]
    if rank.clock is None or not clocks or len(clocks) != len(others):
        return False
    ratio = rank.clock.share / float(np.median(clocks))
    work_ns = per_step(rank)[DeviceActivity.COMPUTE.value]
    return ratio < 1 - LOWER_CLOCK_SHARE and work_ns * (1 - ratio) >= LATE_BY_CLOCK_SHARE * late_ns


def _of_its_gpu(rank: Rank, others: Sequence[Rank], late_ns: float) -> Late | None:
    """Return what makes the same work take longer on a rank's GPU, where that is most of why it is late, None for neither."""
    more = rank.taken_ns - float(np.median([x.taken_ns for x in others]))
    if more >= LATE_BY_CLOCK_SHARE * late_ns:
        return Late.SHARED_GPU
    return Late.HELD_CLOCK if _held_down(rank, others, late_ns) else None


def _named_cause(cause: Late, held: Late | None, *, slower: bool, by_calls: bool) -> Late:
    """Return the cause as it is told: its GPU's own, the same kernels that are slower, or host code that is calls of its own."""
    if held or slower:
        return held or Late.CLOCKS
    return Late.CALLS if by_calls and cause is Late.HOST else cause


def _by_ledger(ranks: Sequence[Rank], group: tuple[int, ...], r: int, step_ns: F64) -> _Excess:
    """Return the excess of a rank by the recorded ledgers, which do not tell by how much it is late in host code."""
    more = excesses(ranks, sorted(group))[group[r]]
    step = float(np.mean([(t.end_ns - t.start_ns).mean() for x in group if (t := ranks[x].tiles) is not None]))
    cause, visible = cause_of(more), sum(max(0.0, more.get(k, 0.0)) for k in _DRIFTING)
    drift = float("inf") if cause in (Late.HOST, Late.PROFILER) else min(visible, PROCESS_DRIFT * step)
    return _Excess(step, drift, cause, None, abs(float(step_ns.max(axis=0).mean()) - step) / step)


def _late_before(aligned: Aligned, group: tuple[int, ...], r: int) -> bool:
    """Return whether rank ``r`` (its place in the group) was the last of its group in an earlier window, too.

    Without one, host code that is longer at no line of its own is what two healthy processes differ by for seconds, where lines were
    noted; where none were, nothing can tell.
    """
    seams = aligned.ranks[group[r]].seams
    counted = last = 0
    for key, rows in aligned.groups:
        if tuple(sorted(rows)) != group or key.kind == nccl_notes.SEND_RECEIVE or not seams:
            continue
        start = np.stack([aligned.ranks[x].start_ns[rows[x]] + aligned.offset[x] for x in group])
        before = np.flatnonzero(aligned.ranks[group[r]].start_ns[rows[group[r]]] < seams[0])
        settled = start[:, before[len(before) // 2 :]]
        counted += settled.shape[1]
        last += int((settled.argmax(axis=0) == r).sum())
    if counted < FEWEST_COLLECTIVES_BEFORE:
        return not all(aligned.ranks[x].host_lines for x in group)
    return last >= LAST_BEFORE_SHARE * counted


def _candidate(aligned: Aligned, costs: Sequence[CollectiveCosts], group: tuple[int, ...]) -> Straggler | None:
    """Return the rank of a group that is behind its peers in step after step, None if there is none."""
    ranks, times = aligned.ranks, own_times(aligned, group)
    behind = _by_own_time(aligned, costs, group, times)
    if times is None or (behind is not None and behind.named):
        return behind or _by_few_steps(aligned, costs, group)
    return _by_work(ranks, group, times) or behind


def _by_few_steps(aligned: Aligned, costs: Sequence[CollectiveCosts], group: tuple[int, ...]) -> Straggler | None:
    """Return the rank with far more GPU work in one or two steps alone, see ``few_steps``; None if there is none."""
    step_ns = without_waiting(aligned.ranks, costs, group, fewest=1)
    far = None if step_ns is None else few_steps.far_behind(aligned, group, step_ns)
    if step_ns is None or far is None:
        return None
    price, cause = _shares(step_ns, far.member), Late.COMPUTE.value
    return Straggler(group[far.member], group, *far.late_ns, 0, cause, *price, far.error, far.even_ns)


def _by_work(ranks: Sequence[Rank], group: tuple[int, ...], times: OwnTimes) -> Straggler | None:
    """Return the rank whose GPU work alone takes as long as the job's step, where its peers have less of it; None if there is none.

    How long a step takes without tracing has to be measured: a modelled host may be too slow by more than the work differs.
    """
    if times.measured is None:
        return None
    behind = behind_peers(times.gpu_ns)
    r = int(behind.mean(axis=1).argmax())
    others = [ranks[x] for x in group if x != group[r]]
    late, half = late_by(behind, r)
    busy = uneven.is_bound(float(times.gpu_ns[r].mean()), times.real)
    held = _of_its_gpu(ranks[group[r]], others, late)
    small = late < STRAGGLER_SHARE * times.step or late - half <= 0
    if small or not busy or not (held or uneven.is_uneven(ranks[group[r]], others)):
        return None
    like_peers, without, alone = _shares(times.gpu_ns, r)
    # GPU work that is longer than the measured step was slower where it was recorded, and so was that of its peers.
    held_ns = like_peers * min(times.real / float(times.gpu_ns[r].mean()), 1.0)
    price = held_ns if held else times.even_ns(without_host=True)
    if price < STRAGGLER_SHARE * times.real:
        return None
    return Straggler(
        place=group[r],
        peers=group,
        late_ns=round(late),
        low_ns=round(late - half),
        high_ns=round(late + half),
        drift_ns=0,
        cause=(held or Late.COMPUTE).value,
        price_ns=round(price),
        without=without,
        alone=alone,
        error=times.error,
        even_ns=None if held else round(price),
        by_work=True,
    )


def _even_ns(step_ns: F64, times: OwnTimes | None, *, more_data: bool) -> int:
    """Return what a step saves if all ranks have the same work (ns): replayed, or of synchronous steps, which take their mean then.

    ``more_data``: a rank has more of all that the GPU does, and shares what its host does for that, which a replay leaves where it is.
    """
    mean_ns = float(step_ns.max(axis=0).mean() - step_ns.mean())
    if times is None:
        return round(mean_ns)
    shared = mean_ns * min(times.real / times.step, 1.0) if more_data and times.step else 0.0
    return round(max(times.even_ns(), shared))


def _by_own_time(
    aligned: Aligned, costs: Sequence[CollectiveCosts], group: tuple[int, ...], times: OwnTimes | None
) -> Straggler | None:
    """Return the rank whose own time exceeds that of its peers, None if there is none."""
    ranks = aligned.ranks
    step_ns = times.step_ns if times is not None else without_waiting(ranks, costs, group)
    if step_ns is None:
        return None
    behind = behind_peers(step_ns)
    r = int(behind.mean(axis=1).argmax())
    late, half = late_by(behind, r)
    beyond = _replayed(times, r) if times is not None and late > 0 else _by_ledger(ranks, group, r, step_ns)
    others = [ranks[x] for x in group if x != group[r]]
    longer = late_lines.longer(ranks[group[r]], others)
    if late - half <= 0 and late_lines.alone(longer) >= STRAGGLER_SHARE * beyond.step:
        # What only this rank runs, in each 4th step, say, makes its steps differ, and few are replayed: all that were recorded tell.
        half = half_of_all(without_waiting(ranks, costs, group), r, late)
    if late < STRAGGLER_SHARE * beyond.step or late - half <= 0:
        return None
    compute = beyond.cause is Late.COMPUTE
    held = _of_its_gpu(ranks[group[r]], others, late) if compute else None
    slower = _slower(ranks[group[r]], others, late) if compute else 0.0
    synchronous, without, alone = _shares(step_ns, r)
    # Lines that only this rank runs are no drift, nor are calls that only it makes.
    calls_ns = beyond.code * late_lines.more_calls(ranks[group[r]], others)
    alone_ns = min(max(late_lines.own(longer), calls_ns), late)
    # The delay beyond drift has to be notable too, and that beyond what a collective that waits for others does to kernels beside it.
    slowed = ranks[group[r]].slowed_ns - float(np.median([x.slowed_ns for x in others])) if compute else 0.0
    drift = min(beyond.drift + max(slowed, 0.0), late - alone_ns)
    unsure = beyond.cause in (Late.HOST, Late.PROFILER) and alone_ns < STRAGGLER_SHARE * beyond.step
    if late - drift < STRAGGLER_SHARE * beyond.step or (unsure and not _late_before(aligned, group, r)):
        drift = late
    return Straggler(
        place=group[r],
        peers=group,
        late_ns=round(late),
        low_ns=round(late - half),
        high_ns=round(late + half),
        drift_ns=round(drift),
        cause=_named_cause(
            beyond.cause, held, slower=slower > 0, by_calls=calls_ns >= STRAGGLER_SHARE * beyond.step
        ).value,
        price_ns=synchronous if beyond.price is None else beyond.price,
        without=without,
        alone=alone,
        error=beyond.error,
        even_ns=_even_ns(step_ns, times, more_data=late_work.has_more_data(ranks[group[r]], others))
        if compute and not slower and not held
        else None,
    )


def find(aligned: Aligned, costs: Sequence[CollectiveCosts]) -> Straggler | None:
    """Return the straggler of all groups: the named one with the highest price, or else the rank behind; None if none is."""
    candidates = [s for group in groups(costs) if (s := _candidate(aligned, costs, group)) is not None]
    return max(candidates, key=lambda s: (s.named, s.price_ns, s.late_ns), default=None)

"""Which rank has more GPU work than its peers, in what kernels, and what the job takes if that work is the same on all.

Tracing slows the hosts of all ranks and hides that one of them computes for longer: a rank with little work then waits for its own
host. So a rank is also late where its GPU alone takes as long as a step does without the profiler, its peers' GPUs do not, and most of
its work are kernels that the others do not run as often at the same size. What tracing or a collective beside them makes longer are the
same kernels, and no more work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nsysx.events.families import family
from nsysx.events.kernel_names import function_of
from nsysx.ranks.rank_bounds import GPU_BOUND_SHARE, MOST_UNEVEN_KERNELS, UNLIKE_KERNELS_SHARE
from nsysx.ranks.rank_record import Rank

#: How the kernels of a rank differ from those of its peers.
LARGER, MORE, OTHER, LONGER = "on larger inputs", "run more often", "not on the others", "take longer"


class Differs(NamedTuple):
    """A kernel in the steps of a rank and of its peers, their median: how often and how long (ns) in one step, and in what it differs."""

    kernel: str
    family: str
    how: str
    times: float
    times_there: float
    ns: float
    ns_there: float


def unlike(rank: Rank, others: Sequence[Rank], without: str = "") -> float:
    """Return which share of the longest kernels of a rank is not run as often, at the same size, by one of the others.

    ``without``: a kind of work (family) whose kernels do not count.
    """
    kernels = {key: each for key, each in rank.kernels.items() if not without or family(key[0]) != without}
    whole = sum(ns for _, ns in kernels.values())
    if not whole or not others or not rank.steps_of_kernels:
        return 0.0

    def same(key: tuple[str, int, int], count: int) -> bool:
        here = [(x.kernels[key][0], x.steps_of_kernels) for x in others if key in x.kernels and x.steps_of_kernels]
        return len(here) == len(others) and all(n * rank.steps_of_kernels == count * steps for n, steps in here)

    return sum(ns for key, (count, ns) in kernels.items() if not same(key, count)) / whole


def is_bound(gpu_ns: float, step_ns: float) -> bool:
    """Return whether the GPU of a rank alone, without any host code, takes about as long as the job's step."""
    return gpu_ns >= GPU_BOUND_SHARE * step_ns


def is_uneven(rank: Rank, others: Sequence[Rank]) -> bool:
    """Return whether most of the work of a rank is in kernels that its peers do not run alike."""
    return unlike(rank, others) >= UNLIKE_KERNELS_SHARE


def differences(rank: Rank, others: Sequence[Rank], most: int | None = MOST_UNEVEN_KERNELS) -> tuple[Differs, ...]:
    """Return the kernels that a rank spends more time in than its peers do, by name, the largest difference first: so many at most."""
    here, theirs = _by_name(rank), [_by_name(other) for other in others]
    told = []
    for name, (times, ns, grids) in here.items():
        there = sorted(t.get(name, (0.0, 0.0, frozenset())) for t in theirs)
        if not there:
            continue
        times_there, ns_there, _ = sorted(there, key=lambda x: x[1])[len(there) // 2]
        if ns <= ns_there:
            continue
        same_grids = all(grids == g for _, _, g in there)
        how = OTHER if not times_there else MORE if times > times_there else LONGER if same_grids else LARGER
        told.append(Differs(*name, how, times=times, times_there=times_there, ns=ns, ns_there=ns_there))
    return tuple(sorted(told, key=lambda d: (d.ns_there - d.ns, d.kernel))[:most])


def rows(differs: Sequence[Differs]) -> list[Mapping[str, Any]]:
    """Return the differences as they stand in the table of ranks: per step."""
    return [
        {
            "kernel": d.kernel,
            "how": d.how,
            "count": round(d.times, 2),
            "others_count": round(d.times_there, 2),
            "ns": round(d.ns),
            "others_ns": round(d.ns_there),
        }
        for d in differs
    ]


def _by_name(rank: Rank) -> dict[tuple[str, str], tuple[float, float, frozenset[tuple[int, int]]]]:
    """Return function, family -> how often and how long (ns) it runs in a step of a rank, and its grids and blocks."""
    sums: dict[tuple[str, str], tuple[float, float, frozenset[tuple[int, int]]]] = {}
    for (name, grid, block), (count, ns) in rank.kernels.items():
        key = function_of(name), family(name)
        times, before, shapes = sums.get(key, (0.0, 0.0, frozenset()))
        steps = max(rank.steps_of_kernels, 1)
        sums[key] = times + count / steps, before + ns / steps, shapes | {(grid, block)}
    return sums

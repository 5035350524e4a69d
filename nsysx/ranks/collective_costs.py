"""What matched collectives cost each rank: waiting for a rank that arrived later, and transfer.

Among the kernels of one collective (the n-th of its kind and communicator), the shortest gives the *transfer*; any time beyond
that is *waiting* for the rank that arrived last. Exposed communication is exactly exposed waiting plus exposed transfer plus
exposed communication without a counterpart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nsysx.frames.intervals import I64, StepFunction, coverage, nesting, overlay
from nsysx.ranks.match import Aligned, SeriesKey
from nsysx.ranks.rank_bounds import MOST_LATE_RANKS
from nsysx.ranks.rank_record import Rank
from nsysx.reading import nccl_notes

Bools = npt.NDArray[np.bool_]


@dataclass
class Tally:
    """Matched collectives of one series in the window of one rank. ``sized``: how many have their bytes noted by NCCL.

    ``usual_ns`` is their transfer with the median of the same series and size in place of each one's shortest kernel.
    """

    calls: int = 0
    transfer_ns: int = 0
    wait_ns: int = 0
    sized: int = 0
    bytes: int = 0
    bus_bytes: float = 0.0
    bus_ns: int = 0
    usual_ns: int = 0

    def bandwidth(self) -> float | None:
        """Return the bus bandwidth in bytes/s, None if no size is known."""
        return round(self.bus_bytes / self.bus_ns * 1e9, 1) if self.bus_ns and self.bus_bytes else None


class Among(NamedTuple):
    """Who takes part in a series: the ranks, in order. ``together``: a collective, else send and receive; ``between_two``: messages
    that only two ranks exchange, as the stages of a pipeline do; ``inside``: how many of them begin in the rank's window.
    """

    ranks: tuple[int, ...]
    together: bool
    between_two: bool
    inside: int


@dataclass
class CollectiveCosts:
    """What the matched collectives of a rank cost in its window."""

    tallies: dict[SeriesKey, Tally] = field(default_factory=dict)
    last: int = 0
    collectives: int = 0
    delay_ns: int = 0
    waiting: list[tuple[I64, I64]] = field(default_factory=list)
    moving: list[tuple[I64, I64]] = field(default_factory=list)
    #: Who takes part, for each of ``waiting``, and the place of the rank that came last to each of its collectives.
    among: list[Among] = field(default_factory=list)
    latest: list[I64] = field(default_factory=list)
    #: Which collectives of the rank ``waiting`` and ``moving`` are of.
    rows: list[I64] = field(default_factory=list)

    def whole(self) -> Tally:
        """Return all series together."""
        tallies = list(self.tallies.values())
        return Tally(*(sum(getattr(t, f.name) for t in tallies) for f in fields(Tally)))


def _usual_transfer(transfer: I64, sizes: I64) -> I64:
    """Return for each collective of a series the median transfer (ns) of those of its size."""
    usual = np.zeros(len(transfer), np.int64)
    for size in np.unique(sizes):
        usual[sizes == size] = int(np.median(transfer[sizes == size]))
    return usual


def _tally(tally: Tally, rank: Rank, key: SeriesKey, inside: Bools, message: I64, transfer: I64, waited: I64) -> None:
    """Add the collectives of a series that begin in the window of a rank."""
    tally.calls += int(inside.sum())
    tally.transfer_ns += int(transfer[inside].sum())
    tally.usual_ns += int(_usual_transfer(transfer, message)[inside].sum())
    tally.wait_ns += int(waited[inside].sum())
    size = rank.members[key.communicator].size if key.communicator in rank.members else None
    sized = inside & (message >= 0)
    tally.sized += int(sized.sum())
    tally.bytes += int(message[sized].sum())
    if (carried := nccl_notes.bus_bytes(key.kind, size, int(message[sized].sum()))) is not None:
        tally.bus_bytes += carried
        tally.bus_ns += int(transfer[sized].sum())


def costs_of(aligned: Aligned) -> list[CollectiveCosts]:
    """Return what the matched collectives cost each rank, in the order of the ranks.

    Arriving last counts only in collectives: a receive waits for what the pipeline has not computed yet, whoever computes it.
    """
    costs = [CollectiveCosts() for _ in aligned.ranks]
    delay_ns = np.zeros(len(costs), np.int64)
    for key, group in aligned.groups:
        members, places = list(group), np.fromiter(group, np.int64)
        together_with = tuple(sorted(members))
        ranks = [aligned.ranks[r] for r in members]
        start = np.stack([rank.start_ns[group[r]] for r, rank in zip(members, ranks, strict=True)])
        end = np.stack([rank.end_ns[group[r]] for r, rank in zip(members, ranks, strict=True)])
        length = end - start
        transfer = length.min(axis=0)
        waited = length - transfer
        together = key.kind != nccl_notes.SEND_RECEIVE
        last = (start + np.array([aligned.offset[r] for r in members])[:, None]).argmax(axis=0)
        latest = places[last]
        for i, (r, rank) in enumerate(zip(members, ranks, strict=True)):
            of_rank = costs[r]
            of_rank.waiting.append((start[i], end[i] - transfer))
            of_rank.moving.append((end[i] - transfer, end[i]))
            of_rank.latest.append(latest)
            of_rank.rows.append(group[r])
            inside = (start[i] >= rank.window[0]) & (start[i] < rank.window[1])
            of_rank.among.append(Among(together_with, together, key.between_two, int(inside.sum())))
            if not inside.any():
                continue
            if together:
                of_rank.collectives += int(inside.sum())
                of_rank.last += int((last[inside] == i).sum())
                for_others = inside & (last != i)
                np.add.at(delay_ns, latest[for_others], waited[i][for_others])
            tally = of_rank.tallies.setdefault(key, Tally())
            _tally(tally, rank, key, inside, rank.message_bytes[group[r]], transfer, waited[i])
    for of_rank, ns in zip(costs, delay_ns.tolist(), strict=True):
        of_rank.delay_ns = ns
    return costs


def _ends(pairs: Sequence[tuple[I64, I64]]) -> tuple[I64, I64]:
    """Return the starts and the ends of several sets of intervals."""
    nothing = np.empty(0, np.int64)
    return np.concatenate([a for a, _ in pairs] or [nothing]), np.concatenate([b for _, b in pairs] or [nothing])


def _in_window(rank: Rank, costs: CollectiveCosts, chosen: Sequence[int]) -> tuple[I64, Bools, Bools, Bools]:
    """Return borders in the rank's window, and which stretches are exposed waiting, exposed transfer, or unmatched.

    Of the matched collectives only the chosen ones count; where one transfers and another waits, it is transfer.
    """
    waiting, moving = _ends([costs.waiting[i] for i in chosen]), _ends([costs.moving[i] for i in chosen])
    matched = coverage([waiting, moving])
    alone: StepFunction = coverage([rank.exposed])
    times, (label, shown) = overlay([matched, alone], *rank.window)
    open_ = shown > 0
    moves = open_ & (label > 0) & ((label & 2) > 0)
    waits = open_ & (label > 0) & ~moves
    return times, waits, moves, open_ & (label <= 0)


def exposed(rank: Rank, costs: CollectiveCosts) -> tuple[int, int, int]:
    """Return exposed communication in the window (ns): matched collectives wait, they transfer, and unmatched."""
    times, *parts = _in_window(rank, costs, range(len(costs.waiting)))
    span = np.diff(times)
    waits, moves, unmatched = (int(span[part].sum()) for part in parts)
    return waits, moves, unmatched


#: What a rank does in a stretch of exposed communication.
WAITS, MOVES, UNMATCHED = range(3)


class Stretches(NamedTuple):
    """Stretches of exposed communication in the window of a rank, in order: how long (ns), the state, the collective that it is in (-1:
    not known), and the place of the rank that came last to it (-1: none, as where it does not wait).
    """

    ns: I64
    state: I64
    row: I64
    late: I64


def stretches(rank: Rank, costs: CollectiveCosts) -> Stretches:
    """Return the exposed communication of a rank by collective: the one that began last, where several run.

    Where one transfers and another waits, it is transfer; the sums of the states are those of ``exposed``.
    """
    nothing = np.empty(0, np.int64)
    rows, late = (np.concatenate([nothing, *parts]) for parts in (costs.rows, costs.latest))
    lone = np.setdiff1d(np.arange(len(rank.start_ns)), rows)
    sets = [_ends(costs.waiting), _ends(costs.moving), (rank.start_ns[lone], rank.end_ns[lone])]
    open_ = [nesting(begin, finish).top for begin, finish in sets]
    times, (waits, moves, alone, shown) = overlay([*open_, coverage([rank.exposed])], *rank.window)
    inside = shown > 0
    ns = np.diff(times)[inside]
    waits, moves, alone = (labels[inside].astype(np.int64) for labels in (waits, moves, alone))
    state = np.where(moves >= 0, MOVES, np.where(waits >= 0, WAITS, UNMATCHED))
    matched = np.append(rows, -1)[np.where(moves >= 0, moves, waits)]
    row = np.where(state == UNMATCHED, np.append(lone, -1)[alone], matched)
    return Stretches(ns, state, row, np.where(state == WAITS, np.append(late, -1)[waits], -1))


def exposed_by(parts: Stretches, itself: int) -> dict[int | None, int]:
    """Return the place of a rank -> exposed waiting for it, most first (ns); None: for all others, and what nobody is late for.

    ``itself`` is the place of the rank. They sum to its exposed waiting.
    """
    waits = parts.state == WAITS
    late, ns = parts.late[waits], parts.ns[waits]
    sums = {r: int(ns[late == r].sum()) for r in np.unique(late).tolist() if r not in (itself, -1)}
    told: dict[int | None, int] = {}
    for r in sorted(sums, key=lambda r: (-sums[r], r))[:MOST_LATE_RANKS]:
        told[r] = sums[r]
    rest = int(ns.sum()) - sum(told.values())
    return {r: ns for r, ns in told.items() if ns} | ({None: rest} if rest else {})


def exposed_in(rank: Rank, costs: CollectiveCosts, chosen: Sequence[int]) -> int:
    """Return the exposed waiting of a rank over its window, in the chosen matched collectives (ns)."""
    times, waits, _, _ = _in_window(rank, costs, chosen)
    return int(np.diff(times)[waits].sum())


def waiting_per_step(rank: Rank, costs: CollectiveCosts, chosen: Sequence[int]) -> I64:
    """Return the exposed waiting of a rank in each of its steps, in the chosen matched collectives (ns)."""
    assert rank.tiles is not None
    times, waits, _, _ = _in_window(rank, costs, chosen)
    return StepFunction(times, waits.astype(np.int64)).within(waits, rank.tiles.start_ns, rank.tiles.end_ns)

"""What matched collectives cost each rank: waiting for a rank that arrived later, and transfer.

Of the n-th collective of its kind and communicator, the shortest kernel is what the *transfer* takes; what a kernel takes
longer is *waiting* for the rank that arrived last. Exposed communication is exposed waiting, exposed transfer and what has no
counterpart, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np

from nsysx.frames.intervals import I64, StepFunction, coverage, overlay
from nsysx.ranks.collect import Rank
from nsysx.ranks.match import Aligned, Key
from nsysx.reading import nccl_notes


@dataclass
class Tally:
    """Matched collectives of one series in the window of one rank. ``sized``: those of which NCCL noted the bytes."""

    calls: int = 0
    transfer_ns: int = 0
    wait_ns: int = 0
    sized: int = 0
    bytes: int = 0
    bus_bytes: float = 0.0
    bus_ns: int = 0

    def bandwidth(self) -> float | None:
        """Return the bus bandwidth in bytes/s, None where no size is known."""
        return round(self.bus_bytes / self.bus_ns * 1e9, 1) if self.bus_ns and self.bus_bytes else None


@dataclass
class Costs:
    """What the matched collectives of a rank cost in its window."""

    tallies: dict[Key, Tally] = field(default_factory=dict)
    last: int = 0
    delay_ns: int = 0
    waiting: list[tuple[I64, I64]] = field(default_factory=list)
    moving: list[tuple[I64, I64]] = field(default_factory=list)

    def whole(self) -> Tally:
        """Return all series together."""
        tallies = list(self.tallies.values())
        return Tally(*(sum(getattr(t, f.name) for t in tallies) for f in fields(Tally)))


def costs_of(aligned: Aligned) -> list[Costs]:
    """Return what the matched collectives cost each rank, in the order of the ranks."""
    costs = [Costs() for _ in aligned.ranks]
    for key, group in aligned.groups:
        members = list(group)
        ranks = [aligned.ranks[r] for r in members]
        start = np.stack([rank.start_ns[group[r]] for r, rank in zip(members, ranks, strict=True)])
        end = np.stack([rank.end_ns[group[r]] for r, rank in zip(members, ranks, strict=True)])
        length = end - start
        transfer = length.min(axis=0)
        waited = length - transfer
        last = (start + np.array([aligned.offset[r] for r in members])[:, None]).argmax(axis=0)
        for i, (r, rank) in enumerate(zip(members, ranks, strict=True)):
            mine = costs[r]
            mine.waiting.append((start[i], end[i] - transfer))
            mine.moving.append((end[i] - transfer, end[i]))
            inside = (start[i] >= rank.window[0]) & (start[i] < rank.window[1])
            if not inside.any():
                continue
            mine.last += int((last[inside] == i).sum())
            for other, late in zip(members, range(len(members)), strict=True):
                if late != i:
                    costs[other].delay_ns += int(waited[i][inside & (last == late)].sum())
            tally = mine.tallies.setdefault(key, Tally())
            tally.calls += int(inside.sum())
            tally.transfer_ns += int(transfer[inside].sum())
            tally.wait_ns += int(waited[i][inside].sum())
            size = rank.members[key[0]].size if key[0] in rank.members else None
            message = rank.message_bytes[group[r]]
            known = inside & (message >= 0)
            tally.sized += int(known.sum())
            tally.bytes += int(message[known].sum())
            if (carried := nccl_notes.bus_bytes(key[2], size, int(message[known].sum()))) is not None:
                tally.bus_bytes += carried
                tally.bus_ns += int(transfer[known].sum())
    return costs


def exposed(rank: Rank, costs: Costs) -> tuple[int, int, int]:
    """Return exposed communication of the window in which matched collectives waited, transferred, and the rest (ns)."""
    sets = [
        tuple(np.concatenate([pair[i] for pair in pairs] or [np.empty(0, np.int64)]) for i in range(2))
        for pairs in (costs.waiting, costs.moving)
    ]
    what = coverage([(sets[0][0], sets[0][1]), (sets[1][0], sets[1][1])])
    shown: StepFunction = coverage([rank.exposed])
    times, (label, alone) = overlay([what, shown], *rank.window)
    span = np.diff(times) * (alone > 0)
    moving = (label > 0) & ((label & 2) > 0)
    waiting = (label > 0) & ~moving
    return int(span[waiting].sum()), int(span[moving].sum()), int(span[label <= 0].sum())

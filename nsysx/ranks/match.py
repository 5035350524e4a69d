"""The collectives of all ranks on one clock: which of them are the same one, and over which steps ranks can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nsysx.frames.intervals import I64
from nsysx.ranks.rank_bounds import COLLECTIVES_TOGETHER_SHARE, MOST_SHIFTS, SAME_STEPS_SHARE, SENDS_TOGETHER_SHARE
from nsysx.ranks.rank_record import Rank
from nsysx.reading.nccl_notes import SEND_RECEIVE


class SeriesKey(NamedTuple):
    """What identifies a series of collectives over ranks: kind and communicator (with the pair inside it), or if that is "",
    the stream's number.
    """

    communicator: str
    pair: tuple[int, ...]
    stream: int
    kind: str

    @property
    def between_two(self) -> bool:
        """Whether only two ranks exchange these messages, or NCCL did not note who does; an all-to-all has more partners."""
        return self.kind == SEND_RECEIVE and (bool(self.pair) or not self.communicator)


@dataclass(frozen=True)
class Aligned:
    """The collectives of all ranks on one clock. ``offset[r]`` is added to the times of rank r (ns)."""

    ranks: Sequence[Rank]
    offset: list[int]
    correction: list[int | None]
    #: One entry per group of ranks that run a series together: its key, and rank -> rows, equally many for each.
    groups: list[tuple[SeriesKey, dict[int, I64]]] = field(default_factory=list)
    #: What is made of them once for all who ask, by what was asked.
    made: dict[tuple[object, ...], Any] = field(default_factory=dict, init=False, repr=False, compare=False)


def _shift(a: I64, b: I64) -> int:
    """Return the index in ``b`` of the first collective of ``a`` (negative: it is missing there).

    One of two captures of a job may begin or end earlier. If both hold equally many collectives, they are the same; else the
    shift is the one that brings their ends closest together.
    """
    if len(a) == len(b):
        return 0
    best, nearest = None, 0
    low, high = min(0, len(b) - len(a)), max(0, len(b) - len(a))
    tried = range(low, high + 1)
    if len(tried) > MOST_SHIFTS:  # more than that many missing: let time say where to look
        near = int(np.searchsorted(b, a[0]) - np.searchsorted(a, b[0])) if len(a) and len(b) else 0
        tried = range(max(low, near - MOST_SHIFTS // 2), min(high, near + MOST_SHIFTS // 2) + 1)
    for shift in tried:
        i, j = max(0, -shift), max(0, shift)
        n = min(len(a) - i, len(b) - j)
        if n <= 0:
            continue
        apart = float(np.median(np.abs(a[i : i + n] - b[j : j + n])))
        if best is None or apart < best:
            best, nearest = apart, shift
    return nearest


def _pairs(end_a: I64, end_b: I64) -> tuple[I64, I64]:
    """Return the positions of the same collectives in both sequences, matched by their ends."""
    shift = _shift(end_a, end_b)
    i, j = max(0, -shift), max(0, shift)
    both = np.arange(max(0, min(len(end_a) - i, len(end_b) - j)))
    return both + i, both + j


def _pairs_by_part(ends: tuple[I64, I64], parts: tuple[I64, I64]) -> tuple[I64, I64]:
    """Return likewise the positions of the same collectives where captures have parts: the number of its part is given for each.

    A rank may record a step more or less than another one at the border of each part.
    """
    (end_a, end_b), (part_a, part_b) = ends, parts
    i, j = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for part in np.intersect1d(part_a, part_b):
        first_a, first_b = np.searchsorted(part_a, part), np.searchsorted(part_b, part)
        of_a, of_b = _pairs(end_a[part_a == part], end_b[part_b == part])
        i.append(of_a + first_a)
        j.append(of_b + first_b)
    return np.concatenate(i), np.concatenate(j)


def _same(aligned: Aligned, a: int, rows_a: I64, b: int, rows_b: I64) -> tuple[I64, I64]:
    """Return the positions of the same collectives among these of two ranks."""
    ends = _times(aligned, a, rows_a)[1], _times(aligned, b, rows_b)[1]
    of_a, of_b = aligned.ranks[a], aligned.ranks[b]
    if not of_a.seams or len(of_a.seams) != len(of_b.seams):
        return _pairs(*ends)
    parts = [
        np.searchsorted(rank.seams, rank.start_ns[rows], side="right")
        for rank, rows in ((of_a, rows_a), (of_b, rows_b))
    ]
    return _pairs_by_part(ends, (parts[0], parts[1]))


def _times(aligned: Aligned, r: int, rows: I64) -> tuple[I64, I64]:
    """Return start and end of collectives of rank r on the common clock."""
    rank, offset = aligned.ranks[r], aligned.offset[r]
    return rank.start_ns[rows] + offset, rank.end_ns[rows] + offset


def _rows(rank: Rank, *, named: bool) -> dict[SeriesKey, I64]:
    """Return the rows of each series, by communicator if it is known and ``named``, else by stream."""
    by_key: dict[SeriesKey, list[int]] = {}
    for i, s in enumerate(rank.series):
        noted = named and s.communicator
        key = SeriesKey(s.communicator, s.pair, 0, s.kind) if noted else SeriesKey("", (), s.stream, s.kernel_kind)
        by_key.setdefault(key, []).append(i)
    return {key: np.flatnonzero(np.isin(rank.belongs, which)) for key, which in by_key.items()}


def align(ranks: Sequence[Rank]) -> Aligned:
    """Put all ranks on the clock of the first and match their collectives.

    Session starts align the clocks of the reports roughly; then the median difference between the ends of matched collectives,
    which end together, is subtracted. The ranks of one report share its clock.
    """
    epochs = [r.utc_epoch_ns for r in ranks if r.utc_epoch_ns is not None]
    offset = [0 if r.utc_epoch_ns is None else r.utc_epoch_ns - epochs[0] for r in ranks]
    aligned = Aligned(ranks, offset, [None] * len(ranks))
    # If one rank's export lacks NCCL's notes, all ranks are matched by stream.
    named = all(any(s.communicator for s in r.series) for r in ranks if r.series)
    rows = [_rows(r, named=named) for r in ranks]
    _correct_clocks(aligned, rows, named=named)
    for key in sorted({k for of_rank in rows for k in of_rank}):
        groups: list[dict[int, I64]] = []
        for r in range(len(ranks)):
            if key in rows[r]:
                # NCCL itself says that these are one series; for send and receive only if both ranks are known.
                sure = bool(key.communicator) and (key.kind != SEND_RECEIVE or bool(key.pair))
                least = SENDS_TOGETHER_SHARE if key.kind == SEND_RECEIVE else COLLECTIVES_TOGETHER_SHARE
                _join_group(aligned, groups, r, rows[r][key], sure=sure, least=least)
        aligned.groups.extend((key, group) for group in groups if len(group) > 1)
    return aligned


def _longest(rows: dict[SeriesKey, I64], shared: Iterable[SeriesKey], other: dict[SeriesKey, I64]) -> SeriesKey:
    """Return the series with the most collectives on both of two ranks."""
    return max(shared, key=lambda k: (min(len(rows[k]), len(other[k])), k))


class _Stacked(NamedTuple):
    """The longest series of each rank, those of ranks that hold the same series with as many collectives in one array, rank by row.

    ``place`` is rank -> (number of its arrays, its row in them), for ranks that have collectives.
    """

    place: dict[int, tuple[int, int]]
    members: list[I64]
    start_ns: list[I64]
    end_ns: list[I64]

    def may_overlap(self, offset: I64, r: int) -> npt.NDArray[np.bool_]:
        """Return for each rank whether its collectives may run at the same time as those of rank r.

        It tells all ranks at once what `_correction` tells of one, so that this is asked only of those that do.
        """
        may = np.ones(len(offset), bool)
        if r in self.place:
            array, row = self.place[r]
            members, start, end = self.members[array], self.start_ns[array], self.end_ns[array]
            later = (offset[members] - offset[r])[:, None]
            together = (start[row] < end + later) & (start + later < end[row])
            may[members] = together.mean(axis=1) >= COLLECTIVES_TOGETHER_SHARE
        return may


def _stacked(ranks: Sequence[Rank], rows: list[dict[SeriesKey, I64]]) -> _Stacked:
    """Return the longest series of each rank, see `_Stacked`."""
    alike: dict[tuple[tuple[SeriesKey, int], ...], list[int]] = {}
    for r, of_rank in enumerate(rows):
        if any(map(len, of_rank.values())):
            alike.setdefault(tuple(sorted((key, len(indices)) for key, indices in of_rank.items())), []).append(r)
    stacked = _Stacked({}, [], [], [])
    for array, same in enumerate(alike.values()):
        key = _longest(rows[same[0]], rows[same[0]], rows[same[0]])
        stacked.place.update({r: (array, row) for row, r in enumerate(same)})
        stacked.members.append(np.array(same, np.int64))
        stacked.start_ns.append(np.stack([ranks[r].start_ns[rows[r][key]] for r in same]))
        stacked.end_ns.append(np.stack([ranks[r].end_ns[rows[r][key]] for r in same]))
    return stacked


def _correct_clocks(aligned: Aligned, rows: list[dict[SeriesKey, I64]], *, named: bool) -> None:
    """Refine the clock of each report by collectives that it shares with one whose clock is settled.

    Collectives that already overlap by the session starts are the same, and their ends give the finer clock. If a report
    overlaps with no settled one, its clock is wrong by more, and its collectives are matched by their order: ranks of another host overlap
    with each other. Without names of communicators (not ``named``) such ranks may have another one: they keep their session start.
    """
    by_report: dict[int, list[int]] = {}
    for r, rank in enumerate(aligned.ranks):
        by_report.setdefault(rank.report, []).append(r)
    reports = list(by_report.values())
    report_of = np.empty(len(rows), np.int64)
    for i, members in enumerate(reports):
        report_of[members] = i
    stacked, settled = _stacked(aligned.ranks, rows), list[int]()
    #: Row n: which ranks may overlap with the n-th settled one.
    overlaps = np.zeros((len(rows), len(rows)), bool)
    waiting, chance = np.ones(len(reports), bool), np.zeros(len(reports), bool)
    #: How many of the settled ranks a report that waits does not overlap with: none of their clocks moves any more.
    tried = [0] * len(reports)

    def settle(i: int, correction: int) -> None:
        waiting[i] = False
        for r in reports[i]:
            aligned.offset[r] += correction
            aligned.correction[r] = correction
        offset = np.array(aligned.offset, np.int64)
        for r in reports[i]:
            overlaps[len(settled)] = may = stacked.may_overlap(offset, r)
            chance[report_of[may]] = True
            settled.append(r)

    def first(pairs: Iterable[tuple[int, int]], *, overlapping: bool) -> int | None:
        return next((c for r, o in pairs if (c := _correction(aligned, rows, r, o, overlapping)) is not None), None)

    def fit(members: list[int], others: Sequence[int], *, overlapping: bool) -> int | None:
        return first(((r, o) for o in others for r in members), overlapping=overlapping)

    if reports:
        settle(0, 0)
    while waiting.any():
        for i in map(int, np.flatnonzero(waiting & chance)):
            untried = np.argwhere(overlaps[tried[i] : len(settled), reports[i]])
            pairs = ((reports[i][m], settled[tried[i] + n]) for n, m in untried.tolist())
            if (correction := first(pairs, overlapping=True)) is not None:
                settle(i, correction)
                break
            tried[i], chance[i] = len(settled), False
        else:
            i, *later = np.flatnonzero(waiting).tolist()
            members, others = reports[i], [r for other in later for r in reports[other]]
            if named and (correction := fit(members, settled, overlapping=False)) is not None:
                settle(i, correction)  # NCCL names a communicator that both are in
            elif fit(members, others, overlapping=True) is not None:
                settle(i, 0)
            else:
                settle(i, fit(members, settled, overlapping=False) or 0)


def _correction(
    aligned: Aligned, rows: list[dict[SeriesKey, I64]], r: int, other: int, overlapping: bool
) -> int | None:
    """Return what to add to the times of rank r (ns) so that its collectives end with those of ``other``, None if they do not.

    ``overlapping``: they must run at the same time without correction; otherwise they must end together once corrected.
    """
    shared = [k for k in rows[r] if k in rows[other]]
    if not shared:
        return None
    key = _longest(rows[r], shared, rows[other])
    ours, theirs = rows[r][key], rows[other][key]
    (start, end), (other_start, other_end) = _times(aligned, r, ours), _times(aligned, other, theirs)
    i, j = _same(aligned, r, ours, other, theirs)
    if not len(i):
        return None
    apart = other_end[j] - end[i]
    correction = int(np.median(apart))
    if overlapping:
        together = (start[i] < other_end[j]) & (other_start[j] < end[i])
        return correction if np.mean(together) >= COLLECTIVES_TOGETHER_SHARE else None
    usual = max(float(np.median(end - start)), 50_000.0)
    return correction if np.median(np.abs(apart - correction)) <= usual else None


def _join_group(
    aligned: Aligned,
    groups: list[dict[int, I64]],
    r: int,
    collectives: I64,
    *,
    sure: bool,
    least: float = COLLECTIVES_TOGETHER_SHARE,
) -> None:
    """Add rank r to the group whose kernels run at the same time as its own, else start a new group.

    ``sure``: they are known to be the same; a broadcast's root may be done before the others begin. ``least``: the share of
    them that has to run at the same time.
    """
    start, end = _times(aligned, r, collectives)
    for group in groups:
        leader = next(iter(group))
        lead_start, lead_end = _times(aligned, leader, group[leader])
        i, j = _same(aligned, leader, group[leader], r, collectives)
        together = (lead_start[i] < end[j]) & (start[j] < lead_end[i])
        if len(i) and ((sure and len(end) == len(lead_end)) or np.mean(together) >= least):
            for member in group if len(i) < len(lead_end) else ():
                group[member] = group[member][i]
            group[r] = collectives[j]
            return
    groups.append({r: collectives})


def common(aligned: Aligned) -> list[Rank]:
    """Return the ranks with their figures over the steps that are steady on all of them.

    Steady steps are found per report, and a rank that counts a long warm-up step as steady would look slower than the others.
    A step is common if its middle lies in the steady time of every rank. If no step is, each rank keeps its own.
    """
    ranks = aligned.ranks
    starts = [r.window[0] + offset for r, offset in zip(ranks, aligned.offset, strict=True)]
    ends = [r.window[1] + offset for r, offset in zip(ranks, aligned.offset, strict=True)]
    low, high = max(starts), min(ends)
    shortest = min(r.parts["window_ns"] // max(r.steps, 1) for r in ranks)
    if len({r.steps for r in ranks}) == 1 and low - min(starts) < shortest:
        return list(ranks)  # the same steps, perhaps one rank after the other as in a pipeline
    if _hold_the_same_in_each_step(aligned):
        return list(ranks)  # one rank began long before the others, which ran between two of them
    cut = []
    for rank, offset in zip(ranks, aligned.offset, strict=True):
        if rank.tiles is None:
            return list(ranks)
        middle = rank.tiles.start_ns + (rank.tiles.end_ns - rank.tiles.start_ns) // 2 + offset
        inside = (middle >= low) & (middle < high)
        if not inside.any():
            return list(ranks)
        cut.append(replace(rank, tiles=rank.tiles.only(inside), **rank.tiles.figures(inside)))
    return cut


def _hold_the_same_in_each_step(aligned: Aligned) -> bool:
    """Return whether all ranks have as many steady steps, and the first of each holds the same collectives, the second, and so on."""
    ranks = aligned.ranks
    if len({rank.steps for rank in ranks}) != 1 or any(
        rank.tiles is None or len(rank.tiles.start_ns) != rank.steps for rank in ranks
    ):
        return False
    seen = same = 0
    for _, group in aligned.groups:
        if len(group) < len(ranks):
            continue
        of_step = []
        for r, rows in group.items():
            tiles, start = ranks[r].tiles, ranks[r].start_ns[rows]
            assert tiles is not None
            number = np.searchsorted(tiles.start_ns, start, side="right") - 1
            of_step.append(np.where(start < tiles.end_ns[number], number, -1))
        numbers = np.stack(of_step)
        inside = (numbers >= 0).any(axis=0)
        seen += int(inside.sum())
        same += int((numbers == numbers[0])[:, inside].all(axis=0).sum())
    return same >= SAME_STEPS_SHARE * seen > 0

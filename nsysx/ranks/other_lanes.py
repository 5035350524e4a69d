"""The GPU work of ranks in other reports as lanes beside those of the shown rank, on its clock.

A record of a rank holds no single operation, so the few windows that are drawn are read once more, of the GPU work alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import polars as pl

from nsysx.analyses.helpers import picture_windows, timeline_data
from nsysx.events.profile import Profile
from nsysx.pictures import CPU_ROLES, Lane, Timeline
from nsysx.ranks import collective_costs, rank_record, straggler
from nsysx.ranks.match import Aligned, common
from nsysx.ranks.rank_bounds import (
    FEWEST_DRAWN_RANKS,
    MOST_DRAWN_LANES,
    MOST_DRAWN_RANKS,
    MOST_DRAWN_SPANS,
    MOST_DRAWN_STREAMS,
)


class Stretch(NamedTuple):
    """A window [start_ns, end_ns) on the clock of the shown report."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class DrawnRank:
    """A rank that is drawn: its lanes are "rank ``number``". ``offset_ns`` is added to its times for the clock of the shown report."""

    report: int
    number: int
    process: int
    device: int
    offset_ns: int


@dataclass(frozen=True)
class LanePlan:
    """What may be drawn of other ranks in each of ``windows``; ``more`` are too many, and the clock of ``apart`` is unknown.

    ``shown_rank`` is the number of the shown rank, None if its report holds several, whose lanes are told apart by their device.
    """

    windows: tuple[Stretch, ...] = ()
    wanted: tuple[DrawnRank, ...] = ()
    shown_rank: int | None = None
    more: tuple[int, ...] = ()
    apart: tuple[int, ...] = ()

    @property
    def span(self) -> Stretch:
        """From the first window's start to the last one's end."""
        return Stretch(min(w.start_ns for w in self.windows), max(w.end_ns for w in self.windows))


#: The lanes of a rank (its number) in each window.
Lanes = Mapping[tuple[int, Stretch], tuple[Lane, ...]]


@dataclass(frozen=True)
class OtherRanksLanes:
    """The lanes of the other ranks, as they were planned."""

    plan: LanePlan = field(default_factory=LanePlan)
    lanes: Lanes = field(default_factory=dict)


def plan(profile: Profile, aligned: Aligned, report: int) -> LanePlan:
    """Return what is drawn beside ``profile``, of the report with this number: ranks that it does not hold, on a known clock."""
    ranks, windows = aligned.ranks, tuple(Stretch(w.start_ns, w.end_ns) for w in picture_windows.windows(profile))
    here = {process for process, _ in profile.ledgers.activity}
    held = [n for n, r in enumerate(ranks) if r.report == report and r.process in here]
    others = [n for n in range(len(ranks)) if n not in held]
    if not windows or not held or not others:
        return LanePlan()
    comparable = _on_one_clock(aligned, report)
    placed = [n for n in others if ranks[n].report in comparable]
    if len(placed) > FEWEST_DRAWN_RANKS and (late := _late_rank(aligned)) is not None:
        placed.sort(key=lambda n: n != late)  # the one that the others wait for is drawn before any other
    zero = aligned.offset[held[0]]
    numbers = [rank_record.number(ranks, n) for n in range(len(ranks))]
    return LanePlan(
        windows,
        tuple(
            DrawnRank(ranks[n].report, numbers[n], ranks[n].process, ranks[n].device, aligned.offset[n] - zero)
            for n in placed[:MOST_DRAWN_RANKS]
        ),
        numbers[held[0]] if len(held) == 1 else None,
        tuple(numbers[n] for n in placed[MOST_DRAWN_RANKS:]),
        tuple(numbers[n] for n in others if n not in placed),
    )


def _late_rank(aligned: Aligned) -> int | None:
    """Return the place of the rank that the others wait for, as in the table of the ranks; None if they wait for nobody."""
    compared = replace(aligned, ranks=common(aligned))
    late = straggler.find(compared, collective_costs.costs_of(compared))
    return None if late is None else late.place


def _ranks_sentence(numbers: Sequence[int], what: str) -> str:
    """Return a sentence about ranks, "" about none."""
    if not numbers:
        return ""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    names = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    shown = ", ".join(names[:4]) + (" and others" if len(names) > 4 else "")
    return f"Rank{'s' if len(numbers) > 1 else ''} {shown}: {what}."


def _on_one_clock(aligned: Aligned, report: int) -> set[int]:
    """Return the reports whose clock is known on that of ``report``: by collectives in common, over others too, or by one host's."""
    ranks = aligned.ranks
    groups = [{ranks[r].report for r in group} for _, group in aligned.groups]
    shown = next(r for r in ranks if r.report == report)
    reports = {report}
    if shown.host is not None and shown.utc_epoch_ns is not None:
        reports |= {r.report for r in ranks if r.host == shown.host and r.utc_epoch_ns is not None}
    while more := set().union(*(g for g in groups if g & reports)) - reports:
        reports |= more
    return reports


def lanes(planned: LanePlan, report: int, ops: pl.DataFrame) -> Lanes:
    """Return the lanes of the ranks of one report; ``ops`` are its GPU operations, as ``events.correlate`` makes them."""
    most = MOST_DRAWN_SPANS // max(1, MOST_DRAWN_STREAMS * len(planned.wanted))
    return {
        (rank.number, window): timeline_data.lanes_of_rank(
            ops.filter(pl.col("process") == rank.process),
            window.start_ns - rank.offset_ns,
            window.end_ns - rank.offset_ns,
            device=rank.device,
            streams=MOST_DRAWN_STREAMS,
            most=most,
        )
        for rank in planned.wanted
        if rank.report == report
        for window in planned.windows
    }


def added(picture: Timeline, beside: OtherRanksLanes) -> Timeline:
    """Return the picture with the lanes of as many other ranks as there is room for below its own, each named by its rank."""
    planned, window = beside.plan, Stretch(picture.start_ns, picture.end_ns)
    room = max(FEWEST_DRAWN_RANKS, MOST_DRAWN_LANES - len(picture.lanes))
    drawn, left = sorted(planned.wanted[:room], key=lambda rank: rank.number), planned.wanted[room:]
    streams = MOST_DRAWN_STREAMS if MOST_DRAWN_STREAMS * len(drawn) <= room else 1
    others = [
        replace(lane, label=f"rank {rank.number}: {lane.label}")
        for rank in drawn
        for lane in beside.lanes[rank.number, window][:streams]
    ]
    labeled = [
        lane
        if planned.shown_rank is None or lane.role in CPU_ROLES
        else replace(lane, label=f"rank {planned.shown_rank}: {lane.label}")
        for lane in picture.lanes
    ]
    more = _ranks_sentence([*(rank.number for rank in left), *planned.more], "not drawn")
    apart = _ranks_sentence(planned.apart, "not drawn, because no collective says when they ran")
    return replace(picture, lanes=(*labeled, *others), note=" ".join(filter(None, (more, apart))))

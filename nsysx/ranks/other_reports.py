"""What a report learns from those of the other ranks: what of its collectives is waiting, and how long the others take themselves.

Each report is read by itself, perhaps on another machine, and only a record of each rank comes back. So a rank tells its step at
several parts of the time that it communicates, and once all are on one clock it is known which of them is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nsysx.catalogue import DeviceActivity
from nsysx.events.other_ranks import Modelled, OtherRanks
from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64
from nsysx.ranks import host_meetings
from nsysx.ranks.match import Aligned
from nsysx.ranks.rank_record import Rank
from nsysx.replay import no_comm, peers, rank_alone
from nsysx.replay.together import Played, ReplayedRank, step_lengths


def with_steps(ranks: Sequence[Rank], profile: Profile) -> tuple[Rank, ...]:
    """Return the ranks of a report with the step of each by how much of its communication is left."""
    shown = {each.process: each for each in (profile, *peers.others(profile))}
    told = {process: rank_alone.by_communication(each) for process, each in shown.items()}
    meeting = {r.process for r in ranks if r.host_calls.series}
    without = {process: no_comm.alone(each) for process, each in shown.items() if told[process] or process in meeting}
    return tuple(
        replace(r, by_communication=told.get(r.process, ()), without_comm=without.get(r.process)) for r in ranks
    )


def learn(profile: Profile, aligned: Aligned, report: int) -> Profile:
    """Return the profile of the report with this number, with what the other reports say about its ranks.

    ``aligned`` are the ranks of all reports. It is the profile itself where no communication of it has a counterpart in another report.
    """
    ranks = aligned.ranks
    on_host = host_meetings.compare(aligned)
    groups = [*aligned.groups, *(on_host.aligned.groups if on_host else ())]
    if not any(
        len({ranks[r].report for r in group}) > 1 and _is_of_report(ranks, group, report) for _, group in groups
    ):
        return profile
    working = _working(aligned)
    # Of a report of several ranks only the chosen one may have been read: the rest of them are others, too.
    in_profile = [r.report == report and (r.process, r.device) in profile.ledgers.activity for r in ranks]
    elsewhere = {(r.report, r.process): n for n, r in enumerate(ranks) if not in_profile[n]}
    others = {key: n for key, n in elsewhere.items() if len(ranks[n].start_ns)}
    by_communication = all(ranks[n].by_communication for n in others.values())
    alone = tuple(_never_waiting(ranks[n], working[n]) for n in others.values()) if by_communication else None
    waiting: dict[int, int] = {}
    for rank, worked, here in zip(ranks, working, in_profile, strict=True):
        if here:
            waited = rank.end_ns - rank.start_ns - worked
            waiting |= dict(zip(ops_of(profile, rank), waited.tolist(), strict=True))
    without = tuple(step for n in elsewhere.values() if (step := ranks[n].without_comm) is not None)
    return replace(profile, other_ranks=OtherRanks(waiting, alone, without), _made={})


def _is_of_report(ranks: Sequence[Rank], group: dict[int, I64], report: int) -> bool:
    return any(ranks[r].report == report for r in group)


def _working(aligned: Aligned) -> list[I64]:
    """Return rank -> how long each of its collectives takes on the rank that is the last to come; its own where it is alone (ns)."""
    working = [rank.end_ns - rank.start_ns for rank in aligned.ranks]
    for _, group in aligned.groups:
        shortest = np.stack([working[r][rows] for r, rows in group.items()]).min(axis=0)
        for r, rows in group.items():
            working[r][rows] = shortest
    return working


def _never_waiting(rank: Rank, working: I64) -> Modelled:
    """Return the step of a rank that never waits: replayed with what each collective takes then, bounds as for all of them alike.

    Without such a replay the step, too, is that of its steps at parts of its communication: not true where waiting hides behind
    compute in one collective and not in another.
    """
    inside = (rank.start_ns >= rank.window[0]) & (rank.start_ns < rank.window[1])
    length = int((rank.end_ns - rank.start_ns)[inside].sum())
    part = int(working[inside].sum()) / length if length else 1.0
    parts, steps = zip(*rank.by_communication, strict=True)
    per_step = np.array([(step.step_ns, step.low_ns, step.high_ns) for step in steps], np.float64)
    step, low, high = (float(np.interp(part, parts, values)) for values in per_step.T)
    lengths = _replayed(rank.played, working)
    if lengths is None or not step:
        return Modelled(round(step), round(low), round(high), steps[0].by_step)
    of_each = float(lengths.mean()) / step
    by_step = dict(zip(rank.played.numbers if rank.played else (), lengths.tolist(), strict=True))
    return Modelled(round(step * of_each), round(low * of_each), round(high * of_each), by_step)


def _replayed(played: Played | None, working: I64) -> I64 | None:
    """Return the length of each step (ns) in which every collective takes this long, None without a replay."""
    if played is None or not (played.op >= 0).any():
        return None
    length = played.bare.op_duration.copy()
    collective = played.op >= 0
    length[collective] = working[played.op[collective]]
    alone = ReplayedRank(replace(played.bare, op_duration=length), np.full_like(played.op, -1), played.borders)
    lengths = step_lengths([alone], {})
    return lengths[0] if lengths is not None else None


def ops_of(profile: Profile, rank: Rank) -> list[int]:
    """Return the ops of the collectives of a rank, in the order in which its record holds them."""
    ops = profile.attributed.gpu_ops
    of_rank = (ops["process"] == rank.process) & (ops["device"] == rank.device)
    communicating: list[int] = ops["op"].filter(of_rank & (ops["cls"] == DeviceActivity.COMM.value)).to_list()
    return communicating

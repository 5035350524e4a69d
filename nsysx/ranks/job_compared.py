"""All ranks of a job on one clock, over the steps that they have in common: what every table of ranks is made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from nsysx.ranks import host_meetings, process_groups, straggler
from nsysx.ranks.collective_costs import CollectiveCosts, Stretches, costs_of, stretches
from nsysx.ranks.match import Aligned, align, common
from nsysx.ranks.own_time import own_times
from nsysx.ranks.rank_checks import job_size
from nsysx.ranks.rank_record import Rank, number
from nsysx.replay.held_lines import is_unsent


class Takers(NamedTuple):
    """Who takes part in a collective: the name of their group, and their numbers; None where that is not known."""

    group: str | None = None
    members: tuple[int, ...] | None = None

    @property
    def words(self) -> str | None:
        """The group by its name, else by its ranks."""
        if self.group is not None or not self.members:
            return self.group
        first, last = self.members[0], self.members[-1]
        if len(self.members) > 2 and last - first == len(self.members) - 1:
            return f"ranks {first} to {last}"
        more = f" and {len(self.members) - 4} more" if len(self.members) > 4 else ""
        return f"ranks {', '.join(map(str, self.members[:4]))}{more}"


@dataclass(frozen=True)
class JobCompared:
    """All ranks of a job over the steps that they have in common, what their matched collectives cost, and who is behind.

    ``on_host``: the same for communication on the host, None without any.
    """

    aligned: Aligned
    costs: Sequence[CollectiveCosts]
    late: straggler.Straggler | None
    on_host: host_meetings.HostMeetings | None = None

    @property
    def ranks(self) -> Sequence[Rank]:
        """The ranks over their common steps."""
        return self.aligned.ranks

    @cached_property
    def stretches(self) -> Sequence[Stretches]:
        """The exposed communication of each rank by collective."""
        return [stretches(rank, cost) for rank, cost in zip(self.ranks, self.costs, strict=True)]

    @cached_property
    def takers(self) -> Mapping[tuple[int, int], Takers]:
        """(rank, row of its collectives) -> who takes part in it, for those that are matched."""
        takers_of: dict[tuple[int, int], Takers] = {}
        for key, group in self.aligned.groups:
            members = self._numbers(group)
            for r, rows in group.items():
                member = self.ranks[r].members.get(key.communicator)
                size = None if member is None else member.size
                takers = Takers(process_groups.name_of(self.ranks[r].groups, members, size), members)
                takers_of |= dict.fromkeys(((r, row) for row in rows.tolist()), takers)
        return takers_of

    @cached_property
    def takers_on_host(self) -> Mapping[tuple[int, int], Takers]:
        """(rank, row of its calls on the host) -> who takes part in it, for those that are matched."""
        groups = () if self.on_host is None else self.on_host.aligned.groups
        return {
            (r, row): Takers(None, self._numbers(group))
            for _, group in groups
            for r, rows in group.items()
            for row in rows.tolist()
        }

    def _numbers(self, group: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(number(self.ranks, r) for r in group))


def compare(ranks: Sequence[Rank], aligned: Aligned | None = None) -> JobCompared | None:
    """Return the ranks of a job compared; None where there is one alone. ``aligned``: they on one clock, if that is done already."""
    if len(ranks) < 2:
        return None
    aligned = aligned or align(ranks)
    aligned = replace(aligned, ranks=common(aligned))
    costs = costs_of(aligned)
    on_host = host_meetings.compare(aligned)
    late = straggler.find(aligned, costs)
    if on_host is not None and not aligned.groups:
        late = straggler.find(on_host.aligned, on_host.costs)
    return JobCompared(aligned, costs, late, on_host)


def changed(compared: JobCompared) -> dict[int, dict[str, int]]:
    """Return the place of a rank -> what its group saves of a step with each change that its ranks can make (ns)."""
    saved: dict[int, dict[str, int]] = {}
    for group in straggler.groups(compared.costs):
        replays = [compared.ranks[r].played for r in group]
        times = own_times(compared.aligned, group) if any(p is not None and p.changes for p in replays) else None
        if times is not None:
            of_group = {name: round(ns) for name, ns in times.changed_ns().items()}
            saved |= dict.fromkeys(group, of_group)
    return {r: of_stages for group in _stages(compared) for r, of_stages in _unsent(compared, group).items()} | saved


def _stages(compared: JobCompared) -> list[tuple[int, ...]]:
    """Return the sets of ranks that hand messages to one another, two by two, and have collectives together: stages of a pipeline."""
    among = {a for cost in compared.costs for a in cost.among if a.inside}
    peers = set(straggler.groups(compared.costs))
    handed = [set(a.ranks) for a in among if a.between_two]
    together = {a.ranks for a in among if a.together and a.ranks not in peers}
    return sorted((ranks for ranks in together if any(pair <= set(ranks) for pair in handed)), key=len)


def _unsent(compared: JobCompared, group: Sequence[int]) -> dict[int, dict[str, int]]:
    """Return the place of a stage -> what its pipeline saves of a step without what lines send (ns). Other changes leave a pipeline with
    idle time of its schedule, which is told for each stage.
    """
    replays = [compared.ranks[r].played for r in group]
    if not any(p is not None and any(map(is_unsent, p.changes)) for p in replays):
        return {}
    times = own_times(compared.aligned, group)
    if times is None:
        return {}
    of_group = {name: round(ns) for name, ns in times.changed_ns(is_unsent).items()}
    return dict.fromkeys(group, of_group)


def reason(ranks: Sequence[Rank], processes: int = 1) -> str:
    """Return why a rank alone is not compared; ``processes``: so many of its report work on a GPU."""
    if len(ranks) < processes:
        return (
            f"steps were found in {len(ranks) or 'none'} of {processes} processes with GPU work: nsysx run marks them where an optimizer "
            "or a loader is used, --step-range REGEX takes ranges of the program for them"
        )
    of_job = f" of {job_size(ranks)}" if job_size(ranks) > 1 else ""
    return f"the report holds one rank{of_job}; give the reports of all ranks"

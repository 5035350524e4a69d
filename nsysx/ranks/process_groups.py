"""The process groups of a program by their names: which of them collectives of the same ranks belong to.

NCCL notes a communicator's members, torch.distributed the ranks of its groups. Where several groups have the same ranks, those that had
no collective in the step that the probe watched are none of them; if more than one is left, no name is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nsysx import ids
from nsysx.events.profile import Profile
from nsysx.model import Row

#: What torch calls groups that nobody has described.
_UNDESCRIBED = ("default_pg", "undefined", "mesh_default", "")
#: What the group of DDP or of FSDP, which has no name of its own, divides over its ranks.
_OF_WRAPPER = "data"


class ProcessGroup(NamedTuple):
    """A group of torch.distributed: its ranks in the job, its name ("" where it has none), and its collectives in the watched step."""

    name: str
    ranks: tuple[int, ...]
    collectives: int | None


def recorded(profile: Profile, process: int) -> tuple[ProcessGroup, ...]:
    """Return the groups that the probe read in a process; none where it did not."""
    settings = [p.get("settings") for p in ids.records_of(profile.trace.capture.probe, process)]
    rows = next((s.get("groups") for s in settings if isinstance(s, Mapping)), None)
    groups = []
    for row in rows if isinstance(rows, list) else ():
        ranks = row.get("ranks") if isinstance(row, Mapping) else None
        if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks):
            count = row.get("collectives")
            groups.append(ProcessGroup(_name(row), tuple(ranks), count if isinstance(count, int) else None))
    return tuple(groups)


def _name(row: Row) -> str:
    """Return what a program calls a group: the dimension of its mesh, or its description; else what its wrapper divides."""
    described = str(row.get("description") or "")
    if row.get("dimension"):
        return str(row["dimension"])
    if described not in _UNDESCRIBED and not described.startswith("mesh_dim_"):
        return described
    return _OF_WRAPPER if row.get("wrapper") else ""


def name_of(groups: Sequence[ProcessGroup], members: Sequence[int], size: int | None) -> str | None:
    """Return the name of the group that ``members`` are of, or some of them; ``size``: how many it has, None: just these.

    None where no group of that size holds them, or not exactly one with a name may be it.
    """
    count = len(members) if size is None else size
    of_size = [g for g in groups if len(g.ranks) == count and set(members) <= set(g.ranks)]
    used = [g for g in of_size if g.collectives != 0] or of_size
    names = {g.name for g in used}
    return None if len(names) != 1 else names.pop() or None

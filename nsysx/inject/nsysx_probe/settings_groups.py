"""The process groups of torch.distributed that a program has made, and how many collectives each of them had in the step that is watched.

A DeviceMesh names the groups of its dimensions, DDP and FSDP use one of them, and a program may describe its own. Counters and
names alone are read: nothing is made, sent or waited for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from .probe_bounds import MOST_GROUP_RANKS, MOST_GROUPS
from .qualified_names import held
from .settings_objects import modules
from .settings_state import asked

#: What torch calls the group of a mesh's dimension that has a name begins so.
_OF_MESH = "mesh_"
#: Classes that hold the group in which they reduce gradients.
_WRAPPERS = {"DistributedDataParallel": "DDP", "FullyShardedDataParallel": "FSDP"}


def counts() -> dict[str, int | None]:
    """Return name of a group -> how many collectives it has had, None where its backend does not count; empty without torch.distributed."""
    return {name: asked(lambda g: int(g._get_sequence_number_for_group()), group) for name, group, _ in _groups()}


def groups(before: dict[str, int | None], roots: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the groups that this process is in: ranks, names, and how many collectives they had since ``before``, see ``counts``.

    ``dimension`` is the dimension of a DeviceMesh, ``description`` what the program or torch calls the group, ``wrapper`` which
    wrapper reduces gradients in it, each None where it is not known. ``roots``: the networks of the step.
    """
    dimensions, wrappers = _uses(roots)
    now = counts()
    rows = []
    for name, group, ranks in _groups():
        described = asked(lambda g: str(g.group_desc), group)
        first, last = before.get(name), now.get(name)
        rows.append(
            {
                "name": name,
                "description": described,
                "dimension": dimensions.get(name) or _dimension(described),
                "wrapper": wrappers.get(name),
                "ranks": ranks,
                "collectives": None if first is None or last is None else last - first,
            }
        )
    return rows


def _name(group: Any) -> str:
    return str(group.group_name)


def _groups() -> list[tuple[str, Any, list[int]]]:
    """Return name, group and ranks in the job of each group that this process is in."""
    room = sys.modules.get("torch.distributed.distributed_c10d")
    world: Any = getattr(room, "_world", None)
    rows, left = [], MOST_GROUP_RANKS
    for group, ranks in list((asked(lambda: world.pg_group_ranks) or {}).items())[:MOST_GROUPS]:
        name = asked(_name, group)
        left -= len(ranks)
        if name is not None and left >= 0:
            rows.append((name, group, sorted(int(rank) for rank in ranks)))
    return rows


def _dimension(described: str | None) -> str | None:
    """Return the dimension of a mesh that torch describes a group by, None for other groups and for dimensions without a name."""
    if described is None or not described.startswith(_OF_MESH):
        return None
    name = described.removeprefix(_OF_MESH)
    return None if name == "default" or name.startswith("dim_") else name


def _uses(roots: Iterable[Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Return name of a group -> the dimension of the mesh of parameters in these networks, and -> the wrapper that reduces in it."""
    dimensions: dict[str, str] = {}
    wrappers: dict[str, str] = {}
    seen: set[int] = set()
    for module in (m for root in roots for m in modules(root)):
        group = held(module).get("process_group")
        wrapper = _WRAPPERS.get(type(module).__name__)
        if group is not None and wrapper is not None and (name := asked(_name, group)) is not None:
            wrappers[name] = wrapper
        for parameter in (held(module).get("_parameters") or {}).values():
            split = type(parameter).__name__ == "DTensor"
            mesh: Any = asked(lambda p: p.device_mesh, parameter) if split else None
            if mesh is not None and id(mesh) not in seen:
                seen.add(id(mesh))
                for index, dimension in enumerate(asked(lambda m: m.mesh_dim_names, mesh) or ()):
                    name = asked(lambda m, i: _name(m.get_group(i)), mesh, index)
                    dimensions |= {} if name is None else {name: str(dimension)}
    return dimensions, wrappers

"""Local steps (post-local SGD) whose gradients are reduced over the same ranks as before: torch's hook does that within a host by default.

Behind its first steps the hook reduces in a group of the ranks of one host, unless it is told to reduce no longer. Where one host holds all
ranks that is every rank: each step then moves all gradients, and every n-th one all parameters besides, which are equal already.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import DeviceActivity
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving
from nsysx.findings._costly_jobs import ddp
from nsysx.findings._exposed_transfer import transfer_of_ops_ns
from nsysx.findings._finding_bounds import SAME_BYTES_SHARE
from nsysx.findings._needs import steady_steps
from nsysx.findings._once import Takes
from nsysx.reading import nccl_notes

_HOOK, _ALL_REDUCE = "post_localSGD_hook", "allreduce"


class _Reduced(NamedTuple):
    """Reductions of gradients over all ranks in every step (``ops``, ``bytes`` of one step), and how many steps average parameters."""

    ops: frozenset[int]
    bytes: int
    averaged: int
    steps: int


def _find(profile: Profile) -> _Reduced | None:
    """Return the reductions of every step beside averages of some; None where either is missing, or is not over all ranks.

    Parameters are averaged from where local steps begin: before that, the hook has to reduce.
    """
    ops = profile.steady_ops.filter(profile.steady_ops["call_start_ns"].is_not_null())
    comm = ops.filter(ops["cls"] == DeviceActivity.COMM.value)
    members = nccl_notes.members(profile.trace).get(profile.process, {})
    world = max((member.size or 0 for member in members.values()), default=0)
    messages = nccl_notes.messages(profile.trace, comm, members)
    of_all = np.array([_is_of_all(message, members, world) for message in messages], np.bool_)
    size = np.array([message.bytes or 0 for message in messages], np.int64)
    begin = steady_steps(profile)["start_ns"].to_numpy()
    step = np.searchsorted(begin, comm["call_start_ns"].to_numpy(), side="right") - 1
    backward = (comm["phase"].cast(pl.String) == "backward").fill_null(value=False).to_numpy()
    reduces, elsewhere = of_all & backward & (step >= 0), of_all & ~backward & (step >= 0)
    of_step, others = (np.bincount(step[mask], size[mask], minlength=len(begin)) for mask in (reduces, elsewhere))
    if not len(begin) or not of_step.all():
        return None
    averaged = int((others >= (1 - SAME_BYTES_SHARE) * of_step).sum())
    if not averaged or averaged == len(begin):
        return None
    return _Reduced(frozenset(comm["op"].to_numpy()[reduces].tolist()), round(of_step.mean()), averaged, len(begin))


def _is_of_all(message: nccl_notes.Message, members: dict[str, nccl_notes.CommunicatorMember], world: int) -> bool:
    member = members.get(message.communicator)
    return message.kind == _ALL_REDUCE and member is not None and member.size == world > 1


def reduces_all(case: Case, settings: RecordedSettings) -> str:
    """Return that the hook of local steps reduces over all ranks in every step."""
    if (ddp(settings) or {}).get("hook") != _HOOK or (reduced := case.profile.once(_find)) is None:
        return ""
    return (
        f"{_HOOK} reduces {units.size(reduced.bytes)} of gradients over all ranks in each step, as its group is that of all ranks of the "
        f"host, and {reduced.averaged} of {reduced.steps} steps average the parameters besides, which are equal then"
    )


def without(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it saves at most if steps between averages reduce nothing; waits for a late rank come in the average, then."""
    reduced = case.profile.once(_find)
    moved = 0 if reduced is None else transfer_of_ops_ns(case, reduced.ops)
    return (
        case.bound(moved, "the time in which gradients are reduced and nothing is computed beside that")
        if moved
        else None
    )


def taken(case: Case) -> Takes:
    """Return the reductions of gradients."""
    reduced = case.profile.once(_find)
    return Takes(frozenset() if reduced is None else reduced.ops)

"""When a model is sharded in more units than its host keeps up with, or in units too small to send: what says so, and what fewer save."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.catalogue import StepLimit, StepPart
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving
from nsysx.findings._costly_jobs import sharded
from nsysx.findings._exposed_transfer import communication
from nsysx.findings._finding_bounds import FEWEST_SMALL_UNITS, SMALL_UNIT_BYTES
from nsysx.findings._job_bounds import IDLE_FOR_UNITS_SHARE, MOST_LAUNCHES_OF_UNIT, MOST_UNITS_LEFT_SHARE
from nsysx.findings._rank_rows import rank_rows
from nsysx.frames import lookup
from nsysx.reading import nccl_notes
from nsysx.replay.edits import RemoveOps

_OF_UNITS = r"AllGather|ReduceScatter"


def _small_messages(case: Case) -> frozenset[int]:
    """Return the gathers and scatters (ops) of forward and backward whose message has few bytes, by what NCCL noted; none without that."""
    comm = communication(case)
    in_network = comm["phase"].cast(pl.String).is_in(["forward", "backward"]).fill_null(value=False)
    of_units = comm.filter(in_network & pl.Series(lookup.matching(comm["name"], _OF_UNITS), dtype=pl.Boolean))
    members = nccl_notes.members(case.profile.trace).get(case.process, {})
    noted = nccl_notes.messages(case.profile.trace, of_units, members)
    sizes = {name: member.size or 0 for name, member in members.items()}
    # What a rank adds to a gather or gets from a scatter is its part of the unit.
    small = [
        op
        for op, message in zip(of_units["op"].to_list(), noted, strict=True)
        if message.bytes is not None and 0 < sizes.get(message.communicator, 0) * message.bytes < SMALL_UNIT_BYTES
    ]
    return frozenset(small)


def _sharded_modules(settings: RecordedSettings) -> int:
    """Return how many modules are sharded each by itself."""
    return sum(n for r in sharded(settings) if isinstance(n := r.get("count"), int))


#: A block of a network: the outermost part of a list.
_BLOCK = re.compile(r"^(?:[^.]+\.)*?\d+(?=\.|$)")


def block_of(path: str) -> str:
    """Return the path of the block that a module is, or is in, "" for none."""
    match = _BLOCK.search(path)
    return match[0] if match else ""


def units_left_share(case: Case, settings: RecordedSettings) -> float:
    """Return how many units are left of those of now (share) if each block of the network is one, and what is around them another; 0 where
    blocks are not seen.
    """
    count = _sharded_modules(settings)
    names = case.profile.attributed.modules["module"].drop_nulls().cast(pl.String)
    blocks = {block for name in names.to_list() if (block := block_of(name))}
    return min(1.0, (len(blocks) + 1) / count) if blocks and count else 0.0


def small_units(case: Case, settings: RecordedSettings) -> str:
    """Return that a sharded model gathers many units that are small: in bytes, or for what each costs the host."""
    count = _sharded_modules(settings)
    often = len(_small_messages(case)) / case.steps
    sharded_so = f"{units.several(count, 'module')} {'is' if count == 1 else 'are'} sharded each by itself, and "
    if count >= FEWEST_SMALL_UNITS and often >= FEWEST_SMALL_UNITS:
        return (
            f"{sharded_so}{often:.0f} gathers and scatters of a step move less than {units.size(SMALL_UNIT_BYTES)}: they take as long as "
            "it takes the ranks to meet"
        )
    pace = _paced_by_units(case, settings)
    if pace is None:
        return ""
    return (
        f"{sharded_so}the GPU idles {units.duration(pace.idle_ns)} of a step for launches. That is {units.duration(pace.idle_ns / count)} "
        f"for each of them, and what it gathers and scatters transfers for {units.duration(pace.transfer_ns / count)}: FSDP's hooks on the "
        f"host set the pace. With one a block, about {units.share(pace.left, 1)} of the units are left"
    )


class _Pace(NamedTuple):
    """A step whose pace units set: idle time for launches, transfer of units (ns a step), the units that blocks would leave (share)."""

    idle_ns: int
    transfer_ns: int
    left: float


def _paced_by_units(case: Case, settings: RecordedSettings) -> _Pace | None:
    """Return how units keep the host busy for longer than they transfer, None where they do not, or where fewer are not in sight.

    How small a unit is, is a matter of the host: what FSDP runs there for one takes the same time for any size.
    """
    count, left, idle = _sharded_modules(settings), units_left_share(case, settings), case.lost_to(StepLimit.LAUNCH)
    if (
        count < FEWEST_SMALL_UNITS
        or not 0 < left <= MOST_UNITS_LEFT_SHARE
        or not case.notable(idle, IDLE_FOR_UNITS_SHARE)
    ):
        return None
    if case.ops.height > MOST_LAUNCHES_OF_UNIT * count * case.steps:
        return None
    transfer = _transfer_of_units(case)
    return _Pace(idle, transfer, left) if 0 < transfer < idle else None


def _transfer_of_units(case: Case) -> int:
    """Return how long gathers and scatters transfer (ns a step): all of their time where the ranks do not tell it from waiting."""
    comm = communication(case)
    comm = comm.filter(pl.Series(lookup.matching(comm["name"], _OF_UNITS), dtype=pl.Boolean))
    whole = int((comm["end_ns"] - comm["start_ns"]).sum())
    here = next((row for row in rank_rows(case) if row["process"] == case.process), {})
    moved = [
        each["transfer_ns"]
        for each in here.get("by_collective") or ()
        if re.search(_OF_UNITS, each["kind"], re.IGNORECASE)
    ]
    return round(case.per_step(min(whole, sum(moved)) if any(moved) else whole))


def fewer_units(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it saves if small units are gathered with others: at most these gathers and scatters, and their launches.

    Where the host sets the pace, most of what it does there are the hooks that FSDP runs for each unit, and those of the units that go, go.
    """
    small, left = _small_messages(case), units_left_share(case, settings) if settings is not None else 0.0
    if len(small) < FEWEST_SMALL_UNITS * case.steps and settings is not None:
        if _paced_by_units(case, settings) is None:
            return None
        idle = case.bound(case.taken_by(p for p in StepPart if p.idle), "all idle time")
        return without_hooks(replace(idle, likely_ns=round((1 - left) * (idle.likely_ns or 0) / 2)), idle, left)
    if not small:
        return None
    gathers = case.worth(RemoveOps(small), bound=True)
    if 2 * case.lost_to(StepLimit.LAUNCH) < case.step_ns or not left:
        return gathers
    idle = case.bound(case.taken_by(p for p in StepPart if p.idle or p is StepPart.COMM), "all idle time")
    hooks = round((1 - left) * (idle.likely_ns or 0) / 2)
    return without_hooks(replace(gathers, likely_ns=max(gathers.likely_ns or 0, hooks)), idle, left)


def without_hooks(least: Saving, most: Saving, left: float) -> Saving:
    """Return what it saves that small units become a few: at least that no collective is left, at most all idle time of those that go.

    FSDP's hooks run on the host for each unit, before and behind it, and are no launches: the replay leaves them where they are. Units
    that are ``left`` (share) cost what they cost now.
    """
    why = "FSDP's hooks on the host go with the units: more than their gathers, less than all idle time"
    at_best = round((1 - left) * (most.likely_ns or 0))
    return Saving.between(min(least.likely_ns or 0, at_best), at_best, why)

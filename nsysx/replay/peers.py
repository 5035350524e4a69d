"""How long a rank's collectives wait for the other ranks of the job.

A collective ends on all ranks together, so its shortest kernel is the transfer, and what another kernel takes longer is waiting.
Tracing slows the hosts of the ranks, each by a different amount, and thereby changes this waiting. So it is not GPU work that
remains without a profiler. Synchronous ranks take as long as the one that takes longest without waiting; the straggler study of
ByteDance (OSDI 2025, arXiv 2505.05713) replays a job in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.reading import nccl_notes
from nsysx.replay.replay_bounds import LEAST_SENDING_SHARE, MOST_REPLAYED_PEERS, RANKS_TOGETHER_SHARE


@dataclass(frozen=True)
class Waiting:
    """``ns``: op -> how long a collective of the shown process may only wait, ``whole_ns``: op -> its whole time (ns).

    ``by_peers``: the other ranks show that it does wait so long. If false, ``ns`` is the whole time of each collective, and it is
    not known how much of it is waiting, because the other ranks are missing or the ranks pass messages from one to the next.
    """

    ns: Mapping[int, int]
    whole_ns: Mapping[int, int]
    by_peers: bool


def waiting(profile: Profile, start_ns: int, end_ns: int) -> Waiting:
    """Return how long the collectives that begin in the window wait for other ranks; `unknown` if that cannot be told."""
    communication = _communication(profile)
    if not communication.height:
        return profile.once(unknown)
    names = communication["name"].cast(pl.String)
    kinds = {name: nccl_notes.kind_of(name) for name in names.unique().to_list()}
    ops = communication["op", "process", "device", "start_ns", "end_ns"].with_columns(
        names.replace(kinds).alias("kind"), (communication["end_ns"] - communication["start_ns"]).alias("ns")
    )
    shown = lookup.having(ops, process=profile.process)
    in_window = shown.filter((shown["start_ns"] >= start_ns) & (shown["start_ns"] < end_ns))
    # A receive waits for work that another stage of a pipeline does for it. The time that this stage takes without waiting, which
    # is the step of ranks that do the same work at the same time, does not tell how long the receive waits.
    sends = in_window["ns"].filter(in_window["kind"] == nccl_notes.SEND_RECEIVE).sum()
    if sends < LEAST_SENDING_SHARE * (end_ns - start_ns):
        whole = dict(in_window["op", "ns"].iter_rows())
        others_facts = profile.other_ranks
        if others_facts is not None:
            return Waiting({op: others_facts.waiting_ns.get(op, 0) for op in whole}, whole, by_peers=True)
        waited = _waited(in_window, ops.filter(ops["process"] != profile.process))
        if len(waited) > RANKS_TOGETHER_SHARE * len(whole):
            return Waiting(waited, whole, by_peers=True)
    return profile.once(unknown)


def unknown(profile: Profile) -> Waiting:
    """Return the whole time of the shown process's communication ops, since all of it may be waiting."""
    ops = lookup.having(_communication(profile), process=profile.process)
    whole = dict(zip(ops["op"].to_list(), (ops["end_ns"] - ops["start_ns"]).to_list(), strict=True))
    return Waiting(whole, whole, by_peers=False)


def _waited(collectives: pl.DataFrame, others: pl.DataFrame) -> dict[int, int]:
    """Return op -> how much longer a collective took than the shortest of its counterparts (ns), for those that have one."""
    never = np.iinfo(np.int64).max
    waited: dict[int, int] = {}
    if not others.height:
        return waited
    for (kind,), of_kind in collectives.group_by("kind"):
        shortest = np.full(of_kind.height, never)
        for other in lookup.parted(others.filter(others["kind"] == kind), "process", "device").values():
            np.minimum(shortest, _counterparts(of_kind, other), out=shortest)
        more = np.maximum(of_kind["ns"].to_numpy() - shortest, 0)
        ops = of_kind["op"].to_numpy()[shortest < never]
        waited |= dict(zip(ops.tolist(), more[shortest < never].tolist(), strict=True))
    return waited


def _counterparts(collectives: pl.DataFrame, other: pl.DataFrame) -> I64:
    """Return the time (ns) of each collective's counterpart: the one with the nearest end, if the two overlap; else the maximum."""
    never = np.iinfo(np.int64).max
    if not collectives.height or not other.height:
        return np.full(collectives.height, never)
    other = other.sort("end_ns")
    start, end = other["start_ns"].to_numpy(), other["end_ns"].to_numpy()
    own_start, own_end = collectives["start_ns"].to_numpy(), collectives["end_ns"].to_numpy()
    after = np.clip(np.searchsorted(end, own_end), 0, len(end) - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(np.abs(end[before] - own_end) < np.abs(end[after] - own_end), before, after)
    together = (start[nearest] < own_end) & (own_start < end[nearest])
    return np.where(together, end[nearest] - start[nearest], never)


def _communication(profile: Profile) -> pl.DataFrame:
    """Return the communication of all processes: op, process, device, start_ns, end_ns, name."""
    return profile.once(_every_communication)


def _every_communication(profile: Profile) -> pl.DataFrame:
    ops = profile.attributed.gpu_ops
    rows = ops["op", "process", "device", "start_ns", "end_ns", "name"]
    return rows.filter(ops["cls"] == DeviceActivity.COMM.value)


def communication(profile: Profile) -> list[int]:
    """Return the communication ops of the shown process."""
    return list(profile.once(unknown).whole_ns)


def others(profile: Profile, most: int = MOST_REPLAYED_PEERS) -> Iterator[Profile]:
    """Yield the profile with another rank of the report as the shown one, for each rank that has collectives and steps.

    It is the same profile for all who ask, so that what one of them has made of it is made.
    """
    shown = profile.once(_shown)
    for process in [p for p in profile.once(ranks) if p != profile.process][:most]:
        if process not in shown:
            shown[process] = _showing(profile, process)
        yield shown[process]


def _shown(profile: Profile) -> dict[int, Profile]:
    """Return the profiles of the other ranks that were asked for, by their processes."""
    return {}


def _showing(profile: Profile, process: int) -> Profile:
    """Return the profile with another rank as the shown one.

    A rank whose window holds fewer steps than that of the shown one has fewer steady ones: behind the last must be another.
    """
    steady = profile.steps.steady
    last = int((profile.steps.cpu["process"] == process).sum()) - 2
    fewer = None if steady is None else (steady[0], max(min(steady[1], last), steady[0]))
    return profile.showing(replace(profile.steps, process=process, steady=fewer))


def ranks(profile: Profile) -> list[int]:
    """Return the processes of the report that have collectives and steps, in order."""
    communicating = lookup.present(_communication(profile)["process"])
    return [p for p in lookup.present(profile.steps.windows["process"]) if p in communicating]


def first_of_ranks(profile: Profile, process: int) -> list[int]:
    """Return a process, and then the other ranks of the report."""
    return [process, *(each for each in ranks(profile) if each != process)]

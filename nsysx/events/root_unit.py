"""What a sharded network gathers and reduces at once around its blocks: the embedding and the head, left to the unit of the whole.

That unit is gathered before the first look-up, with the head that is needed last, and its gradients are reduced behind all of backward,
when those of the embedding are there. How large a unit is, NCCL notes with each message.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.event_bounds import ALIKE_ROUNDS_SHARE
from nsysx.events.operator_bounds import FEWEST_UNITS_BESIDE, LARGE_UNIT_TIMES
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import settings_of
from nsysx.reading import nccl_notes


class RootUnit(NamedTuple):
    """The gathers of the steady steps that bring the large unit (ops), and the reductions of its gradients; ``size``: its bytes when it is
    gathered, and ``times`` as much as the usual unit's.
    """

    gathers: frozenset[int]
    reductions: frozenset[int]
    size: int
    times: float


def root_unit(profile: Profile) -> RootUnit | None:
    """Return the large unit that forward gathers first, None where no unit, or not that one alone, is so much larger than the others."""
    return profile.once(_root)


def _root(profile: Profile) -> RootUnit | None:
    settings = settings_of(profile)
    if settings is None or not (settings.wrappers("fully_shard") or settings.wrappers("FSDP")):
        return None
    ops = profile.steady_ops.filter(pl.col("cls") == DeviceActivity.COMM.value, pl.col("call_start_ns").is_not_null())
    ops = ops.sort("call_start_ns")
    members = nccl_notes.members(profile.trace).get(profile.process, {})
    noted = nccl_notes.messages(profile.trace, ops, members)
    sized = ops.select("op", pl.col("phase").cast(pl.String), "call_start_ns").with_columns(
        kind=pl.Series([message.kind for message in noted], dtype=pl.String),
        size=pl.Series([_whole(message, members) for message in noted], dtype=pl.Int64),
    )
    starts = profile.steps.cpu.filter(profile.steps.cpu["process"] == profile.process)["start_ns"].sort()
    sized = sized.with_columns(
        step=pl.Series(starts.search_sorted(sized["call_start_ns"], side="right"), dtype=pl.Int64)
    )
    gathers = sized.filter((sized["phase"] == "forward") & (sized["kind"] == "allgather"))
    reductions = sized.filter(sized["kind"] == "reducescatter")
    first = gathers.filter(pl.col("call_start_ns") == pl.col("call_start_ns").min().over("step"))
    usual, largest = float(gathers["size"].median() or 0), float(first["size"].median() or 0)  # type: ignore[arg-type]
    if not usual or largest < LARGE_UNIT_TIMES * usual:
        return None
    # One unit alone is large: where embedding and head are units, each is.
    large = gathers.filter(gathers["size"] * 2 > largest)
    steps = gathers["step"].n_unique()
    each, alone = gathers.height / steps, large.group_by("step").len().filter(pl.col("len") == 1).height
    if each < FEWEST_UNITS_BESIDE or alone < ALIKE_ROUNDS_SHARE * steps:
        return None
    last = float(np.max(reductions["size"].to_numpy(), initial=0))
    usual_reduction = float(reductions["size"].median() or 0)  # type: ignore[arg-type]
    of_root = (
        reductions.filter(reductions["size"] * 2 > last)
        if last >= LARGE_UNIT_TIMES * usual_reduction
        else reductions.clear()
    )
    return RootUnit(
        frozenset(large["op"].to_list()), frozenset(of_root["op"].to_list()), round(largest), largest / usual
    )


def _whole(message: nccl_notes.Message, members: dict[str, nccl_notes.CommunicatorMember]) -> int | None:
    """Return the bytes of the whole that a rank has its part of."""
    member = members.get(message.communicator)
    return message.bytes * member.size if member is not None and member.size and message.bytes is not None else None

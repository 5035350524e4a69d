"""Stages of a pipeline that work one after the other although a step has micro-batches enough to fill all of them.

Each stage sends a micro-batch on and waits until it comes back before it begins the next one. What hosts take says nothing about that: they
launch ahead while their GPU waits. What tells it is how little the stages compute at once: beside each other, hosts that are slow or stages
that are unlike leave much of that. Measured on two H200s with 8 micro-batches, of what could be at once: 1 % in turn, 57 % with one stage
of twice the work of the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.profile import Profile
from nsysx.frames.intervals import length, union
from nsysx.judging.judging_bounds import HELD_BY_HOSTS_SHARE, STAGES_AT_ONCE_SHARE, WITHIN_STAGE_NS
from nsysx.judging.other_work import others_of_gpu
from nsysx.judging.uneven_stages import NO_HOSTS, UnevenStages, uneven_stages
from nsysx.model import Row
from nsysx.replay import peers


def at_once_share(profile: Profile) -> float | None:
    """Return how long ranks of one report compute at the same time, as a share of the longest that they could; None where not known.

    Ranks that share a GPU get it in turn, whatever they do.
    """
    return profile.once(_at_once_share)


def _at_once_share(profile: Profile) -> float | None:
    start, end = profile.window
    ranks = peers.ranks(profile)
    if len(ranks) < 2 or end <= start or others_of_gpu(profile):
        return None
    computing = profile.ops.filter(
        (pl.col("cls") == DeviceActivity.COMPUTE.value)
        & pl.col("process").is_in(ranks)
        & (pl.col("start_ns") < end)
        & (pl.col("end_ns") > start)
    )
    of_ranks = []
    for _, ops in computing.group_by("process"):
        begins, ends = (ops[column].clip(start, end).to_numpy() for column in ("start_ns", "end_ns"))
        begins, ends = union(begins, ends + WITHIN_STAGE_NS)
        of_ranks.append((begins, ends - WITHIN_STAGE_NS))
    work = [int((ends - begins).sum()) for begins, ends in of_ranks]
    if len(work) < 2:
        return None
    together = length(*(np.concatenate(side) for side in zip(*of_ranks, strict=True)))
    return (sum(work) - together) / max(sum(work) - max(work), 1)


def stages_in_turn(
    rows: Sequence[Row],
    at_once: float | None,
    micro_batches: float,
    step_ns: float,
    hosts_ns: Mapping[int, int] = NO_HOSTS,
) -> UnevenStages | None:
    """Return the stages that work in turn, if a step is notably shorter once they work beside each other; else None.

    ``at_once``: as of ``at_once_share``; ``hosts_ns``: process -> what its host takes alone.
    """
    if at_once is None or at_once > STAGES_AT_ONCE_SHARE or micro_batches < 2:
        return None
    stages = uneven_stages(rows, 0.0, hosts_ns)
    if stages is None or stages.step_ns(micro_batches) > (1 - HELD_BY_HOSTS_SHARE) * step_ns:
        return None
    return stages

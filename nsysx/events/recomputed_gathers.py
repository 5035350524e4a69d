"""Parameters that a sharded model gathers twice for one backward, because a checkpoint lies around each of its units.

A reentrant checkpoint calls the unit again in backward. That forward gathers the parameters and frees them behind it, and what then goes
back through the unit gathers them once more. Other checkpoints compute again inside of the unit's own backward, which has gathered them.
"""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.operator_bounds import FEWEST_GATHERED_TWICE, GATHERED_TWICE_TIMES
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import settings_of
from nsysx.frames import lookup

_GATHERS = r"AllGather"


class RecomputedGathers(NamedTuple):
    """``ops``: the gathers of the steady steps that go; a step has ``forward`` gathers in forward and ``backward`` in backward."""

    ops: frozenset[int]
    forward: int
    backward: int


def recomputed_gathers(profile: Profile) -> RecomputedGathers | None:
    """Return the second gathers of backward in the shown process, None where backward gathers each unit once."""
    return profile.once(_twice)


def _twice(profile: Profile) -> RecomputedGathers | None:
    settings, steps = settings_of(profile), profile.scope.steps or 0
    if settings is None or not settings.wrappers("FSDP") or not settings.number("checkpoints") or not steps:
        return None
    ops = profile.steady_ops.select(
        "op",
        "name",
        "cls",
        pl.col("phase").cast(pl.String),
        "call_start_ns",
        pl.col("recompute").fill_null(value=False),
    )
    ops = ops.filter((ops["cls"] == DeviceActivity.COMM.value) & ops["call_start_ns"].is_not_null()).sort(
        "call_start_ns"
    )
    ops = ops.filter(lookup.matching(ops["name"], _GATHERS))
    forward, backward = (ops.filter(pl.col("phase") == phase) for phase in ("forward", "backward"))
    if not forward.height or forward.height < FEWEST_GATHERED_TWICE * steps:
        return None
    if backward.height < GATHERED_TWICE_TIMES * forward.height:
        return None
    # The forward that is repeated launches them, unless the backward of the unit before has launched them ahead: then one of two goes.
    again = backward.filter("recompute")
    gone = again if again.height >= backward.height // 3 else backward.gather_every(2)
    return RecomputedGathers(
        frozenset(gone["op"].head(backward.height // 2).to_list()),
        round(forward.height / steps),
        round(backward.height / steps),
    )

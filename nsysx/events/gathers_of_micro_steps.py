"""Parameters that a sharded model gathers anew in each micro-step of a step, although no optimizer changes them between two of these.

``fully_shard`` frees the parameters of a unit behind its forward and behind its backward. Where gradients add up over several forwards and
backwards, each of these gathers what the first one gathered. Those up to the end of the first forward of a step stay.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.event_bounds import ALIKE_ROUNDS_SHARE
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import settings_of
from nsysx.frames import lookup

_GATHERS, _COPIES_OUT = r"AllGather", r"split_with_sizes_copy"


class MicroGathers(NamedTuple):
    """``rounds`` forwards and backwards in each step, all of which gather; ``gathers``: of the steady steps those that bring what is there
    (ops), and ``ops``, with the copies out of what came. ``each``: how many of them there are in a step.
    """

    rounds: int
    each: int
    gathers: frozenset[int]
    ops: frozenset[int]


def gathers_of_micro_steps(profile: Profile) -> MicroGathers | None:
    """Return the gathers of the shown process that micro-steps repeat, None without any."""
    return profile.once(_repeated)


def _repeated(profile: Profile) -> MicroGathers | None:
    settings, steps = settings_of(profile), profile.scope.steps or 0
    if settings is None or not settings.wrappers("fully_shard") or not steps:
        return None
    ops = profile.steady_ops.select("op", "name", "cls", pl.col("phase").cast(pl.String), "call_start_ns")
    ops = ops.filter(pl.col("phase").is_in(["forward", "backward"]) & pl.col("call_start_ns").is_not_null())
    comm = ops["cls"] == DeviceActivity.COMM.value
    gathers = comm & pl.Series(lookup.matching(ops["name"], _GATHERS), dtype=pl.Boolean)
    copies = ~comm & pl.Series(lookup.matching(ops["name"], _COPIES_OUT), dtype=pl.Boolean)
    ops = ops.with_columns(gathers=gathers, chosen=gathers | copies).sort("call_start_ns")
    starts = profile.steps.cpu.filter(pl.col("process") == profile.process)["start_ns"].sort()
    ops = ops.with_columns(
        step=pl.Series(starts.search_sorted(ops["call_start_ns"], side="right"), dtype=pl.Int64),
        forward=(pl.col("phase") == "forward"),
    )
    # Round n of a step begins with its n-th change to forward.
    begins = pl.col("forward") & ~pl.col("forward").shift(1, fill_value=False).over("step")
    ops = ops.with_columns(round=begins.cast(pl.Int64).cum_sum().over("step"))
    counts = Counter(ops.group_by("step").agg(pl.col("round").max())["round"].to_list())
    if not counts:
        return None
    usual, often = counts.most_common(1)[0]
    again = ops.filter(pl.col("chosen") & ((pl.col("round") > 1) | ~pl.col("forward")))
    repeated = again.filter(pl.col("gathers"))
    if usual < 2 or often < ALIKE_ROUNDS_SHARE * steps or repeated.height < (usual - 1) * steps:
        return None
    return MicroGathers(
        usual,
        round(repeated.height / steps),
        frozenset(repeated["op"].to_list()),
        frozenset(again["op"].to_list()),
    )

"""A unit of a sharded model that one forward calls several times: its parameters are gathered, and its gradients reduced, for each call.

Networks that refine their result call one block again and again with the same weights. As a unit of its own it is freed behind each call.
A part that belongs to the unit around it is gathered once with that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.operator_bounds import GATHERED_OFTEN_TIMES
from nsysx.events.operator_flow import flow_of
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import settings_of
from nsysx.frames import lookup
from nsysx.model import Row

_GATHERS, _REDUCES = r"ncclDevKernel_AllGather", r"ncclDevKernel_ReduceScatter"


class CalledUnit(NamedTuple):
    """A unit (``path``) that a forward gathers ``times`` in each step, for calls at a line (``where``; empty: not known).

    ``ops``: the gathers and reductions that are there because it is called again, as far as the unit that they are for is known.
    """

    path: str
    times: int
    ops: frozenset[int]
    where: Row


def called_unit(profile: Profile) -> CalledUnit | None:
    """Return the unit that forwards gather most often, None where each is gathered about as often as the whole network is called."""
    return profile.once(_find)


def _find(profile: Profile) -> CalledUnit | None:
    settings, steps = settings_of(profile), profile.scope.steps or 1
    if settings is None or not (settings.wrappers("fully_shard") or settings.wrappers("FSDP")):
        return None
    ops = profile.steady_ops.select("op", "name", "module", "call_start_ns", phase=pl.col("phase").cast(pl.String))
    reduces = pl.Series(lookup.matching(ops["name"], _REDUCES), dtype=pl.Boolean)
    ops = ops.with_columns(reduces=reduces).filter(
        pl.Series(lookup.matching(ops["name"], _GATHERS), dtype=pl.Boolean) | reduces
    )
    ops = ops.filter(pl.col("module").is_not_null()).with_columns(pl.col("module").cast(pl.String))
    of_forward = ops.filter((pl.col("phase") == "forward") & ~pl.col("reduces"))
    often = (
        of_forward.group_by("module")
        .len()
        .filter(pl.col("len") >= steps)
        .sort("len", "module", descending=[True, False])
    )
    # Where the network is called for each micro-batch, all of its units are.
    if often.height < 2 or often["len"][0] < GATHERED_OFTEN_TIMES * often["len"][-1]:
        return None
    path = str(often["module"][0])
    theirs = ops.filter(pl.col("module") == path).sort("call_start_ns")
    kept = round(often["len"][-1] / steps) * steps  # so many of each kind would be left
    of_kind = theirs.group_by("phase", "reduces", maintain_order=True).agg("op")
    again = {op for (every,) in of_kind.select("op").iter_rows() for op in every[kept:]}
    return CalledUnit(path, round(often["len"][0] / steps), frozenset(again), _calling(profile, path))


def _calling(profile: Profile, path: str) -> Row:
    flow, code = flow_of(profile), profile.code()
    call = next((each for each in flow.calls if each.path == path), None) if flow is not None else None
    if flow is None or code is None or call is None:
        return {}
    return code.where_of(int(code.at(flow.thread, np.array([call.start_ns]))[0]))

"""A sharded unit that a forward calls several times, as a block of shared weights, and whose parameters each call gathers again.

The unit frees its parameters behind each call, and in backward behind the gradient of each. Kept from the first call to the end of
backward they take no more memory than one call needs, for longer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.catalogue import DeviceActivity
from nsysx.events.operator_bounds import GATHERED_OFTEN_TIMES
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Saving
from nsysx.findings._once import Takes
from nsysx.findings._sharded_models import parameter_bytes, spare_bytes
from nsysx.frames import lookup
from nsysx.replay.engine import RemoveOps

_GATHERS, _COPIES_OUT = r"ncclDevKernel_AllGather", r"split_with_sizes_copy"


class _Recurrent(NamedTuple):
    """A unit (path of its module) that one forward gathers ``times``, and the GPU ops of its gathers but the first of each step, with the
    copies out of what came.
    """

    module: str
    times: float
    again: frozenset[int]


def _find(profile: Profile) -> _Recurrent | None:
    """Return the unit that gathers most often for one forward, None without one."""
    settings, steps = settings_of(profile), profile.scope.steps
    if settings is None or not settings.wrappers("fully_shard") or not steps:
        return None
    ops = profile.steady_ops.select("op", "name", "cls", "module", pl.col("phase").cast(pl.String), "call_start_ns")
    ops = ops.filter(
        pl.col("module").is_not_null(), pl.col("call_start_ns").is_not_null(), pl.col("phase").is_not_null()
    )
    gathers = (
        lookup.matching(ops["name"], _GATHERS)
        & (ops["cls"] == DeviceActivity.COMM.value).fill_null(value=False).to_numpy()
    )
    ops = ops.with_columns(
        pl.col("module").cast(pl.String),
        gathers=pl.Series(gathers, dtype=pl.Boolean),
        out=pl.Series(lookup.matching(ops["name"], _COPIES_OUT), dtype=pl.Boolean),
    ).filter(pl.col("gathers") | pl.col("out"), pl.col("phase").is_in(["forward", "backward"]))
    forwards = steps * max(settings.number("backwards") or 1, 1)
    of_forward = (
        ops.filter(pl.col("gathers"), pl.col("phase") == "forward").group_by("module").len().sort("len", "module")
    )
    if not of_forward.height or of_forward["len"][-1] < GATHERED_OFTEN_TIMES * forwards:
        return None
    module, times = str(of_forward["module"][-1]), int(of_forward["len"][-1]) / forwards
    starts = profile.steps.cpu.filter(pl.col("process") == profile.process)["start_ns"].sort()
    theirs = ops.filter(pl.col("module") == module).sort("call_start_ns")
    step = starts.search_sorted(theirs["call_start_ns"], side="right")
    # Of several micro-batches the first alone has to gather, but each may be given other parameters: one for each stays.
    first = theirs.with_columns(step=step).with_columns(n=pl.col("gathers").cum_sum().over("step"))
    again = first.filter(pl.col("n") > max(settings.number("backwards") or 1, 1))
    return _Recurrent(module, times, frozenset(again["op"].to_list()))


def gathered_each_time(case: Case, settings: RecordedSettings) -> str:
    """Return that a unit is gathered for each of its calls in one forward, although the card has room to keep it."""
    recurrent = case.profile.once(_find)
    whole = parameter_bytes(settings, settings.wrappers("fully_shard") or ())
    if recurrent is None or (settings.record.get("memory") and spare_bytes(settings, whole) is None):
        return ""
    return (
        f"{recurrent.module} is called {units.count(round(recurrent.times))} times in each forward, frees its parameters behind each and "
        f"gathers them again for the next, {units.count(round(len(recurrent.again) / case.steps))} gathers and copies {case.per} that "
        "bring what was there"
    )


def kept_over_calls(case: Case, _: RecordedSettings | None) -> Saving | None:
    """Return what it saves if only the first call of a step gathers: a bound, since ranks may wait for each other elsewhere then."""
    recurrent = case.profile.once(_find)
    return None if recurrent is None else case.worth_or_freed(RemoveOps(recurrent.again), bound=True)


def taken(case: Case) -> Takes:
    """Return these gathers and copies."""
    recurrent = case.profile.once(_find)
    return Takes(frozenset() if recurrent is None else recurrent.again)


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy with the path of the unit."""
    recurrent = case.profile.once(_find)
    if recurrent is None:
        return title, remedy
    _, _, path = recurrent.module.partition(".")  # behind the name of the network
    unit = f"model.{path}" if path else "model"
    return f"{recurrent.module} gathers its parameters again for each of its calls", replace(
        remedy, paste=remedy.paste.replace("block", unit)
    )

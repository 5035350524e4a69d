"""A sharded network that a step calls several times before one backward, of inputs that need nothing of each other: pairs of texts.

Each of its units is gathered for each call, and again for each in backward, and its gradients are scattered as often. One call with all
rows gathers each once. Which calls those are is told by an X-ray; the gathers are counted in the steady steps, of each module in forward.
"""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from nsysx.events.needs_of_calls import depth
from nsysx.events.operator_flow import ModuleCall, OperatorFlow, flow_of
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import settings_of
from nsysx.events.trained_operators import trained_of

_GATHERS, _SCATTERS = r"ncclDevKernel_AllGather", r"ncclDevKernel_ReduceScatter"


class ForwardsInTurn(NamedTuple):
    """``calls`` of a network, in order; ``ops``: of its ``units`` those gathers and scatters of gradients that are not a step's first."""

    calls: tuple[ModuleCall, ...]
    units: int
    ops: frozenset[int]


def forwards_in_turn(profile: Profile) -> ForwardsInTurn | None:
    """Return the calls of the sharded network of the shown process that could be one; None without any."""
    return profile.once(_find)


def _find(profile: Profile) -> ForwardsInTurn | None:
    settings, flow = settings_of(profile), flow_of(profile)
    if settings is None or flow is None or not (settings.wrappers("fully_shard") or settings.wrappers("FSDP")):
        return None
    trained = trained_of(profile)
    calls = [call for call in _outermost(flow) if trained[call.first : call.last].any()]
    if len(calls) < 2 or len({call.path for call in calls}) > 1 or depth(flow, calls) > 1:
        return None
    ops = profile.steady_ops["op", "name", "phase", "module", "call_start_ns"].sort("call_start_ns")
    name, phase = ops["name"].cast(pl.String), ops["phase"].cast(pl.String)
    ops = ops.with_columns(
        pl.col("module").cast(pl.String),
        back=(phase == "backward").fill_null(value=False), forward=(phase == "forward").fill_null(value=False),
        gathers=name.str.contains(_GATHERS).fill_null(value=False),
        scatters=name.str.contains(_SCATTERS).fill_null(value=False),
    )  # fmt: skip
    starts = profile.steps.cpu.filter(profile.steps.cpu["process"] == profile.process)["start_ns"].sort()
    step = starts.search_sorted(ops["call_start_ns"].fill_null(0), side="right")
    ops = ops.with_columns(step=pl.Series(step, dtype=pl.Int64))
    gathers = ops.filter(pl.col("gathers") & pl.col("forward") & pl.col("module").is_not_null())
    often = gathers.group_by("step", "module").len()
    several = often.filter(often["len"] == len(calls))
    if not several.height or several.height < (profile.scope.steps or 1) or _between_backwards(ops):
        return None
    again = gathers.join(several, on=["step", "module"], how="semi")
    again = again.filter(pl.int_range(pl.len()).over("step", "module") > 0)
    behind = [_later(ops.filter(pl.col("back") & pl.col(kind)), len(calls)) for kind in ("gathers", "scatters")]
    units = several["module"].n_unique()
    return ForwardsInTurn(tuple(calls), units, frozenset(pl.concat([again["op"], *behind]).to_list()))


def _outermost(flow: OperatorFlow) -> list[ModuleCall]:
    """Return the calls of networks in forward, those that lie in no other."""
    calls, last = list[ModuleCall](), -1
    for call in flow.calls:  # outer ones come first
        if call.first >= last:
            calls.append(call)
            last = call.last
    return calls


def _between_backwards(ops: pl.DataFrame) -> bool:
    """Return whether a backward lies between two forward gathers of a step: these are of micro-batches."""
    forward = ops.filter(ops["gathers"] & ops["forward"]).group_by("step").agg(last=pl.col("call_start_ns").max())
    backward = ops.filter(ops["back"]).group_by("step").agg(first=pl.col("call_start_ns").min())
    return forward.join(backward, on="step").filter(pl.col("last") > pl.col("first")).height > 0


def _later(ops: pl.DataFrame, calls: int) -> pl.Series:
    """Return of the messages of a backward those of all calls but one; none where there are as many as for one call."""
    nth = ops.with_columns(n=pl.int_range(pl.len()).over("step"), of=pl.len().over("step"))
    return nth.filter((pl.col("of") % calls == 0) & (pl.col("n") >= pl.col("of") // calls))["op"]

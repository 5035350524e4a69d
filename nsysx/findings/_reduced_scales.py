"""The largest number of each tensor, reduced over the ranks by itself while a network computes: scales of quantized layers.

Each is a message of a few bytes for which all ranks meet, and which the layer waits for. Scales of the step before (delayed scaling) let
one message behind the step carry all of them.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx import units
from nsysx.events.message_calls import with_messages
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving
from nsysx.findings._finding_bounds import FEWEST_SCALES, SCALE_BYTES
from nsysx.findings._once import Takes, edits_without
from nsysx.model import Row

_LARGEST = r"AllReduce_(MinMax|Max)_"


def _scales(profile: Profile) -> pl.DataFrame:
    """Return such messages of the steady steps within networks: op, call, in order of time."""
    sent = profile.once(with_messages)
    if not sent.height:
        return sent
    steady = profile.steady_ops.filter(pl.col("module").is_not_null())["op"]
    few = (pl.col("bytes") <= SCALE_BYTES) & pl.col("name").str.contains(_LARGEST)
    phases = pl.col("phase").is_in(["forward", "backward"])
    return sent.filter(few & phases & pl.col("op").is_in(steady.implode())).sort("call_start_ns")


def scales_one_by_one(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that layers reduce the largest number of what they are given, each by itself."""
    scales = case.profile.once(_scales)
    if scales.height < FEWEST_SCALES * case.steps:
        return ""
    return (
        f"{units.count(round(scales.height / case.steps))} messages of at most {SCALE_BYTES} bytes in a step reduce the largest number of "
        "a tensor over all ranks while the network computes: each takes as long as it takes the ranks to meet, and the layer waits for it"
    )


def reduced_at_once(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it saves if one message in each step carries all: the launches, the host code before them and the work of the others."""
    scales = case.profile.once(_scales)
    if not scales.height:
        return None
    # The last one of each step is left.
    last = set(scales.group_by(_step_of(case, scales)).agg(pl.col("call").last())["call"].to_list())
    gone = scales.filter(~pl.col("call").is_in(list(last)))["call"]
    calls = case.calls.filter(case.calls["call"].is_in(gone.implode()))
    return case.worth(*edits_without(calls, case.ops, leading=True), bound=True)


def _step_of(case: Case, scales: pl.DataFrame) -> pl.Series:
    cpu = case.profile.steps.cpu.filter(pl.col("process") == case.process)
    step = np.searchsorted(cpu["start_ns"].sort().to_numpy(), scales["call_start_ns"].to_numpy(), side="right")
    return pl.Series("step", step, dtype=pl.Int64)


def taken(case: Case) -> Takes:
    """Return these messages."""
    return Takes(frozenset(case.profile.once(_scales)["op"].to_list()))


def place_of_scales(case: Case) -> Row:
    """Return the line that reduces most of them."""
    scales, code = case.profile.once(_scales), case.profile.code()
    if code is None or not scales.height:
        return {}
    return code.where_most(code.places_of(code.op[scales["op"].to_numpy()]))

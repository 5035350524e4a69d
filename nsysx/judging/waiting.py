"""The places where the host waits for the GPU, and what a step would save without those waits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.analyses.helpers.host_stopwatch import gpu_calls
from nsysx.catalogue import Call
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.judging.gpu_work import folded
from nsysx.replay.engine import RemoveWaits, Replay, replay_of

PLACE = ("api", "module", "phase", "file", "line")
#: A place is listed if it waits, or leaves the GPU idle, for this share of the steps; and at most this many are.
_LISTED, _MOST = 0.001, 8


class Waits(NamedTuple):
    """The calls that wait, and their places, longest wait first: PLACE, calls, in_steps, and sums over the steady steps (ns)."""

    calls: pl.DataFrame
    places: pl.DataFrame


def uploads(profile: Profile) -> pl.DataFrame:
    """Return the synchronize calls that PyTorch makes right after a copy from pageable memory to the device: call, copy."""
    gpu = gpu_calls(profile)
    syncs = profile.steady_calls.filter(profile.steady_calls["kind"] == Call.SYNC)["call"].to_numpy()
    before = gpu.previous(gpu.row[syncs].astype(np.int64))
    pageable = (pl.col("copy_kind") == 1) & (pl.col("src_kind") == 0)
    copies = profile.steady_ops.filter(pageable)["call"].drop_nulls().to_numpy()
    pairs = pl.DataFrame({"call": syncs, "copy": gpu.call[before]})
    # A graph may hold uploads too.
    copied = (profile.attributed.api_calls["kind"].gather(pairs["copy"]) == Call.COPY).to_numpy()
    return pairs.filter((before >= 0) & copied & np.isin(pairs["copy"].to_numpy(), copies))


def waits(profile: Profile) -> Waits:
    """Return the calls of the shown process that wait for the GPU in the steady steps, except copies to it.

    The wait of a copy to the device belongs to the copy. Places that differ only by a number are one.
    """
    process = profile.steps.process
    calls = (
        profile.wait_sites()
        .filter(pl.col("process") == process)
        .with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("ns"))
    )
    calls = calls.filter(calls["kind"].is_in(Call.WAITS))
    to_device = profile.steady_ops["call"].filter(profile.steady_ops["name"] == "HtoD").drop_nulls()
    others = np.concatenate([to_device.to_numpy(), profile.once(uploads)["call"].to_numpy()])
    calls = calls.filter(~np.isin(calls["call"].to_numpy(), others))
    steps = profile.steps.cpu.filter(pl.col("process") == process).sort("start_ns")
    calls = calls.sort("start_ns", "call").join_asof(
        steps.select(pl.col("start_ns").alias("_at"), "index"), left_on="start_ns", right_on="_at"
    )
    calls = calls.with_columns(
        lookup.changed(calls["module"].cast(pl.Categorical), folded).cast(pl.String).alias("module")
    )
    places = calls.group_by(PLACE).agg(
        pl.len().alias("calls"),
        pl.col("index").n_unique().alias("in_steps"),
        pl.col("ns", "backlog_ns", "own_op_ns", "host_ns", "idle_caused_ns").sum(),
    )
    start, end = profile.window
    long = pl.max_horizontal("ns", "idle_caused_ns") >= max(_LISTED * (end - start), 1)
    by = [True] + [False] * len(PLACE)
    return Waits(calls, places.sort("ns", *PLACE, descending=by, nulls_last=True).filter(long).head(_MOST))


def at(calls: pl.DataFrame, place: dict[str, object]) -> frozenset[int]:
    """Return the calls of one of the places."""
    return frozenset(calls.filter(lookup.same_values(place, PLACE))["call"].drop_nulls().to_list())


def dearest_ns(profile: Profile) -> int:
    """Return the most that a replayed step saves when the calls of one place no longer wait (ns)."""
    replay, known = replay_of(profile), profile.once(waits)
    if not isinstance(replay, Replay) or not replay.trusted:
        return 0
    gone = (at(known.calls, place) for place in known.places.to_dicts())
    return max((replay.saving(RemoveWaits(calls)).saving_ns for calls in gone if replay.replayed(calls)), default=0)

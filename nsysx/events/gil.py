"""Who held Python's lock (GIL) while the thread that the GPU waited for was waiting for it."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.events.event_bounds import GIL_SAMPLE_PERIODS
from nsysx.events.host_pieces import host_pieces, split
from nsysx.events.profile import Profile
from nsysx.events.sampled_lines import known_lines
from nsysx.frames.intervals import I64


def gil_idle(profile: Profile) -> pl.DataFrame:
    """Return the host's idle pieces cut by the lock: columns of ``host_pieces``, waits, holder (thread, null for none noted).

    Only where the lock was traced. ``waits``: the thread waited for the lock. The parts sum to the pieces to the nanosecond.
    """
    assert profile.ranges.gil is not None
    noted = profile.ranges.gil.filter(profile.ranges.gil["process"] == profile.process)
    waiting = split(host_pieces(profile), noted.filter(~noted["holds"]))
    parts = waiting.with_columns(waits=pl.col("span").is_not_null()).drop("span")
    late, held = parts.filter("waits"), noted.filter("holds")
    # One thread at a time has the lock, so all that is held is one line of spans.
    cut = split(
        late.rename({"thread": "_late"}).with_columns(thread=pl.lit(0, pl.Int64)),
        held.with_columns(thread=pl.lit(0, pl.Int64)),
    )
    holder = (
        held["thread"].gather(cut["span"].fill_null(0))
        if held.height
        else pl.Series([None] * cut.height, dtype=pl.Int64)
    )
    cut = cut.with_columns(
        pl.when(pl.col("span").is_not_null()).then(holder).alias("holder"), pl.col("_late").alias("thread")
    ).drop("span", "_late")
    rest = parts.filter(~pl.col("waits")).with_columns(holder=pl.lit(None, pl.Int64))
    return pl.concat([cut[rest.columns], rest])


def lines_of(profile: Profile, thread: I64, instants: I64) -> I64:
    """Return the place (row of ``Lines.places.places``) of the sample of each thread that is nearest, -1 where none is near."""
    lines = known_lines(profile)
    places = np.full(len(instants), -1)
    if lines is None:
        return places
    for who in np.unique(thread).tolist():
        of_thread = np.flatnonzero(thread == who)
        stacks = profile.trace.samples.filter(pl.col("thread") == who)
        time = stacks["time_ns"].to_numpy()
        if not len(time):
            continue
        behind = np.clip(np.searchsorted(time, instants[of_thread]), 0, len(time) - 1)
        before = np.maximum(behind - 1, 0)
        nearest = np.where(
            np.abs(time[before] - instants[of_thread]) <= np.abs(time[behind] - instants[of_thread]), before, behind
        )
        near = np.abs(time[nearest] - instants[of_thread]) <= GIL_SAMPLE_PERIODS * lines.period_ns
        places[of_thread[near]] = lines.places.place[stacks["stack"].to_numpy()[nearest[near]]]
    return places

"""Host code between launches that no launch explains: fewer launches leave it where it is.

A launch takes some host code of its own, much the same before each. What a line of the program makes besides, such as data built
from lists, is none of that: a graph of the launches before and behind it keeps it, and so does a compiler.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl

from nsysx.catalogue import Call, Cause
from nsysx.events.line_shares import divided
from nsysx.events.profile import Profile
from nsysx.events.python_pauses import time_in
from nsysx.findings._finding_bounds import (
    FOR_A_LAUNCH_NS,
    HELD_ANYWHERE_NS,
    HELD_ANYWHERE_TIMES,
    HELD_BY_LINE_NS,
    HELD_BY_LINE_TIMES,
)
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.replay.engine import idle_of


def pauses(profile: Profile) -> pl.DataFrame:
    """Return call, thread, start_ns, end_ns of the host code before each steady call: the time since the call before on its thread."""
    calls = profile.steady_calls.select("call", "thread", "kind", "start_ns", "end_ns")
    calls = lookup.ordered(calls, "start_ns", (), group="thread")
    thread, start_ns, end_ns = (calls[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    before_ns = start_ns.copy()  # none before the first of a thread
    borders = np.flatnonzero(np.diff(thread)) + 1
    for first, last in pairwise([0, *borders.tolist(), len(thread)]):
        np.maximum.accumulate(end_ns[first : last - 1], out=before_ns[first + 1 : last])
    late = np.flatnonzero(start_ns > before_ns)
    return calls[late].select("call", "thread", "kind", start_ns=pl.Series(before_ns[late]), end_ns="start_ns")


def usual_ns(profile: Profile) -> float:
    """Return the median of the host code between two launches that follow each other; 0 where there are none."""
    gaps = profile.once(pauses)
    launches = gaps.filter(gaps["kind"].is_in(Call.LAUNCHES))
    median = (launches["end_ns"] - launches["start_ns"]).median()
    return float(median) if isinstance(median, int | float) else 0.0


def held(profile: Profile) -> frozenset[int]:
    """Return the steady calls before which there is host code that fewer launches do not remove."""
    return profile.once(_held_launches)


def guilty(profile: Profile) -> I64:
    """Return the lines (places of `CodeLines`) whose own host code is more than their launches take."""
    return profile.once(_guilty)


def _guilty(profile: Profile) -> I64:
    lines = profile.code()
    if lines is None:
        return np.empty(0, np.int64)
    gaps = profile.once(pauses)
    parts = divided(profile, lines, gaps.select("thread", "start_ns", "end_ns", group=pl.lit(0, pl.Int64)))
    size = lines.places.height + 1
    host = lookup.totals(lines.places_of(parts["stack"].to_numpy()), parts["ns"].to_numpy(), size)
    calls = profile.steady_calls
    launch = calls["call"].filter(calls["kind"].is_in(Call.LAUNCHES)).to_numpy()
    often = lookup.totals(lines.places_of(lines.call[launch]), np.ones(len(launch), np.int64), size)
    least = max(FOR_A_LAUNCH_NS, HELD_BY_LINE_TIMES * usual_ns(profile))
    return np.flatnonzero((host[:-1] > 0) & (host[:-1] >= least * often[:-1]))


def idle_ns(profile: Profile) -> float:
    """Return how long the shown device idles in all steady steps for the host code before these calls (ns, without tracing)."""
    gaps = profile.once(pauses)
    gaps = gaps.filter(pl.Series(np.isin(gaps["call"].to_numpy(), list(held(profile))), dtype=pl.Boolean))
    idle = profile.once(idle_of)
    idle = idle.filter((idle["cause"] == Cause.HOST_CODE.number) & (idle["ns"] > 0))
    total = 0.0
    for (thread,), part in gaps.group_by("thread"):
        theirs = idle.filter(idle["thread"] == thread)
        within = time_in(part, theirs["start_ns"].to_numpy(), theirs["end_ns"].to_numpy())
        total += float((within * (theirs["real_ns"] / theirs["ns"]).to_numpy()).sum())
    return total


def _held_launches(profile: Profile) -> frozenset[int]:
    gaps, usual = profile.once(pauses), usual_ns(profile)
    ns = (gaps["end_ns"] - gaps["start_ns"]).to_numpy()
    chosen = ns >= max(HELD_ANYWHERE_NS, HELD_ANYWHERE_TIMES * usual)
    lines = profile.code()
    if lines is not None:
        long = np.flatnonzero(ns >= max(HELD_BY_LINE_NS, HELD_BY_LINE_TIMES * usual))
        pieces = gaps.select("thread", "start_ns", "end_ns", group=pl.int_range(pl.len(), dtype=pl.Int64))[long]
        parts = divided(profile, lines, pieces)
        of_guilty = np.isin(lines.places_of(parts["stack"].to_numpy()), guilty(profile))
        theirs = lookup.totals(parts["group"].to_numpy()[of_guilty], parts["ns"].to_numpy()[of_guilty], len(ns))
        chosen |= 2 * theirs > ns
    return frozenset(gaps["call"].to_numpy()[chosen].tolist())

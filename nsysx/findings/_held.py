"""Host code between launches that no launch explains: fewer launches leave it where it is.

A launch takes some host code of its own, much the same before each. What a line of the program makes besides, such as data built
from lists, is none of that: a graph of the launches before and behind it keeps it, and so does a compiler.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
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
from nsysx.replay.engine import Replay, idle_of, replay_of
from nsysx.replay.held_lines import pauses
from nsysx.replay.late_causes import late_rank_of


class _HeldCode(NamedTuple):
    """Host code that fewer launches leave where it is: the calls behind it, where it is (columns as `pauses`), and the lines whose own
    host code is more than their launches take (places of `CodeLines`).
    """

    calls: frozenset[int]
    gaps: pl.DataFrame
    guilty: I64


def held(profile: Profile) -> frozenset[int]:
    """Return the steady calls before which there is host code that fewer launches do not remove."""
    return profile.once(_held_code).calls


def guilty(profile: Profile) -> I64:
    """Return the lines (places of `CodeLines`) whose own host code is more than their launches take."""
    return profile.once(_held_code).guilty


def _guilty(profile: Profile, gaps: pl.DataFrame, usual_ns: float) -> I64:
    """Return the lines of `_HeldCode`; none where no X-ray noted any. ``usual_ns``: of the host code before a launch."""
    lines = profile.code()
    if lines is None:
        return np.empty(0, np.int64)
    parts = divided(profile, lines, gaps.select("thread", "start_ns", "end_ns", group=pl.lit(0, pl.Int64)))
    size = lines.places.height + 1
    host = lookup.totals(lines.places_of(parts["stack"].to_numpy()), parts["ns"].to_numpy(), size)
    launch = _launches(profile)
    often = lookup.totals(lines.places_of(lines.call[launch]), np.ones(len(launch), np.int64), size)
    least = max(FOR_A_LAUNCH_NS, HELD_BY_LINE_TIMES * usual_ns)
    return np.flatnonzero((host[:-1] > 0) & (host[:-1] >= least * often[:-1]))


def _launches(profile: Profile) -> I64:
    """Return the steady calls that launch."""
    calls = profile.steady_calls
    launches: I64 = calls["call"].filter(calls["kind"].is_in(Call.LAUNCHES)).to_numpy()
    return launches


def _usual_ns(profile: Profile, gaps: pl.DataFrame) -> float:
    """Return the median of the host code before a launch; 0 where there are none."""
    of_launches = np.isin(gaps["call"].to_numpy(), _launches(profile))
    ns = (gaps["end_ns"] - gaps["start_ns"]).to_numpy()[of_launches]
    return float(np.median(ns)) if len(ns) else 0.0


def idle_ns(profile: Profile) -> float:
    """Return how long the shown device idles in all steady steps for the host code before these calls (ns, without tracing).

    What was waiting in collectives for a later rank idles for such code as the device of that rank does.
    """
    held_ns, replay = _idle_ns(profile), replay_of(profile)
    share = replay.turned_share if isinstance(replay, Replay) else 0.0
    late = late_rank_of(profile) if share else None
    if late is None:
        return held_ns
    here, there = (int(each.once(idle_of)["real_ns"].sum()) for each in (profile, late))
    return (1 - share) * held_ns + share * here * _idle_ns(late) / max(there, 1)


def _idle_ns(profile: Profile) -> float:
    idle = profile.once(idle_of)
    idle = idle.filter((idle["cause"] == Cause.HOST_CODE.number) & (idle["ns"] > 0))
    total = 0.0
    for (thread,), part in lookup.parted(profile.once(_held_code).gaps, "thread").items():
        theirs = idle.filter(idle["thread"] == thread)
        within = time_in(part, theirs["start_ns"].to_numpy(), theirs["end_ns"].to_numpy())
        total += float((within * (theirs["real_ns"] / theirs["ns"]).to_numpy()).sum())
    return total


def _held_code(profile: Profile) -> _HeldCode:
    # All that is asked of the pauses is asked here, so that they are not kept: there are as many as calls.
    gaps = pauses(profile)
    usual_ns = _usual_ns(profile, gaps)
    costly = _guilty(profile, gaps, usual_ns)
    gaps = gaps[np.flatnonzero(_stays(profile, gaps, usual_ns, costly))]
    return _HeldCode(frozenset(gaps["call"].to_list()), gaps, costly)


def _stays(profile: Profile, gaps: pl.DataFrame, usual_ns: float, costly: I64) -> npt.NDArray[np.bool_]:
    """Return which pauses are long wherever they are, or mostly of lines whose own code is ``costly``."""
    ns = (gaps["end_ns"] - gaps["start_ns"]).to_numpy()
    chosen: npt.NDArray[np.bool_] = ns >= max(HELD_ANYWHERE_NS, HELD_ANYWHERE_TIMES * usual_ns)
    lines = profile.code()
    if lines is not None:
        long = np.flatnonzero(ns >= max(HELD_BY_LINE_NS, HELD_BY_LINE_TIMES * usual_ns))
        pieces = gaps.select("thread", "start_ns", "end_ns", group=pl.int_range(pl.len(), dtype=pl.Int64))[long]
        parts = divided(profile, lines, pieces)
        of_guilty = np.isin(lines.places_of(parts["stack"].to_numpy()), costly)
        theirs = lookup.totals(parts["group"].to_numpy()[of_guilty], parts["ns"].to_numpy()[of_guilty], len(ns))
        chosen |= 2 * theirs > ns
    return chosen

"""Sequences that grow by one with each call of a network: without a cache of keys and values all that came before is computed again."""

from __future__ import annotations

import itertools
import json
import re
from typing import NamedTuple

import polars as pl

from nsysx.catalogue import StepPart
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._finding_bounds import MOST_SHARE
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import CACHED_WORK_STAYS_SHARE, GROWN_CALLS, GROWN_SHORTEST_TOKENS
from nsysx.findings.nsx112_fusion import of_networks
from nsysx.replay.engine import ScaleOps

#: A lookup of tokens by their numbers: its sizes are those of the table and of the numbers.
_LOOKUP = "aten::embedding"
_SIZES = re.compile(r"sizes = (\[[\[\]\d, ]*\])")


class _Growth(NamedTuple):
    """Sequences of a network: how long the first and the last of those that were seen are, and in how many calls."""

    first: int
    last: int
    calls: int


def _lengths(profile: Profile) -> dict[str, list[int]]:
    """Return, of each table of tokens by its size, how long the sequences are that it is asked for, in order of time."""
    lookups = profile.ranges.ranges.filter(
        (pl.col("process") == profile.process)
        & (pl.col("kind") == "op")
        & ~pl.col("repeated")
        & (pl.col("name").cast(pl.String) == _LOOKUP)
    )
    lengths: dict[str, list[int]] = {}
    for text in lookups.sort("start_ns")["label"].cast(pl.String).to_list():
        match = _SIZES.search(text or "")
        sizes = json.loads(match[1]) if match else []
        if len(sizes) >= 2 and len(sizes[1]) == 2:
            lengths.setdefault(f"{sizes[0]} {sizes[1][0]}", []).append(sizes[1][1])
    return lengths


def _growth(profile: Profile) -> _Growth | None:
    for lengths in _lengths(profile).values():
        grown = [b for a, b in itertools.pairwise(lengths) if b == a + 1 and b >= GROWN_SHORTEST_TOKENS]
        if len(grown) + 1 >= GROWN_CALLS and len(grown) >= MOST_SHARE * (len(lengths) - 1):
            return _Growth(grown[0] - 1, grown[-1], len(lengths))
    return None


def grows(case: Case, settings: RecordedSettings) -> str:
    """Return that each call computes all tokens before once more, "" where none does."""
    growth = None if case.program.trains else case.profile.once(_growth)
    if growth is None:
        return ""
    return (
        f"each call gets the sequence before and one token more ({growth.first}, {growth.first + 1}, ... {growth.last} tokens in "
        f"{growth.calls} calls): all of it is computed again for one new token"
    )


def cached(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what it is worth if each call computes its new token alone."""
    return case.worth(
        ScaleOps(taken(case).ops, CACHED_WORK_STAYS_SHARE, less_work=True), cause=(StepPart.WORK,), bound=True
    )


def taken(case: Case) -> Takes:
    """Return the work of the networks."""
    return Takes(ops_of(case.ops.filter(of_networks(case.profile, case.ops))))

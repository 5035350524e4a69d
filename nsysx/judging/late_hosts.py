"""The rank for whose host the others wait most, and the lines at which its GPU idles meanwhile: the GPU of a rank that waits does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

import polars as pl

from nsysx import units
from nsysx.events.profile import Profile
from nsysx.judging.judging_bounds import HOLDING_LINE_OF_IDLE_SHARE
from nsysx.judging.rank_verdict import late_hosts
from nsysx.model import Row
from nsysx.replay import peers
from nsysx.replay.idle_lines import by_line

#: A line of the program: file, line, function.
Site = tuple[str | None, int | None, str]


@dataclass(frozen=True)
class LateHost:
    """A rank for whose host others wait. ``idle``: how long its GPU idles at each line in a step without tracing (ns), all of it and what
    the ledger calls host code.
    """

    rank: int
    profile: Profile
    idle: Mapping[Site, tuple[float, float]]

    @property
    def line(self) -> Site | None:
        """The line that keeps its GPU idle longest, None where no line stands out."""
        longest = max(self.idle, key=lambda site: self.idle[site][1], default=None)
        whole = sum(every for every, _ in self.idle.values())
        stands_out = longest is not None and self.idle[longest][1] > HOLDING_LINE_OF_IDLE_SHARE * whole
        return longest if stands_out else None


def late_host(given: Profile, rows: Sequence[Row]) -> LateHost | None:
    """Return the rank for whose host the shown one waits, by the rows of all ranks; None where that is not so, or no lines were noted."""
    late = next(iter(late_hosts(rows)), None)
    if late is None or late["process"] == given.process:
        return None
    kept = given.once(_kept)
    if late["process"] not in kept:
        alone = next((each for each in peers.others(given) if each.process == late["process"]), None)
        kept[late["process"]] = None if alone is None else _of_rank(late["rank"], alone)
    return kept[late["process"]]


def in_words(given: Profile, rows: Sequence[Row]) -> str:
    """Return at which line the host is for which the shown rank waits, and what that costs there; "" where no line stands out.

    The rank is not named: none of them is always late, and which one is later on the whole is chance.
    """
    late = late_host(given, rows)
    if late is None or late.line is None:
        return ""
    file, line, _ = late.line
    idle = units.duration(late.idle[late.line][1])
    return f": the GPU of one that is late idles {idle} of a step for {PurePath(str(file)).name}:{line}"


def _kept(given: Profile) -> dict[int, LateHost | None]:
    """Return what was read of other ranks than the given one, by their processes."""
    return {}


def _of_rank(rank: int, alone: Profile) -> LateHost | None:
    code, per_step = alone.code(), alone.scope.per_step
    if code is None or not alone.scope.steps:
        return None
    noted = by_line(alone).filter(pl.col("place") >= 0)
    host = pl.when("host").then("real_ns").otherwise(0.0)
    sums = noted.group_by("place").agg(pl.col("real_ns").sum(), host.sum().alias("host_ns")).sort("place")
    return LateHost(
        rank,
        alone,
        {code.places.row(line_row): (per_step(ns), per_step(host_ns)) for line_row, ns, host_ns in sums.iter_rows()},
    )

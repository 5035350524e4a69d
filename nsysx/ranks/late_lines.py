"""Which lines of Python hold a rank longer than its peers, and by how much it makes more calls than they do.

An X-ray notes the lines of every rank. What one rank alone does there, or for much longer, is no drift between two healthy processes:
these run the same lines and differ by the same share in all of them. Nor are calls that the peers do not make: equal steps make as many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nsysx.analyses import lines
from nsysx.catalogue import Call
from nsysx.events.line_shares import host_time
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.ranks.rank_bounds import MOST_KEPT_LINES, MOST_LATE_LINES, OWN_CALLS_TIMES, OWN_LINE_TIMES
from nsysx.ranks.rank_places import HostLine
from nsysx.ranks.rank_record import Rank


class Longer(NamedTuple):
    """A line, and how long (ns) the host is there in one step of a rank and of its peers, their median."""

    line: HostLine
    ns: float
    ns_there: float

    @property
    def more(self) -> float:
        """By how much it takes longer (ns)."""
        return self.ns - self.ns_there

    @property
    def own(self) -> bool:
        """Whether it is the rank's own: it takes many times as long as on its peers."""
        return self.ns >= OWN_LINE_TIMES * self.ns_there


def host_lines(profile: Profile) -> Mapping[HostLine, int]:
    """Return how long the thread that drives the steps is at each line in one of them (ns); empty where no lines were noted."""
    code = profile.code()
    if code is None or not profile.scope.steps:
        return {}
    time = host_time(profile, code)
    line_of = code.places_of(time["stack"].to_numpy())
    ns = lookup.totals(line_of, time["ns"].to_numpy(), code.places.height + 1)[:-1]
    source = lines.texts(profile)
    kept: dict[HostLine, int] = {}
    for row in np.argsort(-ns, kind="stable")[:MOST_KEPT_LINES].tolist():
        file, line, function = code.places.row(row)
        if ns[row] and file and line is not None:
            text = (lines.text_of(source, file, line) or "").partition("  #")[0]
            key = HostLine(file, line, text, function or "")
            kept[key] = kept.get(key, 0) + round(profile.scope.per_step(int(ns[row])))
    return kept


def calls_of_work(profile: Profile) -> float | None:
    """Return how many calls a step of the shown process makes that give work to the device or wait for it; None without steps."""
    steps = profile.scope.steps
    return int(profile.steady_calls["kind"].is_in(Call.OF_WORK).sum()) / steps if steps else None


def more_calls(rank: Rank, others: Sequence[Rank]) -> float:
    """Return which share of its calls a rank makes beyond those of its peers, their median; 0 where that may be chance."""
    counts = [x.calls_of_work for x in others if x.calls_of_work is not None]
    if not rank.calls_of_work or not counts or len(counts) < len(others):
        return 0.0
    usual = float(np.median(counts))
    return 1 - usual / rank.calls_of_work if rank.calls_of_work >= OWN_CALLS_TIMES * usual else 0.0


def longer(rank: Rank, others: Sequence[Rank]) -> tuple[Longer, ...]:
    """Return the lines at which the host of a rank is longer than those of its peers, the largest difference first."""
    if not others or not all(x.host_lines for x in (rank, *others)):
        return ()
    rows = [
        Longer(line, ns, float(np.median([x.host_lines.get(line, 0) for x in others])))
        for line, ns in rank.host_lines.items()
    ]
    return tuple(sorted((row for row in rows if row.more > 0), key=lambda row: (-row.more, row.line)))


def own(rows: Sequence[Longer]) -> float:
    """Return the time (ns) of a step that a rank is longer at lines which are its own, of ``longer``."""
    return sum(row.more for row in rows if row.own)


def alone(rows: Sequence[Longer]) -> float:
    """Return the time (ns) of a step that a rank is at lines which none of its peers runs, of ``longer``."""
    return sum(row.ns for row in rows if not row.ns_there)


def rows_per_step(rows: Sequence[Longer]) -> list[Mapping[str, Any]]:
    """Return the lines as they stand in the table of ranks: per step."""
    return [
        {
            "file": row.line.file,
            "line": row.line.line,
            "text": row.line.text or None,
            "function": row.line.function or None,
            "ns": round(row.ns),
            "others_ns": round(row.ns_there),
        }
        for row in rows[:MOST_LATE_LINES]
    ]

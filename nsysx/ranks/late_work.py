"""In which kinds of work, and at which lines, the GPU of a rank takes longer than those of its peers.

A rank with more data takes longer in all kinds of work; one whose share of one operator is larger, as of a causal triangle that is split
at its middle, in that one alone, while all others take as long as on its peers. What one rank does for all, as metrics or pictures, is at
lines that no other rank runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from nsysx.analyses import lines
from nsysx.catalogue import DeviceActivity, Surplus
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.ranks import uneven
from nsysx.ranks.rank_bounds import (
    ALIKE_WORK_SHARE,
    EVERY_KIND_SHARE,
    MOST_DEALT_SHARE,
    MOST_KEPT_WORK_PLACES,
    MOST_LATE_KINDS,
    NOTABLE_KIND_SHARE,
    ONE_KIND_SHARE,
    OTHER_KINDS_SHARE,
    SAME_KERNELS_UNLIKE_SHARE,
)
from nsysx.ranks.rank_places import WorkPlace
from nsysx.ranks.rank_record import Rank

#: The phases in which networks compute.
_OF_NETWORKS = ("forward", "backward")


class LongerKind(NamedTuple):
    """A kind of work in one step of a rank and of its peers, their median (ns), and the line at which it is longer by most of that.

    ``how``: in what way the kernel of that kind differs that takes longer by most, None where none of the longest does. ``dealt``: it is
    longer outside of forward and backward, and the line is the call below which it is, as of an optimizer that deals parameters out.
    ``others_unlike``: the share of all other kinds in kernels that peers do not run as large and as often; 1 where that is not known.
    """

    family: str
    ns: float
    ns_there: float
    site: WorkPlace | None
    how: str | None
    dealt: bool = False
    others_unlike: float = 1.0

    @property
    def more(self) -> float:
        """By how much it takes longer (ns)."""
        return self.ns - self.ns_there


def _computing(profile: Profile, device: int) -> pl.DataFrame:
    """Return the compute kernels of the steady steps of the shown process on a device."""
    ops = lookup.having(profile.steady_ops, process=profile.process, device=device)
    return ops.filter(ops["cls"] == DeviceActivity.COMPUTE.value)


def compute_by_place(profile: Profile, device: int) -> Mapping[WorkPlace, float]:
    """Return how long compute kernels of each kind, launched at each line, run in one step of the shown process (ns).

    Backward has the line of its forward. All of a kind at lines that take least is one row without a line, so the kinds are whole.
    """
    if not profile.scope.steps:
        return {}
    ops = _computing(profile, device)
    code = profile.code()
    line_of_op = np.full(ops.height, -1) if code is None else code.places_of(code.op[ops["op"].to_numpy()])
    ns = pl.col("end_ns") - pl.col("start_ns")
    sums = ops.select(pl.col("family").cast(pl.String), pl.Series("at", line_of_op, dtype=pl.Int64), ns=ns)
    sums = (
        sums.group_by("family", "at")
        .agg(pl.col("ns").sum())
        .sort("ns", "family", "at", descending=[True, False, False])
    )
    source, kept = lines.texts(profile), dict[WorkPlace, float]()
    for number, (family, row, total) in enumerate(sums.iter_rows()):
        row = row if number < MOST_KEPT_WORK_PLACES else -1
        file, line = (None, None) if code is None or row < 0 else code.places.row(row)[:2]
        site = _site(source, family, file, line)
        kept[site] = kept.get(site, 0.0) + profile.scope.per_step(int(total))
    return kept


def compute_outside(profile: Profile, device: int) -> Mapping[WorkPlace, float]:
    """Return how long compute kernels of each kind run in one step of the shown process below each of its lines, callers too (ns).

    Of work outside of forward and backward alone: what an optimizer computes for each parameter, or a step for each item. Of lines below
    which as much runs the inner ones come first.
    """
    code = profile.code()
    if not profile.scope.steps or code is None:
        return {}
    ops = _computing(profile, device)
    inside = pl.col("phase").cast(pl.String).is_in(_OF_NETWORKS)
    sums = ops.select(
        pl.col("family").cast(pl.String),
        pl.Series("stack", code.op[ops["op"].to_numpy()], dtype=pl.Int64),
        ns=pl.col("end_ns") - pl.col("start_ns"),
        inside=inside.fill_null(value=False),
    )
    sums = sums.filter(~pl.col("inside") & (pl.col("stack") >= 0)).group_by("family", "stack").agg(pl.col("ns").sum())
    below: dict[tuple[str, int], int] = {}
    depth: dict[tuple[str, int], int] = {}
    for family, stack, ns in sums.sort("family", "stack").iter_rows():
        chain = code.own_chain(stack)
        for row in set(chain):
            below[family, row] = below.get((family, row), 0) + ns
            depth[family, row] = min(depth.get((family, row), len(chain)), chain.index(row))
    source, kept = lines.texts(profile), dict[WorkPlace, float]()
    ordered = sorted(below.items(), key=lambda each: (-each[1], depth[each[0]], each[0]))
    for (family, row), ns in ordered[:MOST_KEPT_WORK_PLACES]:
        file, line = code.places.row(row)[:2]
        if file and line is not None:
            kept[_site(source, family, file, line)] = profile.scope.per_step(ns)
    return kept


def _site(source: Mapping[str, Any], family: str, file: str | None, line: int | None) -> WorkPlace:
    """Return a kind of work at a line with what stands there, at none where file or line is not known."""
    if not file or line is None:
        return WorkPlace(family, None, None, "")
    return WorkPlace(family, file, line, (lines.text_of(source, file, line) or "").partition("  #")[0])


def _by_family(work: Mapping[WorkPlace, float]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for site, ns in work.items():
        sums[site.family] = sums.get(site.family, 0) + ns
    return sums


def kinds(rank: Rank, others: Sequence[Rank]) -> tuple[LongerKind, ...]:
    """Return all kinds of work of a rank and its peers, that by which it is longest first; empty where one of them has none noted."""
    if not others or not all(x.compute_by_place for x in (rank, *others)):
        return ()
    here, there = _by_family(rank.compute_by_place), [_by_family(x.compute_by_place) for x in others]
    how = {d.family: d.how for d in reversed(uneven.differences(rank, others, None))}
    longer_kinds = []
    for family in dict.fromkeys(f for each in (here, *there) for f in each):
        usual = float(np.median([each.get(family, 0) for each in there]))
        kind = LongerKind(family, here.get(family, 0), usual, _line_of(rank, others, family), how.get(family))
        dealt = _dealt_out(rank, others, kind)
        longer_kinds.append(kind if dealt is None else kind._replace(site=dealt, dealt=True))
    first, *rest = sorted(longer_kinds, key=lambda kind: (-kind.more, kind.family))
    unlike = uneven.unlike(rank, others, without=first.family) if rank.kernels else first.others_unlike
    return first._replace(others_unlike=unlike), *rest


def _line_of(rank: Rank, others: Sequence[Rank], family: str) -> WorkPlace | None:
    """Return the line at which a rank is longer by at least half of what it is longer in a kind of work, None where there is none."""
    places = dict.fromkeys(p for x in (rank, *others) for p in x.compute_by_place if p.family == family)
    more = {
        p: rank.compute_by_place.get(p, 0) - float(np.median([x.compute_by_place.get(p, 0) for x in others]))
        for p in places
    }
    most = max(more, key=lambda p: more[p], default=None)
    return most if most is not None and most.file and 2 * more[most] >= sum(more.values()) > 0 else None


def _dealt_out(rank: Rank, others: Sequence[Rank], kind: LongerKind) -> WorkPlace | None:
    """Return the innermost line outside of networks below which nearly all lies by which a kind is longer, where peers run it, too.

    None where there is none, or where all work of that kind is below that line: then it is the step's own call.
    """
    sites = [site for site in rank.compute_outside if site.family == kind.family]
    there = {site: float(np.median([x.compute_outside.get(site, 0) for x in others])) for site in sites}
    holding = [
        site
        for site in sites
        if there[site] > 0 and rank.compute_outside[site] - there[site] >= ONE_KIND_SHARE * kind.more > 0
    ]
    innermost = min(holding, key=lambda site: rank.compute_outside[site], default=None)  # the first of several
    if innermost is None or rank.compute_outside[innermost] > MOST_DEALT_SHARE * kind.ns:
        return None
    return innermost


def spread(longer_kinds: Sequence[LongerKind]) -> Surplus | None:
    """Return how the surplus of a rank lies in its kinds of work (see ``kinds``); None where it has none."""
    surplus, usual = sum(kind.more for kind in longer_kinds), sum(kind.ns_there for kind in longer_kinds)
    if surplus <= 0 or not usual:
        return None
    if (
        longer_kinds[0].how == uneven.LONGER
    ):  # the same kernels, as large and as often: slower beside something else, and no more work
        return Surplus.SEVERAL
    rest = longer_kinds[1:]
    unlike = sum(abs(kind.more) for kind in rest)
    others = sum(kind.ns_there for kind in rest)
    # On a GPU that ranks share, the same kernels take as long as the other rank leaves of it: their number and size tell.
    same = unlike <= ALIKE_WORK_SHARE * others or longer_kinds[0].others_unlike <= SAME_KERNELS_UNLIKE_SHARE
    alike = others >= OTHER_KINDS_SHARE * usual and same
    if alike and longer_kinds[0].more >= ONE_KIND_SHARE * surplus:
        return Surplus.ONE
    longer = sum(kind.ns_there for kind in longer_kinds if kind.more * usual >= surplus * kind.ns_there / 2)
    return Surplus.EVERY if longer >= EVERY_KIND_SHARE * usual else Surplus.SEVERAL


def at_own_lines(rank: Rank, others: Sequence[Rank]) -> tuple[LongerKind, ...]:
    """Return the work of a rank at each line that none of its peers runs, most first, where that is what it takes longer by; else none.

    Each has the kind of most of it. Without that work the rank has as much of every kind as its peers: lines that are not known there
    would show as work that they have more of.
    """
    longer_kinds = kinds(rank, others)
    surplus, usual = sum(kind.more for kind in longer_kinds), sum(kind.ns_there for kind in longer_kinds)
    there = {(site.file, site.line) for x in others for site in x.compute_by_place}
    by_line: dict[tuple[str, int], dict[WorkPlace, float]] = {}
    for site, ns in rank.compute_by_place.items():
        if site.file and site.line and (site.file, site.line) not in there:
            by_line.setdefault((site.file, site.line), {})[site] = ns
    lone_ns = _by_family({site: ns for line in by_line.values() for site, ns in line.items()})
    unlike = sum(abs(kind.more - lone_ns.get(kind.family, 0)) for kind in longer_kinds)
    if surplus <= 0 or sum(lone_ns.values()) < ONE_KIND_SHARE * surplus or unlike > ALIKE_WORK_SHARE * usual:
        return ()
    most = [(sum(line.values()), max(line, key=lambda site: line[site])) for line in by_line.values()]
    ordered = sorted(most, key=lambda each: (-each[0], each[1]))
    return tuple(LongerKind(site.family, ns, 0.0, site, uneven.OTHER) for ns, site in ordered)


def rows_per_step(longer_kinds: Sequence[LongerKind]) -> list[Mapping[str, Any]]:
    """Return the kinds in which a rank is longer, and notably so, as they stand in the table of ranks: per step."""
    least = NOTABLE_KIND_SHARE * sum(max(kind.more, 0) for kind in longer_kinds)
    return [
        {
            "kind": kind.family,
            "how": kind.how,
            "ns": round(kind.ns),
            "others_ns": round(kind.ns_there),
            **{name: (kind.site and getattr(kind.site, name)) or None for name in ("file", "line", "text")},
            "dealt": kind.dealt,
        }
        for kind in longer_kinds[:MOST_LATE_KINDS]
        if kind.more > 0 and kind.more >= least
    ]


def has_more_data(rank: Rank, others: Sequence[Rank]) -> bool:
    """Return whether all kinds of a rank's work take longer than on its peers, by a like share."""
    return spread(kinds(rank, others)) == Surplus.EVERY

"""Work that the ranks of a job deal out among them in a few steps alone: a refresh of preconditioners in each tenth step, say.

All of them run kernels of the same kinds then which other steps do not hold, and one of them for far longer. What one rank does alone in
such a step, as saving or an evaluation of its own, is none of the others' work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.nvtx_ranges import Flags
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.ranks import late_work, uneven
from nsysx.ranks.rank_bounds import LEAST_PART_SHARE, ONE_KIND_AT_TIMES_SHARE
from nsysx.ranks.rank_record import LedgerTiles, Rank


class DealtWork(NamedTuple):
    """What a rank and its peers, their median, compute in the late steps beyond their usual ones.

    ``kind``: the kind of work (family) in which the rank takes longer by most; ``ns`` and ``others_ns``: all kinds (ns in such a step);
    ``kernels`` and ``others_kernels``: how many. ``mean_ns``: the mean of ``ns`` over all ranks. ``file``, ``line``, ``text``: the call
    below which it lies, None where such a step has no lines.
    """

    kind: str
    ns: int
    others_ns: int
    kernels: int
    others_kernels: int
    mean_ns: int
    file: str | None
    line: int | None
    text: str | None


def with_work(kernels: pl.DataFrame, tiles: LedgerTiles) -> LedgerTiles:
    """Return the tiles of a device with what they compute, by kind; ``kernels``: its compute kernels."""
    start = kernels["start_ns"].to_numpy()
    tile = np.searchsorted(tiles.start_ns, start, side="right") - 1
    inside = (tile >= 0) & (start < tiles.end_ns[np.maximum(tile, 0)])
    families, code = lookup.distinct(kernels["family"])
    ns, count = kernels["end_ns"].to_numpy() - start, len(tiles.start_ns)
    work: dict[str, I64] = {}
    often: dict[str, I64] = {}
    for number, family in enumerate(families):
        of_kind = inside & (code == number)
        if family is not None and of_kind.any():
            work[family] = lookup.totals(tile[of_kind], ns[of_kind], count)
            often[family] = np.bincount(tile[of_kind], minlength=count)
    return replace(tiles, work=work, kernels=often)


def dealt(rank: Rank, others: Sequence[Rank], late: Flags) -> DealtWork | None:
    """Return the work that a rank has more of in its late steps, where its peers have a part of it then; None where it is not so.

    ``late``: which of the common steps. Kernels that only take longer, as large and as often, are no more work.
    """
    if rank.tiles is None or not others or any(x.tiles is None for x in others) or late.all():
        return None
    here, there = _beyond(rank.tiles.work, late), [_beyond(x.tiles.work, late) for x in others if x.tiles is not None]
    kinds = dict.fromkeys(kind for each in (here, *there) for kind in each)
    usual = {kind: float(np.median([each.get(kind, 0.0) for each in there])) for kind in kinds}
    more = {kind: here.get(kind, 0.0) - usual[kind] for kind in kinds}
    kind = max(more, key=lambda each: (more[each], each), default=None)
    whole = sum(ns for ns in here.values() if ns > 0)
    parts = sum(max(min(here.get(each, 0.0), usual[each]), 0.0) for each in kinds)
    if kind is None or more[kind] < ONE_KIND_AT_TIMES_SHARE * sum(max(ns, 0.0) for ns in more.values()):
        return None
    if parts < LEAST_PART_SHARE * whole or usual[kind] < LEAST_PART_SHARE * here[kind]:
        return None
    if {d.family: d.how for d in reversed(uneven.differences(rank, others, None))}.get(kind) == uneven.LONGER:
        return None
    called = next((each for each in late_work.kinds(rank, others) if each.family == kind and each.dealt), None)
    site = None if called is None else called.site
    sums = [max(sum(each.values()), 0.0) for each in (here, *there)]
    often = [sum(_beyond(x.tiles.kernels, late).values()) for x in (rank, *others) if x.tiles is not None]
    return DealtWork(
        kind,
        round(sums[0]),
        round(float(np.median(sums[1:]))),
        round(often[0]),
        round(float(np.median(often[1:]))),
        round(float(np.mean(sums))),
        *((None, None, None) if site is None else (site.file, site.line, site.text or None)),
    )


def _beyond(work: Mapping[str, I64], late: Flags) -> dict[str, float]:
    """Return how much more of each kind a late step holds than a usual one."""
    return {kind: float(values[late].mean() - np.median(values[~late])) for kind, values in work.items()}

"""What one rank does between its steps while the others wait for it: an evaluation that is not shared.

It is in no step, so no ledger of steps shows it. A collective in which other ranks wait, which the late rank enters behind an
evaluation, does: they wait from when their own work of the step is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64, union
from nsysx.ranks.match import Aligned
from nsysx.ranks.rank_bounds import DURING_EVALUATION_SHARE, ITS_PART_SHARE, NOTABLE_EVALUATION_SHARE
from nsysx.ranks.rank_places import Place
from nsysx.ranks.rank_record import Rank
from nsysx.reading import nccl_notes


def evaluations(profile: Profile) -> tuple[I64, I64]:
    """Return the evaluations of the shown process [start, end) as its ranges tell them, those that touch or overlap as one.

    What most steps infer themselves is none of them, such as what a teacher or a reference says of each batch: a host that runs ahead of
    the GPU has launched it long before the collective behind it, and so not at the time at which another rank's host does.
    """
    spans = profile.attributed.phase_spans
    spans = spans.filter((pl.col("process") == profile.process) & (pl.col("phase").cast(pl.String) == "evaluation"))
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    chosen = (pl.col("kind") == "step") & pl.col("own") & (pl.col("process") == profile.process)
    steps = profile.ranges.ranges.filter(chosen).sort("start_ns")
    begins, ends = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    step = np.searchsorted(begins, start, side="right") - 1
    within = (step >= 0) & (end <= np.append(ends, 0)[step])
    if 2 * len(np.unique(step[within])) > len(begins):
        start, end = start[~within], end[~within]
    return union(start, end)


def of_each(aligned: Aligned) -> dict[int, list[Mapping[str, Any]]]:
    """Return the place of a rank -> its evaluations for which others wait: start_ns, ns, ranks, collective, file, line; in order."""
    told: dict[int, list[Mapping[str, Any]]] = {}
    met_ns: dict[tuple[int, int], I64] = {}
    if not any(len(rank.evaluations[0]) for rank in aligned.ranks):
        return told
    for key, group in aligned.groups:
        if key.kind == nccl_notes.SEND_RECEIVE:
            continue
        members = list(group)
        start = np.stack([aligned.ranks[r].start_ns[group[r]] + aligned.offset[r] for r in members])
        end = np.stack([aligned.ranks[r].end_ns[group[r]] + aligned.offset[r] for r in members])
        last, waited = start.argmax(axis=0), (end - start) - (end - start).min(axis=0)
        for n in np.flatnonzero(waited.max(axis=0) > 0).tolist():
            late = members[int(last[n])]
            first = int(waited[:, n].argmax())
            begin, ns = int(start[first, n]), int(waited[first, n])
            if members[first] == late or ns < NOTABLE_EVALUATION_SHARE * (aligned.ranks[late].step_ns or 0):
                continue
            pair = members[first], late
            if pair not in met_ns:
                met_ns[pair] = _meetings(aligned, *pair)
            before = int(np.searchsorted(met_ns[pair], begin, side="right"))
            met = (
                int(met_ns[pair][before - 1]) if before else begin - ns
            )  # as far back as the wait is long, where none was recorded
            if not _evaluates(aligned, late, met, begin + ns, ns) or _evaluates_too(
                aligned, members[first], late, met, begin + ns
            ):
                continue
            launched = _place(aligned.ranks[late], int(group[late][n]))
            row = {
                "start_ns": begin - aligned.offset[late],
                "ns": ns,
                "ranks": int((waited[:, n] > DURING_EVALUATION_SHARE * ns).sum()),
                "collective": key.kind,
                "file": launched.file,
                "line": launched.line,
            }
            told.setdefault(late, []).append(row)
    return {late: sorted(rows, key=lambda row: row["start_ns"]) for late, rows in told.items()}


def _meetings(aligned: Aligned, waiting: int, late: int) -> I64:
    """Return when the collectives of two ranks ended on the one that waits, in order."""
    rows = [group[waiting] for _, group in aligned.groups if waiting in group and late in group]
    ends: I64 = np.sort(aligned.ranks[waiting].end_ns[np.concatenate(rows)] + aligned.offset[waiting])
    return ends


def _evaluates(aligned: Aligned, late: int, met: int, finish: int, waited_ns: int) -> bool:
    """Return whether a rank has evaluated, since it last met the one that waits, for most of the time for which that waits.

    The others compute what they have before they wait: the evaluation may be over by then.
    """
    start, end = (times + aligned.offset[late] for times in aligned.ranks[late].evaluations)
    inside = np.maximum(np.minimum(end, finish) - np.maximum(start, met), 0)
    # Between two batches of an evaluation no range is open.
    here = np.flatnonzero(inside)
    return (
        bool(len(here))
        and min(int(end[here[-1]]), finish) - max(int(start[here[0]]), met) >= DURING_EVALUATION_SHARE * waited_ns
    )


def _evaluates_too(aligned: Aligned, waiting: int, late: int, met: int, finish: int) -> bool:
    """Return whether a rank that waits has evaluated, too, since the two last met: each does its part of it then.

    ``finish``: when the late rank comes. What a step itself infers, as with a teacher's network, is little beside an evaluation.
    """
    of_waiting, of_late = (_evaluation_ns(aligned, r, met, finish) for r in (waiting, late))
    return of_waiting >= ITS_PART_SHARE * of_late


def _evaluation_ns(aligned: Aligned, r: int, begin: int, finish: int) -> int:
    """Return how long a rank evaluates in this time (ns)."""
    start, end = (times + aligned.offset[r] for times in aligned.ranks[r].evaluations)
    return int(np.maximum(np.minimum(end, finish) - np.maximum(start, begin), 0).sum())


def _place(rank: Rank, row: int) -> Place:
    return rank.places[rank.placed[row]] if len(rank.placed) else Place()

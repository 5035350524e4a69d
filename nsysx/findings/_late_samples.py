"""Batches that are late at times although workers make them fast enough: one slow sample holds back all that are ready behind it.

A loader hands batches out in order. While a worker is at a slow sample, the others run no further ahead than their queue is long, and then
stand still: the mean of their speed says nothing. A longer queue, or one that is not in order, lets the steps go on meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nsysx import ids, units
from nsysx.analyses.data_loader import BatchRow
from nsysx.events import bare
from nsysx.findings._case import Case, Fix, way
from nsysx.findings._needs import LOADER
from nsysx.findings._work_bounds import (
    FEW_LATE_SHARE,
    FEWEST_LATE_BATCHES,
    FEWEST_TIMED_BATCHES,
    LATE_WAIT_SHARE,
    LONGER_QUEUE,
    MOST_OF_WAITS_SHARE,
    READY_SHARE,
)
from nsysx.findings._worker_lines import WorkerBatch
from nsysx.model import Row
from nsysx.records import whole_number
from nsysx.saving import Saving

LATE = "late-samples"


def late_samples(case: Case, loader: Row, followed: WorkerBatch, rows: Sequence[BatchRow]) -> Fix | None:
    """Return the advice where few steps hold nearly all waits for batches, which workers make faster than steps take them; else None.

    Not where the data are gone through several times: then each pass begins with a wait. ``rows``: the steady steps.
    """
    workers = whole_number(loader.get("workers")) or 0
    if workers < 2 or (whole_number(loader.get("iterators")) or 0) > 2:
        return None
    steps, waits = _timed(case, rows)
    if len(steps) < FEWEST_TIMED_BATCHES:
        return None
    usual = float(np.median(steps - waits))
    late = waits > LATE_WAIT_SHARE * usual
    few = FEWEST_LATE_BATCHES <= late.sum() <= FEW_LATE_SHARE * len(waits)
    every_ns = followed.batch_ns / workers
    if not few or waits[late].sum() < MOST_OF_WAITS_SHARE * waits.sum() or every_ns > READY_SHARE * usual:
        return None
    ahead = whole_number(loader.get("prefetch_factor")) or 2
    longest = int(waits.max())
    queue = max(LONGER_QUEUE, math.ceil(ahead + longest / usual / workers))
    remedy = way(LATE)
    text = (
        f"{remedy.text}: {int(late.sum())} of {len(waits)} steps wait for their batch, up to {units.duration(longest)}, while {workers} "
        f"workers give one every {units.duration(every_ns)} and a step takes {units.duration(usual)}. One slow sample holds back all "
        f"batches behind it, of which {ahead * workers} are made ahead"
    )
    paste = f"loader = DataLoader(data, num_workers={workers}, prefetch_factor={queue}, in_order=False)  # in_order: torch 2.6 or later"
    return Fix.by_name(way(LATE, text, paste), needs=(LOADER,))


def as_queue_hides(worth: Saving) -> Saving:
    """Return what a longer queue saves of all waits: it hides each for as long as it lasts."""
    if worth.likely_ns is None or worth.bound:
        return worth
    why = "A longer queue hides a slow sample for as long as it lasts"
    return Saving.between(worth.likely_ns // 2, worth.likely_ns, why)


def _timed(case: Case, rows: Sequence[BatchRow]) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of steps and their waits for batches (ns), of steps without the profiler if there are enough of them."""
    record: Row = next(iter(ids.records_of(case.profile.trace.capture.probe, case.process)), {})
    timed = bare.batches(record, case.profile.trace.capture)
    if len(timed) < FEWEST_TIMED_BATCHES:
        timed = [(row["step_ns"], row["wait_ns"]) for row in rows]
    pairs = np.asarray(timed, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]

"""What it is worth if a backward of a network is not done, where operators say which work that is: all of it, that of its inputs, too."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from nsysx.catalogue import StepPart
from nsysx.findings._case import Case, Saving
from nsysx.findings._finding_bounds import SAME_WORK_REPEATS_SHARE, WAITED_FOR_SHARE
from nsysx.findings._once import edits_without
from nsysx.findings._slower_host import lost_to_slower_host_ns
from nsysx.replay.engine import Edit


def edits_of_gone(case: Case, *work: pl.DataFrame) -> list[Edit]:
    """Return the edits after which this work (call) is neither done nor launched; none where no call launches it."""
    launched = pl.concat([each["call"] for each in work]).drop_nulls().unique()
    launching = case.calls.filter(case.calls["call"].is_in(launched.implode()))
    return edits_without(launching, case.ops, leading=True) if launching.height else []


def worth_of_gone(case: Case, work: pl.DataFrame) -> Saving:
    """Return what it saves if this work (call, ns) is neither done nor launched.

    On a GPU that hardly idles the host runs ahead, and is not seen at work: what the replay takes for its work is the most that it may be.
    There all of the time of the work may go, and the pauses between its kernels.
    """
    worth = case.worth_or_freed(*edits_of_gone(case, work), cause=(StepPart.WORK, StepPart.HOST, StepPart.LAUNCH))
    idle_ns = case.taken_by(part for part in StepPart if part.idle)
    if worth.likely_ns is None or worth.source != "replay" or idle_ns > WAITED_FOR_SHARE * case.step_ns:
        return worth
    pauses = case.taken_by((StepPart.PAUSE,)) * work.height / max(case.ops.height, 1)
    whole_ns = round(case.per_step(int(work["ns"].sum())) + pauses)
    least_ns = max(0, worth.likely_ns - max(worth.error_ns or 0, lost_to_slower_host_ns(worth)))
    likely_ns = (worth.likely_ns + max(worth.likely_ns, whole_ns)) // 2
    repeats_ns = round(SAME_WORK_REPEATS_SHARE * max(0, case.step_ns - likely_ns))
    most_ns = max(worth.likely_ns, whole_ns) + repeats_ns
    why = f"between what the host allows as it was recorded, and all of that work; {worth.confidence}"
    return replace(
        worth, likely_ns=likely_ns, error_ns=likely_ns - least_ns, most_ns=most_ns, confidence=why, source="limits"
    )

"""Values that a line reads from the GPU one by one, though all of them are there: what one copy of the whole tensor is worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nsysx.catalogue import Call, StepPart
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._finding_bounds import FEWEST_READS, MOST_SHARE
from nsysx.replay.engine import RemoveCalls, RemoveHost, RemoveOps, RemoveWaits


def one_by_one(case: Case, waits: frozenset[int]) -> bool:
    """Return whether these waits are reads in a row, many in a step: most follow one of them with nothing launched in between."""
    if len(waits) < FEWEST_READS * case.steps:
        return False
    calls = case.profile.attributed.api_calls  # numbered by thread and time
    launched = np.concatenate([[0], np.cumsum(calls["kind"].is_in(Call.LAUNCHES).to_numpy())])
    reads = np.array(sorted(waits))
    same_thread = calls["thread"].gather(reads[1:]).to_numpy() == calls["thread"].gather(reads[:-1]).to_numpy()
    alone = launched[reads[1:]] == launched[reads[:-1]]
    return bool(np.mean(same_thread & alone) >= MOST_SHARE)


def read_at_once(case: Case, waits: frozenset[int]) -> Saving:
    """Return what one copy in place of many saves: their waits, copies and calls for sure, and the host code between them at most.

    That is torch's own work for each value, and what the program does with it: half of it goes, give or take the other half.
    """
    ops = case.ops["op", "call", "op_kind"]
    copies = ops.filter((ops["op_kind"] == "memcpy") & ops["call"].is_in([*waits, *(call - 1 for call in waits)]))
    calls = waits | frozenset(copies["call"].drop_nulls().to_list())
    cause = (StepPart.SYNC, StepPart.COPY, *(part for part in StepPart if part.idle and part is not StepPart.SYNC))
    edits = (RemoveWaits(waits), RemoveOps(ops_of(copies)), RemoveCalls(calls))
    least, most = (case.worth(*edits, *more, cause=cause) for more in ((), (RemoveHost(calls),)))
    if least.likely_ns is None or most.likely_ns is None:
        return least
    likely = (least.likely_ns + most.likely_ns) // 2
    why = "all reads but one go, and half of the host code between them"
    return replace(
        most,
        likely_ns=likely,
        most_ns=most.likely_ns,
        error_ns=likely - least.likely_ns + (least.error_ns or 0),
        confidence=why,
    )

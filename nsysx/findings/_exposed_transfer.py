"""How long communication transfers with no computation beside it, told apart from waiting for other ranks."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity, StepPart
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.profile import Profile
from nsysx.findings._case import Case
from nsysx.findings._rank_rows import rank_rows
from nsysx.frames.intervals import I64, coverage


def communication(case: Case) -> pl.DataFrame:
    """Return the communication of the shown device in the steady steps, as GPU ops."""
    return case.profile.once(_communication)


def _communication(profile: Profile) -> pl.DataFrame:
    return profile.steady_ops.filter(profile.steady_ops["cls"] == DeviceActivity.COMM.value)


def in_passes(ops: pl.DataFrame) -> pl.Series:
    """Return which GPU ops run in a forward pass, be it of a step that trains or of one that does not."""
    passes: pl.Series = ops["phase"].cast(pl.String).is_in(["forward", "evaluation"]).fill_null(value=False)
    return passes


def exposed_transfer_ns(case: Case, chosen: Flags) -> int:
    """Return the exposed transfer of some of the `communication` (ns a step); 0 where the ranks do not tell it from waiting."""
    comm = communication(case)
    rows = rank_rows(case)
    here = next((r for r in rows if (r["process"], r["device"]) == (case.process, case.device)), None)
    exposed = exposed_ns(case, comm)
    if here is None or here["exposed_transfer_ns"] is None or not exposed.sum():
        return 0
    transfer = min(here["exposed_transfer_ns"] / max(here["steps"], 1), case.taken_by((StepPart.COMM,)))
    return round(float(transfer * exposed[chosen].sum() / exposed.sum()))


def longer_wait_ns(case: Case, chosen: Flags) -> int:
    """Return for how long some of the `communication` waits (ns a step) beyond what the rank waits that waits least.

    That rank sets the pace of the job. Where a collective goes, the others wait for it in the next one. 0 where the ranks do not tell.
    """
    rows = rank_rows(case)
    waits = {(r["process"], r["device"]): (r["exposed_wait_ns"] or 0) / max(r["steps"], 1) for r in rows}
    here, exposed = waits.get((case.process, case.device)), exposed_ns(case, communication(case))
    if here is None or not exposed.sum():
        return 0
    longer = min(here - min(waits.values()), case.taken_by((StepPart.COMM,)))
    return round(float(longer * exposed[chosen].sum() / exposed.sum()))


def exposed_share(case: Case, ops: frozenset[int]) -> float:
    """Return how much of the exposed communication is that of some ops (share)."""
    comm = communication(case)
    exposed = exposed_ns(case, comm)
    return float(exposed[comm["op"].is_in(list(ops)).to_numpy()].sum() / max(exposed.sum(), 1))


def transfer_of_ops_ns(case: Case, ops: frozenset[int]) -> int:
    """Return the exposed transfer of some ops (ns a step); 0 where the ranks do not tell it from waiting."""
    return exposed_transfer_ns(case, communication(case)["op"].is_in(list(ops)).to_numpy()) if ops else 0


def exposed_ns(case: Case, comm: pl.DataFrame) -> I64:
    """Return for how long each of these communications runs with no computation beside it."""
    computes = case.ops.filter(case.ops["cls"] == DeviceActivity.COMPUTE.value)
    begin, end = (comm[name].to_numpy() for name in ("start_ns", "end_ns"))
    beside = coverage([(computes["start_ns"].to_numpy(), computes["end_ns"].to_numpy())])
    return np.asarray(end - begin - beside.within(beside.labels == 1, begin, end), np.int64)

"""Options of DeepSpeed's ZeRO that cost: a stage that reduces in each micro-step, and reductions in line with backward.

Stage 2 keeps the part of the gradients that a rank owns, so each backward has to reduce all of them; stage 1 keeps whole gradients, and
reduces in the last micro-step. ``overlap_comm`` is off for both unless it is asked for: backward then waits for each bucket (stage 2), or
all of them come behind it (stage 1).
"""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.catalogue import DeviceActivity, StepPart
from nsysx.events import micro_steps
from nsysx.events.behind_backward import behind_backward
from nsysx.events.recorded_settings import BYTES_OF_KIND, RecordedSettings
from nsysx.findings import _costly_when as when
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._costly_jobs import hidden_beside
from nsysx.findings._exposed_transfer import communication, exposed_share, transfer_of_ops_ns
from nsysx.findings._finding_bounds import FEWEST_MICRO_STEPS
from nsysx.findings._once import Takes
from nsysx.findings._sharded_models import spare_bytes
from nsysx.frames import lookup
from nsysx.model import Row
from nsysx.records import whole_number

CONFIGURATION = "the configuration of DeepSpeed"
_REDUCES = r"AllReduce|ReduceScatter|_Reduce_"


def _engine(settings: RecordedSettings | None) -> Row:
    """Return the options of DeepSpeed's engine, none without one."""
    return next(iter((settings.wrappers("DeepSpeed") if settings is not None else ()) or ()), {})


# ---- a stage that reduces in each micro-step ---------------------------------------------------------------------------


def reduces_each(case: Case, settings: RecordedSettings) -> str:
    """Return that stage 2 reduces all gradients in each micro-step although each card has room for whole ones."""
    engine, micro = _engine(settings), micro_steps.micro_steps(case.profile)
    count = whole_number(engine.get("micro_steps")) or 0
    if engine.get("stage") != 2 or count < FEWEST_MICRO_STEPS or micro is None:
        return ""
    whole = BYTES_OF_KIND["float32"] * (whole_number(engine.get("trained_elements")) or 0)
    if settings.record.get("memory") and spare_bytes(settings, whole) is None:
        return ""
    return (
        f"stage 2 of ZeRO reduces all gradients in each of the {count} micro-steps of a step ({units.several(micro.each, 'collective')} in "
        f"each), because each rank keeps its part of them alone; whole ones take at most {units.size(whole)}, which each card has room for"
    )


def reduced_once(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what it is worth if the last micro-step alone reduces."""
    return when.reduced_once(case, settings)


def of_early(case: Case) -> Takes:
    """Return the reductions of all but the last micro-step."""
    micro = micro_steps.micro_steps(case.profile)
    return Takes(frozenset() if micro is None else micro.early)


# ---- reductions in line ------------------------------------------------------------------------------------------------


def _reductions(case: Case) -> pl.DataFrame:
    """Return the reductions that backward launches, and those behind it and before the optimizer: GPU ops."""
    comm = communication(case)
    comm = comm.filter(
        pl.Series(lookup.matching(comm["name"], _REDUCES), dtype=pl.Boolean) & comm["call_start_ns"].is_not_null()
    )
    back, behind = comm["phase"].cast(pl.String) == "backward", comm["phase"].is_null()
    ops = case.ops.filter(case.ops["call_start_ns"].is_not_null())
    return comm.filter(back.fill_null(value=False) | (behind & pl.Series(behind_backward(ops, comm), dtype=pl.Boolean)))


def in_line(case: Case, settings: RecordedSettings) -> str:
    """Return that backward waits for the reduction of each bucket of ZeRO, because the option to overlap them is off."""
    engine, reductions = _engine(settings), _reductions(case)
    if (
        engine.get("stage") not in (1, 2)
        or engine.get("overlap_comm") is not False
        or reductions.height < 2 * case.steps
    ):
        return ""
    if not case.notable(_exposed_ns(case)):
        return ""
    often = round(reductions.height / case.steps)
    size = whole_number(engine.get("reduce_bucket_size")) or 0
    buckets = f", of {units.count(size)} numbers each at most (reduce_bucket_size)" if size else ""
    return (
        f"overlap_comm is off: backward waits for each of {units.several(often, 'reduction')} of a step{buckets}, or they come behind it, "
        f"and nothing runs beside them for {units.duration(_exposed_ns(case))}"
    )


def _exposed_ns(case: Case) -> float:
    """Return for how long a step's reductions in backward are exposed (ns): their transfer, where the ranks tell it from waiting."""
    ops = ops_of(_reductions(case))
    return transfer_of_ops_ns(case, ops) or exposed_share(case, ops) * case.taken_by((StepPart.COMM,))


def beside_backward(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what it saves if all reductions but the last run beside what backward computes, and no longer than that."""
    reductions = _reductions(case)
    buckets = max(round(reductions.height / case.steps), 1)
    ops = case.ops.filter(case.ops["cls"] == DeviceActivity.COMPUTE.value)
    computes = ops.filter((ops["phase"].cast(pl.String) == "backward").fill_null(value=False))
    each = case.per_step(int((computes["end_ns"] - computes["start_ns"]).sum()))
    exposed = (1 - 1 / buckets) * _exposed_ns(case)
    return hidden_beside(min(exposed, each), "all reductions but the last run beside backward")


def of_reductions(case: Case) -> Takes:
    """Return the reductions of backward."""
    return Takes(ops_of(_reductions(case)))

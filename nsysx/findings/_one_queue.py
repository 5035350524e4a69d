"""Collectives that should run beside computation, in a program that has CUDA put the work of all streams into one queue.

Megatron's tensor parallelism asks for one queue, where the order of launches is what it relies on. In a job whose wrapper spans all ranks
no layer is split, and gathers and reductions wait there for computation that was launched before them, and hold up what comes behind them.
"""

from __future__ import annotations

import math

import polars as pl

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving
from nsysx.findings._exposed_transfer import communication, transfer_of_ops_ns
from nsysx.findings._once import Takes, ops_of

VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"


def _wrapped(case: Case) -> pl.DataFrame:
    """Return the communication of forward and backward, which wrappers launch for what comes next."""
    comm = communication(case)
    return comm.filter(comm["phase"].cast(pl.String).is_in(["forward", "backward"]).fill_null(value=False))


def _spans_all_ranks(settings: RecordedSettings) -> bool:
    """Return whether one wrapper of the network spans all ranks of the job, as far as its groups are known: then no layer is split."""
    groups = [(row.get("wrapper"), ranks) for row in settings.rows("groups") or () if (ranks := row.get("ranks"))]
    world = max((len(ranks) for _, ranks in groups), default=0)
    meshes = [mesh for row in settings.wrappers("fully_shard") or () if isinstance(mesh := row.get("mesh"), list)]
    spanned = [math.prod(mesh) for mesh in meshes] + [len(ranks) for wrapper, ranks in groups if wrapper is not None]
    return world > 1 and world in spanned


def _exposed_ns(case: Case) -> int:
    """Return the exposed transfer of these collectives that computation could hide (ns a step)."""
    return min(transfer_of_ops_ns(case, ops_of(_wrapped(case))), case.taken_by((StepPart.WORK,)))


def in_environment(case: Case, settings: RecordedSettings) -> str:
    """Return that all streams share one queue, and transfer of a wrapper that spans all ranks is exposed."""
    if settings.variable(VARIABLE).strip() != "1" or not _spans_all_ranks(settings):
        return ""
    exposed = _exposed_ns(case)
    if not case.notable(exposed):
        return ""
    return (
        f"{VARIABLE}=1: the work of all streams goes through one queue, where collectives wait for computation that was launched before "
        f"them; {units.duration(exposed)} of a step is transfer that nothing hides"
    )


def hidden_at_best(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return the most that queues of their own save: all exposed transfer runs beside computation."""
    return case.bound(_exposed_ns(case), "all exposed transfer of the wrapper would run beside computation")


def taken(case: Case) -> Takes:
    """Return these collectives."""
    return Takes(ops_of(_wrapped(case)))

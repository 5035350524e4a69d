"""Gradients that lines of the program reduce over the ranks behind backward, in one message or a few: nothing runs beside these.

A wrapper reduces each bucket of gradients as soon as backward has made it. A program that puts all of them into one tensor sends as few
messages as can be, and the GPU waits for every byte.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import DeviceActivity
from nsysx.events.behind_backward import behind_backward
from nsysx.events.code_lines import CodeLines
from nsysx.events.frozen_parameters import USED_MAP
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._costly_jobs import hidden_beside
from nsysx.findings._exposed_transfer import communication, exposed_transfer_ns
from nsysx.findings._finding_bounds import LOOP_LAUNCHES
from nsysx.findings._sharded_models import parameter_bytes
from nsysx.findings._work_bounds import FEWEST_BUCKETS_WAITING, HALVED_GRADIENTS_SHARE, LATE_BUCKETS_SHARE
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.model import Row
from nsysx.reading import nccl_notes
from nsysx.replay.engine import RemoveOps

#: Copies on the device: of kernels, and others.
_COPIES = r"(?i)copy|CatArray|^DtoD$"


class LateGradients(NamedTuple):
    """Reductions behind backward: what it saves that they run beside it, the line that makes most of them, and a sentence about them."""

    saving: Saving
    where: Row
    text: str


def reduced_late(case: Case) -> LateGradients | None:
    """Return the reductions of all gradients that a few messages of the program's own lines make behind backward; else None.

    The wrappers of the program must be known to be none, and the bytes of its messages those of its gradients.
    """
    settings, code = settings_of(case.profile), case.profile.code()
    if settings is None or code is None or settings.rows("wrappers") != ():
        return None
    comm, late = communication(case), late_reductions(case)
    line_of_op = code.places_of(code.op[comm["op"].to_numpy()])
    late = late & (line_of_op >= 0)
    transfer = exposed_transfer_ns(case, late) if late.any() else 0
    # Gradients that add up over several backwards are complete in the last one.
    backward = case.kernels["phase"].cast(pl.String) == "backward"
    each = case.per_step(int(case.kernels.filter(backward)["ns"].sum())) / max(settings.number("backwards") or 1, 1)
    hidden = hidden_beside(min(transfer, each), "all but the last bucket is reduced beside backward")
    moved = _moved_ns(case, code, line_of_op[late])
    saving = replace(hidden, likely_ns=(hidden.likely_ns or 0) + moved)
    if not case.notable(saving.likely_ns or 0):
        return None
    often = round(int(late.sum()) / case.steps)
    text = (
        f"{units.several(often, 'message')} of a step {'carries' if often == 1 else 'carry'} the gradients of all parameters behind "
        f"backward: {units.duration(transfer)} of transfer that nothing hides"
    )
    if case.notable(moved):
        text += f", and {units.duration(moved)} of copies into the message and out of it, which gradient_as_bucket_view=True leaves out"
    ns = (comm["end_ns"] - comm["start_ns"]).to_numpy()
    return LateGradients(saving, code.where_most(line_of_op[late], ns[late]), text)


def _moved_ns(case: Case, code: CodeLines, line_rows: I64) -> int:
    """Return how long a step takes to put gradients together for messages of some lines, and to take them apart (ns).

    That are copies which the same functions launch behind backward. Where gradients lie in their buckets there is none.
    """
    functions = code.places["file", "function"]
    theirs = functions.with_row_index("place").join(
        functions[np.unique(line_rows)], on=["file", "function"], how="semi"
    )
    ops = case.ops.filter(case.ops["call_start_ns"].is_not_null())
    copies = ops.filter(ops["phase"].is_null() & pl.Series(lookup.matching(ops["name"], _COPIES), dtype=pl.Boolean))
    copies = copies.filter(pl.Series(behind_backward(ops, copies), dtype=pl.Boolean))
    copies = code.made_at(copies, theirs["place"].to_list())
    ns = case.per_step(int((copies["end_ns"] - copies["start_ns"]).sum()))
    replayed = case.worth(RemoveOps(ops_of(copies))).likely_ns if ns else 0
    return ns if replayed is None else min(ns, replayed)


def late_reductions(case: Case) -> Flags:
    """Return which of all `communication` reduces the gradients of a step behind backward in a few messages; none if some is in it."""
    comm, settings = communication(case), settings_of(case.profile)
    none = np.zeros(comm.height, np.bool_)
    launched = comm["call_start_ns"].is_not_null()
    whole = 0 if settings is None else parameter_bytes(settings)
    if not whole or not case.scope.steps or not launched.all() or not comm.height:
        return none
    messages = nccl_notes.messages(
        case.profile.trace, comm, nccl_notes.members(case.profile.trace).get(case.process, {})
    )
    reduces = np.array([message.kind in ("allreduce", "reducescatter") for message in messages], np.bool_)
    phase = comm["phase"].cast(pl.String)
    if (reduces & (phase == "backward").fill_null(value=False).to_numpy()).any():
        return none
    outside = phase.is_in(["optimizer"]) | phase.is_null()
    ops = case.ops.filter(case.ops["call_start_ns"].is_not_null())
    late = np.asarray(reduces & outside.to_numpy() & behind_backward(ops, comm), np.bool_)
    sent = sum(message.bytes or 0 for message, here in zip(messages, late, strict=True) if here) / case.steps
    few = 0 < late.sum() < LOOP_LAUNCHES * case.steps
    return late if few and sent >= HALVED_GRADIENTS_SHARE * whole else none


def reduced_in_order(case: Case) -> Saving | None:
    """Return what it saves that the buckets of a wrapper are reduced beside backward, where all of them wait for one that comes last.

    None where some run beside it, or there is but one. In each step the first reduction begins when backward has computed nearly all.
    """
    comm = communication(case)
    reduces = (comm["phase"].cast(pl.String) == "backward").fill_null(value=False)
    reduces &= (
        pl.Series(lookup.matching(comm["name"], r"AllReduce"), dtype=pl.Boolean) & comm["call_start_ns"].is_not_null()
    )
    reduces &= ~pl.Series(lookup.matching(comm["name"], USED_MAP), dtype=pl.Boolean)
    few = FEWEST_BUCKETS_WAITING * max(case.scope.steps or 1, 1)
    ops = case.ops.filter(case.ops["cls"] == DeviceActivity.COMPUTE.value, case.ops["call_start_ns"].is_not_null())
    backward = ops.filter((ops["phase"].cast(pl.String) == "backward").fill_null(value=False))
    if int(reduces.sum()) < few or not backward.height:
        return None
    starts = case.profile.steps.cpu.filter(pl.col("process") == case.process)["start_ns"].sort().to_numpy()
    first, work = (_by_step(ops, starts) for ops in (comm.filter(reduces), backward))
    late = first.join(work, on="step", suffix="_of_work").filter(pl.col("begin_of_work") < pl.col("end_of_work"))
    share = (late["begin"] - late["begin_of_work"]) / (late["end_of_work"] - late["begin_of_work"])
    if not late.height or float(share.median() or 0) < LATE_BUCKETS_SHARE:
        return None
    buckets = round(int(reduces.sum()) / late.height)
    each = case.per_step(int((backward["end_ns"] - backward["start_ns"]).sum()))
    exposed = exposed_transfer_ns(case, np.asarray(reduces.to_numpy(), np.bool_)) * (1 - 1 / buckets)
    return hidden_beside(
        min(exposed, each), "buckets in the order of gradients are reduced beside backward, all but the last"
    )


def _by_step(ops: pl.DataFrame, starts: I64) -> pl.DataFrame:
    """Return step, begin and end of these GPU ops; ``starts``: when each step begins on the host (ns)."""
    step = np.searchsorted(starts, ops["call_start_ns"].fill_null(0).to_numpy(), side="right")
    placed = ops.with_columns(step=pl.Series(step, dtype=pl.Int64))
    return placed.group_by("step").agg(begin=pl.col("start_ns").min(), end=pl.col("end_ns").max())

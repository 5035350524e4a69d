"""Micro-batches of one pipeline that are unlike in work: a long one stops every stage in turn, and ranks are even in sum.

Packed sequences of as many tokens hold documents of other lengths, and attention takes their squares; others are padded to their own
longest sample. Which one is long changes from step to step: what a stage computes between two messages does, at the same place of a step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import DeviceActivity
from nsysx.events.profile import Profile
from nsysx.findings._case import Case, Fix
from nsysx.findings._work_bounds import (
    EVEN_STEPS_TIMES,
    FEWEST_COMPARED_STEPS,
    UNLIKE_MICRO_BATCH_TIMES,
    UNLIKE_PIECES_SHARE,
)
from nsysx.frames.statistics import F64
from nsysx.model import Finding
from nsysx.reading import nccl_notes


def _pieces(profile: Profile) -> F64:
    """Return how long the shown stage computes between two messages (ns): a row for each steady step with as many as most have."""
    ops = profile.steady_ops.filter(pl.col("process") == profile.process, pl.col("call_start_ns").is_not_null())
    names = ops["name"].cast(pl.String)
    kinds = {name: nccl_notes.kind_of(name) == nccl_notes.SEND_RECEIVE for name in names.drop_nulls().unique()}
    sends = ((ops["cls"] == DeviceActivity.COMM.value) & names.replace_strict(kinds, default=False)).to_numpy()
    computes = (ops["cls"] == DeviceActivity.COMPUTE.value).to_numpy()
    called, ns = ops["call_start_ns"].to_numpy(), (ops["end_ns"] - ops["start_ns"]).to_numpy()
    starts = profile.steps.cpu.filter(profile.steps.cpu["process"] == profile.process)["start_ns"].sort().to_numpy()
    step = np.searchsorted(starts, called, side="right")
    rows = list[F64]()
    for number in np.unique(step):
        messages = np.sort(called[sends & (step == number)])
        work = computes & (step == number)
        piece = np.searchsorted(messages, called[work])
        rows.append(np.bincount(piece, ns[work], minlength=len(messages) + 1).astype(np.float64))
    length = [len(row) for row in rows]
    usual = max(set(length), key=length.count, default=0)
    return np.array([row for row in rows if len(row) == usual]).reshape(-1, usual)


def unlike_share(profile: Profile) -> float:
    """Return which share of the work between messages is far longer or shorter than at the same place of other steps.

    0 where the steps differ as a whole, or few are there to compare.
    """
    pieces = _pieces(profile)
    if len(pieces) < FEWEST_COMPARED_STEPS or pieces.shape[1] < FEWEST_COMPARED_STEPS:
        return 0.0
    whole = pieces.sum(axis=1)
    if whole.max() > EVEN_STEPS_TIMES * whole.min():
        return 0.0
    usual = np.median(pieces, axis=0)
    long = usual >= usual.mean() / 4  # what lies between two messages of one exchange is none
    ratio = pieces[:, long] / usual[long]
    return (
        float(((ratio > UNLIKE_MICRO_BATCH_TIMES) | (ratio < 1 / UNLIKE_MICRO_BATCH_TIMES)).mean())
        if long.any()
        else 0.0
    )


def unlike_micro_batches(case: Case, finding: Finding, late_ns: int) -> Finding | None:
    """Return the finding about stages that wait with micro-batches of even work; None where they are alike.

    ``late_ns``: what stages wait beyond what the schedule leaves, which goes at best.
    """
    share = case.profile.once(unlike_share)
    if share < UNLIKE_PIECES_SHARE or not case.notable(late_ns):
        return None
    told = (
        f"What a stage computes between two messages is {UNLIKE_MICRO_BATCH_TIMES:g} times as long, or as short, as at the same place of "
        f"other steps, in {units.share(share, 1)} of these, and the steps are as long in sum: micro-batches are unlike, and each stage "
        "waits for the long ones of all others."
    )
    saving = case.bound(late_ns, "all that the stages wait beyond their schedule is gone")
    return Fix.by_name("even-micro-batches").into(replace(finding, detail=f"{finding.detail} {told}", saving=saving))

"""Stages of a pipeline that run all forwards before the first backward, and recompute because activations of all micro-batches are kept.

With a backward behind each forward (1F1B) a stage keeps the activations of as many micro-batches as stages follow it, whatever their
number, and the bubble is as long. What memory that frees may do without the checkpoints.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.catalogue import DeviceActivity, StepPart
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._costly_jobs import on_all_ranks
from nsysx.findings._finding_bounds import FEWEST_MICRO_STEPS
from nsysx.findings._once import Takes
from nsysx.findings._pipeline_stages import stages_of
from nsysx.findings._recomputed import needless, place_of_call
from nsysx.findings._schedule_pastes import in_turn
from nsysx.frames import lookup
from nsysx.model import Row
from nsysx.reading import nccl_notes
from nsysx.replay import job_changes
from nsysx.replay.edits import RemoveOps

_NAME = "backward-behind-forward"
_PHASES = {"forward": 0, "backward": 1}


def _forwards_kept(profile: Profile) -> int:
    """Return how many backwards the steady steps have, where all forwards come before the first and each backward has one; else 0.

    What a checkpoint runs again is of a backward. Messages between the stages part one forward from the next.
    """
    calls = profile.steady_calls.filter(pl.col("process") == profile.process).sort("start_ns")
    phase = lookup.coded(calls["phase"], _PHASES)
    backwards = profile.ranges.ranges.filter(
        (pl.col("process") == profile.process) & pl.col("own") & ~pl.col("repeated") & (pl.col("kind") == "phase")
    ).filter(pl.col("name").cast(pl.String) == "backward")["start_ns"]
    cpu = profile.steps.cpu.filter(profile.steps.cpu["process"] == profile.process).sort("start_ns")
    starts, ends = cpu["start_ns"].to_numpy(), cpu["end_ns"].to_numpy()
    counts = [int(backwards.is_between(start, end).sum()) for start, end in zip(starts, ends, strict=True)]
    batches = max(counts, default=0)  # steps without marks show none
    step = np.searchsorted(starts, calls["start_ns"].to_numpy(), side="right")
    orders = [phase[step == number] for number in np.unique(step)]
    alike = bool(orders) and all(_forwards_before(order) >= batches for order in orders)
    return batches if alike and set(counts) <= {0, batches} else 0


def _forwards_before(order: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
    """Return how often a forward begins, by the phases of calls in their order; 0 where one follows a backward."""
    forward, backward = np.flatnonzero(order == _PHASES["forward"]), np.flatnonzero(order == _PHASES["backward"])
    if not len(forward) or not len(backward) or forward[-1] > backward[0]:
        return 0
    return 1 + int((np.diff(forward) > 1).sum())


def _exchanges_in_pairs(case: Case) -> bool:
    comm = case.ops.filter(case.ops["cls"] == DeviceActivity.COMM.value)["name"].cast(pl.String).drop_nulls().unique()
    return any(nccl_notes.kind_of(name) == nccl_notes.SEND_RECEIVE for name in comm)


def kept_for_all(case: Case, settings: RecordedSettings) -> str:
    """Return that all forwards run first and are recomputed where memory is short, "" where that is not so, or as many stages follow."""
    calls, again = settings.number("checkpoints"), job_changes.gone(case.profile, _NAME)
    if not calls or not again or needless(case, settings) or not _exchanges_in_pairs(case):
        return ""
    batches, stages = case.profile.once(_forwards_kept), stages_of(case)
    if batches <= max(stages, FEWEST_MICRO_STEPS):
        return ""
    return (
        f"all {batches} forwards of a step run before its first backward, so that a stage keeps what backward needs of {batches} "
        f"micro-batches; checkpoint() recomputes {units.several(calls, 'part')} of the forward to make that fit; with a backward behind "
        f"each forward it keeps that of {units.several(stages, 'micro-batch', 'micro-batches')} at most"
    )


def computed_once(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it saves at most that nothing is computed again: what memory is freed may not do for all stages."""
    again = case.ops.filter(case.ops["op"].is_in(list(job_changes.gone(case.profile, _NAME))))
    alone = case.worth(RemoveOps(ops_of(again)), cause=(StepPart.WORK,), bound=True)
    job = on_all_ranks(case, _NAME)
    return alone if job is None else replace(job, bound=True)


def taken(case: Case) -> Takes:
    """Return what is computed again."""
    return Takes(job_changes.gone(case.profile, _NAME))


def _schedule(case: Case) -> Row:
    """Return the line that makes the schedule, empty where it is not known."""
    settings = settings_of(case.profile)
    return settings.place("schedule") if settings is not None else {}


def place_of_schedule(case: Case) -> Row:
    """Return the line that names the order, or makes the schedule, else the one that asks for checkpoints."""
    schedule = _schedule(case)
    return in_turn(case, schedule)[0] if schedule else place_of_call(case)


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy, with the program's own lines, or the number of micro-batches."""
    schedule = _schedule(case)
    if schedule and (pasted := in_turn(case, schedule)[1]):
        return title, replace(remedy, paste="\n".join(pasted))
    batches = case.profile.once(_forwards_kept)
    return title, replace(remedy, paste=remedy.paste.replace("n_microbatches=8", f"n_microbatches={batches or 8}"))

"""What a job saves if all its ranks make a change that takes GPU work and its launches away.

One rank alone does not show it: what that saves goes into waiting for the others, which are as they were. Where the ranks cannot be
replayed together, as stages of a pipeline that send to each other, each has what it computes and what its host takes to launch that, before
and after the change: the slowest sets the pace. Measured on two H200s with an own schedule of 10 micro-batches whose hosts set the pace:
checkpoints off took 63 of 152 ms (told 31 to 95), of which one GPU's work was 19 ms.
"""

from __future__ import annotations

import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.profile import Profile
from nsysx.findings._case import Case, Saving
from nsysx.findings._costly_jobs import on_all_ranks
from nsysx.findings._rank_rows import profiles_of_ranks, rank_rows
from nsysx.judging.rank_waiting import per_step
from nsysx.judging.schedule import paced_ns
from nsysx.reading import nccl_notes
from nsysx.replay import job_changes, rank_alone


def without_on_all(case: Case, name: str) -> Saving | None:
    """Return what it saves if all ranks make a change, see ``job_changes``; None for one rank, or where not all ranks are known."""
    return on_all_ranks(case, name) or _by_pace(case, name)


def _by_pace(case: Case, name: str) -> Saving | None:
    """Return the same by the rank that sets the pace, on its GPU or its host.

    At least that becomes shorter by what the replay of each host alone tells. Hosts differ from run to run, and ranks wait in turn for GPUs
    and for hosts of each other: at most all that goes is gone from the step, until the GPUs' work is left.
    """
    rows = rank_rows(case)
    if len(rows) < 2 or any(row["straggler"] for row in rows):
        return None
    profiles = {each.process: each for each in profiles_of_ranks(case)}
    hosts = rank_alone.hosts_without_ns(case.profile, name)
    if any(row["process"] not in profiles or row["process"] not in hosts for row in rows):
        return None
    work = [per_step(row, "compute_ns") for row in rows]
    gone = [min(ns, _gone_ns(profiles[row["process"]], name)) for row, ns in zip(rows, work, strict=True)]
    left = [ns - less for ns, less in zip(work, gone, strict=True)]
    launched, launched_then = zip(*(hosts[row["process"]] for row in rows), strict=True)
    staged = any(row["bubble_ns"] is not None for row in rows)
    batches = _messages(case) if staged else float("inf")
    now, then = paced_ns(work, batches, launched), paced_ns(left, batches, launched_then)
    of_hosts = sum(launched) - sum(launched_then)
    slower = max(case.step_ns / max(now, 1.0), 1.0)
    most = max(min(case.step_ns - paced_ns(left, batches), slower * (sum(gone) + of_hosts)), 0.0)
    least = max(min(now - then, most), 0.0)
    why = "all ranks without it: at least what the slowest host or GPU saves, at most until the work of the busiest GPU is left"
    return Saving.between(round(least), round(most), why)


def _gone_ns(profile: Profile, name: str) -> float:
    """Return the time of what a change takes off a rank's GPU that is no communication (ns a step)."""
    ops = profile.steady_ops["op", "cls", "start_ns", "end_ns"]
    taken = ops["op"].is_in(list(job_changes.gone(profile, name))) & (ops["cls"] == DeviceActivity.COMPUTE.value)
    goes = ops.filter(taken)
    return float((goes["end_ns"] - goes["start_ns"]).sum()) / max(profile.scope.steps or 0, 1)


def _messages(case: Case) -> float:
    """Return how many messages the shown stage sends or receives in a step: it has no more micro-batches than that."""
    comm = case.ops.filter(case.ops["cls"] == DeviceActivity.COMM.value)
    counts = comm.group_by(pl.col("name").cast(pl.String)).len()
    sent = [int(n) for name, n in counts.iter_rows() if nccl_notes.kind_of(name or "") == nccl_notes.SEND_RECEIVE]
    return max(float(sum(sent)) / case.steps, 1.0)

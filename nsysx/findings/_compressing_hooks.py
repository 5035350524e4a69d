"""A communication hook of DDP that compresses gradients where the links would send them whole in less time: PowerSGD, or a program's own.

The hook runs on the thread of backward when a bucket is full. PowerSGD reduces what it does not compress, and two matrices of low rank,
each with products and an orthogonalization before it, and then waits for the whole GPU. Backward goes on behind that. A hook of the program
(the largest numbers alone, signs, numbers of 8 bits) picks, sends and puts together on the stream of backward.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import DeviceActivity
from nsysx.events.frozen_parameters import bucket_bytes
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Saving
from nsysx.findings._costly_jobs import ddp
from nsysx.findings._exposed_transfer import communication, exposed_ns, transfer_of_ops_ns
from nsysx.findings._finding_bounds import SLOW_NVLINK_SHARE
from nsysx.findings._links import large_messages, nvlink_bytes_per_s, slow_way
from nsysx.findings._once import Takes, edits_without
from nsysx.findings._own_hooks import own_compression
from nsysx.findings._rank_rows import rank_rows
from nsysx.judging.other_work import others_of_gpu
from nsysx.reading import nccl_notes

#: torch's hooks that compress, with how many reductions each makes of a bucket.
_REDUCTIONS = {"powerSGD_hook": (2, 3), "batched_powerSGD_hook": (2, 2)}
_WAITS_FOR_ALL = ("cudaDeviceSynchronize", "cuCtxSynchronize")


class _Compressed(NamedTuple):
    """``calls`` of a hook, from its first reduction of each bucket to its wait; ``reductions`` (ops), and ``waits`` (calls).

    ``buckets``: how many buckets of all steps it reduces. ``own``: the program defines it.
    """

    calls: pl.DataFrame
    reductions: frozenset[int]
    waits: frozenset[int]
    buckets: int
    own: bool = False


def _compressed(profile: Profile) -> _Compressed | None:
    """Return what such a hook does; None without one, or where backward waits or reduces otherwise, too."""
    settings = settings_of(profile)
    wrapper = None if settings is None else ddp(settings)
    fewest, most = _REDUCTIONS.get(str((wrapper or {}).get("hook")), (0, 0))
    calls = profile.steady_calls
    calls = calls.filter((calls["phase"].cast(pl.String) == "backward").fill_null(value=False))
    waiting = calls.filter(calls["name"].cast(pl.String).str.replace(r"_v\d+$", "").is_in(_WAITS_FOR_ALL))["call"]
    threads = calls["thread"].filter(calls["call"].is_in(waiting.implode())).unique()
    if not most or len(threads) != 1:
        return None
    # What begins backward, the fill of its first gradient, the program's own thread launches.
    calls = calls.filter(calls["thread"] == threads[0]).sort("start_ns")
    waits = calls["call"].is_in(waiting.implode()).to_numpy()
    ops = profile.steady_ops
    comm = ops.filter((ops["cls"] == DeviceActivity.COMM.value).fill_null(value=False))
    reduces = calls["call"].is_in(comm["call"].drop_nulls().to_list()).to_numpy()
    bucket = np.cumsum(waits) - waits  # the number of the wait that comes next
    of_bucket = np.bincount(bucket[reduces], minlength=int(waits.sum()) + 1)
    if (of_bucket[:-1] < fewest).any() or (of_bucket > most).any() or of_bucket[waits.sum() :].any():
        return None
    first = np.full(len(of_bucket), len(calls))
    np.minimum.at(first, bucket[reduces], np.flatnonzero(reduces))
    inside = np.arange(len(calls)) >= first[bucket]
    theirs = comm.filter(comm["call"].is_in(calls["call"].filter(pl.Series(reduces)).to_list()).fill_null(value=False))
    return _Compressed(
        calls.filter(pl.Series(inside)), frozenset(theirs["op"].to_list()), frozenset(waiting.to_list()), len(waiting)
    )


def _of_program(profile: Profile) -> _Compressed | None:
    """Return what a hook that the program defines does, where it compresses; None without one."""
    hook = profile.once(own_compression)
    return None if hook is None else _Compressed(hook.calls, hook.messages, frozenset(), hook.buckets, own=True)


def _any_compressed(profile: Profile) -> _Compressed | None:
    return profile.once(_compressed) or profile.once(_of_program)


def waits_of_hook(profile: Profile) -> frozenset[int]:
    """Return the calls with which such a hook waits for the GPU."""
    compressed = profile.once(_compressed)
    return frozenset() if compressed is None else compressed.waits


def _plain_ns(case: Case, settings: RecordedSettings) -> float | None:
    """Return what it takes to reduce the buckets whole in each step (ns), at most; None where the rate of the links is not known.

    The rate is what large messages of the report reach, else the least that they do on NVLink of these cards.
    """
    whole, compressed = sum(bucket_bytes(ddp(settings) or {})), _any_compressed(case.profile)
    members = nccl_notes.members(case.profile.trace).get(case.process, {})
    ranks = max((member.size or 0 for member in members.values()), default=0)
    carried, rate = nccl_notes.bus_bytes("allreduce", ranks, whole), _links_bytes_per_s(case, settings, ranks)
    if not carried or rate is None or compressed is None:
        return None
    # Each micro-step that reduces reduces all buckets.
    times = max(settings.number("reducing") or settings.number("backwards") or 1, 1)
    return times * carried / rate * 1e9


def _links_bytes_per_s(case: Case, settings: RecordedSettings, ranks: int) -> float | None:
    """Return at what bus bandwidth large messages move at least among the GPUs of one host; None where the report does not tell."""
    rows = rank_rows(case)
    if (
        len(rows) < ranks
        or len({row["host"] for row in rows}) != 1
        or slow_way(settings)
        or others_of_gpu(case.profile)
    ):
        return None
    if moved := large_messages(rows):
        return min(message.bandwidth for message in moved)
    links = [nvlink_bytes_per_s(row["gpu"]) for row in rows]
    return None if None in links else SLOW_NVLINK_SHARE * min(rate for rate in links if rate is not None)


def without_hook(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it saves to reduce the buckets whole: at least if nothing hides that, at most if backward hides all of it.

    Ranks that wait for a late one in the hook's reductions wait for it in plain ones, too.
    """
    compressed = _any_compressed(case.profile)
    plain = None if settings is None else _plain_ns(case, settings)
    if compressed is None or plain is None:
        return None
    gone = case.worth(*edits_without(compressed.calls, case.ops, leading=True))
    if gone.likely_ns is None:
        return gone
    comm = communication(case)
    theirs = comm.filter(comm["op"].is_in(list(compressed.reductions)))
    waits = case.per_step(int(exposed_ns(case, theirs).sum())) - transfer_of_ops_ns(case, compressed.reductions)
    most = max(0, gone.likely_ns - max(0, waits))
    least = max(0, round(most - plain))
    return Saving.between(least, most, "a plain reduction of all bytes is hidden by backward, or nothing of it is")


def compresses(case: Case, settings: RecordedSettings) -> str:
    """Return that a hook takes more time for its compression than the links take for all bytes, with none of that hidden."""
    compressed, plain = _any_compressed(case.profile), _plain_ns(case, settings)
    worth = without_hook(case, settings)
    if compressed is None or plain is None or worth is None or worth.likely_ns is None:
        return ""
    if not case.notable(worth.likely_ns - (worth.error_ns or 0)):
        return ""
    wrapper = ddp(settings) or {}
    if compressed.own:
        return (
            f"{wrapper.get('hook')} compresses {units.size(sum(bucket_bytes(wrapper)))} of gradients: for each of "
            f"{case.often(compressed.buckets, 'bucket', 'buckets')} of a step it picks what to send, and puts together what came, on the "
            f"stream of backward. Sent whole they take {units.duration(plain)} at most, most of it beside backward"
        )
    return (
        f"{wrapper.get('hook')} compresses {units.size(sum(bucket_bytes(wrapper)))} of gradients: for each of "
        f"{case.often(compressed.buckets, 'bucket', 'buckets')} of a step it computes products, orthogonalizes them, reduces twice or "
        f"more, and waits for the whole GPU before backward goes on. Sent whole they take {units.duration(plain)} at most, most of it "
        "beside backward"
    )


def taken(case: Case) -> Takes:
    """Return the hook's GPU work."""
    compressed = _any_compressed(case.profile)
    if compressed is None:
        return Takes()
    calls = compressed.calls["call"].to_list()
    return Takes(frozenset(case.ops.filter(case.ops["call"].is_in(calls).fill_null(value=False))["op"].to_list()))

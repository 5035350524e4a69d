"""When settings of a job cost time: how its ranks divide parameters and reduce gradients, and what it is worth to change that."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl

from nsysx import units
from nsysx.catalogue import DeviceActivity, StepPart
from nsysx.events import micro_steps
from nsysx.events.frozen_parameters import bucket_bytes, frozen_parameters
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving
from nsysx.findings._exposed_transfer import communication, exposed_transfer_ns
from nsysx.findings._finding_bounds import (
    MOST_SHARE,
    ROUNDED_FOR_SHARE,
    SMALL_BUCKETS_TIMES,
    USUAL_BUCKET_BYTES,
)
from nsysx.findings._once import Takes
from nsysx.findings._rank_rows import rank_rows
from nsysx.frames import lookup
from nsysx.model import Row
from nsysx.replay import job_changes
from nsysx.replay.edits import RemoveOps
from nsysx.replay.replay_bounds import HIDDEN_SLOWS_SHARES, TRUSTED_ERROR, VALIDATED_ERROR_SHARE
from nsysx.replay.slowed_kernels import slowed_ns


def ddp(settings: RecordedSettings) -> Row | None:
    """Return the options of the program's DistributedDataParallel, None without one."""
    return next(iter(settings.wrappers("DDP") or ()), None)


def hidden_beside(exposed_ns: float, why: str) -> Saving:
    """Return what communication that is exposed for so long saves if it runs beside computation, which it slows."""
    least, likely, most = (1 - share for share in reversed(HIDDEN_SLOWS_SHARES))
    return Saving(
        round(likely * exposed_ns),
        f"{why}, and slows the kernels beside it",
        error_ns=round((most - least) / 2 * exposed_ns),
        source="time",
    )


def on_all_ranks(case: Case, name: str) -> Saving | None:
    """Return what a job saves if all ranks make a change, by the replay of all of them together; None without one."""
    rows = rank_rows(case)
    saved = next((r["changed_ns"][name] for r in rows if name in (r["changed_ns"] or {})), None)
    if saved is None:
        return None
    error = max((VALIDATED_ERROR_SHARE, *(r["replay_error"] or 0 for r in rows)))
    return Saving(
        min(saved, case.step_ns),
        "all ranks replayed together, without what the change removes",
        error_ns=round(error * case.step_ns),
        source="replay",
    )


def _removed(name: str) -> Callable[[Case, RecordedSettings | None], Saving | None]:
    """Return what asks for the worth of a change: of all ranks where they are replayed together, else of the shown one."""

    def worth(case: Case, settings: RecordedSettings | None) -> Saving | None:
        gone = job_changes.gone(case.profile, name)
        alone = case.worth(RemoveOps(gone), bound=True) if gone else None
        return on_all_ranks(case, name) or alone

    return worth


bucket_view, kept_gathered, without_zeros = map(_removed, ("ddp-bucket-view", "no-reshard", "frozen-before-wrapping"))
kept_for_step = _removed("gathered-for-step")


def own_buffers(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what a job saves whose ranks keep their own buffers.

    Where the replay of all ranks is too far off the recorded steps, that is what the broadcasts move at most: ranks that wait in them for
    a late one wait in the next collective then.
    """
    rows = rank_rows(case)
    if max((row["replay_error"] or 0 for row in rows), default=0) <= TRUSTED_ERROR:
        return _removed("own-buffers")(case, settings)
    ops = case.ops.filter(case.ops["op"].is_in(list(job_changes.gone(case.profile, "own-buffers"))))
    here = next((row for row in rows if row["process"] == case.process), {})
    sent = sum(each["transfer_ns"] for each in here.get("by_collective") or () if each["kind"] == "broadcast")
    moved = min(sent, int((ops["end_ns"] - ops["start_ns"]).sum()))
    return case.bound(case.per_step(moved), "what the broadcasts of the buffers move")


def sharded(settings: RecordedSettings) -> list[Row]:
    """Return the options of the wrappers that divide parameters over the ranks."""
    return [*(settings.wrappers("fully_shard") or ()), *(settings.wrappers("FSDP") or ())]


def reduces_in_no_sync(case: Case, settings: RecordedSettings) -> str:
    """Return that DDP reduces in each backward although no_sync() is entered, "" where it does not: the forward decides."""
    micro = micro_steps.micro_steps(case.profile)
    if micro is None or ddp(settings) is None:
        return ""
    return (
        f"DDP reduces gradients in each of the {micro.count} backwards of a step ({units.several(micro.each, 'collective')} in each), "
        "although no_sync() is entered: it has to hold the forward, too, where DDP decides whether the backward reduces"
    )


def copies_gradients(case: Case, settings: RecordedSettings) -> str:
    """Return that gradients are copied out of their buckets."""
    wrapper = ddp(settings)
    if (
        wrapper is None
        or wrapper.get("gradient_as_bucket_view") is not False
        or not job_changes.gone(case.profile, "ddp-bucket-view")
    ):
        return ""
    return "DDP copies each gradient out of its bucket after it was reduced (gradient_as_bucket_view=False)"


def sends_buffers(case: Case, settings: RecordedSettings) -> str:
    """Return that buffers are sent to all ranks in each forward."""
    wrapper = ddp(settings)
    buffers = wrapper.get("buffers") if wrapper is not None and wrapper.get("broadcast_buffers") is True else 0
    if not isinstance(buffers, int) or not buffers or not job_changes.gone(case.profile, "own-buffers"):
        return ""
    return (
        f"DDP sends {units.several(buffers, 'buffer')} of rank 0 to all ranks in each forward (broadcast_buffers=True)"
    )


def reduces_zeros(case: Case, settings: RecordedSettings) -> str:
    """Return that gradients are reduced of parameters that nothing trains."""
    frozen = frozen_parameters(case.profile)
    if frozen is None:
        return ""
    return (
        f"{units.size(frozen.bytes)} of the {units.size(frozen.of_bytes)} that DDP reduces in each backward are gradients of parameters "
        "that get none and are in no optimizer: they require gradients when they are wrapped, and find_unused_parameters=True lets DDP "
        f"send zeros for them, in {frozen.messages:.0f} messages a step"
    )


def of_zeros(case: Case) -> Takes:
    """Return the zeros and their reductions."""
    frozen = frozen_parameters(case.profile)
    return Takes(frozenset() if frozen is None else frozen.ops)


def _buckets(settings: RecordedSettings) -> list[int]:
    """Return the sizes of DDP's buckets (bytes), in their order; none where they are not known."""
    wrapper = ddp(settings)
    return [] if wrapper is None else bucket_bytes(wrapper)


def _usual_count(whole: int) -> int:
    """Return how many buckets of the usual size hold so many bytes, with the small first one."""
    return 1 + -(-whole // USUAL_BUCKET_BYTES)


def _reductions(case: Case) -> pl.DataFrame:
    """Return the collectives that backward launches, as GPU ops."""
    comm = case.timed_ops(case.ops["cls"] == DeviceActivity.COMM.value, "op", "phase", "name")
    return comm.filter(comm["phase"].cast(pl.String) == "backward")


def small_buckets(case: Case, settings: RecordedSettings) -> str:
    """Return that gradients are reduced in many small messages."""
    whole, times = sum(_buckets(settings)), round(_reductions(case).height / case.steps)
    cap = (ddp(settings) or {}).get("bucket_cap_bytes")
    if (
        not isinstance(cap, int)
        or cap >= USUAL_BUCKET_BYTES
        or not whole
        or times < SMALL_BUCKETS_TIMES * _usual_count(whole)
    ):
        return ""
    return (
        f"DDP reduces {units.size(whole)} of gradients in {units.several(times, 'message')} (bucket_cap_mb={cap >> 20}): each is a launch "
        "and a meeting of all ranks"
    )


def fewer_buckets(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return the most that buckets of the usual size save: what the other reductions take beyond compute, and their launches."""
    whole, reductions = sum(_buckets(settings)) if settings is not None else 0, _reductions(case)
    if not whole or not reductions.height:
        return None
    gone = max(1 - _usual_count(whole) * case.steps / reductions.height, 0.0)
    launches = case.worth(RemoveOps(frozenset(reductions["op"].to_list())), bound=True).likely_ns or 0
    met = case.taken_by((StepPart.COMM,)) + case.per_step(slowed_ns(case.profile))
    return case.bound(
        gone * max(met, launches), "reductions beyond those of usual buckets are gone, with what they slow"
    )


def one_bucket(case: Case, settings: RecordedSettings) -> str:
    """Return that most gradients are reduced in one message, after backward."""
    sizes = _buckets(settings)
    whole, largest = sum(sizes), max(sizes, default=0)
    cap = (ddp(settings) or {}).get("bucket_cap_bytes")
    if (
        not isinstance(cap, int)
        or cap <= 2 * USUAL_BUCKET_BYTES
        or largest < max(MOST_SHARE * whole, 2 * USUAL_BUCKET_BYTES)
    ):
        return ""
    # What DDP lists may be its buckets before it divides them anew: then backward reduces more often.
    often = 2 * _reductions(case).height >= _usual_count(whole) * case.steps
    if often or not case.notable(case.taken_by((StepPart.COMM,))):
        return ""
    return (
        f"DDP reduces {units.size(largest)} of {units.size(whole)} of gradients in one bucket (bucket_cap_mb={cap >> 20}), which is "
        "complete when backward is nearly over: nothing hides it"
    )


def one_gradient(settings: RecordedSettings | None) -> str:
    """Return that nearly all gradients are those of one parameter, which DDP cannot divide, "" where they are not."""
    sizes = _buckets(settings) if settings is not None else []
    cap = ((ddp(settings) if settings is not None else None) or {}).get("bucket_cap_bytes")
    # A bucket takes parameters until it has as much as it may: what is in it beyond that, one of them has.
    if len(sizes) != 1 or not isinstance(cap, int) or sizes[0] - cap < MOST_SHARE * sizes[0]:
        return ""
    return "nearly all gradients are those of one parameter, which are reduced in one message as soon as they are there"


def overlapped_buckets(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what buckets of the usual size save: all exposed communication but that of the last bucket runs beside backward."""
    sizes = _buckets(settings) if settings is not None else []
    if not sizes:
        return None
    left = min(USUAL_BUCKET_BYTES / sum(sizes), 1.0)
    return hidden_beside(
        (1 - left) * case.taken_by((StepPart.COMM,)), "all but the last bucket is reduced beside backward"
    )


def one_unit(settings: RecordedSettings) -> str:
    """Return that a sharded model is one unit, so that nothing runs beside its gather and its reduction."""
    if [r.get("count") for r in sharded(settings)] != [1]:
        return ""
    return (
        "The whole model is sharded as one unit: all parameters are gathered before the first layer computes, and all gradients are "
        "reduced after the last one has."
    )


# ---- what is sent, and in how many messages ----------------------------------------------------------------------------

_SUMMED_AS_FLOAT32 = r"(AllReduce|ReduceScatter)\w*Sum_f(32|loat)"


def _summed_as_float32(case: Case) -> Flags:
    """Return which of the `communication` adds gradients up as float32."""
    comm = communication(case)
    summed = lookup.matching(comm["name"], _SUMMED_AS_FLOAT32)
    chosen: Flags = summed & (comm["phase"].cast(pl.String) == "backward").fill_null(value=False).to_numpy()
    return chosen


def _float32_transfer(case: Case) -> int:
    """Return the exposed transfer of gradients that are reduced as float32 (ns a step); 0 where the ranks do not tell it from waiting."""
    return exposed_transfer_ns(case, _summed_as_float32(case))


def float32_reductions(case: Case) -> Takes:
    """Return the reductions of gradients as float32."""
    return Takes(frozenset(communication(case)["op"].filter(pl.Series(_summed_as_float32(case))).to_list()))


def reduces_float32(case: Case, settings: RecordedSettings) -> str:
    """Return that gradients of a program that computes in bfloat16 are reduced as float32, and transfer for it is exposed."""
    wrapper, kinds = ddp(settings), settings.autocast("dtypes")
    counts = kinds if isinstance(kinds, Mapping) else {}
    autocast = any("bfloat16" in str(kind) and count for kind, count in counts.items())
    if wrapper is not None:
        rounded = autocast and not wrapper.get("hook")
    else:
        units_of = sharded(settings)
        low = all(r.get("parameter_dtype") == "bfloat16" for r in units_of) or autocast
        rounded = bool(units_of) and low and all(r.get("reduce_dtype") in ("float32", None) for r in units_of)
    if not rounded:
        return ""
    transfer = _float32_transfer(case)
    if transfer < 2 * ROUNDED_FOR_SHARE * case.step_ns:
        return ""
    return (
        f"the network computes in bfloat16 and its gradients are reduced as float32: {units.duration(transfer)} of a step is their "
        "transfer that nothing hides. As bfloat16 they have half of the bytes; each is then rounded to 8 significant bits before it is "
        "added to those of the other ranks"
    )


def half_of_the_bytes(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return the most that gradients of half the bytes save: half of their exposed transfer."""
    return case.bound(_float32_transfer(case) / 2, "half of the bytes move, in half of the time")

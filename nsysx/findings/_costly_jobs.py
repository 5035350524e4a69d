"""When settings of a job cost time: how its ranks divide parameters and reduce gradients, and what it is worth to change that."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl

from nsysx import units
from nsysx.catalogue import DeviceActivity, StepPart
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving
from nsysx.findings._finding_bounds import MOST_SHARE, SMALL_BUCKETS_TIMES, SPARE_MEMORY_SHARE, USUAL_BUCKET_BYTES
from nsysx.model import Row
from nsysx.replay import job_changes
from nsysx.replay.edits import RemoveOps
from nsysx.replay.replay_bounds import HIDDEN_SLOWS_SHARES, VALIDATED_ERROR_SHARE
from nsysx.replay.slowed_kernels import slowed_ns

#: Bytes of numbers by their kind; parameters whose kind is not said have that of the optimizer.
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}


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
    rows = (case.ranks.rows if case.ranks else None) or ()
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


bucket_view, own_buffers, kept_gathered = map(_removed, ("ddp-bucket-view", "own-buffers", "no-reshard"))


def sharded(settings: RecordedSettings) -> list[Row]:
    """Return the options of the wrappers that divide parameters over the ranks."""
    return [*(settings.wrappers("fully_shard") or ()), *(settings.wrappers("FSDP") or ())]


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


def _buckets(settings: RecordedSettings) -> list[int]:
    """Return the sizes of DDP's buckets (bytes), in their order; none where they are not known."""
    wrapper = ddp(settings)
    listed = wrapper.get("bucket_bytes") if wrapper is not None else None
    words = listed.replace(",", " ").split() if isinstance(listed, str) else []
    return [int(word) for word in words if word.isdecimal()]


def _usual_count(whole: int) -> int:
    """Return how many buckets of the usual size hold so many bytes, with the small first one."""
    return 1 + -(-whole // USUAL_BUCKET_BYTES)


def _reductions(case: Case) -> pl.DataFrame:
    """Return the collectives that backward launches, as GPU ops."""
    comm = case.timed_ops(case.ops["cls"] == DeviceActivity.COMM.value, "op", "phase")
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


def gathers_again(case: Case, settings: RecordedSettings) -> str:
    """Return that parameters are gathered a second time in backward although the card holds all of them."""
    again = [
        r
        for r in sharded(settings)
        if r.get("reshard_after_forward") is True or "FULL_SHARD" in str(r.get("sharding_strategy"))
    ]
    memory, gone = settings.record.get("memory"), job_changes.gone(case.profile, "no-reshard")
    if not again or not isinstance(memory, Mapping) or not gone:
        return ""
    total, peak, whole = memory.get("total_bytes"), memory.get("reserved_peak_bytes"), _parameter_bytes(settings, again)
    if (
        not isinstance(total, int)
        or not isinstance(peak, int)
        or not whole
        or peak + whole > (1 - SPARE_MEMORY_SHARE) * total
    ):
        return ""
    count = sum(n for r in again if isinstance(n := r.get("count"), int))
    return (
        f"FSDP frees the parameters of {units.several(count, 'unit')} after forward and gathers them again in backward "
        f"(reshard_after_forward=True); all of them take {units.size(whole)}, and {units.size(total - peak)} of the card are never used"
    )


def _parameter_bytes(settings: RecordedSettings, wrappers: list[Row]) -> int:
    """Return the bytes of all parameters of the program's optimizers as they are gathered, 0 where that is not known."""
    kind = next((str(r["parameter_dtype"]) for r in wrappers if r.get("parameter_dtype")), "")
    whole = 0
    for row in settings.rows("optimizers") or ():
        elements, kinds = row.get("elements"), row.get("dtypes")
        stored = next(iter(kinds), "float32") if isinstance(kinds, Mapping) else "float32"
        whole += elements * _BYTES.get(kind or stored, 4) if isinstance(elements, int) else 0
    return whole


def offloads(case: Case, settings: RecordedSettings) -> str:
    """Return that a sharded model keeps its parameters on the CPU."""
    if not any(r.get("offload") is True for r in sharded(settings)):
        return ""
    return "FSDP keeps parameters and gradients on the CPU: each step copies all of them both ways, and the optimizer runs there"

"""Changes that a job makes on all its ranks: what of a rank's GPU work each of them leaves.

A change is known by the name of its remedy. What is there to be changed is read from the capture alone; whether the change is advised
is for the rules to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import polars as pl

from nsysx.catalogue import Call, DeviceActivity
from nsysx.events import micro_steps
from nsysx.events.called_units import called_unit
from nsysx.events.event_bounds import ON_DEVICE_KIND
from nsysx.events.frozen_base import frozen_base
from nsysx.events.frozen_parameters import frozen_parameters
from nsysx.events.gathers_of_micro_steps import gathers_of_micro_steps
from nsysx.events.looped_updates import left_of_loops
from nsysx.events.profile import Profile
from nsysx.events.recomputed_gathers import recomputed_gathers
from nsysx.events.recorded_settings import settings_of
from nsysx.events.shared_optimizer import shared_optimizer
from nsysx.events.untrained_gathers import gathered_frozen, gathered_in_loop
from nsysx.frames import lookup
from nsysx.frames.intervals import I64, union
from nsysx.frames.statistics import F64
from nsysx.reading import nccl_notes
from nsysx.replay.held_lines import Unheld, unsent_by, without_lines
from nsysx.replay.replay_bounds import FEWEST_CHANGES_PER_STEP, LEAST_LOAD_NS
from nsysx.replay.slowed_kernels import slowed_by_communication

#: API calls that load a kernel: others of the kind only look up what is loaded.
LOADS_KERNEL = (pl.col("kind") == Call.LOAD) & (pl.col("end_ns") - pl.col("start_ns") >= LEAST_LOAD_NS)
#: The remedy for kernels that a library builds anew in each step.
BUILT_NO_MORE = "no-kernel-built-in-a-step"
#: The change that takes time of hosts alone: loops over tensors take lists of them. The GPU's work stays, in few launches.
OF_HOSTS = "foreach-parameters"
#: The kernel with which torch joins tensors into one.
_FLATTENS = r"CatArrayBatchedCopy"


def left_by(profile: Profile, ops: I64) -> Mapping[str, F64]:
    """Return remedy -> what is left of the time of each of these GPU ops (0: it is gone), for those that remove something in each step.

    Kernels that ran beside communication that goes take as long as they take alone, where that is known. What has more to do on each
    rank then takes longer: more than 1 is left.
    """
    left = {}
    for name, of_change in _GONE.items():
        removed = profile.once(of_change)
        here = np.isin(ops, list(removed))
        if here.any():
            left[name] = np.where(here, 0.0, _relieved(profile, removed, ops)) * _grown(profile, name, ops)
    for name, removed in unsent_by(profile).items():
        here = np.isin(ops, list(removed))
        if here.any():
            left[name] = np.where(here, 0.0, 1.0)
    merged = profile.once(left_of_loops)
    if np.isin(ops, list(merged)).any():
        left[OF_HOSTS] = np.array([merged.get(op, 1.0) for op in ops.tolist()])
    return left


def unheld_by(profile: Profile, calls: I64) -> Mapping[str, Unheld]:
    """Return change -> which of these API calls hold the host no more, and how much of the code before them; lines by their place."""
    built = np.isin(calls, list(profile.once(built_calls)))
    return ({BUILT_NO_MORE: Unheld.of_calls(built)} if built.any() else {}) | without_lines(profile, calls)


def built_calls(profile: Profile) -> frozenset[int]:
    """Return the calls with which a library loads, in the shown process, the kernels that it has built in the steady steps.

    These are the loads, and what is asked of a kernel until its launch; the host code before them builds it.
    """
    if not (profile.steady_calls["kind"] == Call.LOAD).any():
        return frozenset()
    calls = profile.steady_calls["call", "thread", "kind", "start_ns", "end_ns"].sort("thread", "start_ns")
    launches = calls["call"].is_in(profile.steady_ops["call"].drop_nulls().implode())
    # Stretch n of a thread ends with its n-th launch, itself not included.
    before = launches.cast(pl.Int64).cum_sum() - launches.cast(pl.Int64)
    behind = calls.with_columns(load=LOADS_KERNEL, stretch=before).with_columns(
        loaded=pl.col("load").cum_max().over("thread", "stretch")
    )
    return frozenset(behind.filter(pl.col("loaded") & ~launches)["call"].to_list())


def _grown(profile: Profile, name: str, ops: I64) -> F64:
    """Return how many times as long each op takes by what a change adds to its work."""
    more, times = grown(profile, name)
    return np.where(np.isin(ops, list(more)), times, 1.0)


def grown(profile: Profile, name: str) -> tuple[frozenset[int], float]:
    """Return the GPU work of the shown process that a change makes longer, and how many times: that of an optimizer of all parameters."""
    shared = shared_optimizer(profile) if name == "whole-state" else None
    return (frozenset(), 1.0) if shared is None else (profile.once(_updates), shared.times)


def gone(profile: Profile, name: str) -> frozenset[int]:
    """Return the GPU work of the shown process that a change removes, empty where there is nothing to be changed."""
    return profile.once(_GONE[name])


def communicating(profile: Profile) -> frozenset[int]:
    """Return the GPU work of the shown process that is there for communication alone: it, and what changes of all ranks remove."""
    ops = profile.attributed.gpu_ops
    here = (ops["process"] == profile.steps.process) & (ops["cls"] == DeviceActivity.COMM.value)
    return frozenset(ops["op"].filter(here).to_list()).union(*(gone(profile, name) for name in _GONE))


def _relieved(profile: Profile, removed: frozenset[int], ops: I64) -> F64:
    """Return what is left of ops that communication which is removed slows."""
    left = np.ones(len(ops))
    timed = profile.attributed.gpu_ops["op", "start_ns", "end_ns", "cls"]
    comm = timed.filter(pl.col("op").is_in(list(removed)) & (timed["cls"] == DeviceActivity.COMM.value))
    begin, end = union(comm["start_ns"].to_numpy(), comm["end_ns"].to_numpy())
    if not len(end):
        return left
    for group, factor in profile.once(slowed_by_communication):
        beside = timed.filter(pl.col("op").is_in(list(group)))
        first = np.searchsorted(end, beside["start_ns"].to_numpy(), side="right")
        meets = (first < len(end)) & (begin[np.minimum(first, len(end) - 1)] < beside["end_ns"].to_numpy())
        left[np.isin(ops, beside["op"].to_numpy()[meets])] = factor
    return left


def _reduced_once(profile: Profile) -> frozenset[int]:
    """Return the reductions of all but the last of several micro-steps, and what moves gradients into and out of their buckets."""
    micro = micro_steps.micro_steps(profile)
    return frozenset() if micro is None else micro.early | micro.copies


def _in_phase(profile: Profile, phase: str) -> pl.DataFrame:
    """Return op, kind (of collective, "" for others) and copy_kind of the steady GPU work that a phase launches."""
    ops = profile.once(_with_kinds)
    return ops.filter(ops["phase"] == phase)


def _with_kinds(profile: Profile) -> pl.DataFrame:
    ops = profile.steady_ops["op", "name", "cls", "phase", "module", "copy_kind"]
    comm = ops["cls"] == DeviceActivity.COMM.value
    names = ops["name"].cast(pl.String)
    kinds = {name: nccl_notes.kind_of(name) for name in names.filter(comm).drop_nulls().unique()}
    kind = names.replace_strict(kinds, default="", return_dtype=pl.String)
    return ops.with_columns(kind=pl.when(comm).then(kind).otherwise(pl.lit("")))


def _often(profile: Profile, ops: pl.DataFrame) -> frozenset[int]:
    steps = profile.scope.steps or 0
    return frozenset(ops["op"].to_list()) if steps and ops.height >= FEWEST_CHANGES_PER_STEP * steps else frozenset()


def _gathered_again(profile: Profile) -> frozenset[int]:
    """Return the gathers of parameters in backward that the forward made already, as those of a sharded model are."""
    backward, forward = _in_phase(profile, "backward"), _in_phase(profile, "forward")
    if not has_backward(profile):
        return _often(profile, _for_each_forward(profile))
    if not ((backward["kind"] == "reducescatter").any() and (forward["kind"] == "allgather").any()):
        return frozenset()
    return _often(profile, backward.filter(pl.col("kind") == "allgather"))


def has_backward(profile: Profile) -> bool:
    """Return whether any GPU work of the steady steps is launched by a backward."""
    return _in_phase(profile, "backward").height > 0


def _for_each_forward(profile: Profile) -> pl.DataFrame:
    """Return the gathers with which a sharded model that only infers makes its parameters whole for each forward."""
    settings = settings_of(profile)
    if settings is None or not (settings.wrappers("fully_shard") or settings.wrappers("FSDP")):
        return _in_phase(profile, "forward").clear()
    gathers = pl.concat([_in_phase(profile, phase) for phase in ("forward", "evaluation")])
    return gathers.filter(pl.col("kind") == "allgather")


def _copied_out(profile: Profile) -> frozenset[int]:
    """Return the copies of gradients out of their buckets: copies on the device in a backward that reduces.

    Only DistributedDataParallel has buckets: none where the program's settings are known and name no such wrapper.
    """
    settings, backward = settings_of(profile), _in_phase(profile, "backward")
    without_ddp = settings is not None and settings.wrappers("DDP") == ()
    if without_ddp or not (backward["kind"] == "allreduce").any():
        return frozenset()
    return _often(profile, backward.filter((pl.col("copy_kind") == ON_DEVICE_KIND).fill_null(value=False)))


def _sent_buffers(profile: Profile) -> frozenset[int]:
    """Return the broadcasts in forward, with which a wrapper makes the buffers of all ranks those of the first one, and the copies into
    and out of what they send: buffers are sent together, as one flat tensor of each type.

    What a wrapper launches itself in a forward, and not the network in it, is these copies; inputs come from the host.
    """
    forward = _in_phase(profile, "forward")
    sent = forward.filter(pl.col("kind") == "broadcast")
    if sent.height < (profile.scope.steps or 1):
        return frozenset()
    wrappers = set(sent["module"].cast(pl.String).drop_nulls().to_list()) & profile.attributed.roots
    copies = forward.filter(
        forward["module"].cast(pl.String).is_in(list(wrappers)).fill_null(value=False)
        & (
            pl.Series(lookup.matching(forward["name"], _FLATTENS), dtype=pl.Boolean)
            | (pl.col("copy_kind") == ON_DEVICE_KIND).fill_null(value=False)
        )
    )
    return frozenset([*sent["op"].to_list(), *copies["op"].to_list()])


def _reduced_zeros(profile: Profile) -> frozenset[int]:
    """Return what is done for gradients that are zero, of parameters that nothing trains."""
    frozen = frozen_parameters(profile)
    return frozenset() if frozen is None else frozen.ops


def _updates(profile: Profile) -> frozenset[int]:
    """Return what an optimizer computes."""
    ops = profile.steady_ops["op", "cls", "phase"]
    computes = ops["cls"] == DeviceActivity.COMPUTE.value
    return frozenset(ops.filter((ops["phase"].cast(pl.String) == "optimizer") & computes)["op"].to_list())


def _sent_updates(profile: Profile) -> frozenset[int]:
    """Return the broadcasts behind an optimizer whose state is shared out, with which each rank sends what it has updated."""
    if shared_optimizer(profile) is None:
        return frozenset()
    return _often(profile, _in_phase(profile, "optimizer").filter(pl.col("kind") == "broadcast"))


def _gathered_in_loop(profile: Profile) -> frozenset[int]:
    """Return what a loop gathers again for each of its calls, with the copies around it."""
    wasted = gathered_in_loop(profile)
    return frozenset() if wasted is None else wasted.ops


def _gathered_in_micro_steps(profile: Profile) -> frozenset[int]:
    """Return what all but the first forward of a step gather again, with the copies out of it."""
    wasted = gathers_of_micro_steps(profile)
    return frozenset() if wasted is None else wasted.ops


def _gathered_frozen(profile: Profile) -> frozenset[int]:
    """Return what is gathered of a network that nothing trains, with the copies around it."""
    wasted = gathered_frozen(profile)
    return frozenset() if wasted is None else wasted.ops


def _gathered_base(profile: Profile) -> frozenset[int]:
    """Return what is gathered of a network of which little is trained, with the copies around it."""
    wasted = frozen_base(profile)
    return frozenset() if wasted is None else wasted.ops


def _of_called_unit(profile: Profile) -> frozenset[int]:
    """Return what is gathered and reduced of a unit because a forward calls it again."""
    unit = called_unit(profile)
    return frozenset() if unit is None else unit.ops


def _exchanged_again(profile: Profile) -> frozenset[int]:
    """Return the collectives that a backward repeats, because it computes a part of the forward again."""
    ops = profile.steady_ops["op", "cls", "recompute"]
    repeated = (ops["cls"] == DeviceActivity.COMM.value) & ops["recompute"].fill_null(value=False)
    return frozenset(ops.filter(repeated)["op"].to_list())


def _gathered_twice(profile: Profile) -> frozenset[int]:
    """Return the second gathers of units that a backward gathers twice, because a checkpoint lies around each."""
    gathers = recomputed_gathers(profile)
    return frozenset() if gathers is None else gathers.ops


def _computed_again(profile: Profile) -> frozenset[int]:
    """Return all that a backward computes again of the forward."""
    ops = profile.steady_ops["op", "recompute"]
    return frozenset(ops.filter(ops["recompute"].fill_null(value=False))["op"].to_list())


#: Remedy -> the GPU work of the shown process that it removes.
_GONE: Mapping[str, Callable[[Profile], frozenset[int]]] = {
    "no-sync": _reduced_once,
    "no-reshard": _gathered_again,
    "ddp-bucket-view": _copied_out,
    "own-buffers": _sent_buffers,
    "frozen-before-wrapping": _reduced_zeros,
    "whole-state": _sent_updates,
    "gathered-once": _gathered_in_loop,
    "gathered-for-step": _gathered_in_micro_steps,
    "whole-network": _gathered_frozen,
    "whole-base": _gathered_base,
    "unit-of-root": _of_called_unit,
    "exchanges-kept": _exchanged_again,
    "checkpoint-not-reentrant": _gathered_twice,
    "backward-behind-forward": _computed_again,
}

"""How many passes a step is made of: accumulated gradients, or several optimizers that take turns.

Gradients that a network asks for while it is called (``torch.autograd.grad`` in its forward) are a part of that forward, and no gradient
that is asked for is accumulated: there torch adds to no parameter.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.code_lines import are_nodes
from nsysx.events.layers import layer_of
from nsysx.events.profile import Profile
from nsysx.judging.judging_bounds import WHOLE_PASSES_SHARE
from nsysx.reading import nccl_notes

_ACCUMULATES = "torch::autograd::AccumulateGrad"


def in_words(profile: Profile) -> str:
    """Say when a step is several passes; "" where it is one, or where that is not known."""
    scope = profile.scope
    if not scope.steps:
        return ""
    # Anything that interrupts a phase on its thread cuts its span, so a pass ends only where another phase begins.
    order = _phases_in_order(profile)
    begun = order.filter((order != order.shift(1)).fill_null(True))
    count = {phase: scope.per_step(int((begun == phase).sum())) for phase in ("forward", "backward", "optimizer")}
    backward, optimizer = round(count["backward"]), round(count["optimizer"])
    steady = all(abs(count[p] - n) < WHOLE_PASSES_SHARE for p, n in (("backward", backward), ("optimizer", optimizer)))
    if backward < 2 or not steady or not optimizer:
        return ""
    if optimizer > 1:
        return f"A step has {backward} backward passes and {optimizer} optimizer steps"
    if round(count["forward"]) < backward or _sends(profile) or not _all_accumulate(profile):
        return ""
    return f"A step is {backward} forward and backward passes before one optimizer step: gradients are accumulated"


def _sends(profile: Profile) -> bool:
    """Return whether the steps hold messages between two ranks: the passes are then of a pipeline's schedule, and some may run together."""
    names = profile.steady_ops.filter(pl.col("cls") == DeviceActivity.COMM.value)["name"].unique().cast(pl.String)
    return any(nccl_notes.kind_of(name) == nccl_notes.SEND_RECEIVE for name in names.drop_nulls())


def _phases_in_order(profile: Profile) -> pl.Series:
    """Return the phases of the steady steps one after the other; what a forward calls is of the forward."""
    spans, process = profile.attributed.phase_spans, profile.steps.process
    windows = profile.steps.cpu_windows.filter(pl.col("process") == process)
    start, end = (int(x) for x in windows.select("start_ns", "end_ns").row(0))
    in_steps = spans.filter((pl.col("process") == process) & pl.col("start_ns").is_between(start, end))
    in_steps = in_steps.sort("thread", "start_ns")
    forward = layer_of(_own_phases(profile, "forward"))
    began, threads = in_steps["start_ns"].to_numpy(), in_steps["thread"].to_numpy()
    within = np.zeros(in_steps.height, np.bool_)
    for thread in np.unique(threads).tolist():
        theirs = threads == thread
        within[theirs] = forward.at(thread, began[theirs]) >= 0
    phase = in_steps["phase"].cast(pl.String)
    return pl.select(pl.when(pl.Series(within, dtype=pl.Boolean)).then(pl.lit("forward")).otherwise(phase)).to_series()


def _own_phases(profile: Profile, name: str) -> pl.DataFrame:
    ranges = profile.ranges.ranges
    phases = ranges.filter((pl.col("kind") == "phase") & pl.col("own") & (pl.col("process") == profile.steps.process))
    return phases.filter(phases["name"].cast(pl.String) == name)


def _all_accumulate(profile: Profile) -> bool:
    """Return whether torch adds to gradients in each pass whose nodes were recorded, as far as it was seen to add at all."""
    ranges = profile.ranges.ranges
    ops = ranges.filter((pl.col("kind") == "op") & (pl.col("process") == profile.steps.process))
    adds = ops.filter(ops["name"].cast(pl.String).str.starts_with(_ACCUMULATES))["start_ns"].sort().to_numpy()
    nodes = ops.filter(are_nodes(ops["name"]))["start_ns"].sort().to_numpy()
    passes = _own_phases(profile, "backward").select("start_ns", "end_ns").to_numpy()
    if not len(adds) or not len(passes):
        return True
    ran, added = (
        np.searchsorted(times, passes[:, 1]) > np.searchsorted(times, passes[:, 0]) for times in (nodes, adds)
    )
    return bool((added | ~ran).all())

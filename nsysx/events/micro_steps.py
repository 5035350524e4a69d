"""Forward and backward several times in each step: how often, and which reductions of gradients come before the last of them.

Gradients that add up over several micro-steps have to be reduced over the ranks once, before the optimizer; a wrapper reduces them in
each backward, unless it is told to wait. An optimizer between two backwards makes them steps of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.event_bounds import ALIKE_ROUNDS_SHARE, ALL_DIVIDED_SHARE, FEWEST_ROUNDS, ON_DEVICE_KIND
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import settings_of
from nsysx.frames import lookup
from nsysx.reading import nccl_notes

#: Collectives that reduce gradients.
_REDUCES = ("allreduce", "reducescatter")
#: The phases of a round, numbered.
_PHASES = {"forward": 0, "backward": 1, "optimizer": 2}
#: A wrapper that averages gradients divides each, a product with a number: on its way into the bucket, or where it lies in it.
_DIVIDES, _DIVIDES_ANYWHERE = r"AUnaryFunctor<.*MulFunctor", r"[AB]UnaryFunctor<.*MulFunctor"


@dataclass(frozen=True)
class MicroSteps:
    """``count`` backwards before each step of the optimizer, all of which reduce gradients; ``early``: the GPU ops of those reductions
    in all but the last of them, and ``each``, the reductions of one backward. ``copies``: what moves gradients into and out of their
    buckets, copies on the device and divisions that those backwards make.
    """

    count: int
    each: int
    early: frozenset[int]
    copies: frozenset[int] = frozenset()


def micro_steps(profile: Profile) -> MicroSteps | None:
    """Return the micro-steps of the shown process in its steady steps, None where it has none or does not reduce in each of them."""
    return profile.once(_micro_steps)


def _micro_steps(profile: Profile) -> MicroSteps | None:
    steps = profile.steps
    communicates = (profile.attributed.gpu_ops["cls"] == DeviceActivity.COMM.value).any()
    if steps.whole or steps.steady is None or not communicates:
        return None
    cpu = steps.cpu.filter(pl.col("process") == steps.process).sort("index")
    first, last = steps.steady
    start, end = int(cpu["start_ns"][first]), int(cpu["end_ns"][min(last, cpu.height - 1)])
    rounds = _backwards(profile, start, end)
    if all(len(backwards) < 2 for backwards in rounds):
        return None
    every = (
        profile.attributed.gpu_ops.select(
            "op", "process", "cls", "name", pl.col("phase").cast(pl.String), "copy_kind", "call_start_ns"
        )
        .filter(
            (pl.col("process") == steps.process)
            & (pl.col("phase") == "backward")
            & pl.col("call_start_ns").is_not_null()
        )
        .sort("call_start_ns")
    )
    ops = every.filter(every["cls"] == DeviceActivity.COMM.value)
    names = ops["name"].cast(pl.String)
    kinds = {name: nccl_notes.kind_of(name) for name in names.unique()}
    reduces = (names.replace_strict(kinds, default="", return_dtype=pl.String)).is_in(_REDUCES)
    reducing, copies = ops.filter(reduces), every.filter(every["copy_kind"] == ON_DEVICE_KIND)
    divisions = every.filter(lookup.matching(every["name"], _DIVIDES))
    anywhere = every.filter(lookup.matching(every["name"], _DIVIDES_ANYWHERE))
    if _divided_in_place(profile, rounds, anywhere):
        copies = pl.concat([copies, anywhere]).sort("call_start_ns")
    elif ALL_DIVIDED_SHARE * copies.height <= divisions.height <= copies.height:
        copies = pl.concat([copies, divisions]).sort("call_start_ns")
    return _by_reductions(rounds, reducing, copies)


def _divided_in_place(profile: Profile, rounds: list[list[tuple[int, int]]], divisions: pl.DataFrame) -> bool:
    """Return whether DDP divides each gradient where it lies: gradients are views of its buckets, and a backward has as many divisions."""
    settings = settings_of(profile)
    wrappers = (settings.wrappers("DDP") if settings else None) or ()
    if not settings or not any(w.get("gradient_as_bucket_view") is True for w in wrappers):
        return False
    gradients = 0
    for optimizer in settings.rows("optimizers") or ():
        parameters, of_them = optimizer.get("parameters"), optimizer.get("gradients")
        without = of_them.get("without") if isinstance(of_them, Mapping) else None
        if not isinstance(parameters, int) or not isinstance(without, int):
            return False
        gradients += parameters - without
    counts = [_ops_called_within(divisions, a, b).height for backwards in rounds for a, b in backwards]
    usual = Counter(counts).most_common(1)[0][0]
    return 0 < ALL_DIVIDED_SHARE * usual <= gradients and ALL_DIVIDED_SHARE * gradients <= usual


def _backwards(profile: Profile, start: int, end: int) -> list[list[tuple[int, int]]]:
    """Return the backwards [begin, end) of each round that an optimizer ends, by the phases of the calls in [start, end)."""
    calls = profile.attributed.api_calls
    phase, begins_ns = lookup.coded(calls["phase"], _PHASES), calls["start_ns"].to_numpy()
    shown = (calls["process"] == profile.steps.process).fill_null(value=False).to_numpy()
    chosen = np.flatnonzero(shown & (phase >= 0) & (begins_ns >= start) & (begins_ns <= end))
    chosen = chosen[np.argsort(begins_ns[chosen], kind="stable")]
    turns = chosen[np.diff(phase[chosen], prepend=-1) != 0]
    rounds: list[list[tuple[int, int]]] = []
    here: list[tuple[int, int]] = []
    began = None
    for number, turn_ns in zip(phase[turns].tolist(), begins_ns[turns].tolist(), strict=True):
        if began is not None:
            here.append((began, turn_ns))
        began = turn_ns if number == _PHASES["backward"] else None
        if number == _PHASES["optimizer"]:
            rounds.append(here)
            here = []
    return rounds


def _by_reductions(
    rounds: list[list[tuple[int, int]]], reducing: pl.DataFrame, copies: pl.DataFrame
) -> MicroSteps | None:
    """Return the micro-steps of these rounds, by the reductions in each backward."""
    counts = [tuple(_ops_called_within(reducing, a, b).height for a, b in backwards) for backwards in rounds]
    if len(counts) < 2:
        return None
    usual, times = Counter(counts[1:]).most_common(1)[0]  # the first may be cut
    if (
        times < max(FEWEST_ROUNDS, ALIKE_ROUNDS_SHARE * len(counts[1:]))
        or len(usual) < 2
        or not usual[0]
        or len(set(usual)) > 1
    ):
        return None
    early = [
        backward
        for backwards, count in zip(rounds, counts, strict=True)
        if count == usual
        for backward in backwards[:-1]
    ]
    of_early = [
        frozenset(op for a, b in early for op in _ops_called_within(frame, a, b)["op"].to_list())
        for frame in (reducing, copies)
    ]
    return MicroSteps(len(usual), usual[0], *of_early)


def _ops_called_within(ops: pl.DataFrame, start: int, end: int) -> pl.DataFrame:
    """Return the ops, in the order of their calls, that are called in [start, end)."""
    called = ops["call_start_ns"].to_numpy()
    a, b = np.searchsorted(called, (start, end))
    return ops[int(a) : int(b)]

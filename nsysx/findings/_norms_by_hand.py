"""Layers of the program's own that normalize over all ranks with operators one by one: a collective and many passes over the activations.

``SyncBatchNorm`` has fused kernels for the same, and normalization of a rank's own samples needs no collective.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.catalogue import DeviceActivity
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.operator_flow import flow_of
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving, calls_of, ops_of
from nsysx.findings._finding_bounds import KERNELS_ON_ACTIVATIONS
from nsysx.findings._once import Takes
from nsysx.findings._synchronized_norms import SYNCHRONIZED
from nsysx.findings._work_bounds import FEWEST_DIMENSIONS_NORMALIZED, FEWEST_NORMALIZED_SAMPLES, FEWEST_NORMS_BY_HAND
from nsysx.model import Row
from nsysx.replay.edits import RemoveCalls, RemoveHost, RemoveOps, RemoveWaits

#: Names of classes that normalize batches; torch's own, which exchange nothing.
_OF_BATCHES = re.compile(r"(?i)batch_?norm|sync\w*norm|\w*bn(_?\d?d)?$")
_OF_TORCH = re.compile(r"(torch\.nn\.)?(Lazy)?BatchNorm\dd")


class ByHand(NamedTuple):
    """The class, its layers, and the samples that each is given (0 where they are not known); GPU ops (op, call, cls, ns) that go."""

    cls: str
    layers: list[str]
    samples: int
    gone: pl.DataFrame

    @property
    def alone(self) -> bool:
        """Whether a rank's own samples are enough, so that nothing need be exchanged."""
        return self.samples >= FEWEST_NORMALIZED_SAMPLES


def norms_by_hand(profile: Profile) -> ByHand | None:
    """Return the layers of the class that exchanges in most of them, None without any."""
    return profile.once(_norms_by_hand)


def _norms_by_hand(profile: Profile) -> ByHand | None:
    steps, modules = profile.scope.steps, profile.attributed.modules
    ops = profile.steady_ops.select("op", "call", "cls", "module", "phase", ns=pl.col("end_ns") - pl.col("start_ns"))
    ops = ops.with_columns(pl.col("module", "phase").cast(pl.String))
    forward = ops.filter((ops["phase"] == "forward") & (ops["cls"] == DeviceActivity.COMM.value))
    often = dict(forward.group_by("module").len().iter_rows())
    layers_of = dict[str, list[str]]()
    for module, cls in modules.select(pl.col("module", "cls").cast(pl.String)).iter_rows():
        by_hand = cls and _OF_BATCHES.search(cls) and not _OF_TORCH.fullmatch(cls) and not re.search(SYNCHRONIZED, cls)
        if by_hand and steps and often.get(module, 0) >= steps:
            layers_of.setdefault(cls, []).append(module)
    cls = max(layers_of, key=lambda each: len(layers_of[each]), default="")
    layers = layers_of.get(cls, [])
    if len(layers) < FEWEST_NORMS_BY_HAND:
        return None
    theirs, samples = ops.filter(ops["module"].is_in(layers)), _samples(profile, frozenset(layers))
    exchanges = theirs["cls"] == DeviceActivity.COMM.value
    longest = pl.col("ns").rank("ordinal", descending=True).over("module", "phase")
    beside = theirs.filter(~exchanges).filter(longest > KERNELS_ON_ACTIVATIONS * steps)
    enough = samples >= FEWEST_NORMALIZED_SAMPLES
    return ByHand(cls, layers, samples, pl.concat([theirs.filter(exchanges), beside]) if enough else beside)


def _samples(profile: Profile, layers: frozenset[str]) -> int:
    """Return the first dimension of what such layers normalize, 0 where it is not known."""
    flow = flow_of(profile)
    given = (
        []
        if flow is None
        else [flow.size[call.first] for call in flow.calls if call.path in layers and call.first < call.last]
    )
    sizes = [size for text in given for size in sizes_of(text)[:1] if len(size) >= FEWEST_DIMENSIONS_NORMALIZED]
    return max((size[0] for size in sizes), default=0)


def seen(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return what such layers do, "" without any."""
    by_hand = norms_by_hand(case.profile)
    if by_hand is None:
        return ""
    launches = by_hand.gone.filter(by_hand.gone["cls"] != DeviceActivity.COMM.value).height / case.steps
    return (
        f"{units.several(len(by_hand.layers), 'layer')} of {by_hand.cls} exchange their statistics with all ranks and normalize by one "
        f"operator after the other: {units.count(round(launches))} launches of a step are more than those of fused kernels"
    )


def without(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it saves if kernels of a library normalize, each rank's own samples where these are enough."""
    by_hand = norms_by_hand(case.profile)
    if by_hand is None:
        return None
    calls = frozenset(by_hand.gone["call"].drop_nulls().to_list()) & calls_of(case.calls)
    return case.worth(
        RemoveWaits(calls), RemoveCalls(calls), RemoveHost(calls, leading=True), RemoveOps(ops_of(by_hand.gone))
    )


def taken(case: Case) -> Takes:
    """Return the GPU work that goes."""
    by_hand = norms_by_hand(case.profile)
    return Takes(frozenset() if by_hand is None else ops_of(by_hand.gone))


def place(case: Case) -> Row:
    """Return the line that exchanges in the forward."""
    by_hand, code = norms_by_hand(case.profile), case.profile.code()
    if by_hand is None or code is None:
        return {}
    inside = case.ops["module"].cast(pl.String).is_in(by_hand.layers).fill_null(value=False)
    forward = (case.ops["phase"].cast(pl.String) == "forward").fill_null(value=False)
    exchanges = case.ops.filter(inside & forward & (case.ops["cls"] == DeviceActivity.COMM.value))
    return code.where_most(code.places_of(code.op[exchanges["op"].to_numpy()]))


def worded(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy with the class, and what can take its place."""
    by_hand = norms_by_hand(case.profile)
    if by_hand is None:
        return title, remedy
    fused = f"nn.SyncBatchNorm(channels)  # in place of {by_hand.cls}(channels)"
    if by_hand.alone:
        text = f"Use BatchNorm of each rank, or GroupNorm, in place of {by_hand.cls}, which synchronizes all ranks in each layer"
        return title, replace(
            remedy, text=text, paste=f"nn.BatchNorm2d(channels)  # in place of {by_hand.cls}(channels)"
        )
    text = (
        f"Use nn.SyncBatchNorm in place of {by_hand.cls}, whose kernels are fused, or GroupNorm, which needs no other rank: "
        f"{by_hand.cls} passes over the activations once for each of its operators"
    )
    return title, replace(
        remedy,
        text=text,
        paste=f"{fused}\nnn.GroupNorm(32, channels)  # or this, without any collective",
        condition="GroupNorm has other statistics: the loss must still converge.",
    )

"""Parameters that DistributedDataParallel reduces gradients of although nothing trains them: all of those gradients are zero.

A network that only computes for another one (a teacher under ``no_grad``) and lies in the same wrapped module has parameters that require
gradients, as those of any module do. With ``find_unused_parameters`` the wrapper marks them as ready when backward begins: it fills their
parts of the buckets with zeros and sends these as any other gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.events.event_bounds import (
    FEWEST_READY_AT_ONCE,
    FROM_DEVICE_KIND,
    SAME_PARAMETERS_SHARE,
    TO_DEVICE_KIND,
)
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.frames import lookup
from nsysx.model import Row
from nsysx.reading import nccl_notes
from nsysx.records import whole_number

#: The reduction of the map of used parameters, whose kind of number no gradient has.
USED_MAP = r"AllReduce_Sum_[ui](nt)?32"
_REDUCES, _ZEROS = r"AllReduce_Sum_(?![ui](nt)?\d)", r"FillFunctor"


@dataclass(frozen=True)
class FrozenParameters:
    """``bytes`` of the ``of_bytes`` that a wrapper reduces in a backward are of parameters that nothing trains.

    ``ops``: the GPU work of the shown process for them: zeros, their reductions, and the map of used parameters with its copies.
    ``messages``: how many reductions of a step that is.
    """

    bytes: int
    of_bytes: int
    ops: frozenset[int]
    messages: float


def frozen_parameters(profile: Profile) -> FrozenParameters | None:
    """Return these parameters of the shown process, None where there are none or it is not known which reductions are theirs."""
    return profile.once(_frozen_parameters)


def reads_of_map(profile: Profile) -> frozenset[int]:
    """Return the calls with which a wrapper that looks for unused parameters reads its map of them on the host, in a backward."""
    return profile.once(_reads_of_map)


def _reads_of_map(profile: Profile) -> frozenset[int]:
    work = _in_backward(profile)
    read = _for_the_map(work) & (work["copy_kind"].fill_null(-1).to_numpy() == FROM_DEVICE_KIND)
    return frozenset(work.filter(read)["call"].drop_nulls().to_list())


def bucket_bytes(wrapper: Row) -> list[int]:
    """Return the sizes of the buckets of a DistributedDataParallel, in their order; none where they are not known."""
    listed = wrapper.get("bucket_bytes")
    words = listed.replace(",", " ").split() if isinstance(listed, str) else []
    return [int(word) for word in words if word.isdecimal()]


def _frozen_parameters(profile: Profile) -> FrozenParameters | None:
    settings = settings_of(profile)
    wrappers = () if settings is None else settings.wrappers("DDP") or ()
    if settings is None or len(wrappers) != 1 or wrappers[0].get("count") != 1:
        return None
    (wrapper,) = wrappers
    unused, buckets = whole_number(wrapper.get("unused_parameter_bytes")) or 0, bucket_bytes(wrapper)
    if wrapper.get("find_unused_parameters") is not True or not unused or not buckets or not _all_trained(settings):
        return None
    # What is trained and what is unused are all that the wrapper reduces: no optimizer holds any of the unused ones.
    if abs(sum(buckets) - settings.trained_bytes() - unused) > SAME_PARAMETERS_SHARE * unused:
        return None
    work = _in_backward(profile)
    reduces, for_all = lookup.matching(work["name"], _REDUCES), _for_the_map(work)
    at_once = _ready_at_once(work, reduces, for_all)
    sizes = nccl_notes.messages(
        profile.trace, work.filter(at_once & reduces), nccl_notes.members(profile.trace).get(profile.process, {})
    )
    sent, steps = [message.bytes for message in sizes], profile.scope.steps
    if not steps or any(size is None for size in sent):
        return None
    # The bucket in which the unused ones begin, and that in which they end, may hold others.
    moved = sum(size or 0 for size in sent) / steps
    if not max(0, unused - 2 * max(buckets)) < moved <= (1 + SAME_PARAMETERS_SHARE) * unused:
        return None
    ops = frozenset(work["op"].to_numpy()[at_once | for_all].tolist())
    return FrozenParameters(unused, sum(buckets), ops, len(sent) / steps)


def _all_trained(settings: RecordedSettings) -> bool:
    """Return whether optimizers are known, and each parameter of them has a gradient when they step."""
    gradients = [row.get("gradients") for row in settings.rows("optimizers") or ()]
    return bool(gradients) and all(isinstance(g, Mapping) and g.get("without") == 0 for g in gradients)


def _in_backward(profile: Profile) -> pl.DataFrame:
    """Return the GPU work that the backwards of the steady steps launch, in the order of each thread."""
    ops = profile.steady_ops
    launched = ops.filter((ops["phase"].cast(pl.String) == "backward") & ops["call_start_ns"].is_not_null())
    return launched.sort("thread", "call_start_ns", "op")


def _for_the_map(work: pl.DataFrame) -> Flags:
    """Return which of the work is the map of used parameters: its reduction, and the copies of it there and back."""
    maps, kind = lookup.matching(work["name"], USED_MAP), work["copy_kind"].fill_null(-1).to_numpy()
    there = np.append(maps[1:], False) & (kind == TO_DEVICE_KIND)
    back = np.append(False, maps[:-1]) & (kind == FROM_DEVICE_KIND)
    return np.asarray(maps | there | back, np.bool_)


def _ready_at_once(work: pl.DataFrame, reduces: Flags, for_all: Flags) -> Flags:
    """Return which of the work are zeros, and buckets that are complete without a gradient that was computed.

    They come one after another with nothing computed between them. A reduction that comes first is that of a bucket which the gradient
    before it completed.
    """
    zeros = lookup.matching(work["name"], _ZEROS)
    only = zeros | reduces | for_all
    run = np.cumsum(np.append(True, only[1:] != only[:-1]))
    long = np.bincount(run[only], minlength=int(run[-1]) + 1 if len(run) else 1) >= FEWEST_READY_AT_ONCE
    first = np.append(True, run[1:] != run[:-1])
    return np.asarray((zeros | reduces) & long[run] & ~(first & reduces), np.bool_)

"""Sizes that tell of parameters which nothing trains: a DistributedDataParallel reduces more of them than optimizers hold.

What trains weights beside an optimizer writes into as many numbers: operators by hand, copies of masters, kernels of the program's own
behind a backward, or what other ranks send. Where nothing of that is there, these parameters stay as they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.frozen_parameters import bucket_bytes
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.operator_flow import flow_of
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import BYTES_OF_KIND, RecordedSettings
from nsysx.events.unheld_gradients import gradient_sizes
from nsysx.findings._finding_bounds import FEWEST_UNTRAINED_SHARE, MOST_LIVING_OPTIMIZERS, MOST_UPDATED_BYTES_NS
from nsysx.frames import lookup
from nsysx.model import Row
from nsysx.records import whole_number

_DDP = "DistributedDataParallel"
#: Operators that write new weights over old ones, outside of an optimizer.
_UPDATES = re.compile(r"^aten::(_foreach_)?(add|sub|addcmul|addcdiv|lerp|copy)_$")
#: Phases in which nothing of the program's own updates weights.
_NO_UPDATES = ("forward", "backward", "optimizer", "evaluation", "clip")
#: Messages that bring weights which other ranks have updated.
_BRINGS = r"(?i)Broadcast|All_?Gather|SendRecv"


def not_compared(settings: RecordedSettings) -> bool:
    """Return whether the numbers of such parameters were never compared.

    Probes of before took views of a wrapper's own buckets for buffers of something else, and left these networks out.
    """
    if settings.rows("untrained") is None:
        return True
    wrappers, readers = settings.wrappers("DDP") or (), settings.record.get("gradient_readers")
    views = any(row.get("gradient_as_bucket_view") is True for row in wrappers)
    return bool(readers) and views and "gradient_buffers" not in settings.record


def lost_by_sizes(profile: Profile, settings: RecordedSettings) -> tuple[str, int, int] | None:
    """Return the class of a network that is wrapped, how many elements of it nothing trains, and of how many gradients are reduced."""
    wrappers, networks = settings.wrappers("DDP") or (), settings.rows("networks") or ()
    optimizers = settings.rows("optimizers") or ()
    wrapped = [row for row in networks if row.get("class") == _DDP] or list(networks)
    if len(wrappers) != 1 or wrappers[0].get("count") != 1 or len(wrapped) != 1:
        return None
    if not 0 < len(optimizers) < MOST_LIVING_OPTIMIZERS or any("shared" in row for row in optimizers):
        return None
    if wrappers[0].get("find_unused_parameters") is not False:
        return None
    reduced, size = _reduced(bucket_bytes(wrappers[0]), wrapped[0])
    if not reduced or not all(kind in BYTES_OF_KIND for row in optimizers for kind in _kinds(row)):
        return None
    # Masters of other numbers are as many as the parameters that they stand for.
    held = sum(whole_number(row.get("elements")) or 0 for row in optimizers)
    lost = reduced - held
    if not held or lost < FEWEST_UNTRAINED_SHARE * reduced or not 2 * _written(profile) < lost:
        return None
    if _updated_otherwise(profile, lost * size):
        return None
    called = {str(row.get("class")) for row in settings.rows("inputs") or ()}
    return next(iter(called)) if len(called) == 1 else str(wrapped[0].get("class")), lost, reduced


def _reduced(buckets: Sequence[int], network: Row) -> tuple[int, int]:
    """Return of how many elements a wrapper reduces gradients, at least, and the bytes of the smallest kind of them; 0 where not known."""
    kinds = _kinds(network)
    if not kinds or not all(kind in BYTES_OF_KIND for kind in kinds):
        return 0, 0
    elements = {kind: whole_number(count) or 0 for kind, count in kinds.items()}
    if sum(buckets) == sum(BYTES_OF_KIND[kind] * count for kind, count in elements.items()):
        return sum(elements.values()), min(BYTES_OF_KIND[kind] for kind in kinds)
    return sum(buckets) // max(BYTES_OF_KIND[kind] for kind in kinds), min(BYTES_OF_KIND[kind] for kind in kinds)


def _kinds(row: Row) -> Mapping[str, object]:
    kinds = row.get("dtypes")
    return {str(kind): count for kind, count in kinds.items()} if isinstance(kinds, Mapping) else {"": None}


def _written(profile: Profile) -> float:
    """Return into how many elements operators outside of an optimizer write what may be new weights; infinitely many if not known.

    In a forward or backward that is only what has the size of a gradient: activations are added to there, too.
    """
    flow = flow_of(profile)
    if flow is None:
        return float("inf")
    ranges = profile.ranges.ranges.filter(pl.col("own"), pl.col("process") == profile.process)
    stepping, passing = (
        ranges.filter(ranges["name"].cast(pl.String).is_in(names))["start_ns", "end_ns"].rows()
        for names in (["optimizer"], ["forward", "backward"])
    )
    weights, whole = gradient_sizes(profile), 0
    for row in flow.outermost:
        begin_ns = int(flow.start_ns[row])
        if not _UPDATES.match(flow.names[row]) or any(start <= begin_ns < end for start, end in stepping):
            continue
        # The tensors that are written come first, each with what is written.
        sizes = sizes_of(flow.size[row])
        if weights and any(start <= begin_ns < end for start, end in passing):
            sizes = [size for size in sizes if size in weights]
        whole += sum(map(math.prod, sizes))
    return whole


def _updated_otherwise(profile: Profile, size: int) -> bool:
    """Return whether what runs behind backwards, in no phase, may read as many bytes of gradients and write as many of weights."""
    ops = profile.steady_ops
    phase = ops["phase"].cast(pl.String)
    outside = ops.filter(phase.is_null() | ~phase.is_in(_NO_UPDATES))
    outside = outside.filter(pl.col("call_start_ns").is_not_null())
    ranges = profile.ranges.ranges.filter(pl.col("own"), pl.col("process") == profile.process)
    name = ranges["name"].cast(pl.String)
    backward, forward = (
        np.sort(ranges.filter(name == kind)["start_ns"].to_numpy()) for kind in ("backward", "forward")
    )
    called = outside["call_start_ns"].to_numpy()
    last = np.append(backward, -1)[np.searchsorted(backward, called, side="right") - 1]
    before = np.append(forward, -1)[np.searchsorted(forward, called, side="right") - 1]
    behind = outside.filter(pl.Series(last > before, dtype=pl.Boolean))
    if not behind.height:
        return False
    comm = (behind["cls"] == DeviceActivity.COMM.value).to_numpy()
    if (comm & lookup.matching(behind["name"], _BRINGS)).any():
        return True
    took_ns = int((behind["end_ns"] - behind["start_ns"]).to_numpy()[~comm].sum())
    return took_ns * MOST_UPDATED_BYTES_NS > 2 * size * max(profile.scope.steps or 1, 1)

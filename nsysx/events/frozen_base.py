"""A sharded network of which little is trained (adapters, a head): what each pass gathers is nearly all frozen.

Sharding pays by gradients and by the optimizer's state, which frozen parameters have none of. The gathers are those of forward and
backward, with the copies out of what came.
"""

from __future__ import annotations

import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.operator_bounds import MOST_TRAINED_SHARE
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.events.untrained_gathers import UntrainedGathers
from nsysx.frames import lookup
from nsysx.model import Row
from nsysx.records import whole_number

#: What classes are called that FSDP makes of a network, or puts around it.
_WRAPPED = ("FSDP", "FullyShardedDataParallel")
_GATHERS, _COPIES_OUT = r"AllGather", r"split_with_sizes_copy"


def frozen_base(profile: Profile) -> UntrainedGathers | None:
    """Return what forward and backward gather of a network that is nearly all frozen, None where most is trained or none is sharded."""
    return profile.once(_of_base)


def parted_by_zero(settings: RecordedSettings) -> Row:
    """Return the options of the one engine of DeepSpeed, if it parts parameters (stage 3); empty where there is none, or several are."""
    engines = settings.wrappers("DeepSpeed") or ()
    alone = len(engines) == 1 and engines[0].get("count") == 1 and engines[0].get("stage") == 3
    return engines[0] if alone else {}


def sharded_networks(settings: RecordedSettings) -> list[tuple[Row, int]]:
    """Return the sharded networks, the largest first, and how many numbers each has: as they are stored, of parts that a rank has its own.

    Where no class tells that its network is sharded, because only its blocks are, all are given. What ZeRO parts is empty between its
    uses: its engine counts the whole.
    """
    networks = settings.rows("networks") or ()
    if engine := parted_by_zero(settings):
        network = next(iter(networks), {})
        kind = next(iter(network.get("dtypes") or {}), "float32")
        numbers = whole_number(engine.get("elements")) or 0
        return [({**network, "dtypes": {kind: numbers}}, numbers)]
    wrapped = [row for row in networks if str(row.get("class")).startswith(_WRAPPED)]
    sized = [(row, numbers) for row in wrapped or networks if (numbers := _numbers(row))]
    return sorted(sized, key=lambda each: -each[1])


def _numbers(row: Row) -> int:
    return sum(whole_number(n) or 0 for n in (row.get("dtypes") or {}).values())


def trained_numbers(settings: RecordedSettings) -> int:
    """Return how many numbers the program's optimizers update, 0 where that is not known."""
    if engine := parted_by_zero(settings):
        return whole_number(engine.get("trained_elements")) or 0
    return sum(whole_number(row.get("elements")) or 0 for row in settings.rows("optimizers") or ())


def _of_base(profile: Profile) -> UntrainedGathers | None:
    settings, steps = settings_of(profile), profile.scope.steps or 0
    if settings is None or not steps:
        return None
    if not (settings.wrappers("fully_shard") or settings.wrappers("FSDP") or parted_by_zero(settings)):
        return None
    networks = sharded_networks(settings)
    # Of several, as a student and its teacher, it is not known whose parameters are trained.
    if len(networks) != 1 or not 0 < trained_numbers(settings) <= MOST_TRAINED_SHARE * networks[0][1]:
        return None
    network, _ = networks[0]
    ops = profile.steady_ops.select("op", "name", "cls", "module", pl.col("phase").cast(pl.String))
    ops = ops.filter(pl.col("phase").is_in(["forward", "backward"]))
    comm = ops["cls"] == DeviceActivity.COMM.value
    gathers = ops.filter(comm & pl.Series(lookup.matching(ops["name"], _GATHERS), dtype=pl.Boolean))
    copies = ops.filter(~comm & pl.Series(lookup.matching(ops["name"], _COPIES_OUT), dtype=pl.Boolean))
    forward = gathers.filter(pl.col("phase") == "forward")
    if forward.height < steps or not (ops["phase"] == "backward").any():
        return None
    units = max(1, forward["module"].n_unique())
    return UntrainedGathers(
        frozenset([*gathers["op"].to_list(), *copies["op"].to_list()]),
        frozenset(gathers["op"].to_list()),
        units,
        gathers.height / steps,
        str(network.get("class") or ""),
        {},
        frozen=True,
    )

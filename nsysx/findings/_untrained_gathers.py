"""Parameters of sharded networks that are gathered where nothing is trained: for each call of a loop, or of a frozen network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.catalogue import StepPart
from nsysx.events.frozen_base import frozen_base, parted_by_zero, sharded_networks, trained_numbers
from nsysx.events.recorded_settings import BYTES_OF_KIND, RecordedSettings, settings_of
from nsysx.events.untrained_gathers import UntrainedGathers, gathered_behind, gathered_frozen, gathered_in_loop
from nsysx.findings._case import Case, Saving, calls_of, way
from nsysx.findings._costly_jobs import on_all_ranks, sharded
from nsysx.findings._exposed_transfer import exposed_share
from nsysx.findings._once import Takes
from nsysx.findings._sharded_models import base_fits, parameter_bytes, spare_bytes
from nsysx.model import Row
from nsysx.records import whole_number
from nsysx.replay.edits import RemoveHost, RemoveOps


def _has_room(settings: RecordedSettings, more_bytes: int) -> bool:
    """Return whether so much fits beside what the card holds, as far as that is known."""
    return not settings.record.get("memory") or spare_bytes(settings, more_bytes) is not None


def _network_bytes(settings: RecordedSettings, network: str) -> int:
    """Return the bytes of a frozen network as it computes, 0 where they are not known: as its units gather it, else as it is stored."""
    kind = next((str(r["parameter_dtype"]) for r in sharded(settings) if r.get("parameter_dtype")), "")
    row = next((r for r in settings.rows("networks") or () if r.get("class") == network), {})
    numbers = row.get("dtypes") or {}
    return sum((whole_number(n) or 0) * BYTES_OF_KIND.get(kind or str(stored), 4) for stored, n in numbers.items())


# ---- for each call of a loop -------------------------------------------------------------------------------------------


def gathers_in_loop(case: Case, settings: RecordedSettings) -> str:
    """Return that a loop without gradients gathers the parameters for each of its calls, although the card holds all of them."""
    wasted = gathered_in_loop(case.profile)
    if wasted is None or _kept_whole(case, settings, wasted):
        return ""
    whole = parameter_bytes(settings, sharded(settings)) or _network_bytes(settings, wasted.network)
    if not _has_room(settings, whole):
        return ""
    return (
        f"a loop without gradients calls a sharded network {units.count(round(wasted.times))} times in each step, and each call gathers "
        f"the parameters of {units.several(wasted.units, 'unit')} again, {units.count(round(len(wasted.gathers) / case.steps))} gathers "
        f"that bring what was there{f'; all parameters take {units.size(whole)}' if whole else ''}"
    )


def _kept_whole(case: Case, settings: RecordedSettings, loop: UntrainedGathers) -> bool:
    """Return whether the loop is of a network that nothing trains and that could be whole on each rank: then nothing of it is gathered."""
    frozen = gathered_frozen(case.profile)
    return frozen is not None and frozen.where == loop.where and bool(gathers_frozen(case, settings))


def once_in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return the advice with what the program's wrapper calls it."""
    settings = settings_of(case.profile)
    if settings is None or settings.wrappers("fully_shard"):
        if not gathered_behind(case.profile):
            return title, remedy
        # The forward that comes next frees them unit by unit.
        text = remedy.text.replace("and free them behind it", "and leave them to the training's forward behind it")
        return title, replace(remedy, text=text, paste=remedy.paste.replace("unit.reshard(); ", ""))
    text = remedy.text.replace("keep each unit gathered meanwhile", "summon_full_params() around it")
    paste = "with FullyShardedDataParallel.summon_full_params(model, writeback=False):\n    ...  # the loop"
    return title, replace(remedy, text=text, paste=paste)


# ---- of a network that stays as it is ----------------------------------------------------------------------------------


def gathers_frozen(case: Case, settings: RecordedSettings) -> str:
    """Return that a network which nothing trains is sharded, and gathered in each step, although the card holds all of it."""
    wasted = gathered_frozen(case.profile)
    whole = _network_bytes(settings, wasted.network) if wasted is not None else 0
    if wasted is None or not whole or not _has_room(settings, whole):
        return ""
    return (
        f"nothing trains {wasted.network.removeprefix('FSDP')}, and each step gathers its {units.several(wasted.units, 'unit')} anew: "
        f"whole on each GPU it takes {units.size(whole)}"
    )


def whole_in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return the advice with the bits in which the network computes now."""
    settings, wasted = settings_of(case.profile), gathered_frozen(case.profile)
    if settings is None or wasted is None:
        return title, remedy
    kinds = {str(r.get("parameter_dtype")) for r in sharded(settings)}
    narrow = next((kind for kind in ("bfloat16", "float16") if kinds == {kind}), None)
    if narrow is None:
        return title, remedy
    return title, replace(remedy, paste=remedy.paste.replace(".eval()", f".eval().to(torch.{narrow})"))


# ---- of a network of which little is trained --------------------------------------------------------------------------


def gathers_base(case: Case, settings: RecordedSettings) -> str:
    """Return that a network is sharded of which nearly all is frozen, although each card has room for it."""
    wasted, whole = frozen_base(case.profile), base_fits(case, settings)
    if wasted is None or not whole:
        return ""
    _, numbers = sharded_networks(settings)[0]
    share = units.share(trained_numbers(settings) / numbers, 1)
    return (
        f"{share} of the parameters of {wasted.network.removeprefix('FSDP') or 'the network'} are trained, so there are few gradients and "
        f"little of an optimizer's state to share out; {units.count(round(wasted.times))} gathers of each step bring parameters of which "
        f"nearly all never change, and whole on each GPU they take {units.size(whole)}"
    )


def base_in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return the advice with what the program's wrapper calls it."""
    settings = settings_of(case.profile)
    if settings is None or not parted_by_zero(settings):
        return title, remedy
    text = remedy.text.replace(
        "with DistributedDataParallel in place of FSDP", "with stage 1 of ZeRO in place of stage 3"
    )
    return title, replace(
        remedy, text=text, paste='"zero_optimization": {"stage": 1},  # in the configuration of DeepSpeed'
    )


# ---- all --------------------------------------------------------------------------------------------------------------


def _without(
    name: str, find: Callable[[Case], UntrainedGathers | None]
) -> Callable[[Case, RecordedSettings | None], Saving | None]:
    """Return what asks for the worth of steps without these wasted.

    At least their work and their launches go; FSDP's hooks, which run on the host before each of them, mostly go, too, and with a loop's
    the gathers of a forward behind it, which finds the parameters whole. Either replay may be off by its error.
    """

    def worth(case: Case, settings: RecordedSettings | None) -> Saving | None:
        wasted = find(case)
        if wasted is None:
            return None
        also = gathered_behind(case.profile) if find is _loop else frozenset()
        most = case.worth(RemoveOps(wasted.ops | also), RemoveHost(_of_hooks(case, wasted), leading=True), bound=True)
        least = on_all_ranks(case, name) or case.worth(RemoveOps(wasted.ops), bound=True)
        if least.likely_ns is None:
            exposed_ns = exposed_share(case, wasted.gathers) * case.taken_by((StepPart.COMM,))
            return case.bound(exposed_ns, "all that is exposed of these gathers is gone")
        at_best = max(least.likely_ns, most.most_ns or most.likely_ns or 0)
        why = "the gathers go with their launches, and most of what FSDP's hooks run on the host before them"
        surely = max(least.likely_ns - (least.error_ns or 0), 0) if least.most_ns is None else least.likely_ns
        return Saving.between(surely, at_best, why).within(case.step_ns)

    return worth


def _of_hooks(case: Case, wasted: UntrainedGathers) -> frozenset[int]:
    """Return the calls before which FSDP's hooks run: those that launch these gathers, and the next one behind each, before which a unit's
    parameters are put in their place.
    """
    launching = case.ops.filter(case.ops["op"].is_in(list(wasted.ops)))["call"].drop_nulls()
    calls = case.calls.sort("thread", "start_ns")
    here = calls["call"].is_in(launching.implode()).to_numpy()
    return calls_of(calls.filter(pl.Series(here | np.append(False, here[:-1]), dtype=pl.Boolean)))


def _takes(find: Callable[[Case], UntrainedGathers | None]) -> Callable[[Case], Takes]:
    def takes(case: Case) -> Takes:
        wasted = find(case)
        return Takes(frozenset() if wasted is None else wasted.ops)

    return takes


def _place(find: Callable[[Case], UntrainedGathers | None]) -> Callable[[Case], Row]:
    def line(case: Case) -> Row:
        wasted = find(case)
        return {} if wasted is None else wasted.where

    return line


def _loop(case: Case) -> UntrainedGathers | None:
    return gathered_in_loop(case.profile)


def _network(case: Case) -> UntrainedGathers | None:
    return gathered_frozen(case.profile)


def _base(case: Case) -> UntrainedGathers | None:
    return frozen_base(case.profile)


gathered_once, kept_whole, base_kept = (
    _without("gathered-once", _loop),
    _without("whole-network", _network),
    _without("whole-base", _base),
)
of_loop, of_network, of_base = _takes(_loop), _takes(_network), _takes(_base)
place_of_loop, place_of_network = _place(_loop), _place(_network)


IN_LOOP = "A loop gathers the parameters of a sharded network for each of its calls"
OF_BASE = "A network is sharded of which little is trained, and gathered in each pass"
OF_FROZEN = "A network that nothing trains is sharded, and gathered in each step"


class Needless(NamedTuple):
    """Gathers that need not be, with what was found (``title``), what to do about them (``way``), and what that is worth."""

    gathers: UntrainedGathers
    title: str
    way: Alternative
    worth: Saving | None


def needless(case: Case, settings: RecordedSettings) -> Needless | None:
    """Return the gathers of a loop, else those of a network that nothing trains, else of one of which little is trained; None where none
    is told.
    """
    loop, frozen = _loop(case), _network(case)
    if loop is not None and gathers_in_loop(case, settings):
        title, remedy = once_in_its_words(case, IN_LOOP, way("gathered-once"))
        return Needless(loop, title, remedy, gathered_once(case, settings))
    if frozen is not None and gathers_frozen(case, settings):
        title, remedy = whole_in_its_words(case, OF_FROZEN, way("whole-network"))
        return Needless(frozen, title, remedy, kept_whole(case, settings))
    base = _base(case)
    if base is not None and gathers_base(case, settings):
        title, remedy = base_in_its_words(case, OF_BASE, way("whole-base"))
        return Needless(base, title, remedy, base_kept(case, settings))
    return None

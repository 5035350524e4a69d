"""Gradients of a network's own weights that nothing reads, made where another network's loss leads back through it.

A generator is trained by what its critic says: the backward runs through the critic, whose weights get gradients that its own optimizer
never sees, because the next step resets them. Wrappers of ranks reduce them, too. What operators make of what says so where no collectives
are in between (`_unread`); elsewhere the probe does, which saw the gradients written, left and reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.catalogue import DeviceActivity, StepPart
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import ModuleCall
from nsysx.events.program_backwards import program_backwards
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._finding_bounds import MUCH_UNREAD_SHARE, WEIGHT_GRADIENTS_SHARE
from nsysx.findings._frozen_meanwhile import backward_through, frozen_meanwhile
from nsysx.findings._gone_backwards import edits_of_gone
from nsysx.findings._once import Takes
from nsysx.findings._unread import OF_INPUTS, PRODUCTS, can_tell
from nsysx.findings._unread_calls import calls_of_classes, line_of_calls, network_names
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.model import Row
from nsysx.replay.engine import ScaleOps

#: Kernels that make gradients of weights alone; other products of a backward make those of weights or of inputs.
_OF_WEIGHTS = r"(?i)wgrad"
_REDUCES = r"AllReduce|ReduceScatter"


def _lost(settings: RecordedSettings | None) -> dict[str, list[int]]:
    """Return class of a network -> numbers of the backwards of a step in which its weights get gradients that nothing reads."""
    seen = None if settings is None else settings.record.get("unread_weights")
    rows = seen.items() if isinstance(seen, Mapping) else ()
    given = {str(cls): [n for n in numbers if isinstance(n, int)] for cls, numbers in rows if isinstance(numbers, list)}
    return {cls: numbers for cls, numbers in given.items() if numbers}


class _BackwardThrough(NamedTuple):
    """What such backwards do, of all steps (op, call, ns): ``weights`` and ``sent`` go, of ``products`` a part."""

    weights: pl.DataFrame
    products: pl.DataFrame
    sent: pl.DataFrame


def _work(case: Case) -> _BackwardThrough:
    lost, names = _lost(settings_of(case.profile)), network_names(case.profile)
    ops = case.ops.filter((case.ops["phase"].cast(pl.String) == "backward").fill_null(value=False))
    backwards, called_ns = program_backwards(case.profile), ops["call_start_ns"].fill_null(-1).to_numpy()
    row, nth = backwards.at(called_ns), backwards.number_at(called_ns)
    classes = [names.get(module, ()) for module in ops["module"].cast(pl.String).to_list()]
    numbers = [{n for name in each for n in lost.get(name, ())} for each in classes]
    wanted = np.array([n in of_class for n, of_class in zip(nth.tolist(), numbers, strict=True)], np.bool_)
    theirs = np.array([bool(of_class) for of_class in numbers], np.bool_)
    computes = (ops["cls"] == DeviceActivity.COMPUTE.value).to_numpy()
    of_weights, of_inputs = (lookup.matching(ops["name"], each) for each in (_OF_WEIGHTS, OF_INPUTS))
    products = ops["family"].cast(pl.String).is_in(PRODUCTS).fill_null(value=False).to_numpy()
    reduces = ~computes & lookup.matching(ops["name"], _REDUCES)
    # In a backward of their own loss as many are theirs; the loss lies behind them, and theirs come first.
    of_own_loss = row[theirs & computes & ~wanted & ~np.isin(row, row[wanted])]
    count = int((reduces & (row == of_own_loss[0])).sum()) if len(of_own_loss) else 0
    first = reduces & np.isin(row, row[wanted & computes]) & (_places(ops, reduces, row) < count)

    def chosen(flags: Flags) -> pl.DataFrame:
        rows = ops.filter(pl.Series(flags, dtype=pl.Boolean))
        return rows.select("op", "call", ns=pl.col("end_ns") - pl.col("start_ns"))

    here = wanted & computes
    return _BackwardThrough(
        chosen(here & of_weights), chosen(here & products & ~of_weights & ~of_inputs), chosen(first)
    )


def _places(ops: pl.DataFrame, reduces: Flags, row: I64) -> I64:
    """Return the place of each reduction among those of its backward, by when it is launched."""
    places = np.zeros(len(row), np.int64)
    chosen = np.flatnonzero(reduces)
    chosen = chosen[np.lexsort((ops["call_start_ns"].fill_null(-1).to_numpy()[chosen], row[chosen]))]
    places[chosen] = np.arange(len(chosen)) - np.searchsorted(row[chosen], row[chosen])
    return places


def left_unread(case: Case, settings: RecordedSettings) -> str:
    """Return whose weights get gradients that nothing reads from another network's loss, "" where it is none or little."""
    lost = {} if can_tell(case.profile) else _lost(settings)
    if not lost:
        return ""
    work = _work(case)
    ns = int(work.weights["ns"].sum()) + WEIGHT_GRADIENTS_SHARE * int(work.products["ns"].sum())
    sent = int(work.sent["ns"].sum())
    if not case.notable(case.per_step(ns + sent), MUCH_UNREAD_SHARE):
        return ""
    reduced = f", and the ranks reduce them: {units.duration(case.per_step(sent))}" if sent else ""
    return (
        f"another network's loss leads back through {' and '.join(lost)}, whose weights get gradients there that are reset before an "
        f"optimizer reads them: about {units.duration(case.per_step(ns))} {case.per}{reduced}"
    )


def without(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what it is worth if none of these gradients are computed or reduced."""
    work = _work(case)
    edits = edits_of_gone(case, work.weights, work.sent)
    if work.products.height:
        edits.append(ScaleOps(ops_of(work.products), 1 - WEIGHT_GRADIENTS_SHARE, less_work=True))
    return case.worth_or_freed(*edits, cause=(StepPart.WORK, StepPart.COMM, StepPart.HOST, StepPart.LAUNCH))


def taken(case: Case) -> Takes:
    """Return this work."""
    work = _work(case)
    return Takes(ops_of(work.weights) | ops_of(work.products) | ops_of(work.sent))


def place_of_freezing(case: Case) -> Row:
    """Return the line that calls what is frozen, empty where that is not known."""
    call, _ = _call_through(case)
    return {} if call is None else line_of_calls(case.profile, [call])


def _call_through(case: Case) -> tuple[ModuleCall | None, list[int]]:
    """Return the last call of such a network, None where no operators tell, and the backwards of a step that lead through it.

    Its own loss comes before the one of the network that is trained through it, or after: only lines that call it differ, by the backward.
    """
    lost = _lost(settings_of(case.profile))
    numbers = sorted({n for each in lost.values() for n in each})
    calls = calls_of_classes(case.profile, lost)
    through = [call for call in calls if backward_through(case.profile, call, numbers)]
    return (through[-1] if through else None), numbers


def to_freeze(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and advice with the name of the network, and past its wrapper where there is one: that waits for its gradients."""
    settings = settings_of(case.profile)
    wrapped = settings is not None and bool(settings.wrappers("DDP"))
    call, numbers = _call_through(case)
    cls = next(iter(_lost(settings)), "critic")
    if call is not None:
        return title, frozen_meanwhile(case.profile, remedy, call, numbers, cls=cls, wrapped=wrapped)
    name = cls[:1].lower() + cls[1:]
    called = f"{name}.module" if wrapped else name
    past = ", and call it past its wrapper, which reduces them" if wrapped else ""
    text = f"Freeze {cls} while another network is trained through it{past}: it computes gradients of its own weights that nothing reads"
    paste = f"{name}.requires_grad_(False)\nloss = -{called}(made).mean(); loss.backward()\n{name}.requires_grad_(True)"
    return title, replace(remedy, text=text, paste=paste)

"""What layers that are split over the ranks send each other.

What a layer sends and the next one needs at once cannot begin earlier: it is left out where communication is told to begin earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from nsysx import units
from nsysx.catalogue import DeviceActivity, StepPart
from nsysx.events.messages_of_layers import LayerMessages, layer_messages
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._added_reductions import added_up, gradients_apart
from nsysx.findings._case import Case, Fix, Saving
from nsysx.findings._costly_jobs import sharded
from nsysx.findings._exposed_transfer import exposed_share, in_passes, transfer_of_ops_ns
from nsysx.findings._finding_bounds import (
    AT_ONCE_SHARE,
    FEWEST_LAYER_MESSAGES,
    MOST_SHARE,
    SMALL_LAYER_BYTES,
    SMALL_LAYERS_SHARE,
    SPARE_MEMORY_SHARE,
)
from nsysx.findings._layer_exchanges import gathers_columns
from nsysx.findings._needs import GATHERED, shards
from nsysx.findings._rank_rows import rank_rows
from nsysx.findings._sent_again import again_sent
from nsysx.frames import lookup
from nsysx.model import Finding, Row

_SENT = "only sending and waiting count; a reduction for each pair stays, work that every rank repeats goes"


def of_layers(case: Case) -> LayerMessages:
    """Return what layers send each other; nothing in a job whose wrappers gather parameters, which are read at once, too."""
    settings = settings_of(case.profile)
    divided = shards(case) if settings is None or settings.rows("wrappers") is None else bool(sharded(settings))
    return LayerMessages() if divided else case.profile.once(layer_messages)


# ---- gathers -----------------------------------------------------------------------------------------------------------


def _forward_of_layers(case: Case) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the communication (op, ns, module) of layers in the forward, and what of it gathers."""
    comm = case.timed_ops(case.ops["cls"] == DeviceActivity.COMM.value, "op", "name", "module", "phase")
    forward = comm.filter(in_passes(comm) & comm["module"].is_not_null())
    return forward, forward.filter(pl.Series(lookup.matching(forward["name"], GATHERED), dtype=pl.Boolean))


def gathers_of_layers(case: Case) -> frozenset[int]:
    """Return the gathers (ops) of layers in the forward."""
    return frozenset(_forward_of_layers(case)[1]["op"].to_list())


def gathers_outputs(case: Case) -> bool:
    """Return whether layers of a model that is split over the ranks, and not sharded, gather their outputs in the forward."""
    forward, gathers = _forward_of_layers(case)
    gathered, whole = int(gathers["ns"].sum()), int(forward["ns"].sum())
    several = gathered > MOST_SHARE * whole > 0 and gathers["module"].n_unique() > 1
    return several and not shards(case) and gathers_columns(case.profile) is not False


def of_gathered_outputs(case: Case, exposed: Saving) -> Saving:
    """Return what it saves to gather no outputs, of what is exposed: where the gathers of which ranks keep a part are known, what these
    send; those of a layer's input stay.
    """
    cut = of_layers(case).cut
    likely, error = exposed.likely_ns, exposed.error_ns
    if cut and likely is not None:
        likely = min(transfer_of_ops_ns(case, cut), likely)
        error = None if error is None else min(error, likely)
    # What goes is more than what is exposed of it, and a reduction stays: tried programs are not known.
    return Saving(likely, _SENT, error_ns=error, source="time")


def line_of_layers(case: Case, ops: frozenset[int]) -> Row:
    """Return the line of the layers' own forward from which most of some ops come; empty where lines or classes are not known.

    One function makes the messages of all layers: its line says nothing of which of them need one.
    """
    code, modules = case.profile.code(), case.profile.attributed.modules
    if code is None:
        return {}
    forwards = {f"{cls}.forward" for cls in modules["cls"].drop_nulls().cast(pl.String).unique()}
    theirs = case.timed_ops(case.ops["op"].is_in(list(ops)), "op")
    function, spent = code.places["function"].to_list(), Counter[int]()
    for stack, ns in zip(code.op[theirs["op"].to_numpy()].tolist(), theirs["ns"].to_list(), strict=True):
        inside = (n for n in reversed(code.chain(stack)) if function[n] in forwards)
        spent.update({n: ns for n in [next(inside, -1)] if n >= 0})
    return code.where(max(spent, key=lambda n: spent[n])) if spent else {}


# ---- what is needed at once ------------------------------------------------------------------------------------------------


def needed_at_once(case: Case) -> str:
    """Return that the exposed communication is what the next layer needs at once, "" where it is not."""
    at_once = of_layers(case).at_once
    if not at_once or exposed_share(case, at_once) < AT_ONCE_SHARE:
        return ""
    return "what layers send each other is needed by the next operator at once, and made by the one before: it cannot begin earlier"


def split_for_little(case: Case, finding: Finding) -> Finding | None:
    """Return the finding where small layers are split over the ranks although each GPU has room for the whole network; else None.

    Their messages take much of a step then: with a whole network on each GPU only gradients are reduced, beside backward. A wrapper's
    ranks have whole networks, and a rank that comes late is waited for in any message.
    """
    layers, settings, rows = of_layers(case), settings_of(case.profile), rank_rows(case)
    memory = settings.record.get("memory") if settings is not None else None
    trains = (case.ops["phase"].cast(pl.String) == "backward").fill_null(value=False).any()
    exposed = round(exposed_share(case, layers.at_once) * case.taken_by((StepPart.COMM,))) if layers.at_once else 0
    wrapped = settings is None or settings.rows("wrappers") != ()
    late = any(row.get("straggler") or row.get("turn_even_ns") or row.get("bubble_ns") is not None for row in rows)
    if (
        not isinstance(memory, Mapping)
        or len(rows) < 2
        or wrapped
        or late
        or len(layers.at_once) < FEWEST_LAYER_MESSAGES * case.steps
        or not trains
        or exposed < SMALL_LAYERS_SHARE * case.step_ns
        or not 0 < layers.most_bytes <= SMALL_LAYER_BYTES
    ):
        return None
    # A batch of fewer rows than there are ranks has no part for each.
    inputs = (settings.rows("inputs") if settings is not None else None) or ()
    if any(isinstance(n := row.get("rows"), int) and n < len(rows) for row in inputs):
        return None
    # What is sent more often than it need be is mended in the layers as they are: how they are divided is asked behind that.
    if added_up(case) or gradients_apart(case) or again_sent(case):
        return None
    total, peak = memory.get("total_bytes"), memory.get("reserved_peak_bytes")
    if not isinstance(total, int) or not isinstance(peak, int) or len(rows) * peak > (1 - SPARE_MEMORY_SHARE) * total:
        return None
    # All gradients go over the links on which the layers' messages go now, and no more of that is hidden than there is computation.
    sent = len(layers.at_once) / case.steps * layers.most_bytes
    gradients_ns = exposed * len(rows) * settings.trained_bytes() / sent if settings is not None else 0.0
    saved = round(exposed - max(0.0, gradients_ns - case.taken_by((StepPart.WORK,))))
    if saved < SMALL_LAYERS_SHARE * case.step_ns:
        return None
    told = (
        f"Layers are split over {len(rows)} ranks and send each other {units.size(layers.most_bytes)} at most in a message; all that "
        f"the ranks have would fit on each GPU ({units.size(len(rows) * peak)} of {units.size(total)})."
    )
    saving = case.bound(saved, "no layer waits for another rank; gradients are reduced beside backward")
    return Fix.by_name("data-parallel").into(replace(finding, detail=f"{finding.detail} {told}", saving=saving))

"""Gradients that nothing reads, and the backward work that makes them.

Which work that is the operators of an X-ray step say (``needless_gradients``). Where these say nothing, the probe saw which networks get
gradients that are reset, and which parameters no optimizer holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.catalogue import StepPart
from nsysx.events.activation_lines import sent_by_nodes
from nsysx.events.leaf_backwards import leaf_backwards
from nsysx.events.needless_gradients import needless_gradients
from nsysx.events.needless_networks import NeedlessNetwork, outermost_calls
from nsysx.events.operator_flow import ModuleCall, flow_of
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.profile import Profile
from nsysx.events.program_backwards import program_backwards
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Saving, ops_of, way
from nsysx.findings._exposed_transfer import communication, exposed_transfer_ns
from nsysx.findings._finding_bounds import FROZEN_PART_SHARE, MUCH_UNREAD_SHARE, WEIGHT_GRADIENTS_SHARE
from nsysx.findings._freezing_pastes import frozen_by_optimizers, network_name, parts_frozen, untrained_parts
from nsysx.findings._frozen_meanwhile import frozen_meanwhile
from nsysx.findings._gone_backwards import edits_of_gone, worth_of_gone
from nsysx.findings._once import Takes
from nsysx.findings._unread_calls import (
    calls_of_classes,
    line_of_calls,
    network_names,
    place_without_gradients,
    without_gradients,
)
from nsysx.findings.nsx112_fusion import outermost
from nsysx.frames import lookup
from nsysx.model import Row
from nsysx.records import whole_number
from nsysx.replay.engine import RemoveOps, ScaleOps


def _unread_backwards(settings: RecordedSettings | None) -> dict[str, list[int]]:
    """Return class of a network -> numbers of the backwards of a step whose gradients nothing reads."""
    seen = None if settings is None else settings.record.get("unread")
    rows = seen.items() if isinstance(seen, Mapping) else ()
    doubtful = _read_otherwise(settings)
    return {
        str(cls): [n for n in given if isinstance(n, int)]
        for cls, given in rows
        if isinstance(given, list) and str(cls) not in doubtful
    }


def _read_otherwise(settings: RecordedSettings | None) -> set[str]:
    """Return the classes of networks whose gradients may have readers that are no optimizers.

    The probe tells them by hooks and buffers. Probes of before did not: there it is any network of which no optimizer holds a parameter.
    """
    record: Mapping[str, Any] = {} if settings is None else settings.record
    seen, unheld = record.get("gradient_readers"), record.get("unheld")
    if isinstance(seen, list):
        return {str(cls) for cls in seen}
    rows = unheld.items() if isinstance(unheld, Mapping) else ()
    return {str(cls) for cls, row in rows if isinstance(row, list) and len(row) == 2 and row[0] == row[1]}


def can_tell(profile: Profile) -> bool:
    """Return whether operators say what reads gradients: hooks and buffers that they are parts of have no names there."""
    settings = settings_of(profile)
    readers = None if settings is None else settings.record.get("gradient_readers")
    return not readers and needless_gradients(profile) is not None


#: Kernels that make gradients of weights only, beside others of the same operator.
_OF_WEIGHTS = "wgrad|GammaBeta"
#: Kernels that make gradients of inputs alone.
OF_INPUTS = r"(?i)dgrad"


def needless_backwards(case: Case) -> str:
    """Return whose backward is not needed at all by what operators make of what, "" where it is none or little."""
    return _seen(case, whole=True, why="nothing that this backward makes is used")


def needless_weights(case: Case) -> str:
    """Return whose weights get gradients that nothing reads beside others that are needed, "" where it is none or little."""
    return _seen(case, whole=False, why="no optimizer, clipping or later step reads the gradients of these weights")


def _seen(case: Case, *, whole: bool, why: str) -> str:
    of_step, work = needless_gradients(case.profile), _needless(case, whole=whole)
    ns = case.per_step(int(work["ns"].sum()))
    if of_step is None or not case.notable(ns, MUCH_UNREAD_SHARE):
        return ""
    share = f"{of_step.unread} of {units.several(of_step.gradients, 'gradient')} {case.per} are read by nothing"
    return f"{share}: {units.duration(ns)} {case.per} of the backward of {_network(case, work)}, and {why}"


def _network(case: Case, work: pl.DataFrame) -> str:
    """Return the class of the network whose call most of this work is the backward of."""
    flow, of_calls = flow_of(case.profile), operator_of_calls(case.profile)
    if flow is None or of_calls is None:
        return "the step"
    rows = of_calls.backward[work["call"].to_numpy()]
    taken = {call.cls or call.path: 0 for call in outermost_calls(flow)}
    for call in outermost_calls(flow):
        taken[call.cls or call.path] += int(work["ns"].to_numpy()[(rows >= call.first) & (rows < call.last)].sum())
    return max(taken, key=lambda each: taken[each], default="the step")


def _needless(case: Case, *, whole: bool) -> pl.DataFrame:
    """Return the GPU work (op, call, module, ns) for gradients that nothing reads: of backwards that are not needed at all, or the rest."""
    of_step = needless_gradients(case.profile)
    columns = ("op", "call", "module")
    if of_step is None:
        return case.timed_ops(case.ops["op"] < 0, *columns)
    call = case.ops["call"].fill_null(-1).to_numpy()
    chosen = pl.Series(np.append(of_step.whole if whole else of_step.needless & ~of_step.whole, np.False_)[call])
    if not whole:
        weights = case.ops["name"].cast(pl.String).str.contains(_OF_WEIGHTS).fill_null(value=False)
        chosen |= pl.Series(np.append(of_step.partly, np.False_)[call]) & weights
    leaf = leaf_backwards(case.profile)
    if leaf is not None:  # told as such (`_leaf_activations`)
        chosen &= pl.Series(np.append(~leaf.work, np.True_)[call])
    if whole:
        inputs = lookup.matching(case.ops["name"], OF_INPUTS)
        chosen |= pl.Series(np.append(of_step.leading, np.False_)[call] & inputs)
    return case.timed_ops(chosen, *columns)


def _needless_networks(case: Case) -> Sequence[NeedlessNetwork]:
    """Return calls of networks of which some backward is not needed: of the network of most such work, or those that the probe tells of."""
    of_step, settings = needless_gradients(case.profile), settings_of(case.profile)
    if can_tell(case.profile):
        return _of_most_work(case, of_step.networks if of_step is not None else ())
    lost = _unread_backwards(settings)
    backwards = whole_number(settings.record.get("backwards")) if settings is not None else None
    always = bool(backwards) and all(set(numbers) >= set(range(backwards or 0)) for numbers in lost.values())
    numbers = frozenset(n for each in lost.values() for n in each)
    return [NeedlessNetwork(call, numbers, always) for call in calls_of_classes(case.profile, lost)]


def _of_most_work(case: Case, networks: Sequence[NeedlessNetwork]) -> Sequence[NeedlessNetwork]:
    """Return the calls of one network with most such work: of those that some backwards need, or of those that none does."""
    of_calls = operator_of_calls(case.profile)
    if of_calls is None:
        return ()
    work = _needless(case, whole=True)
    rows, ns = of_calls.backward[work["call"].to_numpy()], work["ns"].to_numpy()
    calls = dict[tuple[str, str, bool], list[NeedlessNetwork]]()
    for each in networks:
        calls.setdefault((each.call.path, each.call.cls, each.always), []).append(each)
    taken = [
        sum(int(ns[(rows >= each.call.first) & (rows < each.call.last)].sum()) for each in kind)
        for kind in calls.values()
    ]
    return list(calls.values())[int(np.argmax(taken))] if taken else ()


def place_of_network(case: Case) -> Row:
    """Return the line that hands on what a network made whose backward is not needed, or that calls it; empty where that is not known."""
    return place_without_gradients(case.profile, _needless_networks(case))


def without_gradients_there(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and advice with the line that is changed."""
    networks = _needless_networks(case)
    return title, without_gradients(case.profile, remedy, networks) if networks else remedy


def unread(case: Case, settings: RecordedSettings) -> str:
    """Return what is made for nothing, "" where it is nothing or little."""
    if can_tell(case.profile):
        return needless_backwards(case)
    lost, ns = _unread_backwards(settings), case.per_step(int(_work(case)["ns"].sum()))
    if not lost or not case.notable(ns, MUCH_UNREAD_SHARE):
        return ""
    in_none = lost.keys() <= {cls for cls, (alone, whole) in _in_no_optimizer(settings).items() if alone == whole}
    why = "of parameters that no optimizer holds" if in_none else "that are reset before an optimizer reads them"
    return f"the backward of {' and '.join(lost)} runs for gradients {why}: {units.duration(ns)} {case.per}"


def without(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what it is worth if this work is not done."""
    if can_tell(case.profile):
        return worth_of_gone(case, _needless(case, whole=True))
    parts = (StepPart.WORK, StepPart.HOST, StepPart.LAUNCH)
    return case.worth_or_freed(RemoveOps(ops_of(_work(case))), cause=parts, bound=True)


def taken(case: Case) -> Takes:
    """Return this work."""
    of_operators = can_tell(case.profile)
    return Takes(ops_of(_needless(case, whole=True) if of_operators else _work(case)))


def _work(case: Case) -> pl.DataFrame:
    """Return the kernels (op, ns) of these networks that are launched in these backwards of each step."""
    lost = _unread_backwards(settings_of(case.profile))
    if not lost:
        return case.kernels.clear()
    kernels = case.ops.filter((case.ops["op_kind"] == "kernel") & (case.ops["phase"].cast(pl.String) == "backward"))
    nth = program_backwards(case.profile).number_at(kernels["call_start_ns"].fill_null(-1).to_numpy())
    networks, number = network_names(case.profile), nth.tolist()
    names = (networks.get(module, ()) for module in kernels["module"].cast(pl.String).to_list())
    wanted = [any(n in lost.get(name, ()) for name in called) for called, n in zip(names, number, strict=True)]
    return kernels.filter(pl.Series(wanted, dtype=pl.Boolean)).select("op", ns=pl.col("end_ns") - pl.col("start_ns"))


# ---- parameters that no optimizer holds ------------------------------------------------------------------------------

PRODUCTS = ("gemm", "convolution")


def unheld_parameters(settings: RecordedSettings | None) -> dict[str, tuple[int, int]]:
    """Return class of a network -> numbers of its parameters with gradients that no optimizer reads, and of all that it trains.

    Those are left out whose whole backward is for nothing.
    """
    needless = _unread_backwards(settings)
    return {cls: counts for cls, counts in _in_no_optimizer(settings).items() if cls not in needless}


def _in_no_optimizer(settings: RecordedSettings | None) -> dict[str, tuple[int, int]]:
    seen = None if settings is None else settings.record.get("unheld")
    rows = seen.items() if isinstance(seen, Mapping) else ()
    doubtful = _read_otherwise(settings)
    whole = [
        (str(cls), row) for cls, row in rows if isinstance(row, list) and len(row) == 2 and str(cls) not in doubtful
    ]
    return {cls: (row[0], row[1]) for cls, row in whole if all(isinstance(n, int) and n > 0 for n in row)}


def _weights_alone(case: Case) -> tuple[pl.DataFrame, float]:
    """Return the products of the backward of such networks (op, ns), and the share of their gradients that no optimizer reads."""
    lost, networks = unheld_parameters(settings_of(case.profile)), network_names(case.profile)
    theirs = [module for module, names in networks.items() if any(name in lost for name in names)]
    chosen = (
        case.ops["family"].cast(pl.String).is_in(PRODUCTS)
        & (case.ops["phase"].cast(pl.String) == "backward")
        & case.ops["module"].cast(pl.String).is_in(theirs)
    )
    work = case.ops.filter(chosen.fill_null(value=False)).select("op", ns=pl.col("end_ns") - pl.col("start_ns"))
    return work, sum(n for n, _ in lost.values()) / max(sum(whole for _, whole in lost.values()), 1)


def unheld(case: Case, settings: RecordedSettings) -> str:
    """Return which parameters get gradients that no optimizer reads, "" where it is none or what they take is little."""
    if can_tell(case.profile):
        return needless_weights(case)
    if settings.rows("untrained"):  # the probe says in which parts
        return ""
    lost, (work, share) = unheld_parameters(settings), _weights_alone(case)
    ns = round(WEIGHT_GRADIENTS_SHARE * share * case.per_step(int(work["ns"].sum())))
    if not lost or not case.notable(ns, MUCH_UNREAD_SHARE):
        return ""
    told = " and ".join(f"{units.share(n, whole)} of the parameters of {cls}" for cls, (n, whole) in lost.items())
    return f"{told} get gradients, and no optimizer holds these: computed for nothing and kept: about {units.duration(ns)} {case.per}"


def frozen(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what it is worth if no gradients of these weights are computed."""
    if can_tell(case.profile):
        parts = (StepPart.WORK, StepPart.HOST, StepPart.LAUNCH)
        return case.worth_or_freed(*edits_of_gone(case, _needless(case, whole=False)), cause=parts)
    work, share = _weights_alone(case)
    alone, whole = (
        case.worth(ScaleOps(ops_of(work), 1 - part * share, less_work=True), cause=(StepPart.WORK,))
        for part in (WEIGHT_GRADIENTS_SHARE, 1)
    )
    sent = round(share * _reduced_ns(case))
    if not sent or alone.likely_ns is None or whole.likely_ns is None:
        return alone
    # Below the first layer that is trained gradients of inputs go, too; no wrapper reduces gradients that are not made.
    why = "gradients of weights go, at most all of these layers' backward and the transfer of what is reduced of them"
    return Saving.between(alone.likely_ns, whole.likely_ns + sent, why)


def _reduced_ns(case: Case) -> int:
    """Return the exposed transfer of the reductions of backward (ns a step); 0 where the ranks do not tell it from waiting."""
    comm = communication(case)
    backward = (comm["phase"].cast(pl.String) == "backward").fill_null(value=False).to_numpy()
    backward = backward & ~sent_by_nodes(case.profile, comm)
    return exposed_transfer_ns(case, backward & lookup.matching(comm["name"], r"AllReduce|ReduceScatter"))


def of_unheld(case: Case) -> Takes:
    """Return the work that makes such gradients, by what operators make of what, or products that make others, too."""
    if can_tell(case.profile):
        return Takes(ops_of(_needless(case, whole=False)))
    return Takes(ops_of(_weights_alone(case)[0]))


def to_freeze(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and advice with the parts of the network that can be frozen whole, else with what no optimizer holds of it.

    Where optimizers hold all that networks train, the weights are trained by another loss: they are frozen for this one alone.
    """
    if _all_held(settings_of(case.profile)):
        between = _call_between(case)
        meanwhile = way("frozen-meanwhile")
        return title, meanwhile if between is None else frozen_meanwhile(case.profile, meanwhile, *between)
    parts = untrained_parts(case.profile) or _untrained_parts(case)
    if not parts:
        return title, replace(remedy, paste=frozen_by_optimizers(case.profile))
    text = remedy.text.replace("Freeze what", f"Freeze {' and '.join(parts)}, which", 1)
    return title, replace(remedy, text=text, paste=parts_frozen(parts))


def place_of_freezing(case: Case) -> Row:
    """Return the line that makes the optimizer, or where optimizers hold all that networks train, that which calls what is frozen."""
    settings = settings_of(case.profile)
    if not _all_held(settings):
        return {} if settings is None else settings.place("optimizer")
    between = _call_between(case)
    return {} if between is None else line_of_calls(case.profile, [between[0]])


def _call_between(case: Case) -> tuple[ModuleCall, list[int]] | None:
    """Return the call of a network whose weights get the most gradients that nothing reads, and the backwards (their numbers) with them."""
    flow, of_calls = flow_of(case.profile), operator_of_calls(case.profile)
    if flow is None or of_calls is None or not can_tell(case.profile):
        return None
    work = _needless(case, whole=False)
    call, ns = work["call"].to_numpy(), work["ns"].to_numpy()
    rows = of_calls.backward[call]
    number = program_backwards(case.profile).number_at(case.profile.attributed.api_calls["start_ns"].to_numpy()[call])
    calls = list(outermost_calls(flow))
    taken = [int(ns[(rows >= each.first) & (rows < each.last)].sum()) for each in calls]
    if not any(taken):
        return None
    most = calls[int(np.argmax(taken))]
    return most, np.unique(number[(rows >= most.first) & (rows < most.last)]).tolist()


def _all_held(settings: RecordedSettings | None) -> bool:
    """Return whether optimizers hold as many elements as networks have; False where that is not known."""
    if settings is None:
        return False
    held = sum(whole_number(row.get("elements")) or 0 for row in settings.rows("optimizers") or ())
    types = [row.get("dtypes") for row in settings.rows("networks") or ()]
    have = sum(whole_number(n) or 0 for each in types if isinstance(each, Mapping) for n in each.values())
    return 0 < have <= held


def _untrained_parts(case: Case) -> list[str]:
    """Return what can be frozen whole, as code of the program: networks, else parts of networks, at most three of them.

    Of each of their modules that makes gradients of weights nothing is read. Empty where one is trained, as where adapters train within a
    network or within its layers, or where the operators do not tell.
    """
    if not can_tell(case.profile):
        return []
    weights = case.ops["family"].cast(pl.String).is_in(PRODUCTS) | case.ops["name"].cast(pl.String).str.contains(
        _OF_WEIGHTS
    )
    backward = weights & (case.ops["phase"].cast(pl.String) == "backward")
    trained = set(case.ops.filter(backward.fill_null(value=False))["module"].cast(pl.String).drop_nulls())
    work = _needless(case, whole=False).group_by(pl.col("module").cast(pl.String)).agg(pl.col("ns").sum())
    lost = {str(module): int(ns) for module, ns in work.drop_nulls().iter_rows()}
    networks, much = outermost(case.profile), FROZEN_PART_SHARE * sum(lost.values())
    if not networks.keys() >= lost.keys():
        return []
    elsewhere = (trained - lost.keys()) & networks.keys()
    if not elsewhere and any(unread < whole for unread, whole in unheld_parameters(settings_of(case.profile)).values()):
        return []  # what optimizers hold of the network lies in the same modules
    for name in (_network_of, _part_of):
        parts = dict[str, int]()
        for module, ns in lost.items():
            part = name(case.profile, module, *networks[module])
            parts[part] = parts.get(part, 0) + ns
        read = {name(case.profile, module, *networks[module]) for module in elsewhere}
        named = [part for part, ns in parts.items() if ns >= much]
        if named and read.isdisjoint(named):
            return named if len(named) <= 3 else []
    return []


def _network_of(profile: Profile, _: str, root: str, cls: str | None) -> str:
    called = cls or root.strip("()")
    return network_name(profile, called, otherwise=called[:1].lower() + called[1:])


def _part_of(profile: Profile, module: str, root: str, cls: str | None) -> str:
    """Return the part of its network that a module lies in, by the name of the attribute."""
    within = module if root.startswith("(") else module.removeprefix(root).lstrip(".")
    return f"{network_name(profile, cls or root.strip('()'))}.{within.partition('.')[0]}"

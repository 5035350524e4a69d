"""Parts of a network that are only left out of the optimizer: backward computes their gradients, and wrappers of ranks reduce them.

Below the first part that is trained nothing needs gradients once the rest is frozen: all of that backward goes. Of what lies between
trained parts the gradients of weights go, and of the reductions the share of these parameters. Which parts these are the probe says, which
compares their numbers over the run. Where it could not, sizes tell (`_untrained_sizes`). Then it is not known where in the network these
parameters are, but operators may tell which gradients have sizes that no optimizer steps by.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.catalogue import DeviceActivity, StepPart
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.profile import Profile
from nsysx.events.program_backwards import program_backwards
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.events.unheld_gradients import unheld_gradients
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._finding_bounds import (
    FEWEST_UNTRAINED_SHARE,
    MUCH_UNREAD_SHARE,
    WEIGHT_GRADIENTS_SHARE,
)
from nsysx.findings._freezing_pastes import (
    BEFORE_TRAINING,
    BEFORE_WRAPPING,
    frozen_by_optimizers,
    network_name,
    parts_as_code,
    parts_frozen,
)
from nsysx.findings._gone_backwards import edits_of_gone
from nsysx.findings._once import Takes
from nsysx.findings._unread import PRODUCTS, can_tell, unheld_parameters
from nsysx.findings._unread_calls import network_names
from nsysx.findings._untrained_sizes import lost_by_sizes, not_compared
from nsysx.findings.nsx112_fusion import outermost
from nsysx.frames import lookup
from nsysx.model import Row
from nsysx.records import whole_number
from nsysx.replay.engine import Edit, ScaleOps

_REDUCES = r"AllReduce|ReduceScatter"
#: Operators that write new weights over old ones, outside of an optimizer.
_UPDATES = re.compile(r"^aten::(_foreach_)?(add|sub|addcmul|addcdiv|lerp|copy)_$")


class Untrained(NamedTuple):
    """``elements`` of the ``of`` elements with gradients of a network (its class) are trained by nothing.

    ``parts``: the parts of it in which these are, and ``trained`` those whose parameters optimizers hold; empty where that is not known.
    """

    cls: str
    elements: int
    of: int
    parts: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """Which share of the gradients nothing reads."""
        return self.elements / self.of


class _BackwardWork(NamedTuple):
    """GPU work (op, call, ns) of backward: what goes, what is shorter, of which a share stays, and reductions that go: ``sent`` whole ones,
    and ``first`` those of them that may hold gradients of what is trained, too. ``anywhere``: where in the backward it lies is not known.
    ``mixed``: other reductions are of these gradients and of others.
    """

    gone: pl.DataFrame
    shorter: pl.DataFrame
    stays: float
    sent: pl.DataFrame
    first: pl.DataFrame
    anywhere: bool = False
    mixed: bool = False


def untrained(profile: Profile) -> Untrained | None:
    """Return the network with most parameters that nothing trains, None without one, or where operators tell."""
    return profile.once(_untrained)


def _untrained(profile: Profile) -> Untrained | None:
    settings = settings_of(profile)
    if settings is None or can_tell(profile):
        return None
    if not_compared(settings):
        by_sizes = None if unheld_parameters(settings) else lost_by_sizes(profile, settings)
        return None if by_sizes is None else _in_parts(profile, Untrained(*by_sizes))
    networks = [_of_row(row) for row in settings.rows("untrained") or ()]
    return max((each for each in networks if each is not None), key=lambda each: each.elements, default=None)


def _in_parts(profile: Profile, network: Untrained) -> Untrained:
    """Return the network with its parts, where operators tell in which layers gradients are made that optimizers do not hold.

    Layers only: what a module with others inside of it computes with may be a parameter of another module.
    """
    gradients = unheld_gradients(profile)
    if gradients is None or not _as_many(gradients.elements, network.elements):
        return network
    modules = profile.attributed.modules.select(pl.col("module", "parent").cast(pl.String))
    networks, parents = outermost(profile), set(modules["parent"].drop_nulls())
    layers = gradients.modules | gradients.held
    if not gradients.modules or not gradients.held or layers & parents or not networks.keys() >= layers:
        return network
    lost, kept = (
        {within_network(module, networks[module][0]) for module in some} for some in (gradients.modules, gradients.held)
    )
    parts, trained = sorted(_largest(lost, kept)), sorted(_largest(kept, lost))
    return network if lost & kept or "" in lost | kept else network._replace(parts=tuple(parts), trained=tuple(trained))


def _as_many(some: int, others: int) -> bool:
    return abs(some - others) <= FEWEST_UNTRAINED_SHARE * others


def _largest(paths: Set[str], others: Set[str]) -> set[str]:
    """Return the largest parts of a network in which these layers lie, and none of the others."""
    taken = {part for other in others for part in _owners(other)}
    return {next(part for part in _owners(path) if part not in taken or part == path) for path in paths}


def _owners(path: str) -> list[str]:
    """Return the parts in which a layer lies, the largest first, and itself."""
    names = path.split(".")
    return [".".join(names[:n]) for n in range(1, len(names) + 1)]


def _of_row(row: Row) -> Untrained | None:
    lost, whole = whole_number(row.get("elements")) or 0, whole_number(row.get("of")) or 0
    parts, trained = (
        tuple(map(str, given)) if isinstance(given, list) else () for given in (row.get("parts"), row.get("trained"))
    )
    return Untrained(str(row.get("class")), lost, whole, parts, trained) if 0 < lost <= whole else None


def computed_for_nothing(case: Case, settings: RecordedSettings) -> str:
    """Return which parts get gradients that nothing reads, "" where there are none or what they take is little."""
    network = untrained(case.profile)
    if network is None or not case.notable(_unneeded_ns(case, network), MUCH_UNREAD_SHARE):
        return ""
    parts = f" ({_listed(network.parts)})" if network.parts else ""
    share = f"{units.share(network.elements, network.of)} of the parameters of {network.cls}{parts}"
    reduced = ", and they are reduced over the ranks" if settings.rows("wrappers") else ""
    return f"{share} get gradients in each step, and no optimizer holds these: computed for nothing{reduced}"


def _unneeded_ns(case: Case, network: Untrained) -> int:
    work = _work(case, network)
    return case.per_step(int(work.gone["ns"].sum()) + (1 - work.stays) * int(work.shorter["ns"].sum()))


def _listed(parts: Sequence[str]) -> str:
    first = parts[:3]
    return ", ".join(first) + (f" and {len(parts) - len(first)} more" if len(parts) > len(first) else "")


def frozen(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it is worth if no gradients of these weights are computed or reduced, by the replay."""
    network = untrained(case.profile)
    if network is None:
        return None
    work = _work(case, network)
    sure, more = edits_of_gone(case, work.gone, work.sent), edits_of_gone(case, work.gone, work.sent, work.first)
    less: list[Edit] = [ScaleOps(ops_of(work.shorter), work.stays, less_work=True)] if work.shorter.height else []
    if work.anywhere:  # at most all of these parameters lie below what is trained
        products = ops_of(_products(work.shorter, case))
        sure = [ScaleOps(products, 1 - WEIGHT_GRADIENTS_SHARE * network.share, less_work=True)]
    left = ops_of(_reductions(case)) - ops_of(work.sent) - ops_of(work.first)
    if (less or work.mixed) and left:
        more = [*more, ScaleOps(left, 1 - network.share, less_work=True)]
    sure, more = sure if work.anywhere else [*sure, *less], [*more, *less]
    cause = (StepPart.WORK, StepPart.COMM, StepPart.HOST, StepPart.LAUNCH)
    least, most = (case.worth(*edits, cause=cause) for edits in (sure, more))
    if least.likely_ns is None or most.likely_ns is None:
        return least
    low, high = least.likely_ns, max(least.likely_ns, most.likely_ns)
    error = (high - low) // 2 + (most.error_ns or 0)
    why = "the backward of these parts goes, and the reductions of their gradients"
    if work.anywhere:
        why = "gradients of weights go, at most all of the backward of these parameters, with their share of the reductions"
    return replace(
        most, likely_ns=(low + high) // 2, error_ns=error, most_ns=high + (most.error_ns or 0), confidence=why
    )


def _reductions(case: Case) -> pl.DataFrame:
    phase = case.ops["phase"].cast(pl.String)
    reduces = (case.ops["cls"] == DeviceActivity.COMM.value) & (phase == "backward").fill_null(value=False)
    return case.ops.filter(reduces & pl.Series(lookup.matching(case.ops["name"], _REDUCES), dtype=pl.Boolean))


def _products(work: pl.DataFrame, case: Case) -> pl.DataFrame:
    products = case.ops.filter(case.ops["family"].cast(pl.String).is_in(PRODUCTS))
    return work.filter(pl.col("op").is_in(products["op"].implode()))


def of_untrained(case: Case) -> Takes:
    """Return the work of the backward of these parts."""
    network = untrained(case.profile)
    if network is None:
        return Takes()
    work = _work(case, network)
    return Takes(ops_of(work.gone) | ops_of(work.shorter))


def _work(case: Case, network: Untrained) -> _BackwardWork:
    """Return the backward work of these parts: below what is trained all of it goes, elsewhere half of the products."""
    names, networks = network_names(case.profile), outermost(case.profile)
    paths = {
        module: within_network(module, networks[module][0])
        for module, classes in names.items()
        if network.cls in classes
    }
    computed = case.ops.filter(
        (case.ops["cls"] != DeviceActivity.COMM.value)
        & (case.ops["phase"].cast(pl.String) == "backward").fill_null(value=False)
        & case.ops["call"].is_not_null()
        & case.ops["module"].cast(pl.String).is_in(list(paths)).fill_null(value=False)
    )
    reductions = _reductions(case)
    work, sent = (ops.select("op", "call", ns=pl.col("end_ns") - pl.col("start_ns")) for ops in (computed, reductions))
    path = [paths[module] for module in computed["module"].cast(pl.String).to_list()]
    # A parameter that is trained by itself, such as a prompt, is no module: how far down backward has to go is not known.
    if not network.parts or not all(_inside(path, [part]).any() for part in network.trained):
        if (by_sizes := _of_sizes(case, network)) is not None:
            return _BackwardWork(by_sizes, work.clear(), 1, sent.clear(), sent.clear(), mixed=True)
        return _BackwardWork(work.clear(), work, 1 - network.share, sent.clear(), sent.clear(), anywhere=True)
    lost, kept = (_inside(path, parts) for parts in (network.parts, network.trained))
    begins, called = program_backwards(case.profile).start_ns, computed["call_start_ns"].to_numpy()
    which = np.searchsorted(begins, called, side="right")
    last = np.full(len(begins) + 1, -1, np.int64)
    np.maximum.at(last, which[kept], called[kept])
    below = lost & (called > last[which])
    products = computed["family"].cast(pl.String).is_in(PRODUCTS).fill_null(value=False).to_numpy()
    sent_ns = reductions["call_start_ns"].fill_null(-1).to_numpy()
    backward = np.searchsorted(begins, sent_ns, side="right")
    behind = (sent_ns > last[backward]) & np.isin(backward, which[below])
    order = np.lexsort((sent_ns, backward))
    order = order[behind[order]]
    first = np.zeros(len(sent_ns), np.bool_)
    first[order[np.append(True, np.diff(backward[order]) > 0)[: len(order)]]] = True
    flags = (below, lost & ~below & products), (behind & ~first, first)
    (gone, shorter), (whole, mixed) = (
        (each.filter(pl.Series(a, dtype=pl.Boolean)), each.filter(pl.Series(b, dtype=pl.Boolean)))
        for each, (a, b) in zip((work, sent), flags, strict=True)
    )
    return _BackwardWork(gone, shorter, 1 - WEIGHT_GRADIENTS_SHARE, whole, mixed)


def _of_sizes(case: Case, network: Untrained) -> pl.DataFrame | None:
    """Return the work for gradients of sizes that no optimizer steps by, None where these are not as many as nothing trains."""
    gradients = unheld_gradients(case.profile)
    if gradients is None or not _as_many(gradients.elements, network.elements):
        return None
    call = case.ops["call"].fill_null(-1).to_numpy()
    chosen = np.append(gradients.needless, np.False_)[call] & (case.ops["cls"] != DeviceActivity.COMM.value).to_numpy()
    chosen &= (case.ops["phase"].cast(pl.String) == "backward").fill_null(value=False).to_numpy()
    ops = case.ops.filter(pl.Series(chosen, dtype=pl.Boolean))
    return ops.select("op", "call", ns=pl.col("end_ns") - pl.col("start_ns"))


def within_network(module: str, root: str) -> str:
    """Return the path of a module within its network."""
    return module if root.startswith("(") else module.removeprefix(root).lstrip(".")


def _inside(paths: Sequence[str], parts: Sequence[str]) -> Flags:
    """Return which paths are one of these parts or lie in one."""
    return np.array([any(path == part or path.startswith(f"{part}.") for part in parts) for path in paths], np.bool_)


def to_freeze(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and advice with the parts that are frozen, as code of the program."""
    network, settings = untrained(case.profile), settings_of(case.profile)
    wrapped = settings is not None and bool(settings.rows("wrappers"))
    before, cls = BEFORE_WRAPPING if wrapped else BEFORE_TRAINING, network.cls if network else ""
    parts = parts_as_code(network.parts, network_name(case.profile, cls)) if network else []
    paste = parts_frozen(parts, before) if parts else frozen_by_optimizers(case.profile, cls, before)
    text = "Freeze what no optimizer updates (requires_grad_(False)): backward computes its gradients for nothing"
    reduced = ", and the ranks reduce them" if wrapped else ""
    condition = (
        "Lines that read these gradients find None, and a norm for clipping of all gradients no longer counts them."
    )
    if wrapped:  # the wrapper takes what needs gradients when it is made
        condition = f"These lines stand before the network is wrapped. {condition}"
    return title, replace(remedy, text=f"{text}{reduced}", paste=paste, condition=condition)


def place(case: Case) -> Row:
    """Return the line that wraps the network, else the one that makes the optimizer."""
    settings = settings_of(case.profile)
    return {} if settings is None or untrained(case.profile) is None else settings.place("DDP", "FSDP", "optimizer")

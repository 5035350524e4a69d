"""Products of an optimizer that every rank of a job repeats: replicas have the same averaged gradients, and make the same update of them.

Newton-Schulz iterations (Muon), and roots, eigenvectors and inverses of preconditioners (Shampoo, SOAP, K-FAC), take a time that no number
of ranks shortens. Dealt out, each rank makes its part of the matrices' updates, and gathers those of the others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import DeviceActivity
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import BYTES_OF_KIND, RecordedSettings, settings_of
from nsysx.findings import _ranks_apart
from nsysx.findings._case import Case, Fix, Rule, Saving, calls_of, ops_of
from nsysx.findings._finding_bounds import MOST_METRIC_BYTES
from nsysx.findings._found import Found
from nsysx.findings._once import Takes, edits_without
from nsysx.findings._rank_rows import rank_rows
from nsysx.findings._solvers import SOLVERS
from nsysx.findings._work_bounds import ALIKE_UPDATES_SHARE, SAME_UPDATES_SHARE
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.frames.statistics import F64
from nsysx.model import Finding, Row
from nsysx.reading import nccl_notes
from nsysx.records import count_or_zero
from nsysx.replay import peers
from nsysx.replay.edits import RemoveOps

#: Kernels of the family of products that read each number once: they are no longer than an update that is made number by number.
_OF_VECTORS = r"(?i)dot_kernel|gemv|reduce_1Block"


class Updates(NamedTuple):
    """The GPU ``ops`` of the optimizer from its first matrix product to its last one, in the order of their launches, each with its
    ``stretch`` and ``ns``; ``products``: how many of them are products or of a solver, and ``products_ns`` their time.

    ``solves``: a solver is among them; ``shared``: something large goes between ranks behind the first of these products and before the
    next forward.
    """

    ops: pl.DataFrame
    products: int
    products_ns: int
    solves: bool
    shared: bool


class _Matrices(NamedTuple):
    """How many tensors the optimizers hold whose updates need products, and how many bytes these have."""

    tensors: int
    bytes: int


def updates_of(profile: Profile) -> Updates | None:
    """Return the updates with products that the shown process makes in the steady steps, None without any."""
    in_any_order = profile.steady_ops.filter(profile.steady_ops["call_start_ns"].is_not_null())
    if not _products(in_any_order)[0].any():
        return None
    ops = in_any_order.sort("call_start_ns", "start_ns")
    products, solves, of_optimizer = _products(ops)
    phase, communicates = (
        ops["phase"].cast(pl.String).fill_null(""),
        (ops["cls"] == DeviceActivity.COMM.value).to_numpy(),
    )
    stretch = np.cumsum(np.append(True, of_optimizer[1:] != of_optimizer[:-1])) - 1
    first, last = np.full(stretch[-1] + 1, len(stretch)), np.full(stretch[-1] + 1, -1)
    rows = np.flatnonzero(products)
    np.minimum.at(first, stretch[rows], rows)
    np.maximum.at(last, stretch[rows], rows)
    row = np.arange(len(stretch))
    chosen = of_optimizer & (row >= first[stretch]) & (row <= last[stretch])
    ns = (ops["end_ns"] - ops["start_ns"]).to_numpy()
    passes = phase.is_in(["forward", "backward", "evaluation"]).to_numpy()
    behind = _last(products, row) > _last(passes & ~communicates, row)
    return Updates(
        ops.select("op", "call", ns=pl.Series(ns), stretch=pl.Series(stretch)).filter(
            pl.Series(chosen, dtype=pl.Boolean)
        ),
        int(products.sum()),
        int(ns[products].sum()),
        bool(solves.any()),
        _sends_much(profile, ops.filter(pl.Series(communicates & ~passes & behind, dtype=pl.Boolean))),
    )


def _products(ops: pl.DataFrame) -> tuple[Flags, Flags, Flags]:
    """Return which GPU ops are products of an optimizer or its solver, which of them are a solver's, and which are an optimizer's."""
    of_optimizer = (lookup.coded(ops["phase"], {"optimizer": 0}) == 0) & (
        ops["cls"] != DeviceActivity.COMM.value
    ).to_numpy()
    solves = of_optimizer & lookup.matching(ops["name"], SOLVERS)
    multiplies = (lookup.coded(ops["family"], {"gemm": 0}) == 0) & ~lookup.matching(ops["name"], _OF_VECTORS)
    return solves | (of_optimizer & multiplies), solves, of_optimizer


def _last(chosen: Flags, row: I64) -> I64:
    """Return the last chosen row up to each row, -1 without one."""
    return np.maximum.accumulate(np.where(chosen, row, -1))


def _sends_much(profile: Profile, comm: pl.DataFrame) -> bool:
    """Return whether one of these collectives carries more than metrics and norms do, or nothing says how much it carries."""
    members = nccl_notes.members(profile.trace).get(profile.process, {})
    messages = nccl_notes.messages(profile.trace, comm, members)
    return any(message.bytes is None or message.bytes > MOST_METRIC_BYTES for message in messages)


def _replicas(case: Case, settings: RecordedSettings) -> int:
    """Return how many ranks hold the same weights and average their gradients; 0 where they do not, or where that is not known.

    Ranks in groups of a part of the job hold parts of the network, or other ones, and so do ranks that send to one rank alone, as to
    its experts.
    """
    groups = [
        row for row in settings.rows("groups") or () if isinstance(row.get("ranks"), list) and len(row["ranks"]) > 1
    ]
    world = max((len(row["ranks"]) for row in groups), default=0)
    in_parts = any(len(row["ranks"]) < world and row.get("collectives") != 0 for row in groups)
    if in_parts or _ranks_apart.sends_to_one(case):
        return 0
    # Ranks that reduce now and then, not in each step, have weights of their own meanwhile.
    averaged = settings.number("reducing") != 0
    wrapped = {row.get("kind") for row in settings.rows("wrappers") or ()} == {"DDP"} and averaged
    return world if wrapped or _ranks_apart.apart(case, settings) else 0


def _matrices(settings: RecordedSettings) -> _Matrices:
    """Return what the optimizers hold, without those of torch that work number by number where others are beside them."""
    rows = settings.rows("optimizers") or ()
    with_products = [row for row in rows if row.get("module") != "torch" or row.get("class") == "Muon"] or list(rows)
    return _Matrices(
        sum(count_or_zero(row.get("parameters")) for row in with_products),
        sum(count_or_zero(row.get("elements")) * _bytes_each(row) for row in with_products),
    )


def _bytes_each(optimizer: Row) -> int:
    kinds = optimizer.get("dtypes")
    return max((BYTES_OF_KIND.get(str(kind), 4) for kind in kinds), default=4) if isinstance(kinds, dict) else 4


def _alike(case: Case, updates: Updates) -> bool:
    """Return whether all other ranks that were recorded in the same report make as many products, in about the same time."""
    for other in peers.others(case.profile):
        theirs = other.once(updates_of)
        if theirs is None or theirs.shared:
            return False
        here, there = _in_a_step(updates, case.profile), _in_a_step(theirs, other)
        if (np.abs(here - there) > ALIKE_UPDATES_SHARE * np.maximum(here, there)).any():
            return False
    return True


def _in_a_step(updates: Updates, profile: Profile) -> F64:
    """Return how many products a step has, and their time (ns)."""
    return np.array([updates.products, updates.products_ns]) / (profile.scope.steps or 1)


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return the finding about updates that all ranks repeat, where to share them saves enough of the step."""
    settings, updates = settings_of(case.profile), case.profile.once(updates_of)
    if settings is None or updates is None or updates.shared or case.stepless:
        return []
    products = case.per_step(updates.products_ns)
    matrices, ranks = _matrices(settings), _replicas(case, settings)
    if (
        not case.notable(products, SAME_UPDATES_SHARE)
        or ranks < 2
        or matrices.tensors < ranks
        or not _alike(case, updates)
    ):
        return []
    dealt = -(-matrices.tensors // ranks) / matrices.tensors
    others_bytes = matrices.bytes * (ranks - 1) // ranks
    worth, sent = _shared(case, updates, dealt, others_bytes)
    if not case.notable(worth.likely_ns or 0, SAME_UPDATES_SHARE):
        return []
    taken = case.per_step(int(updates.ops["ns"].sum()))
    kinds = "GEMMs and solvers" if updates.solves else "GEMMs"
    title = f"Each of {ranks} ranks makes the same update: {units.duration(products)} of {kinds} in its optimizer"
    detail = (
        f"{updates.products / case.steps:.0f} kernels of {kinds} {case.per}, and what is between them: {units.duration(taken)} "
        f"({case.share(taken)}). All ranks have the same averaged gradients; dealt out, each makes the updates of "
        f"{units.share(dealt, 1)} of {matrices.tensors} tensors, and gets the others: {units.size(others_bytes)}{sent}."
    )
    takes = Takes(ops_of(updates.ops))
    return [
        Found(
            rule, title, detail, worth=worth, cost_ns=taken, fix=Fix.by_name("shared-updates"),
            where={"phase": "optimizer", **_place(case, updates)}, takes=takes,
        ).as_finding(case)
    ]  # fmt: skip


def _shared(case: Case, updates: Updates, dealt: float, others_bytes: int) -> tuple[Saving, str]:
    """Return what it saves that a rank makes only a share of the updates, and what is known about how long the others' take to come.

    Each stretch of the optimizer ends where this share of its work is done: what follows is not launched. Weights that are sent while
    products run save more; all of their transfer is counted as waited for.
    """
    done, whole = pl.col("ns").cum_sum().over("stretch"), pl.col("ns").sum().over("stretch")
    parts = updates.ops.with_columns(goes=done > dealt * whole)
    gone, kept = parts.filter(parts["goes"]), parts.filter(~parts["goes"])
    calls = case.calls.filter(case.calls["call"].is_in(list(calls_of(gone) - calls_of(kept))))
    worth = case.worth_or_freed(*edits_without(calls, case.ops), RemoveOps(ops_of(gone)))
    if worth.likely_ns is None:
        return worth, ""
    rate = _rate(case)
    if rate is None:
        why = f"how long the updates of the other ranks take to come is not known; {worth.confidence}"
        return replace(worth, bound=True, confidence=why, source="time"), ""
    transfer = round(others_bytes / rate * 1e9)
    why = f"{units.duration(transfer)} for the transfer of the updates are taken off; {worth.confidence}"
    likely = max(0, worth.likely_ns - transfer)
    most = max(worth.likely_ns, worth.most_ns or 0)
    return replace(worth, likely_ns=likely, most_ns=most, confidence=why, source="time"), (
        f", {units.duration(transfer)} at the rate of its other collectives"
    )


def _rate(case: Case) -> float | None:
    """Return how many bytes a second a link carries in the collectives that move most (bus bandwidth), None where that is not known."""
    rows = rank_rows(case)
    here = next((row for row in rows if row["process"] == case.process), {})
    collectives = [each for each in here.get("by_collective") or () if each["bus_bytes_per_s"] and each["bytes"]]
    return max(collectives, key=lambda each: each["bytes"])["bus_bytes_per_s"] if collectives else None


def _place(case: Case, updates: Updates) -> Row:
    """Return the line that launches most of it, empty where lines were not noted."""
    code = case.profile.code()
    if code is None:
        return {}
    return code.where_most(code.places_of(code.op[updates.ops["op"].to_numpy()]), updates.ops["ns"].to_numpy())

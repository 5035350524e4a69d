"""Logits of a head whose classes are split over the ranks, gathered whole on every rank for a loss or an argmax over the classes.

Of its own classes each rank needs the largest logit, the sum of exponentials and the logit of the target: three numbers for each row go
between the ranks in place of all logits, and no rank repeats what the others compute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.helpers import operator_work
from nsysx.catalogue import DeviceActivity
from nsysx.events.operator_flops import sizes
from nsysx.events.profile import NotRecorded, Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving
from nsysx.findings._exposed_transfer import communication, exposed_transfer_ns
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import SHIFTED_ROWS_TIMES
from nsysx.model import Row
from nsysx.reading import nccl_notes

_OVER_CLASSES = ("aten::_log_softmax", "aten::_log_softmax_backward_data", "aten::argmax")
_PRODUCTS = r"^aten::(mm|addmm|linear)$"
#: What puts a part of the logits into all of them, or takes it out.
_MOVES = ("aten::cat", "aten::copy_")
#: Bytes of a logit.
_ELEMENT_BYTES = (2, 4)


class _Gathered(NamedTuple):
    """The gathers (ops), the ``work`` over all classes (ops) and its time (ns, all steps), ``ranks``, and the rows and classes.

    ``moved_ns``: what the copies of a part to its place among all logits, and back, take of all steps; they are work as well.
    """

    gathers: frozenset[int]
    work: frozenset[int]
    work_ns: int
    moved_ns: int
    ranks: int
    rows: int
    classes: int


def _find(profile: Profile) -> _Gathered | None:
    """Return the gathered logits of the steady steps, None without any or where operators or messages are not recorded."""
    ops = profile.steady_ops.filter(profile.steady_ops["call_start_ns"].is_not_null())
    elsewhere = ops["phase"].cast(pl.String).is_in(["backward", "optimizer"]).fill_null(value=False)
    comm = ops.filter((ops["cls"] == DeviceActivity.COMM.value) & ~elsewhere)
    members = nccl_notes.members(profile.trace).get(profile.process, {})
    messages = nccl_notes.messages(profile.trace, comm, members) if comm.height else []
    try:
        operators = operator_work.numbered_operators(profile)
    except NotRecorded:
        return None
    whole = operators.filter(pl.col("name").is_in(_OVER_CLASSES))
    products = [sizes(shapes) for shapes in operators.filter(pl.col("name").str.contains(_PRODUCTS))["shapes"].unique()]
    best: _Gathered | None = None
    for shapes in whole["shapes"].unique(maintain_order=True):
        logits = next((shape for shape in sizes(shapes) or [] if shape), [])
        rows, classes = math.prod(logits[:-1]), logits[-1] if logits else 0
        if not rows or not classes:  # of a single number, or of nothing
            continue
        for ranks in {m.size for m in members.values() if m.size and m.size > 1 and not classes % m.size}:
            part = classes // ranks
            sent = np.array([_rows_sent(m, members, ranks, part, rows) for m in messages], np.int64)
            for given in np.unique(sent[sent > 0]).tolist():
                # Layers gather features, and a network has one head: a product of a step that makes all classes needs no logits of others.
                once = (sent == given).sum() <= profile.scope.steps
                split = any(_makes(tensors or [], given, part) for tensors in products)
                if not once or not split or any(_makes(tensors or [], given, classes) for tensors in products):
                    continue
                on_all = _with_numbers(operators, rows * classes)
                moves = _with_numbers(operators, given * part) & operators["name"].is_in(_MOVES) & ~on_all
                work, moved = (operator_work.work_of(profile, operators.filter(chosen)) for chosen in (on_all, moves))
                gathered = _Gathered(
                    frozenset(comm["op"].to_numpy()[sent == given].tolist()),
                    frozenset([*work["op"], *moved["op"]]),
                    int(work["ns"].sum()),
                    int(moved["ns"].sum()),
                    ranks,
                    given,
                    classes,
                )
                best = gathered if best is None or gathered.work_ns > best.work_ns else best
    return best


def _with_numbers(operators: pl.DataFrame, numbers: int) -> pl.Series:
    """Return which operators are given so many logits, or a few more."""
    given = {
        shapes: any(
            numbers <= math.prod(shape) <= SHIFTED_ROWS_TIMES * numbers for shape in sizes(shapes) or [] if shape
        )
        for shapes in operators["shapes"].unique().drop_nulls()
    }
    return pl.Series([given.get(shapes, False) for shapes in operators["shapes"].to_list()], dtype=pl.Boolean)


def _rows_sent(
    message: nccl_notes.Message, members: Mapping[str, nccl_notes.CommunicatorMember], ranks: int, part: int, rows: int
) -> int:
    """Return how many rows of its part of the classes a message gathers of each of so many ranks, 0 where these are not rows of a loss."""
    member = members.get(message.communicator)
    if message.kind != "allgather" or member is None or member.size != ranks or not message.bytes:
        return 0
    sent = (message.bytes / (part * size) for size in _ELEMENT_BYTES)
    return next((int(each) for each in sent if each.is_integer() and rows <= each <= SHIFTED_ROWS_TIMES * rows), 0)


def _makes(tensors: Sequence[list[int]], rows: int, part: int) -> bool:
    """Return whether a product of these tensors makes so many rows of a part of the classes."""
    given = any(len(shape) > 1 and math.prod(shape[:-1]) == rows for shape in tensors)
    return given and any(len(shape) == 2 and part in shape and shape[0] != rows for shape in tensors)


def _saved_ns(case: Case) -> int:
    """Return the most that goes (ns a step): the exposed transfer of the gathers, and what all ranks repeat."""
    gathered = case.profile.once(_find)
    if gathered is None:
        return 0
    chosen = communication(case)["op"].is_in(list(gathered.gathers)).to_numpy()
    repeated_ns = case.per_step(gathered.work_ns) * (1 - 1 / gathered.ranks)
    return exposed_transfer_ns(case, chosen) + round(repeated_ns) + case.per_step(gathered.moved_ns)


def gathered_whole(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that logits are gathered whole, where that is notable."""
    gathered, saved = case.profile.once(_find), _saved_ns(case)
    if gathered is None or not case.notable(saved):
        return ""
    return (
        f"each of {gathered.ranks} ranks makes the logits of {units.count(gathered.classes // gathered.ranks)} of "
        f"{units.count(gathered.classes)} classes, gathers those of all others for {units.count(gathered.rows)} rows, and then does the "
        "same with all of them as every other rank"
    )


def own_classes(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return the most that it saves if each rank keeps to its own classes."""
    why = "no logits move, and each rank computes its part of what all of them repeat; three numbers for each row go between them"
    return case.bound(_saved_ns(case), why)


def taken(case: Case) -> Takes:
    """Return the gathers and the work over all classes."""
    gathered = case.profile.once(_find)
    return Takes(frozenset() if gathered is None else gathered.gathers | gathered.work)


def place_of_gather(case: Case) -> Row:
    """Return the line that gathers."""
    code, gathered = case.profile.code(), case.profile.once(_find)
    if code is None or gathered is None:
        return {}
    return code.where_most(code.places_of(code.op[np.array(sorted(gathered.gathers))]))

"""Logits of a head whose classes are split over the ranks, gathered whole on every rank for a loss, an argmax or a topk over the classes.

The gather may be one of the program's own, a DTensor's ``full_tensor()``, or what a head does whose output is to be replicated; there may
be as many of them in a step as there are losses: of micro-steps, of parts of the rows, of a metric beside the loss.

Of its own classes each rank needs the largest logit, the sum of exponentials and the logit of the target: three numbers for each row go
between the ranks in place of all logits, and no rank repeats what the others compute. The k largest of all classes, or of the rows of an
index that is split over the ranks (retrieval), are among the k largest of each rank: their values and numbers go, if k is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses.helpers import operator_work
from nsysx.catalogue import DeviceActivity
from nsysx.events.narrowed_operators import result_sizes, sizes_of
from nsysx.events.operator_flops import sizes
from nsysx.events.operator_flow import flow_of
from nsysx.events.profile import NotRecorded, Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving, way
from nsysx.findings._exposed_transfer import transfer_of_ops_ns
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import FEWEST_SHIFTED, PADDED_CLASSES_TIMES, TOP_BYTES
from nsysx.model import Row
from nsysx.reading import nccl_notes

_BACKWARD = "aten::_log_softmax_backward_data"
_OVER_CLASSES = ("aten::_log_softmax", _BACKWARD, "aten::argmax", "aten::max", "aten::logsumexp")
_TOP = "aten::topk"
_PRODUCTS = r"^aten::(mm|addmm|linear)$"
#: What puts a part of the logits into all of them, or takes it out.
_MOVES = ("aten::cat", "aten::copy_")
#: Bytes of a logit.
_ELEMENT_BYTES = (2, 4)


class _Gathered(NamedTuple):
    """The gathers (ops), the ``work`` over all classes (ops) and its time (ns, all steps), and ``ranks``.

    ``rows`` of one gather, and the classes of one rank (``part``) and of all. ``moved_ns``: what the copies of a part to its place among
    all logits, and back, take of all steps; they are work as well.
    ``top``: so many of the largest are read, 0 where a loss is computed. ``element_bytes``: of a logit.
    """

    gathers: frozenset[int]
    work: frozenset[int]
    work_ns: int
    moved_ns: int
    ranks: int
    rows: int
    part: int
    classes: int
    top: int
    element_bytes: int

    @property
    def needless(self) -> float:
        """The share of the gathered bytes that need not be sent; a loss needs three numbers for each row."""
        return max(1 - self.top * TOP_BYTES / (self.part * self.element_bytes), 0.0)


class _Loss(NamedTuple):
    """Something that is computed over so many ``classes`` of so many ``rows``.

    ``times``: by all operators of the steady steps together; ``at_once``: by the one that is executed most.
    ``top``: it is no loss, and so many of the largest are read; 0 for a loss, or an argmax.
    """

    rows: int
    classes: int
    times: int
    at_once: int
    top: int = 0


class _Sent(NamedTuple):
    """A message of gathers: ``ops`` that send as many ``numbers`` (of ``element_bytes``) of each of so many ``ranks``."""

    ops: list[int]
    numbers: int
    ranks: int
    element_bytes: int


def _find(profile: Profile) -> _Gathered | None:
    """Return the gathered logits of the steady steps, None without any or where operators or messages are not recorded."""
    try:
        operators = operator_work.numbered_operators(profile)
    except NotRecorded:
        return None
    sent = _sent(profile)
    products = operators.filter(pl.col("name").str.contains(_PRODUCTS))["shapes"].unique() if sent else ()
    factors = [tensors for shapes in products if (tensors := sizes(shapes))]
    every = [
        _of_gathers(profile, operators, loss, each, rows)
        for loss in (_losses(profile, operators) if sent else ())
        for each in sent
        if (rows := _rows(factors, loss, each))
    ]
    return max(every, key=lambda gathered: gathered.work_ns, default=None)


def _sent(profile: Profile) -> list[_Sent]:
    """Return the gathers of the steady steps outside of backward and optimizer, by what they send in formats of 2 and of 4 bytes."""
    ops = profile.steady_ops.filter(profile.steady_ops["call_start_ns"].is_not_null())
    elsewhere = ops["phase"].cast(pl.String).is_in(["backward", "optimizer"]).fill_null(value=False)
    comm = ops.filter((ops["cls"] == DeviceActivity.COMM.value) & ~elsewhere)
    members = nccl_notes.members(profile.trace).get(profile.process, {})
    messages = nccl_notes.messages(profile.trace, comm, members) if comm.height else []
    alike: dict[tuple[int, int], list[int]] = {}
    for op, message in zip(comm["op"].to_list(), messages, strict=True):
        member = members.get(message.communicator)
        if message.kind == "allgather" and member is not None and (member.size or 0) > 1 and message.bytes:
            alike.setdefault((message.bytes, member.size or 0), []).append(op)
    return [
        _Sent(gathers, size // element, ranks, element)
        for (size, ranks), gathers in alike.items()
        for element in _ELEMENT_BYTES
        if not size % element
    ]


def _losses(profile: Profile, operators: pl.DataFrame) -> list[_Loss]:
    """Return what is computed over the classes in the steady steps."""
    over_classes = operators.filter(pl.col("name").is_in([*_OVER_CLASSES, _TOP])).rename({"name": "operator"})
    work = operator_work.work_of(profile, over_classes, "operator", "shapes")
    counted = work.group_by("operator", "shapes", maintain_order=True).agg(pl.struct("row", "launch").n_unique())
    times: dict[tuple[int, int], dict[str, int]] = {}
    for operator, shapes, executed in counted.iter_rows():
        logits = next((shape for shape in sizes(shapes) or [] if shape), [])
        rows, classes = math.prod(logits[:-1]), logits[-1] if logits else 0
        if rows and classes:  # not of a single number, or of nothing
            times.setdefault((rows, classes), {})[operator] = executed
    top_of, losses = _largest_read(profile), list[_Loss]()
    for (rows, classes), each in times.items():
        alone = {_TOP} >= each.keys() - {"aten::argmax", "aten::max"} and _TOP in each
        top = top_of.get((rows, classes), 0) if alone else 0
        of_loss = {operator: n for operator, n in each.items() if alone or operator != _TOP}
        if of_loss and (top or not alone):
            executed = sum(n for operator, n in of_loss.items() if operator != _BACKWARD)
            losses.append(_Loss(rows, classes, executed, max(of_loss.values()), top))
    return losses


def _largest_read(profile: Profile) -> dict[tuple[int, int], int]:
    """Return how many of the largest of each row a topk returns, by rows and classes, as far as its result is read in an X-ray step."""
    flow = flow_of(profile)
    if flow is None:
        return {}
    every = [sizes_of(text) for text in flow.size]
    results, top = result_sizes(flow, every), dict[tuple[int, int], int]()
    for row, name in enumerate(flow.names):
        result = results.get(flow.number[row]) if name == _TOP else None
        if result and every[row] and every[row][0][:-1] == result[:-1]:
            key = math.prod(result[:-1]), every[row][0][-1]
            top[key] = max(top.get(key, 0), result[-1])
    return top


def _rows(products: Sequence[Sequence[list[int]]], loss: _Loss, sent: _Sent) -> int:
    """Return of how many rows gathers send this rank's logits, 0 where they send something else.

    Layers gather features, too, and a network has one head: gathers are not more than what is computed over the classes. A product of a
    step that makes all classes needs no logits of others.
    """
    if len(sent.ops) > max(loss.times, loss.at_once):
        return 0
    even = -(-loss.classes // sent.ranks)  # a rank behind the others may have fewer
    for rows in {
        math.prod(shape[:-1]) for tensors in products for shape in tensors if len(shape) > 1 and 0 not in shape
    }:
        part, rest = divmod(sent.numbers, rows)
        padded = loss.classes <= part * sent.ranks <= PADDED_CLASSES_TIMES * loss.classes
        if rest or not padded or not _are_of(rows, loss, len(sent.ops)):
            continue
        made = {part} | ({loss.classes - even * (sent.ranks - 1)} if part == even else set())
        if any(_makes(tensors, rows, classes) for tensors in products for classes in made) and not any(
            _makes(tensors, rows, classes) for tensors in products for classes in {loss.classes, part * sent.ranks}
        ):
            return rows
    return 0


def _are_of(rows: int, loss: _Loss, gathers: int) -> bool:
    """Return whether a loss may be of the rows of one of so many gathers: of all, or without the last one of each sequence.

    What is gathered at once may be divided into equal parts for the loss.
    """
    shared, rest = divmod(loss.at_once, gathers)
    return any(
        each == rows or (each < rows and not rows % (rows - each) and rows >= FEWEST_SHIFTED * (rows - each))
        for each in {loss.rows, loss.rows * (1 if rest or not shared else shared)}
    )


def _of_gathers(profile: Profile, operators: pl.DataFrame, loss: _Loss, sent: _Sent, rows: int) -> _Gathered:
    """Return gathered logits with the work over all classes."""
    part, whole = sent.numbers // rows, sent.numbers * sent.ranks

    def of_all(shape: list[int]) -> bool:
        wide = shape[-1] in (loss.classes, part * sent.ranks)
        return loss.rows * loss.classes <= math.prod(shape) <= whole if wide else math.prod(shape) == whole

    on_all = _with_shape(operators, of_all)
    moves = (
        _with_shape(operators, lambda shape: math.prod(shape) == sent.numbers)
        & operators["name"].is_in(_MOVES)
        & ~on_all
    )
    work, moved = (operator_work.work_of(profile, operators.filter(chosen)) for chosen in (on_all, moves))
    return _Gathered(
        frozenset(sent.ops),
        frozenset([*work["op"], *moved["op"]]),
        int(work["ns"].sum()),
        int(moved["ns"].sum()),
        sent.ranks,
        rows,
        part,
        loss.classes,
        loss.top,
        sent.element_bytes,
    )


def _with_shape(operators: pl.DataFrame, chosen: Callable[[list[int]], bool]) -> pl.Series:
    """Return which operators are given a tensor of such a shape."""
    distinct = operators["shapes"].unique().drop_nulls()
    given = {shapes: any(chosen(shape) for shape in sizes(shapes) or [] if shape) for shapes in distinct}
    return pl.Series([given.get(shapes, False) for shapes in operators["shapes"].to_list()], dtype=pl.Boolean)


def _makes(tensors: Sequence[list[int]], rows: int, part: int) -> bool:
    """Return whether a product of these tensors makes so many rows of a part of the classes."""
    given = any(len(shape) > 1 and math.prod(shape[:-1]) == rows for shape in tensors)
    return given and any(len(shape) == 2 and part in shape and shape[0] != rows for shape in tensors)


def _saved_ns(case: Case) -> int:
    """Return the most that goes (ns a step): the exposed transfer of the gathers, and what all ranks repeat."""
    gathered = case.profile.once(_find)
    if gathered is None:
        return 0
    repeated_ns = case.per_step(gathered.work_ns) * (1 - 1 / gathered.ranks)
    transfer_ns = gathered.needless * transfer_of_ops_ns(case, gathered.gathers)
    return round(transfer_ns + repeated_ns) + case.per_step(gathered.moved_ns)


def gathered_whole(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that logits are gathered whole, where that is notable."""
    gathered, saved = case.profile.once(_find), _saved_ns(case)
    if gathered is None or not case.notable(saved):
        return ""
    if gathered.top:
        return (
            f"each of {gathered.ranks} ranks makes {units.count(gathered.part)} of {units.count(gathered.classes)} numbers in each of "
            f"{units.count(gathered.rows)} rows (logits, similarities), gathers those of all others, and then picks the "
            f"{units.count(gathered.top)} largest of all of them as every other rank"
        )
    return (
        f"each of {gathered.ranks} ranks makes the logits of {units.count(gathered.part)} of "
        f"{units.count(gathered.classes)} classes, gathers those of all others for {units.count(gathered.rows)} rows, and then does the "
        "same with all of them as every other rank"
    )


def own_classes(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return the most that it saves if each rank keeps to its own classes."""
    gathered = case.profile.once(_find)
    if gathered is not None and gathered.top:
        return case.bound(
            _saved_ns(case), f"{units.count(gathered.top)} values and numbers of each row and rank move, and no other"
        )
    why = "no logits move, and each rank computes its part of what all of them repeat; three numbers for each row go between them"
    return case.bound(_saved_ns(case), why)


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy for what is computed over the classes."""
    gathered = case.profile.once(_find)
    if gathered is None or not gathered.top:
        return title, remedy
    return "Every rank gathers all of what it picks the largest of", way("top-of-each-rank")


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

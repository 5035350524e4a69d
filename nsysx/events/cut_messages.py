"""Which messages of steady steps send what ranks cut apart again, where messages of other layers have as many bytes.

A gather of a split layer's input, which the layer needs whole, may send as many bytes as one of its output. The modules that send them, and
their order in a module, tell them apart. On the way back gradients come in the opposite order: behind a cut that of the reduction after it
has come, which is gathered as well.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import polars as pl

from nsysx.events.operator_bounds import MOST_AT_ONCE_SHARE

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
#: Kinds of collectives, as NCCL notes them.
GATHERS, SCATTERS = "allgather", "reducescatter"


class Sent(NamedTuple):
    """A kind of collective, the ranks among which it is, and its bytes: those of one layer in every step."""

    kind: str
    communicator: str
    bytes: int


class SentInLayer(NamedTuple):
    """A message of an X-ray step's forward, the path of the module that sends it ("" outside), and when it begins."""

    sent: Sent
    layer: str
    start_ns: int


class CutBack(NamedTuple):
    """A cut of the forward (at ``cut_ns``, in a module), and the gather that its gradient makes."""

    sent: Sent
    layer: str
    cut_ns: int


class Cuts(NamedTuple):
    """What an X-ray step says: when the gathers begin of which each rank takes a part, and the cuts."""

    starts_ns: Collection[int]
    back: Collection[CutBack]


class CutOps(NamedTuple):
    """GPU ops of steady steps that gather what is cut apart again, with those of its gradients; the messages of the X-ray step (starts)
    that are such, and what these are.
    """

    ops: frozenset[int] = frozenset()
    starts_ns: frozenset[int] = frozenset()
    sent: frozenset[Sent] = frozenset()


class _Alike(NamedTuple):
    """Messages that are alike in layers that are: ``turn`` is which of them it is in its module, -1 where steps differ in their number."""

    sent: Sent
    layer: str
    turn: int


class _Op(NamedTuple):
    op: int
    sent: Sent
    layer: str


def ops_of_cuts(steady: pl.DataFrame, messages: Sequence[SentInLayer], cuts: Cuts, steps: int) -> CutOps:
    """Return the messages of steady steps (`with_messages`) that send what is cut apart again; ``messages``: those of an X-ray step."""
    if not cuts.starts_ns:
        return CutOps()
    steady = steady.sort("call_start_ns")
    behind = (steady["phase"] == "backward").fill_null(value=False)
    again = steady["recompute"].cast(pl.Boolean).fill_null(value=False)
    forward, backward = _ops(steady.filter(~behind & ~again)), _ops(steady.filter(behind & ~again))
    regular = _regular(messages, forward, steps)
    turns = list(zip(messages, _turns([(each.sent, each.layer) for each in messages], regular), strict=True))
    often = Counter(alike for _, alike in turns)
    cut = Counter(alike for each, alike in turns if each.start_ns in cuts.starts_ns)
    kinds = {alike for alike, count in cut.items() if count >= MOST_AT_ONCE_SHARE * often[alike]}
    starts = frozenset(each.start_ns for each, alike in turns if alike in kinds and each.start_ns in cuts.starts_ns)
    alike_of_op = _turns([(each.sent, each.layer) for each in forward], regular)
    ops = {each.op for each, alike in zip(forward, alike_of_op, strict=True) if alike in kinds}
    # What is computed again in backward sends the same again, in another order.
    whole = {(alike.sent, alike.layer) for alike in kinds} - {(alike.sent, alike.layer) for alike in {*often} - kinds}
    ops |= {each.op for each in _ops(steady.filter(again)) if (each.sent, _pattern(each.layer)) in whole}
    others = Counter(each.sent for each, alike in turns if alike not in kinds)
    sent = frozenset(alike.sent for alike in kinds)
    reductions = [each for each in messages if each.sent.kind == SCATTERS]
    ops |= _sent_back(backward, sent, others, steps) | _gathered_back(backward, cuts.back, reductions, steps)
    return CutOps(frozenset(ops), starts, sent)


def _ops(ops: pl.DataFrame) -> list[_Op]:
    columns = ops.select("op", "kind", "communicator", "bytes", pl.col("module").fill_null(""))
    return [_Op(op, Sent(*sent), layer) for op, *sent, layer in columns.iter_rows()]


def _pattern(layer: str) -> str:
    """Return the path of a layer without its number: layers of one list send alike."""
    return _NUMBER.sub("*", layer)


def _regular(messages: Sequence[SentInLayer], forward: Sequence[_Op], steps: int) -> dict[tuple[Sent, str], int]:
    """Return how many such messages a module sends in every step, where it sends as many in the X-ray step."""
    of_step = Counter((each.sent, each.layer) for each in messages if each.layer)
    steady = Counter((each.sent, each.layer) for each in forward)
    return {key: count for key, count in of_step.items() if steady[key] == count * steps}


def _turns(sent: Sequence[tuple[Sent, str]], regular: Mapping[tuple[Sent, str], int]) -> list[_Alike]:
    """Return which of a module's messages these are, in their order."""
    past = Counter[tuple[Sent, str]]()
    alike = []
    for key in sent:
        turn = past[key] % regular[key] if key in regular else -1
        past[key] += 1
        alike.append(_Alike(key[0], _pattern(key[1]), turn))
    return alike


def _sent_back(backward: Sequence[_Op], sent: Collection[Sent], others: Counter[Sent], steps: int) -> set[int]:
    """Return the ops of backward that reduce the gradient of what was gathered, in as many bytes; none where other gathers of the forward
    that send as many are enough for them.
    """
    among = {(each.communicator, each.bytes): others[each] for each in sent}
    theirs = [each for each in backward if each.sent.kind != GATHERS and each.sent[1:] in among]
    often = Counter(each.sent for each in theirs)
    return {each.op for each in theirs if not among[each.sent[1:]] or often[each.sent] > steps * among[each.sent[1:]]}


def _gathered_back(
    backward: Sequence[_Op], cuts: Collection[CutBack], reductions: Sequence[SentInLayer], steps: int
) -> set[int]:
    """Return the ops of backward that gather the gradients of parts that were cut off in the forward.

    So are those of reductions of the forward that leave each rank its part: then the order says which is which, none where it does not.
    """
    ops = set[int]()
    for sent in {each.sent for each in cuts}:
        gathers = [each for each in backward if each.sent == sent]
        reduced = [each for each in reductions if each.sent[1:] == sent[1:]]
        if not reduced:
            ops |= {each.op for each in gathers}
            continue
        for layer in {each.layer for each in cuts if each.sent == sent}:
            theirs = [each.op for each in gathers if each.layer == layer]
            forward = [(each.cut_ns, True) for each in cuts if each.sent == sent and each.layer == layer]
            forward += [(each.start_ns, False) for each in reduced if each.layer == layer]
            goes = [is_cut for _, is_cut in sorted(forward, reverse=True)]
            if len(theirs) == steps * len(goes):
                ops |= {op for number, op in enumerate(theirs) if goes[number % len(goes)]}
    return ops

"""What the layers of a network that is split over ranks send each other: which of it is needed at once, or is cut apart again.

An X-ray step says what made what a collective sends, and what is made of what came; the notes of NCCL say which collectives of the other
steps are the same: as many bytes among the same ranks. Gradients that go back through a layer are sent in as many bytes.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.behind_backward import behind_backward
from nsysx.events.cut_messages import GATHERS, SCATTERS, CutBack, Cuts, Sent, SentInLayer, ops_of_cuts
from nsysx.events.flow_messages import FlowMessage, messages_in
from nsysx.events.layer_readers import ELEMENTWISE, LayerReaders
from nsysx.events.message_calls import with_messages
from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_bounds import (
    LEAST_LAYER_MESSAGE_BYTES,
    LITTLE_BESIDE_SHARE,
    MOST_AT_ONCE_SHARE,
    OPERATORS_BEHIND,
)
from nsysx.events.operator_flow import OperatorFlow, flow_of, is_view
from nsysx.events.outputs_cut_again import CUTS, TOGETHER, CutOutput, PartsInFlow
from nsysx.events.profile import Profile

#: Operators that make a tensor and read none: what comes behind does not wait for them.
_MAKES = re.compile(
    r"^aten::(empty\w*|new_\w+|zeros\w*|ones\w*|full\w*|detach_?|lift_fresh|_local_scalar_dense|resize_)$"
)
_LISTS = re.compile(r"^c10d::_?allgather_$")


class LayerMessages(NamedTuple):
    """``at_once``: GPU ops of steady steps (ids) whose result the next operator needs, those that send as much back in backward with them.

    ``cut``: of these, gathers of which each rank then takes its own part, ``outputs``: what is computed in between, of those of an X-ray
    step. ``most_bytes`` of a message.
    """

    at_once: frozenset[int] = frozenset()
    cut: frozenset[int] = frozenset()
    most_bytes: int = 0
    outputs: tuple[CutOutput, ...] = ()


class Came(NamedTuple):
    """What came with a gather from so many ``ranks``: the ``numbers`` that it may have, and the size of what each sent (``part``)."""

    numbers: set[int]
    ranks: int
    part: Size


def layer_messages(profile: Profile) -> LayerMessages:
    """Return what the layers of the shown process send each other; nothing where no X-ray or no notes of NCCL say so."""
    return profile.once(_find)


def _find(profile: Profile) -> LayerMessages:
    flow = flow_of(profile)
    if flow is None or profile.trace.nccl is None:
        return LayerMessages()
    search = LayerSearch(flow)
    made = [m for m in outermost_messages(messages_in(flow, profile)) if m.sent in flow.row_of]
    of_ops = profile.once(with_messages)
    forward = ~pl.Series(
        behind_backward(profile.attributed.gpu_ops.filter(pl.col("process") == profile.process), of_ops)
    )
    calls = of_ops.filter(forward & (of_ops["thread"] == flow.thread) & of_ops["bytes"].is_not_null())
    calls = calls.sort("call_start_ns")
    start = calls["call_start_ns"].to_numpy()
    with_bytes: list[tuple[FlowMessage, Sent]] = []
    layer_of = dict[int, str]()  # start of a message -> the module that sends it
    for message in made:
        row = int(np.searchsorted(start, message.start_ns))
        if row < len(start) and start[row] <= message.end_ns:
            with_bytes.append((message, Sent(*calls["kind", "communicator", "bytes"].row(row))))
            layer_of[message.start_ns] = calls["module"][row] or ""
    with_bytes = [(m, sent) for m, sent in with_bytes if (sent.bytes or 0) >= LEAST_LAYER_MESSAGE_BYTES]
    if not with_bytes:
        return LayerMessages()
    often = Counter(sent for _, sent in with_bytes)
    at_once = Counter(sent for message, sent in with_bytes if search.needed_at_once(message))
    gathers = [(message, sent) for message, sent in with_bytes if sent.kind == GATHERS]
    outputs = [(sent, output) for message, sent in gathers if (output := search.cut_output(message)) is not None]
    cut_at = {output.gather_ns for _, output in outputs} | {m.start_ns for m, _ in gathers if search.is_cut(m)}
    of_layers = {sent for sent in often if at_once[sent] >= MOST_AT_ONCE_SHARE * often[sent]}
    steady = of_ops.filter(pl.col("op").is_in(profile.steady_ops["op"].implode()))
    sent_in = [SentInLayer(sent, layer_of[m.start_ns], m.start_ns) for m, sent in with_bytes]
    # What takes a part in the forward gathers the gradient of it in backward.
    back = {
        CutBack(
            sent._replace(bytes=sent.bytes * output.taken // output.sent), _layer(flow, output.cut_ns), output.cut_ns
        )
        for sent, output in outputs
    }
    cuts = ops_of_cuts(steady, sent_in, Cuts(cut_at, back), profile.scope.steps)
    return LayerMessages(
        _ops_of(steady, of_layers, back=True) | cuts.ops,
        cuts.ops,
        max((sent.bytes for sent in of_layers | cuts.sent), default=0),
        tuple(search.with_sum(out, with_bytes) for _, out in outputs if out.gather_ns in cuts.starts_ns),
    )


def _layer(flow: OperatorFlow, at_ns: int) -> str:
    """Return the path of the innermost module that is called at a time, "" outside."""
    return next((call.path for call in reversed(flow.calls) if call.start_ns <= at_ns < call.end_ns), "")


def outermost_messages(messages: list[FlowMessage]) -> list[FlowMessage]:
    """Return the messages that lie in no other: a functional collective calls one of c10d."""
    outer = list[FlowMessage]()
    for message in messages:
        if not outer or message.start_ns >= outer[-1].end_ns:
            outer.append(message)
    return outer


def _ops_of(ops: pl.DataFrame, sent: set[Sent], *, back: bool) -> frozenset[int]:
    """Return the ops that send one of these; ``back``: with those of backward that send as much among the same ranks, in another way."""
    among = {(each.communicator, each.bytes) for each in sent}
    return frozenset(
        op
        for op, phase, kind, communicator, size in ops["op", "phase", "kind", "communicator", "bytes"].iter_rows()
        if Sent(kind, communicator, size) in sent or (back and phase == "backward" and (communicator, size) in among)
    )


class LayerSearch(LayerReaders):
    """Who reads what came with a message."""

    def _results(self, message: FlowMessage) -> set[int]:
        """Return the numbers of what came; of a list of tensors that of what puts them together."""
        if not _LISTS.match(message.name):
            return set(message.results)
        together = (row for row in self._next(message) if TOGETHER.match(self.flow.names[row]))
        return {self.flow.number[row] for row in itertools.islice(together, 1)}

    def _next(self, message: FlowMessage) -> Iterator[int]:
        """Yield the outermost operators behind a message, as far as one looks."""
        rows = self.flow.outermost
        first = int(np.searchsorted(self.flow.start_ns[rows], message.end_ns))
        yield from rows[first : first + OPERATORS_BEHIND]

    def needed_at_once(self, message: FlowMessage) -> bool:
        """Return whether the first operator behind a message that computes anything needs what came."""
        flow, names = self.flow, self._results(message)
        for row in self._next(message):
            reads = any(number in names for each in self._inside(row) for number in flow.made[each])
            view = is_view(flow.names[row])
            if reads and view:
                names |= self._made(row)
            elif reads or (_LISTS.match(message.name) and flow.number[row] in names):
                return True
            elif not view and not _MAKES.match(flow.names[row]) and not self._is_little(row, message):
                return False
        return False

    def _is_little(self, row: int, message: FlowMessage) -> bool:
        """Return whether an operator works on each of a few numbers by itself, next to those of a message: that is no work beside it."""
        numbers = max((math.prod(size) for size in self.sizes[row] if size), default=0)
        whole = max((math.prod(size) for size in message.sizes if size), default=0)
        by_itself = self.hands_on(row) or ELEMENTWISE.match(self.flow.names[row])
        return bool(by_itself) and numbers <= LITTLE_BESIDE_SHARE * whole

    def came(self, message: FlowMessage) -> Came | None:
        """Return what came with a gather, None where its sizes do not say from how many ranks."""
        sizes = [size for size in message.sizes if size]
        part = min(sizes, key=math.prod, default=())
        numbers = self._results(message)
        whole = {math.prod(size) for n in numbers for _, size in self.read_behind(n, self.flow.row_of[message.sent])}
        ranks, rest = divmod(max(whole, default=0), math.prod(part) or 1)
        return Came(numbers, ranks, part) if ranks > 1 and not rest else None

    def cut_output(self, message: FlowMessage) -> CutOutput | None:
        """Return what is computed of all that was gathered until each rank takes its own part, None where all of it is needed."""
        came = self.came(message)
        return came and PartsInFlow(self, message, came.ranks, came.part).follow(came.numbers)

    def with_sum(self, output: CutOutput, messages: Sequence[tuple[FlowMessage, Sent]]) -> CutOutput:
        """Return an output with how the sum of the layer that takes the part is cut again: by the next reduction of the same ranks."""
        behind = (each for each in messages if each[0].start_ns >= self.flow.end_ns[output.by])
        message, sent = next(behind, (None, None))
        sizes = [size for size in (message.sizes if message else ()) if size]
        if sent is None or sent.kind != SCATTERS or not sizes:
            return output
        summed, rows = max(sizes, key=math.prod), max(self.sizes[output.by], key=len, default=())
        part = (summed[0] // output.ranks, *summed[1:])
        whole = zip(part[:-1], rows[:-1], strict=False)
        shorter = [d for d, (a, b) in enumerate(whole) if len(part) == len(rows) and a * output.ranks == b]
        return output._replace(scattered=shorter[0] if shorter else max(len(part) - 2, 0))

    def is_cut(self, message: FlowMessage) -> bool:
        """Return whether what was gathered is only worked on number by number until each rank takes as much as it sent, for products.

        Attention over a part of a sequence takes the first of them on one rank, and more on the next.
        """
        sizes = [size for size in message.sizes if size]
        numbers, cut = math.prod(min(sizes, key=math.prod, default=())), False
        waiting, seen = [self._results(message)], set[int]()
        while waiting:
            for row in self._behind(waiting.pop(), message) - seen:
                seen.add(row)
                name, made = self.flow.names[row], self._made(row)
                if CUTS.match(name):
                    parts = self._behind(made, message)
                    joined = {part for part in parts if TOGETHER.match(self.flow.names[part])}
                    if not joined and not (parts and all(self._is_given(part, made, numbers) for part in parts)):
                        return False
                    if not joined and not all(self.is_for_product(part, message) for part in parts):
                        return False
                    cut |= not joined
                    waiting += [self._made(part) for part in joined]
                elif is_view(name) or self.hands_on(row) or ELEMENTWISE.match(name) or TOGETHER.match(name):
                    waiting.append(made)
                else:
                    return False
        return cut

    def _is_given(self, row: int, numbers: Collection[int], size: int) -> bool:
        """Return whether an operator is given so many numbers of one of some tensors."""
        sizes, made = self.sizes[row], self.flow.made[row]
        return any(n in numbers and math.prod(each) == size for n, each in zip(made, sizes, strict=False))
